"""A GGUF model file, memory-mapped: verified as a whole when opened, read tensor by tensor.

The ``gguf`` library's own reader is not used for reading: it trusts the file and takes seconds on
a large vocabulary. Its block layouts and dequantization are.
"""

from __future__ import annotations

import itertools
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as dequantize_blocks

from pagemill.errors import InvalidFileError, ModelNotFoundError, UnsupportedModelError
from pagemill.loading.gguf_header import HeaderCursor, read_metadata, read_metadata_count

TensorType = GGMLQuantizationType

SUPPORTED_TENSOR_TYPES: Final = (
    TensorType.F32,
    TensorType.F16,
    TensorType.BF16,
    TensorType.Q4_0,
    TensorType.Q4_1,
    TensorType.Q5_0,
    TensorType.Q5_1,
    TensorType.Q8_0,
    TensorType.Q4_K,
    TensorType.Q5_K,
    TensorType.Q6_K,
)

SUPPORTED_VERSIONS: Final = (2, 3)
MAX_TENSORS: Final = 1 << 20
MAX_TENSOR_NAME_BYTES: Final = 64
MAX_DIMS: Final = 4
MAX_ALIGNMENT_BYTES: Final = 1 << 20
DEFAULT_ALIGNMENT_BYTES: Final = 32

# The fewest bytes of one entry: an empty name, one dimension, type and offset.
_MIN_TENSOR_ENTRY_BYTES: Final = 8 + 4 + 8 + 4 + 8

# Values dequantized at once: few enough that numpy's temporaries stay in the cache (measured:
# 2^17 is three to four times as fast as 2^20), enough that its cost a call does not show.
_DEQUANTIZE_CHUNK: Final = 1 << 17

