"""The header of a GGUF file: a bounds-checked cursor over untrusted bytes, and the metadata.

GGUF is a little-endian format (ggml's ``docs/gguf.md``):

    magic "GGUF" | version u32 | tensor_count u64 | metadata_count u64
    metadata_count x  (key: string, value type: u32, value)
    tensor_count   x  (name: string, num_dims u32, dims u64[num_dims], type u32, offset u64)
    padding to the alignment | tensor data

A string is a u64 length and that many UTF-8 bytes; an array an element type, a u64 length and the
elements. Any length may be a lie, so each is held against the bytes that remain before anything
is allocated, and against a limit far above what real models need.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from pagemill.errors import InvalidFileError, UnsupportedModelError

MAX_METADATA_ENTRIES: Final = 1 << 16
MAX_KEY_BYTES: Final = (1 << 16) - 1
MAX_STRING_BYTES: Final = 1 << 24
MAX_ARRAY_LENGTH: Final = 1 << 22
"""Sixteen times the largest vocabulary known (262,144 tokens)."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_BOOL: Final = 7
_STRING: Final = 8
_ARRAY: Final = 9
_NUMBER_FORMATS: Final[dict[int, str]] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    _BOOL: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_NUMBERS: Final = {value_type: np.dtype(text) for value_type, text in _NUMBER_FORMATS.items()}

# The fewest bytes that one entry can take: an empty key, a type and a one-byte value.
_MIN_METADATA_ENTRY_BYTES: Final = 8 + 4 + 1


class HeaderCursor:
    """Reads the header's fields in order; no read passes the end of the file.

    Every method that reads takes ``thing``, the name under which an error speaks of the field.
    """

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.position = 0
        self.size_bytes = len(data)
        self._data = data

    @property
    def remaining_bytes(self) -> int:
        """Bytes between the cursor and the end of the file."""
        return self.size_bytes - self.position

    def fail(self, thing: str, problem: str) -> NoReturn:
        """Raise `InvalidFileError` naming the file, the field and what is wrong with it."""
        raise InvalidFileError(f"{self.path}: {thing} {problem}")

    def take(self, num_bytes: int, thing: str) -> bytes:
        """Take the next ``num_bytes`` bytes."""
        if num_bytes > self.remaining_bytes:
            self.fail(
                thing,
                f"needs {num_bytes} bytes at offset {self.position}, "
                f"but only {self.remaining_bytes} remain: the file is truncated or damaged",
            )
        start = self.position
        self.position = start + num_bytes
        return self._data[start : self.position]

    def u32(self, thing: str) -> int:
        """Read an unsigned 32-bit integer."""
        return int(_U32.unpack(self.take(4, thing))[0])

    def u64(self, thing: str) -> int:
        """Read an unsigned 64-bit integer."""
        return int(_U64.unpack(self.take(8, thing))[0])

    def count(self, thing: str, limit: int, min_entry_bytes: int) -> int:
        """Read a u64 that counts entries of at least ``min_entry_bytes`` bytes each."""
        count = self.u64(thing)
        if count > limit:
            self.fail(thing, f"is {count}, above the limit of {limit}")
        if count * min_entry_bytes > self.remaining_bytes:
            self.fail(
                thing,
                f"is {count}, which needs at least {count * min_entry_bytes} bytes, "
                f"but only {self.remaining_bytes} remain",
            )
        return count

    def string(self, thing: str, limit_bytes: int = MAX_STRING_BYTES) -> str:
        """Read a length-prefixed UTF-8 string."""
        length = self.count(f"length of {thing}", limit_bytes, 1)
        raw = self.take(length, thing)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(thing, f"is not UTF-8 ({error.reason} at byte {error.start})")

    def strings(self, count: int, thing: str) -> list[str]:
        """Read ``count`` strings. A tight loop: a vocabulary has hundreds of thousands."""
        data, size, position = self._data, self.size_bytes, self.position
        read_u64 = _U64.unpack_from
        result: list[str] = []
        append = result.append
        try:
            for _ in range(count):
                start = position + 8
                position = start + read_u64(data, position)[0]
                if position > size:  # a slice would be cut short silently
                    break
                append(data[start:position].decode("utf-8"))
        except struct.error:
            pass  # the length itself lies past the end
        except UnicodeDecodeError as error:
            self.fail(f"{thing}[{len(result)}]", f"is not UTF-8 ({error.reason})")
        if len(result) < count:
            self.fail(
                f"{thing}[{len(result)}] of {count}",
                f"runs past the end of the file ({size} bytes)",
            )
        self.position = position
        return result

    def numbers(self, value_type: int, count: int, thing: str) -> list[Any]:
        """Read ``count`` numbers or booleans of one GGUF value type, as Python values."""
        dtype = _NUMBERS[value_type]
        values = np.frombuffer(self.take(count * dtype.itemsize, thing), dtype)
        if value_type == _BOOL:
            if count and int(values.max()) > 1:
                self.fail(thing, f"holds a boolean stored as {values.max()}, not 0 or 1")
            values = values.astype(np.bool_)
        as_list: list[Any] = values.tolist()
        return as_list


def read_metadata(cursor: HeaderCursor, count: int) -> dict[str, Any]:
    """Read ``count`` metadata entries as plain Python values (arrays become lists).

    Raises `InvalidFileError` on a duplicate key or a length, type or text that cannot be, and
    `UnsupportedModelError` on an array of arrays, which the format allows and no model uses.
    """
    metadata: dict[str, Any] = {}
    for index in range(count):
        key = cursor.string(f"metadata key {index}", MAX_KEY_BYTES)
        if key in metadata:
            cursor.fail(f"metadata key {key!r}", "appears twice")
        metadata[key] = _read_value(cursor, f"metadata {key!r}")
    return metadata


def read_metadata_count(cursor: HeaderCursor) -> int:
    """Read the number of metadata entries."""
    return cursor.count("metadata count", MAX_METADATA_ENTRIES, _MIN_METADATA_ENTRY_BYTES)


def _read_value(cursor: HeaderCursor, thing: str) -> Any:
    value_type = cursor.u32(f"value type of {thing}")
    if value_type == _STRING:
        return cursor.string(thing)
    if value_type == _ARRAY:
        return _read_array(cursor, thing)
    if value_type not in _NUMBERS:
        cursor.fail(f"value type of {thing}", f"is {value_type}; known types are 0 to 12")
    return cursor.numbers(value_type, 1, thing)[0]


def _read_array(cursor: HeaderCursor, thing: str) -> list[Any]:
    element_type = cursor.u32(f"element type of {thing}")
    length_name = f"array length of {thing}"
    if element_type == _STRING:
        return cursor.strings(cursor.count(length_name, MAX_ARRAY_LENGTH, 8), thing)
    if element_type == _ARRAY:
        raise UnsupportedModelError(f"{cursor.path}: {thing} is an array of arrays, unsupported")
    if element_type not in _NUMBERS:
        cursor.fail(f"element type of {thing}", f"is {element_type}; known types are 0 to 12")
    itemsize = _NUMBERS[element_type].itemsize
    length = cursor.count(length_name, MAX_ARRAY_LENGTH, itemsize)
    return cursor.numbers(element_type, length, thing)
