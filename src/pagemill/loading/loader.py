"""From a model's name to everything that is needed to run it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagemill.errors import ModelNotFoundError
from pagemill.loading.gguf_file import GGUFFile
from pagemill.loading.gguf_weights import GGUFWeights
from pagemill.loading.hf_directory import read_generation_config, read_hf_config
from pagemill.loading.safetensors_weights import SafetensorsWeights
from pagemill.loading.sources import resolve_model
from pagemill.loading.weights import WeightFiles

if TYPE_CHECKING:
    from pagemill.loading.tokenizer import FileTokenizer


@dataclass(frozen=True)
class LoadedModel:
    """A model's parts; the tensors themselves are read when the model is built."""

    name: str
    """As the user named it."""
    source_path: Path
    """The GGUF file or the directory."""
    hf_config: dict[str, Any]
    """The content of ``config.json``, or its equal made from GGUF metadata."""
    weights: WeightFiles
    tokenizer: FileTokenizer | None
    """None if the model comes without one: it runs on token ids only."""
    generation_config: dict[str, Any]
    """The content of ``generation_config.json``; ids of special tokens, for a GGUF file."""


def load_model(
    model: str, tokenizer: str | None = None, *, progress: bool | None = None
) -> LoadedModel:
    """Find, fetch if need be, and open the model that ``model`` names.

    Args:
        model: an alias, a ``.gguf`` file, a directory, or a hub id (`pagemill.loading.sources`).
        tokenizer: where to take the tokenizer from instead: a directory, a ``tokenizer.json``, or
            a ``.gguf`` file.
        progress: show bars on stderr; None: if stderr is a terminal.

    Raises a `ModelError`: see its subclasses for what can be wrong.
    """
    path = resolve_model(model, progress=progress)
    if path.is_dir():
        return _load_directory(model, path, tokenizer)
    return _load_gguf(model, path, tokenizer)


def _load_gguf(name: str, path: Path, tokenizer: str | None) -> LoadedModel:
    file = GGUFFile.open(path)
    weights = GGUFWeights(file)
    hf_config = weights.hf_config()
    special: dict[str, Any] = {
        key: hf_config[key] for key in ("bos_token_id", "eos_token_id") if key in hf_config
    }
    own_tokenizer = None
    if tokenizer is None and "tokenizer.ggml.model" in file.metadata:
        own_tokenizer = _tokenizer_of_gguf(file)
    return LoadedModel(
        name=name,
        source_path=path,
        hf_config=hf_config,
        weights=weights,
        tokenizer=load_tokenizer(tokenizer) if tokenizer else own_tokenizer,
        generation_config=special,
    )


def _load_directory(name: str, path: Path, tokenizer: str | None) -> LoadedModel:
    hf_config = read_hf_config(path)
    weights = SafetensorsWeights(path, str(hf_config.get("model_type")))
    own_tokenizer = None
    if tokenizer is None and (path / "tokenizer.json").is_file():
        own_tokenizer = _tokenizer_of_directory(path)
    return LoadedModel(
        name=name,
        source_path=path,
        hf_config=hf_config,
        weights=weights,
        tokenizer=load_tokenizer(tokenizer) if tokenizer else own_tokenizer,
        generation_config=read_generation_config(path),
    )


def load_tokenizer(tokenizer: str) -> FileTokenizer:
    """Load a tokenizer alone: from a directory, a ``tokenizer.json`` or a ``.gguf`` file."""
    path = Path(tokenizer).expanduser()
    if path.is_dir():
        if not (path / "tokenizer.json").is_file():
            raise ModelNotFoundError(f"tokenizer: {path} holds no tokenizer.json")
        return _tokenizer_of_directory(path)
    if path.is_file() and path.name == "tokenizer.json":
        return _tokenizer_of_directory(path.parent)
    if path.is_file():
        return _tokenizer_of_gguf(GGUFFile.open(path))
    raise ModelNotFoundError(
        f"tokenizer: no file or directory {tokenizer!r}; give a directory with tokenizer.json, "
        "such a file, or a .gguf file"
    )


# The tokenizers library takes a moment to import; running on token ids needs none of it.
def _tokenizer_of_directory(path: Path) -> FileTokenizer:
    from pagemill.loading.tokenizer import FileTokenizer

    return FileTokenizer.from_directory(path)


def _tokenizer_of_gguf(file: GGUFFile) -> FileTokenizer:
    from pagemill.loading.tokenizer import FileTokenizer

    return FileTokenizer.from_gguf(file.metadata)
