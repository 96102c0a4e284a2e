"""The native row ops and attention on tensors, and the instruction sets to try them on."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from pagemill.kernels import native
from pagemill.kernels import row_ops_library as structs

KV_TYPES = {"float32": 0, "bfloat16": 1, "int8": 2}
FLOAT_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def supported_isas() -> tuple[str, ...]:
    library = native.load()
    return () if library is None else library.supported_isas


@contextmanager
def use_isa(name: str) -> Iterator[None]:
    library = native.load()
    assert library is not None
    before = library.isa
    library.select_isa(name)
    yield
    library.select_isa(before)


def address(x: torch.Tensor | np.ndarray[Any, Any] | None) -> int | None:
    if x is None:
        return None
    return x.data_ptr() if isinstance(x, torch.Tensor) else x.ctypes.data


def call(name: str, args: ctypes.Structure, num_rows: int, begin: int = 0) -> None:
    getattr(structs.row_ops_library(), name)(ctypes.byref(args), begin, num_rows)


class Rounded:
    """Rows in 8 and in 14 bits that an op is to write; at first every number is wrong."""

    def __init__(self, num_rows: int, size: int) -> None:
        groups = -(-size // 32)
        self.parts = (
            torch.full((num_rows, 32 * groups), 99, dtype=torch.int8),
            torch.full((num_rows, 32 * groups), 99, dtype=torch.uint8),
            torch.full((num_rows, groups), torch.nan),
            torch.full((num_rows, 2 * groups), 99, dtype=torch.int32),
            torch.full((num_rows, groups), torch.nan),
        )
        """Integers, the same plus 128, scales, sums of 16, scaled sums of 32."""
        blocks, self.wide_cols = -(-size // 2048), -(-size // 64) * 64
        self.wide_parts = (
            torch.full((num_rows, 2 * self.wide_cols), 99, dtype=torch.uint8),
            torch.full((num_rows, blocks), torch.nan),
            torch.full((num_rows, blocks), 99, dtype=torch.int32),
        )
        """Bytes in the order of the instruction set, scales, sums that its products need."""
        self.struct = structs.QuantizedRowsStruct(
            *(part.data_ptr() for part in self.parts),
            32 * groups,
            *(part.data_ptr() for part in self.wide_parts),
            self.wide_cols,
        )

    def wide_integers(self) -> torch.Tensor:
        """``[rows, wide_cols]`` of 14 bits, in whichever order they lie."""
        data = self.wide_parts[0]
        if lies_in_halves():
            halves = data.view(torch.int8).int().view(len(data), 2, -1)
            return 128 * halves[:, 0] + halves[:, 1]
        words = data.view(torch.int16).int().view(len(data), -1, 4)
        return words[:, :, [0, 2, 1, 3]].flatten(1)


def lies_in_halves() -> bool:
    """Whether rows in 14 bits have all their upper halves before the lower ones."""
    library = native.load()
    return library is not None and library.isa in ("amx", "avx512")


class Output(NamedTuple):
    """How an op is to write its rows, if not as floats alone."""

    rounded: Rounded | None = None
    floats: bool = True

    def struct(self) -> structs.QuantizedRowsStruct:
        return self.rounded.struct if self.rounded else structs.QuantizedRowsStruct()


FLOATS = Output()


def norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    *,
    eps: float = 1e-5,
    subtract_mean: bool = False,
    output: Output = FLOATS,
) -> torch.Tensor:
    out = torch.full_like(x, torch.nan)
    size = x.shape[1]
    args = structs.NormStruct(
        x.data_ptr(), size, address(residual), size, weight.data_ptr(), address(bias),
        out.data_ptr() if output.floats else None, size, size, subtract_mean, eps, output.struct(),
    )  # fmt: skip
    call("pagemill_norm", args, len(x))
    return out


def activation(x: torch.Tensor, kind: int, gated: bool, *, output: Output = FLOATS) -> torch.Tensor:
    size = x.shape[1] // 2 if gated else x.shape[1]
    out = torch.full((len(x), size), torch.nan)
    args = structs.ActivationStruct(
        x.data_ptr(), x.shape[1], out.data_ptr() if output.floats else None, size, size, kind,
        gated, output.struct(),
    )  # fmt: skip
    call("pagemill_activation", args, len(x))
    return out


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out, size = torch.full_like(a, torch.nan), a.shape[1]
    b_stride = size if b.dim() == 2 else 0
    args = structs.AddStruct(a.data_ptr(), size, b.data_ptr(), b_stride, out.data_ptr(), size, size)
    call("pagemill_add", args, len(a))
    return out


def scale_cap(x: torch.Tensor, scale: float, cap: float) -> torch.Tensor:
    out, size = torch.full_like(x, torch.nan), x.shape[1]
    args = structs.ScaleCapStruct(x.data_ptr(), size, out.data_ptr(), size, size, scale, cap)
    call("pagemill_scale_cap", args, len(x))
    return out


def embedding(
    table: torch.Tensor, ids: torch.Tensor, scale: float = 1.0, onto: torch.Tensor | None = None
) -> torch.Tensor:
    size = table.shape[1]
    out = torch.full((len(ids), size), torch.nan) if onto is None else onto.clone()
    args = structs.EmbeddingStruct(
        table.data_ptr(), FLOAT_TYPES[table.dtype], size, ids.data_ptr(), out.data_ptr(), size,
        scale, onto is not None,
    )  # fmt: skip
    call("pagemill_embedding", args, len(ids))
    return out


def quantize_rows(x: torch.Tensor) -> Rounded:
    num_rows, size = x.shape
    rounded = Rounded(num_rows, size)
    args = structs.QuantizeRowsStruct(x.data_ptr(), size, size, rounded.struct)
    call("pagemill_quantize_rows", args, num_rows)
    return rounded


class Cache:
    """A KV cache of one layer; every byte is 0xFF at first, which is NaN to floats."""

    def __init__(
        self, kv_type: str, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int
    ) -> None:
        self.struct = structs.KVCacheStruct()
        self.library = structs.row_ops_library()
        self.library.pagemill_kv_cache(
            KV_TYPES[kv_type], num_blocks, block_size, num_kv_heads, head_dim,
            ctypes.byref(self.struct),
        )  # fmt: skip
        # One cache line more than is needed, filled and checked: nobody may write behind the end.
        size = num_blocks * self.struct.block_bytes
        self.memory = np.full(size + 128, 0xFF, dtype=np.uint8)
        offset = -self.memory.ctypes.data % 64
        self.struct.blocks = self.memory.ctypes.data + offset
        self.blocks = self.memory[offset : offset + size].reshape(num_blocks, -1)
        self._rest = self.memory[offset + size :]
        self.num_items = 0
        """Of the last `attend`, for each key/value head."""

    def is_intact(self) -> bool:
        return bool((self._rest == 0xFF).all())


def rotary_write(
    cache: Cache,
    qkv: torch.Tensor,
    num_heads: int,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor] | None = None,
    begin: int = 0,
) -> None:
    """Mutates ``cache`` and ``qkv [T, (Hq + 2 Hkv) D]``, for rows from ``begin`` on."""
    query_norm, key_norm = norms if norms else (None, None)
    args = structs.RotaryWriteStruct(
        qkv.data_ptr(), qkv.shape[1], num_heads, address(query_norm), address(key_norm), 1e-6,
        cos.shape[1], cos.data_ptr(), sin.data_ptr(), positions.data_ptr(), slots.data_ptr(),
        cache.struct,
    )  # fmt: skip
    call("pagemill_rotary_write", args, len(qkv), begin)


@dataclass
class Rows:
    """The sequences of one step."""

    query_start_loc: Sequence[int]
    context_lens: Sequence[int]
    block_tables: np.ndarray[Any, np.dtype[np.int64]]


def attend(
    query: torch.Tensor,
    cache: Cache,
    rows: Rows,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    num_threads: int = 1,
    pool: native.ThreadPool | None = None,
    output: Output = FLOATS,
) -> torch.Tensor:
    """Attention of ``query [T, Hq, D]``; planned for ``num_threads``, on ``pool`` if given."""
    num_rows, num_heads, head_dim = query.shape
    out = torch.full_like(query, torch.nan)
    starts = np.array(rows.query_start_loc, dtype=np.int64)
    lens = np.array(rows.context_lens, dtype=np.int64)
    tables = np.ascontiguousarray(rows.block_tables, dtype=np.int64)
    step = structs.StepStruct(
        num_rows, len(lens), 0, tables.shape[1], None, None, None, address(starts), address(lens),
        address(tables), None,
    )  # fmt: skip
    args = structs.AttentionStruct(
        query.data_ptr(), num_heads * head_dim, out.data_ptr() if output.floats else None,
        num_heads * head_dim, cache.struct, num_heads, window or 0, scale, soft_cap or 0.0,
        output.struct(),
    )  # fmt: skip
    cache.num_items = cache.library.pagemill_attend(
        ctypes.byref(args), ctypes.byref(step), num_threads, pool.handle if pool else None
    )
    return out
