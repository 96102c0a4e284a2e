"""Which engines a directory holds. `docs/performance.md` says how they come to be there.

    DIR/llama.cpp/llama-server              a program
    DIR/{openvino,vllm,transformers,ctranslate2}/    virtual environments
    DIR/models/NAME-q4_0.gguf               the model in other formats; NAME is the model's own
    DIR/models/NAME-{hf,ov-int8,ct2-int8}/
    DIR/peers.toml                          says otherwise, where something lies elsewhere

``peers.toml`` has two tables, both optional: ``[peers]`` with an engine's name and its program or
environment, and ``[models]`` with ``q4_0``, ``hf``, ``ov-int8`` or ``ct2-int8`` and a path. Paths
are relative to the directory.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pagemill.errors import ConfigError

PEERS = ("llama.cpp", "openvino", "vllm", "transformers", "ctranslate2")
MODEL_FORMATS: Mapping[str, str] = {
    "q4_0": "-q4_0.gguf",
    "hf": "-hf",
    "ov-int8": "-ov-int8",
    "ct2-int8": "-ct2-int8",
}
"""Formats and how their names end."""
_ONLY_FORMAT = {"vllm": "hf", "transformers": "hf", "ctranslate2": "ct2-int8"}
"""What a peer is of no use without. The others read the GGUF file too."""


@dataclass(frozen=True)
class Installed:
    """What there is. Make one with `find_installed`."""

    programs: Mapping[str, Path] = field(default_factory=dict)
    """A peer's interpreter, or its server."""
    models: Mapping[str, Path] = field(default_factory=dict)
    """A format's file or directory."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """What else there could be (a peer, or a format), and where it was looked for."""


def find_installed(directory: Path | None, model_name: str) -> Installed:
    """Look into a directory; None holds nothing.

    Raises:
        ConfigError: there is no such directory, or its ``peers.toml`` is wrong.
    """
    if directory is None:
        where = "no --peers-dir was given"
        return Installed(missing=dict.fromkeys((*PEERS, *MODEL_FORMATS), where))
    if not directory.is_dir():
        raise ConfigError(f"--peers-dir={directory}: there is no such directory")
    said = _read_toml(directory / "peers.toml")
    programs: dict[str, Path] = {}
    models: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for peer in PEERS:
        place = directory / said["peers"].get(peer, peer)
        program = place
        if place.is_dir():
            program = place / ("llama-server" if peer == "llama.cpp" else "bin/python")
        if program.is_file():
            programs[peer] = program
        else:
            missing[peer] = f"there is no file {program}"
    for name, suffix in MODEL_FORMATS.items():
        place = directory / said["models"].get(name, f"models/{model_name}{suffix}")
        if place.exists():
            models[name] = place
        else:
            missing[name] = f"there is no {place}"
    for peer, name in _ONLY_FORMAT.items():
        if peer in programs and name not in models:
            del programs[peer]
            missing[peer] = f"it has no model: {missing[name]}"
    return Installed(programs, models, missing)


def _read_toml(path: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {"peers": {}, "models": {}}
    if not path.exists():
        return found
    try:
        tables = tomllib.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    for table, known in (("peers", PEERS), ("models", tuple(MODEL_FORMATS))):
        entries = tables.pop(table, {})
        if not isinstance(entries, dict):
            raise ConfigError(f"{path}: {table} must be a table of paths, got {entries!r}")
        for name, value in entries.items():
            if name not in known:
                raise ConfigError(
                    f"{path}: [{table}] has no {name!r}; it may have {', '.join(known)}"
                )
            if not isinstance(value, str):
                raise ConfigError(f"{path}: [{table}] {name} must be a path, got {value!r}")
            found[table][name] = value
    if tables:
        raise ConfigError(
            f"{path}: unknown {', '.join(map(repr, tables))}; it may have [peers] and [models]"
        )
    return found
