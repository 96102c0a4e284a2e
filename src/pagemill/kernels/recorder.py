"""Recording a step: the ops of a model, called once on handles instead of tensors.

A model's code is the same for both backends. Given tensors, `pagemill.kernels` computes; given the
handles of this module, it records what would be computed into a native program, which replays all
of it in one call a step. What changes between steps (how many rows, which tokens and slots) is not
in the recording but in the step's arrays.

Buffers are reused: a handle that nobody holds any more gives its buffer back, and the next op of
the recording may write there. That is safe because ops are replayed in the order of recording.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pagemill.kernels.native import ThreadPool
from pagemill.kernels.packing import PackedLinear
from pagemill.kernels.program_library import (
    LinearSegmentStruct,
    QuantizedRowsStruct,
    program_library,
)
from pagemill.kernels.row_ops_library import (
    ActivationStruct,
    AddStruct,
    AttentionStruct,
    KVCacheStruct,
    NormStruct,
    QuantizeRowsStruct,
    RotaryWriteStruct,
    StepStruct,
)

ACTIVATION_KINDS: Final = {"silu": 0, "gelu": 1, "gelu_tanh": 2}


class RowCount(IntEnum):
    """How many rows an op has in a step; the library's numbers."""

    TOKENS = 0
    LOGITS = 1


class StepArray(NamedTuple):
    """Stands for an array of the step, in the recording: its token ids or its positions."""

    recorder: Recorder
    is_positions: bool


class StepLogits(NamedTuple):
    """Stands for the logits of the step, ``[L, vocab_size]``."""

    recorder: Recorder
    vocab_size: int


