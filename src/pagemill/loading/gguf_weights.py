"""A GGUF file as a `WeightSource`: Hugging Face's names, layout and conventions."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from pagemill.errors import InvalidFileError, UnsupportedModelError
from pagemill.kernels.packing import IntArray, StoredRows, StoredType
from pagemill.loading.gguf_config import GGUFFields, gguf_to_hf_config
from pagemill.loading.gguf_file import GGUFFile, TensorType
from pagemill.loading.gguf_names import ARCHITECTURES, NOT_WEIGHTS, Change, place_of

_AS_STORED: Final = {
    TensorType.F32: torch.float32,
    TensorType.F16: torch.float16,
    TensorType.BF16: torch.bfloat16,
}


class GGUFWeights:
    """The tensors of an open GGUF file.

    The bytes as stored stay reachable: ``file.raw(gguf_name(name))`` and ``change(name)``.
    """

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self._fields = GGUFFields(file.metadata, str(file.path))
        architecture = self._fields.architecture(ARCHITECTURES)
        self._gguf_names: dict[str, str] = {}
        self._changes: dict[str, Change] = {}
        unknown = []
        for gguf_name in file.tensors:
            if gguf_name in NOT_WEIGHTS:
                continue
            place = place_of(architecture, gguf_name)
            if place is None:
                unknown.append(gguf_name)
                continue
            self._gguf_names[place.name] = gguf_name
            self._changes[place.name] = place.change
        if unknown:
            raise UnsupportedModelError(
                f"{file.path}: architecture {architecture!r} has no place for the tensor(s) "
                f"{', '.join(unknown[:8])}{' …' if len(unknown) > 8 else ''}"
            )

    def names(self) -> Collection[str]:
        """All canonical names."""
        return self._gguf_names.keys()

    def gguf_name(self, name: str) -> str:
        """Return the name of a tensor inside the file."""
        return self._gguf_names[name]

    def change(self, name: str) -> Change:
        """Return how the stored content differs from the canonical one."""
        return self._changes[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the tensor's canonical shape, without reading it."""
        shape = self.file.tensors[self._gguf_names[name]].shape
        return shape[::-1] if self._changes[name] is Change.TRANSPOSED else shape

    def stored_type(self, name: str) -> str:
        """Return the file's type of the tensor, such as ``Q4_K``."""
        return self.file.tensors[self._gguf_names[name]].type.name

    @property
    def files(self) -> list[Path]:
        """The one file that holds the tensors."""
        return [self.file.path]

    def load(self, name: str) -> torch.Tensor:
        """Read one tensor: F32, F16 and BF16 as stored, quantized types as float32."""
        change = self._changes[name]
        tensor = self._stored_values(self._gguf_names[name])
        order = self._row_order(name)
        if order is not None:
            return tensor[torch.from_numpy(order)]
        if change is Change.PLUS_ONE:
            return tensor.float() - 1.0  # in half precision 1 + w has lost digits already
        if change is Change.TRANSPOSED:
            return tensor.T
        return tensor

    def quantized_rows(self, name: str) -> StoredRows | None:
        """The rows of a quantized matrix as they lie in the file, in canonical order.

        None if the tensor is stored in floats, is no matrix, or differs from the canonical one
        otherwise than in the order of its rows.
        """
        info = self.file.tensors[self._gguf_names[name]]
        change = self._changes[name]
        if info.type in _AS_STORED or len(info.shape) != 2:
            return None
        if change in (Change.PLUS_ONE, Change.TRANSPOSED):
            return None
        raw = self.file.raw(info.name)
        return StoredRows(StoredType(info.type), raw, info.shape[1], self._row_order(name))

    def release(self, name: str) -> None:
        """Let go of the pages of the file that reading this tensor has brought into memory."""
        self.file.release(self._gguf_names[name])

    def hf_config(self) -> dict[str, Any]:
        """Translate the metadata into the content of a Hugging Face ``config.json``."""
        shapes = {name: info.shape for name, info in self.file.tensors.items()}
        factors = {
            name: self.file.dequantize(name).ravel().tolist()
            for name in NOT_WEIGHTS & self.file.tensors.keys()
        }
        return gguf_to_hf_config(
            self.file.metadata, shapes, rope_factors=factors, source=str(self.file.path)
        )

    def _stored_values(self, gguf_name: str) -> torch.Tensor:
        info = self.file.tensors[gguf_name]
        dtype = _AS_STORED.get(info.type)
        if dtype is None:
            return torch.from_numpy(self.file.dequantize(gguf_name))
        # A copy: the mapped file is read-only, and torch has no such tensors.
        return torch.from_numpy(self.file.raw(gguf_name).copy()).view(dtype).reshape(info.shape)

    def _row_order(self, name: str) -> IntArray | None:
        """The stored row that is the canonical row i, for each i; None if they are the same.

        Within a head the converter interleaves the halves: row 2 i is the old i, row 2 i + 1 the
        old i + head_dim / 2.
        """
        if self._changes[name] is Change.PERMUTED_QUERY:
            num_heads = self._fields.num_heads()
        elif self._changes[name] is Change.PERMUTED_KEY:
            num_heads = self._fields.num_kv_heads()
        else:
            return None
        rows = self.file.tensors[self._gguf_names[name]].shape[0]
        if rows % (2 * num_heads):
            raise InvalidFileError(
                f"{self.file.path}: tensor {self._gguf_names[name]!r} has {rows} rows, which "
                f"{num_heads} heads cannot share in rotary pairs"
            )
        return np.arange(rows).reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(rows)