ByteArray = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies in the file, and how it is stored."""

    name: str
    shape: tuple[int, ...]
    """Numpy order: the last dimension is contiguous (GGUF itself lists it first)."""
    type: TensorType
    offset: int
    """From the start of the file, in bytes."""
    size_bytes: int


class GGUFFile:
    """An open GGUF file. The header has been verified; tensor data is read when asked for.

    The file stays mapped for as long as this object or an array from `raw` lives; there is
    nothing to close.
    """

    def __init__(
        self, path: Path, metadata: dict[str, Any], tensors: dict[str, TensorInfo], data: mmap.mmap
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self._data = data

    @classmethod
    def open(cls, path: str | Path) -> GGUFFile:
        """Map the file and verify its whole header before any tensor is touched.

        Raises `ModelNotFoundError` if there is no such readable file, `InvalidFileError` if it is
        damaged or declares what it does not hold, and `UnsupportedModelError` for a version,
        tensor type or split that is not implemented.
        """
        path = Path(path)
        data = _map_file(path)
        cursor = HeaderCursor(path, data)
        _read_magic_and_version(cursor)
        tensor_count = cursor.count("tensor count", MAX_TENSORS, _MIN_TENSOR_ENTRY_BYTES)
        metadata = read_metadata(cursor, read_metadata_count(cursor))
        _refuse_split(path, metadata)
        alignment = _alignment(cursor, metadata)
        tensors = _read_tensor_table(cursor, tensor_count, alignment)
        return cls(path, metadata, tensors, data)

    def raw(self, name: str) -> ByteArray:
        """Return the tensor's bytes as stored: a read-only view of the file, one-dimensional."""
        info = self.tensors[name]
        return np.frombuffer(self._data, np.uint8, count=info.size_bytes, offset=info.offset)

    def release(self, name: str) -> None:
        """Take the tensor's pages out of this process's memory; reading it maps them again."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        info = self.tensors[name]
        first = info.offset // mmap.PAGESIZE * mmap.PAGESIZE
        self._data.madvise(mmap.MADV_DONTNEED, first, info.offset + info.size_bytes - first)

    def dequantize(self, name: str) -> FloatArray:
        """Return the tensor's values, float32, in the shape of its `TensorInfo` (a new array)."""
        info = self.tensors[name]
        block_values, block_bytes = GGML_QUANT_SIZES[info.type]
        raw = self.raw(name)
        values = np.empty(len(raw) // block_bytes * block_values, np.float32)
        num_blocks = _DEQUANTIZE_CHUNK // block_values
        step_bytes, step_values = num_blocks * block_bytes, num_blocks * block_values
        # A damaged scale may be infinite or NaN; it gives such weights, not a warning.
        with np.errstate(invalid="ignore", over="ignore"):
            for index in range(-(-len(raw) // step_bytes)):
                # One wide row: the library loops in Python over groups of 16 rows.
                row = raw[index * step_bytes : (index + 1) * step_bytes].reshape(1, -1)
                values[index * step_values : (index + 1) * step_values] = dequantize_blocks(
                    row, info.type
                )[0]
        return values.reshape(info.shape)


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path}: no such file") from None
    except ValueError:
        raise InvalidFileError(f"{path}: the file is empty") from None
    except OSError as error:
        raise ModelNotFoundError(f"{path}: cannot be read: {error.strerror}") from error


def _read_magic_and_version(cursor: HeaderCursor) -> None:
    magic = cursor.take(4, "magic")
    if magic != b"GGUF":
        cursor.fail("magic", f"is {magic!r}, not b'GGUF': this is not a GGUF file")
    version = cursor.u32("version")
    if version in SUPPORTED_VERSIONS:
        return
    if version & 0xFFFF == 0:  # read in the wrong byte order: 3 looks like 0x03000000
        raise UnsupportedModelError(
            f"{cursor.path}: the file is big-endian (version {version:#010x}); "
            "only little-endian files are supported: convert it again on a little-endian machine"
        )
    raise UnsupportedModelError(
        f"{cursor.path}: GGUF version {version} is not supported, versions 2 and 3 are: "
        "convert the model again with a current converter"
    )


def _refuse_split(path: Path, metadata: dict[str, Any]) -> None:
    count = metadata.get("split.count", 1)
    if isinstance(count, int) and count > 1:
        raise UnsupportedModelError(
            f"{path}: part {metadata.get('split.no', '?')} of a model split into {count} files; "
            "split files are not supported: join them with `llama-gguf-split --merge`"
        )


def _alignment(cursor: HeaderCursor, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT_BYTES)
    if not isinstance(alignment, int) or not 8 <= alignment <= MAX_ALIGNMENT_BYTES:
        cursor.fail("general.alignment", f"is {alignment!r}, not within 8 to {MAX_ALIGNMENT_BYTES}")
    if alignment & (alignment - 1):
        cursor.fail("general.alignment", f"is {alignment}, not a power of two")
    return alignment


def _read_tensor_table(
    cursor: HeaderCursor, count: int, alignment_bytes: int
) -> dict[str, TensorInfo]:
    relative: dict[str, TensorInfo] = {}
    for index in range(count):
        info = _read_tensor_info(cursor, index)
        if info.name in relative:
            cursor.fail(f"tensor {info.name!r}", "appears twice")
        relative[info.name] = info
    data_start = -(-cursor.position // alignment_bytes) * alignment_bytes
    tensors: dict[str, TensorInfo] = {}
    for info in relative.values():
        tensors[info.name] = _place(cursor, info, data_start, alignment_bytes)
    _refuse_overlap(cursor, tensors)
    return tensors


def _read_tensor_info(cursor: HeaderCursor, index: int) -> TensorInfo:
    """One entry of the table; its offset still relative to the start of the tensor data."""
    name = cursor.string(f"name of tensor {index}", MAX_TENSOR_NAME_BYTES)
    thing = f"tensor {name!r}"
    num_dims = cursor.u32(f"number of dimensions of {thing}")
    if not 1 <= num_dims <= MAX_DIMS:
        cursor.fail(thing, f"has {num_dims} dimensions, not within 1 to {MAX_DIMS}")
    dims = [cursor.u64(f"dimension {d} of {thing}") for d in range(num_dims)]
    type_number = cursor.u32(f"type of {thing}")
    offset = cursor.u64(f"offset of {thing}")
    if 0 in dims:
        cursor.fail(thing, f"has a dimension of 0: {dims}")
    tensor_type = _supported_type(cursor.path, name, type_number)
    block_values, block_bytes = GGML_QUANT_SIZES[tensor_type]
    if dims[0] % block_values:
        cursor.fail(
            thing,
            f"of type {tensor_type.name} has rows of {dims[0]} values, "
            f"not a multiple of the type's block of {block_values}",
        )
    num_values = 1
    for dim in dims:
        num_values *= dim  # a Python integer: cannot overflow
    size_bytes = num_values // block_values * block_bytes
    return TensorInfo(name, tuple(reversed(dims)), tensor_type, offset, size_bytes)


def _supported_type(path: Path, name: str, type_number: int) -> TensorType:
    try:
        tensor_type = TensorType(type_number)
    except ValueError:
        type_name = f"number {type_number}"
    else:
        if tensor_type in SUPPORTED_TENSOR_TYPES:
            return tensor_type
        type_name = tensor_type.name
    known = ", ".join(supported.name for supported in SUPPORTED_TENSOR_TYPES)
    raise UnsupportedModelError(
        f"{path}: tensor {name!r} has type {type_name}, which is not supported; "
        f"supported are {known}: use a file quantized to one of these"
    )


def _place(
    cursor: HeaderCursor, info: TensorInfo, data_start: int, alignment_bytes: int
) -> TensorInfo:
    """Verify that the tensor lies inside the file; its offset becomes the file's."""
    thing = f"tensor {info.name!r}"
    if info.offset % alignment_bytes:
        cursor.fail(
            thing, f"has offset {info.offset}, not a multiple of the alignment {alignment_bytes}"
        )
    start = data_start + info.offset
    if start + info.size_bytes > cursor.size_bytes:
        cursor.fail(
            thing,
            f"of shape {list(info.shape)} and type {info.type.name} takes bytes {start} to "
            f"{start + info.size_bytes}, but the file ends at {cursor.size_bytes}: "
            "it is truncated or damaged",
        )
    return TensorInfo(info.name, info.shape, info.type, start, info.size_bytes)


def _refuse_overlap(cursor: HeaderCursor, tensors: dict[str, TensorInfo]) -> None:
    in_file_order = sorted(tensors.values(), key=lambda info: info.offset)
    for before, after in itertools.pairwise(in_file_order):
        if before.offset + before.size_bytes > after.offset:
            cursor.fail(
                f"tensor {after.name!r}",
                f"at byte {after.offset} overlaps tensor {before.name!r}, which ends at byte "
                f"{before.offset + before.size_bytes}",
            )
