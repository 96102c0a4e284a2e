"""Writes small GGUF files, right ones and wrong ones, field by field."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import quantize

FloatArray = npt.NDArray[np.float32]

U8, U32, F32, BOOL, STRING, ARRAY, U64, F64 = 0, 4, 6, 7, 8, 9, 10, 12
_FORMATS = {U8: "<B", U32: "<I", F32: "<f", BOOL: "<B", U64: "<Q", F64: "<d"}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(value_type: int, content: Any) -> bytes:
    """The bytes of a metadata value with its type in front."""
    if value_type == STRING:
        return struct.pack("<I", STRING) + string(content)
    return struct.pack("<I", value_type) + struct.pack(_FORMATS[value_type], content)


def array(element_type: int, items: list[Any], length: int | None = None) -> bytes:
    """The bytes of an array value; ``length`` lets it lie about its length."""
    head = struct.pack("<IIQ", ARRAY, element_type, len(items) if length is None else length)
    if element_type == STRING:
        return head + b"".join(string(item) for item in items)
    return head + b"".join(struct.pack(_FORMATS[element_type], item) for item in items)


def guess(content: Any) -> bytes:
    """The bytes of a value whose GGUF type follows from its Python type."""
    if isinstance(content, bytes):
        return content
    if isinstance(content, list):
        kind = STRING if isinstance(content[0], str) else F32
        return array(U32 if isinstance(content[0], int) else kind, content)
    if isinstance(content, str):
        return value(STRING, content)
    if isinstance(content, bool):
        return value(BOOL, content)
    return value(U32 if isinstance(content, int) else F32, content)


@dataclass
class TensorEntry:
    """A row of the tensor table; None means the right value for it."""

    name: str | bytes
    dims: list[int]  # GGUF order: the contiguous one first
    type: int
    data: bytes
    offset: int | None = None


@dataclass
class GGUFBuilder:
    """Collects metadata and tensors; `build` lays them out, `write` also saves them."""

    magic: bytes = b"GGUF"
    version: int = 3
    alignment: int = 32
    metadata: list[tuple[str | bytes, bytes]] = field(default_factory=list)
    tensors: list[TensorEntry] = field(default_factory=list)
    tensor_count: int | None = None
    metadata_count: int | None = None

    def set(self, **entries: Any) -> GGUFBuilder:
        """Add metadata; ``__`` in a keyword stands for a dot."""
        for key, content in entries.items():
            self.metadata.append((key.replace("__", "."), guess(content)))
        return self

    def update(self, entries: dict[str, Any]) -> GGUFBuilder:
        for key, content in entries.items():
            self.metadata.append((key, guess(content)))
        return self

    def tensor(
        self,
        name: str,
        values: FloatArray,
        tensor_type: GGMLQuantizationType = GGMLQuantizationType.F32,
    ) -> GGUFBuilder:
        """Add a tensor, quantized by the gguf library."""
        data = quantize(values, tensor_type).tobytes()
        self.tensors.append(TensorEntry(name, list(values.shape)[::-1], int(tensor_type), data))
        return self

    def build(self) -> bytes:
        tensor_count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        metadata_count = len(self.metadata) if self.metadata_count is None else self.metadata_count
        header = self.magic + struct.pack("<IQQ", self.version, tensor_count, metadata_count)
        for key, raw in self.metadata:
            header += string(key) + raw
        data = b""
        for entry in self.tensors:
            data += bytes(-len(data) % self.alignment)
            offset = len(data) if entry.offset is None else entry.offset
            header += string(entry.name) + struct.pack("<I", len(entry.dims))
            header += struct.pack(f"<{len(entry.dims)}Q", *entry.dims)
            header += struct.pack("<IQ", entry.type, offset)
            data += entry.data
        return header + bytes(-len(header) % self.alignment) + data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.build())
        return path
