"""A directory of safetensors files as a `WeightSource`.

The ``safetensors`` library verifies each file's header. It would read tensors through a mapping of
the whole file, all of which then counts as this process's memory; here each is read into memory of
its own.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from pagemill.errors import InvalidFileError, ModelNotFoundError, UnsupportedModelError
from pagemill.loading.hf_directory import read_json_object

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"

_PICKLE_SUFFIXES: Final = (".bin", ".pt", ".pth", ".ckpt")
_DTYPES: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

# Multimodal Gemma 3: the text model inside the whole, in its older and newer spelling …
_GEMMA3_TEXT_PREFIXES: Final = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}
# … and what sees images, which is not run.
_GEMMA3_VISION_PREFIXES: Final = (
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
)
# A checkpoint saved from the model without its output projection has no prefix.
_BARE_PREFIXES: Final = {
    "gpt2": (("h.", "wte.", "wpe.", "ln_f."), "transformer."),
    "other": (("layers.", "embed_tokens.", "norm."), "model."),
}


def canonical_name(stored: str, model_type: str) -> str | None:
    """The name that models ask for; None for a tensor that is left out on purpose."""
    if model_type == "gemma3_text":
        if stored.startswith(_GEMMA3_VISION_PREFIXES):
            return None
        for prefix, replacement in _GEMMA3_TEXT_PREFIXES.items():
            if stored.startswith(prefix):
                return replacement + stored.removeprefix(prefix)
    bare, prefix = _BARE_PREFIXES["gpt2" if model_type == "gpt2" else "other"]
    return prefix + stored if stored.startswith(bare) else stored


class _Stored(NamedTuple):
    """Where a tensor lies."""

    name: str
    """In its file."""
    path: Path
    type: str
    shape: tuple[int, ...]
    offset: int
    """From the start of the file, in bytes."""
    size_bytes: int


class SafetensorsWeights:
    """The tensors of ``model.safetensors``, or of the shards that its index names.

    Args:
        directory: where the files lie.
        model_type: the configuration's; tells which prefixes tensor names may have.

    Raises `ModelNotFoundError` if a file is missing, `UnsupportedModelError` if there are only
    pickle files, `InvalidFileError` if files or their index are damaged or disagree.
    """

    def __init__(self, directory: Path, model_type: str) -> None:
        self._directory = directory
        self._tensors: dict[str, _Stored] = {}
        if (directory / SINGLE_FILE).is_file():
            self._add_file(SINGLE_FILE, None, model_type)
        elif (directory / INDEX_FILE).is_file():
            for file_name, names in self._read_index().items():
                self._add_file(file_name, names, model_type)
        else:
            raise _no_weights(directory)

    def names(self) -> Collection[str]:
        """All canonical names."""
        return self._tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the tensor's shape, without reading it."""
        return self._tensors[name].shape

    def stored_type(self, name: str) -> str:
        """Return the file's name for the type of the tensor's numbers, such as ``BF16``."""
        return self._tensors[name].type

    @property
    def files(self) -> list[Path]:
        """All files that hold tensors."""
        return sorted({stored.path for stored in self._tensors.values()})

    def load(self, name: str) -> torch.Tensor:
        """Read one tensor as stored: float32, float16 or bfloat16."""
        stored = self._tensors[name]
        if stored.type not in _DTYPES:
            raise UnsupportedModelError(
                f"{stored.path}: tensor {stored.name!r} has type {stored.type}, which is not "
                f"supported; supported are {', '.join(_DTYPES)}"
            )
        data = torch.empty(stored.size_bytes, dtype=torch.uint8)
        try:
            with stored.path.open("rb", buffering=0) as file:
                file.seek(stored.offset)
                _read_into(file, data.numpy().data)
        except OSError as error:
            raise InvalidFileError(
                f"{stored.path}: tensor {stored.name!r} cannot be read: {error}"
            ) from error
        return data.view(_DTYPES[stored.type]).reshape(stored.shape)

    def _read_index(self) -> dict[str, set[str]]:
        """Read which tensors lie in which file of this directory."""
        path = self._directory / INDEX_FILE
        weight_map = read_json_object(path).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise InvalidFileError(f"{path}: weight_map is missing, empty or not an object")
        files: dict[str, set[str]] = {}
        for tensor_name, file_name in weight_map.items():
            # By name only: a shard may well be a symbolic link to elsewhere (the hub's cache).
            if (
                not isinstance(file_name, str)
                or not file_name.endswith(".safetensors")
                or any(separator in file_name for separator in "/\\:\0")
            ):
                raise InvalidFileError(
                    f"{path}: tensor {tensor_name!r} is said to lie in {file_name!r}, which is not "
                    "the name of a .safetensors file in this directory"
                )
            files.setdefault(file_name, set()).add(tensor_name)
        return files

    def _add_file(self, file_name: str, indexed: set[str] | None, model_type: str) -> None:
        path = self._directory / file_name
        tensors = _read_header(path)
        if indexed is not None and indexed != tensors.keys():
            missing, unlisted = indexed - tensors.keys(), tensors.keys() - indexed
            what = f"lacks tensor {min(missing)!r}" if missing else f"holds {min(unlisted)!r} too"
            raise InvalidFileError(f"{path}: {what}, against {INDEX_FILE}")
        for stored in tensors.values():
            name = canonical_name(stored.name, model_type)
            if name is None:
                continue
            if name in self._tensors:
                other = self._tensors[name]
                raise InvalidFileError(
                    f"{path}: tensor {stored.name!r} is {name!r} twice; the other is "
                    f"{other.name!r} in {other.path.name}"
                )
            self._tensors[name] = stored


def _read_header(path: Path) -> dict[str, _Stored]:
    """Verify the file and find its tensors, by their names in it."""
    try:
        # Numbers and ranges fit each other and the file from here on.
        with safe_open(path, framework="np"), path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(header_bytes))
    except FileNotFoundError:
        raise ModelNotFoundError(
            f"{path}: no such file, though {INDEX_FILE} names it: the download is incomplete"
        ) from None
    except SafetensorError as error:
        raise InvalidFileError(f"{path}: not a valid safetensors file: {error}") from error
    except OSError as error:
        raise ModelNotFoundError(f"{path}: cannot be read: {error}") from error
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        offset = 8 + header_bytes + begin
        tensors[name] = _Stored(
            name, path, entry["dtype"], tuple(entry["shape"]), offset, end - begin
        )
    return tensors


def _read_into(file: io.RawIOBase, data: memoryview) -> None:
    """Fill ``data``, which may take several calls; raises OSError at the end of the file."""
    while data:
        if not (count := file.readinto(data)):
            raise OSError("the file has become shorter since it was opened")
        data = data[count:]


def _no_weights(directory: Path) -> ModelNotFoundError | UnsupportedModelError:
    pickles = sorted(p.name for p in directory.iterdir() if p.suffix in _PICKLE_SUFFIXES)
    if pickles:
        return UnsupportedModelError(
            f"{directory}: the weights are pickle files ({pickles[0]}), and loading a pickle runs "
            "code that it contains; convert them to safetensors, or get a model that has them"
        )
    others = sorted(p.name for p in directory.iterdir() if p.suffix in (".gguf", ".safetensors"))
    hint = f"; it holds {', '.join(others[:5])}" if others else ""
    return ModelNotFoundError(
        f"{directory}: no {SINGLE_FILE} and no {INDEX_FILE} in this directory{hint}"
    )