class Rows:
    """A batch of rows to be computed: float32 ``[T or L, width]`` in a buffer of the recorder."""

    def __init__(self, recorder: Recorder, width: int, count: RowCount) -> None:
        self.recorder = recorder
        self.width = width
        self.count = count
        self._buffer = recorder.take_buffer(width, np.float32)
        self._quantized: QuantizedRowsStruct | None = None
        self._quantized_buffers: list[npt.NDArray[Any]] = []

    @property
    def address(self) -> int:
        """Of the first row."""
        return self._buffer.ctypes.data

    def __add__(self, other: Rows) -> Rows:
        return self.recorder.add(self, other)

    def quantized(self) -> QuantizedRowsStruct:
        """These rows in 8 bits, computed once however many ops ask."""
        if self._quantized is None:
            padded = -(-self.width // 32) * 32
            take = self.recorder.take_buffer
            buffers = [
                take(padded, np.int8),
                take(padded // 32, np.float32),
                take(padded // 16, np.int32),
                take(padded // 32, np.float32),
            ]
            addresses = [buffer.ctypes.data for buffer in buffers]
            self.recorder.quantize(self, padded, addresses)
            self._quantized = QuantizedRowsStruct(*addresses, padded)
            self._quantized_buffers = buffers
        return self._quantized

    def changed(self) -> None:
        """Note that an op has written into these rows."""
        self._give_back_quantized()

    def _give_back_quantized(self) -> None:
        for buffer in self._quantized_buffers:
            self.recorder.give_back(buffer)
        self._quantized, self._quantized_buffers = None, []

    def __del__(self) -> None:
        self._give_back_quantized()
        self.recorder.give_back(self._buffer)


class Recorder:
    """Records ops into one program.

    Args:
        pool: the threads that will run it.
        max_rows: the largest T (and L) of any step.
    """

    def __init__(self, pool: ThreadPool, max_rows: int) -> None:
        self._library = program_library()
        self._pool = pool
        self._max_rows = max_rows
        self._free: dict[tuple[int, str], list[npt.NDArray[Any]]] = {}
        self._keep: list[object] = []
        self._program: int | None = self._library.pagemill_program_create(pool.handle)

    def run(self, step: StepStruct, logits: npt.NDArray[np.float32] | None) -> None:
        """Replay the recording for ``step``; writes ``logits [L, V]`` if it has a head."""
        self._library.pagemill_program_run(
            self._program, step, None if logits is None else logits.ctypes.data
        )

    def close(self) -> None:
        """Free the program. Closing twice is harmless."""
        if self._program is not None:
            self._library.pagemill_program_destroy(self._program)
            self._program = None

    def keep(self, value: object) -> None:
        """Hold on to something that the program points at."""
        self._keep.append(value)

    def take_buffer(self, width: int, dtype: Any) -> npt.NDArray[Any]:
        """A buffer ``[max_rows, width]`` that no live handle uses."""
        free = self._free.get((width, np.dtype(dtype).str))
        if free:
            return free.pop()
        # Zero pages on demand: rows that no step has cost no memory.
        buffer = np.zeros((self._max_rows, width), dtype)
        self._keep.append(buffer)
        return buffer

    def give_back(self, buffer: npt.NDArray[Any]) -> None:
        """Let later ops use ``buffer``."""
        self._free.setdefault((buffer.shape[1], buffer.dtype.str), []).append(buffer)

    def address_of(self, tensor: torch.Tensor | None) -> int | None:
        """Address of a float32 parameter, which is kept alive; None for None."""
        if tensor is None:
            return None
        values = tensor.detach().float().contiguous()
        self._keep.append(values)
        return values.data_ptr()

    def segments(self, weight: PackedLinear) -> Any:
        """``weight`` as the library takes it."""
        self._keep.append(weight)
        segments = (LinearSegmentStruct * len(weight.segments))()
        for struct, segment in zip(segments, weight.segments, strict=True):
            address = ctypes.addressof(segment.weight.struct)
            struct.packed = None if segment.weight.is_float else address
            struct.floats = address if segment.weight.is_float else None
            struct.first_column = segment.first_row
        return segments

    def embedding(self, ids: StepArray, weight: PackedLinear, scale: float) -> Rows:
        """Rows of a table, times ``scale``."""
        out = Rows(self, weight.num_cols, RowCount.TOKENS)
        assert len(weight.segments) == 1, "a table is one tensor"
        segments, by_position = self.segments(weight), ids.is_positions
        self._library.pagemill_record_embedding(
            self._program, segments, by_position, scale, out.address, out.width
        )
        return out

    def linear(self, x: Rows, weight: PackedLinear, bias: torch.Tensor | None) -> Rows | StepLogits:
        """``x @ weight^T + bias``; over rows gathered for logits it writes the step's logits."""
        is_head = x.count is RowCount.LOGITS
        out = None if is_head else Rows(self, weight.num_rows, x.count)
        any_packed = any(not segment.weight.is_float for segment in weight.segments)
        self._library.pagemill_record_linear(
            self._program,
            self.segments(weight),
            len(weight.segments),
            x.address,
            x.width,
            x.quantized() if any_packed else None,
            self.address_of(bias),
            None if out is None else out.address,
            weight.num_rows,
            x.count,
        )
        return out or StepLogits(self, weight.num_rows)

    def cap_logits(self, cap: float, vocab_size: int) -> None:
        """Soft cap on the step's logits."""
        self._library.pagemill_record_cap_logits(self._program, cap, vocab_size)

    def gather_logits_rows(self, x: Rows) -> Rows:
        """The rows of ``x`` (of any program) that logits are wanted of."""
        out = Rows(self, x.width, RowCount.LOGITS)
        self._library.pagemill_record_gather_logits_rows(
            self._program, x.address, x.width, x.width, out.address, out.width
        )
        return out

    def norm(
        self,
        x: Rows,
        residual: Rows | None,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        eps: float,
        *,
        subtract_mean: bool,
    ) -> Rows:
        """Normalize ``x``, or ``residual += x`` first and normalize that."""
        out = Rows(self, x.width, x.count)
        args = NormStruct(
            x=x.address,
            x_stride=x.width,
            residual=None if residual is None else residual.address,
            residual_stride=x.width,
            weight=self.address_of(weight),
            bias=self.address_of(bias),
            out=out.address,
            out_stride=out.width,
            num_cols=x.width,
            subtract_mean=subtract_mean,
            eps=eps,
        )
        self._library.pagemill_record_norm(self._program, args, x.count)
        if residual is not None:
            residual.changed()
        return out

    def activation(self, x: Rows, kind: str, *, gated: bool) -> Rows:
        """``act(x)``, or ``act(first half) * second half``."""
        width = x.width // 2 if gated else x.width
        out = Rows(self, width, x.count)
        args = ActivationStruct(
            x=x.address,
            x_stride=x.width,
            out=out.address,
            out_stride=width,
            num_cols=width,
            kind=ACTIVATION_KINDS[kind],
            gated=gated,
        )
        self._library.pagemill_record_activation(self._program, args, x.count)
        return out

    def add(self, a: Rows, b: Rows) -> Rows:
        """``a + b``."""
        out = Rows(self, a.width, a.count)
        args = AddStruct(
            a=a.address,
            a_stride=a.width,
            b=b.address,
            b_stride=b.width,
            out=out.address,
            out_stride=out.width,
            num_cols=a.width,
        )
        self._library.pagemill_record_add(self._program, args, a.count)
        return out

    def quantize(self, x: Rows, padded: int, addresses: Sequence[int]) -> None:
        """``x`` in 8 bits, into the four buffers of `QuantizeRowsStruct`."""
        args = QuantizeRowsStruct(x.address, x.width, x.width, padded, *addresses)
        self._library.pagemill_record_quantize_rows(self._program, args, x.count)

    def rotary_write(
        self,
        qkv: Rows,
        num_heads: int,
        cache: KVCacheStruct,
        query_norm: torch.Tensor | None,
        key_norm: torch.Tensor | None,
        norm_eps: float,
        cos: npt.NDArray[np.float32] | None,
        sin: npt.NDArray[np.float32] | None,
    ) -> None:
        """Normalize and rotate queries in place; keys and values go to the cache."""
        self._keep += [cos, sin]
        args = RotaryWriteStruct(
            qkv=qkv.address,
            qkv_stride=qkv.width,
            num_heads=num_heads,
            query_norm=self.address_of(query_norm),
            key_norm=self.address_of(key_norm),
            norm_eps=norm_eps,
            num_pairs=0 if cos is None else cos.shape[1],
            cos=None if cos is None else cos.ctypes.data,
            sin=None if sin is None else sin.ctypes.data,
            cache=cache,
        )
        self._library.pagemill_record_rotary_write(self._program, args)
        qkv.changed()

    def attention(
        self,
        qkv: Rows,
        num_heads: int,
        cache: KVCacheStruct,
        scale: float,
        window: int | None,
        soft_cap: float | None,
    ) -> Rows:
        """Attention of the queries in ``qkv`` over the cache."""
        out = Rows(self, num_heads * cache.head_dim, qkv.count)
        args = AttentionStruct(
            query=qkv.address,
            query_stride=qkv.width,
            out=out.address,
            out_stride=out.width,
            cache=cache,
            num_heads=num_heads,
            window=window or 0,
            scale=scale,
            soft_cap=soft_cap or 0.0,
        )
        self._library.pagemill_record_attention(self._program, args)
        return out
