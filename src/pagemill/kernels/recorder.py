"""Recording a step: the ops of a model, called once on handles instead of tensors.

A model's code is the same for both backends. Given tensors, `pagemill.kernels` computes; given
handles, it records what would be computed. When all is recorded, `Recorder.finish` makes it a
native program, which replays all of it in one call a step. What changes between steps (how many
rows, which tokens and slots) is not in the program but in the step's arrays.

A quantized linear map reads its rows in 8 bits, or in 14 if its weights have one scale a row. The
op that computes them writes them so itself where it can, and leaves out the floats if nobody else
reads those; after other ops comes one that rounds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from pagemill.kernels.native import ThreadPool
from pagemill.kernels.packing import PackedLinear
from pagemill.kernels.program_library import LinearSegmentStruct, program_library
from pagemill.kernels.recorded import (
    QUANTIZED_COLUMNS,
    Buffer,
    RecordedOp,
    RowCount,
    Rows,
    StepArray,
    StepLogits,
    lay_out,
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


class Recorder:
    """Records ops into one program.

    Args:
        pool: the threads that will run it.
        max_rows: the largest T (and L) of any step.
    """

    def __init__(self, pool: ThreadPool, max_rows: int) -> None:
        self._library = program_library()
        self._max_rows = max_rows
        self._ops: list[RecordedOp] = []
        self._keep: list[object] = [pool]
        self._program: int | None = self._library.pagemill_program_create(pool.handle)

    def input(self, width: int) -> Rows:
        """Rows ``[T, width]`` that the caller writes before each run."""
        rows = Rows(self, width, RowCount.TOKENS)
        rows.floats.arrays = [np.zeros((self._max_rows, width), np.float32)]
        return rows

    def finish(self, *outputs: Rows) -> None:
        """Make the program: after this it can be run, and nothing more be recorded.

        Args:
            outputs: rows whose floats are read after a run, by the caller or another program.
        """
        lay_out(self._ops, [rows.floats for rows in outputs], self._max_rows)
        for op in self._ops:
            op.emit()
        # The program has only addresses.
        self._keep += [buffer for op in self._ops for buffer in (*op.reads, *op.writes)]
        self._ops.clear()

    def run(self, step: StepStruct, logits: npt.NDArray[np.float32] | None) -> None:
        """Run the program for ``step``; writes ``logits [L, V]`` if it has a head."""
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

    def embedding(self, ids: StepArray, weight: PackedLinear, scale: float) -> Rows:
        """Rows of a table, times ``scale``."""
        assert len(weight.segments) == 1, "a table is one tensor"
        out = Rows(self, weight.num_cols, RowCount.TOKENS)
        segments, by_position = self._segments(weight), ids.is_positions

        def emit() -> None:
            self._library.pagemill_record_embedding(
                self._program, segments, by_position, scale, out.address, out.width
            )

        self._add(emit, reads=[], writes=[out.floats])
        return out

    def linear(self, x: Rows, weight: PackedLinear, bias: torch.Tensor | None) -> Rows | StepLogits:
        """``x @ weight^T + bias``; over rows gathered for logits it writes the step's logits."""
        is_head = x.count is RowCount.LOGITS
        out = None if is_head else Rows(self, weight.num_rows, x.count)
        segments, bias_address = self._segments(weight), self._address_of(bias)
        read_as = {segment.weight.reads_rows_in for segment in weight.segments}
        reads = [self._in_bits(x, bits) for bits in sorted(read_as - {0})]
        if 0 in read_as:
            reads.append(x.floats)

        def emit() -> None:
            self._library.pagemill_record_linear(
                self._program,
                segments,
                len(segments),
                x.address,
                x.width,
                x.quantized_struct(),
                bias_address,
                None if out is None else out.address,
                weight.num_rows,
                x.count,
            )

        self._add(emit, reads=reads, writes=[] if out is None else [out.floats])
        return out or StepLogits(self, weight.num_rows)

    def cap_logits(self, cap: float, vocab_size: int) -> None:
        """Soft cap on the step's logits."""

        def emit() -> None:
            self._library.pagemill_record_cap_logits(self._program, cap, vocab_size)

        self._add(emit, reads=[], writes=[])

    def gather_logits_rows(self, x: Rows) -> Rows:
        """The rows of ``x`` (an output, if of another program) that logits are wanted of."""
        out = Rows(self, x.width, RowCount.LOGITS)

        def emit() -> None:
            self._library.pagemill_record_gather_logits_rows(
                self._program, x.address, x.width, x.width, out.address, out.width
            )

        self._add(emit, reads=[x.floats], writes=[out.floats])
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
    ) -> tuple[Rows, Rows]:
        """Normalize ``x``, or ``residual += x`` first and normalize that.

        Returns:
            The normalized rows; and those that were normalized, which take the place of
            ``residual``.
        """
        out = Rows(self, x.width, x.count)
        out.bits_written.update(out.in_bits)
        total = x if residual is None else Rows(self, x.width, x.count, residual.floats)
        weight_address, bias_address = self._address_of(weight), self._address_of(bias)

        def emit() -> None:
            args = NormStruct(
                x=x.address,
                x_stride=x.width,
                residual=None if residual is None else residual.address,
                residual_stride=x.width,
                weight=weight_address,
                bias=bias_address,
                out=out.address,
                out_stride=out.width,
                num_cols=x.width,
                subtract_mean=subtract_mean,
                eps=eps,
                rounded=out.quantized_struct(),
            )
            self._library.pagemill_record_norm(self._program, args, x.count)

        self._add(emit, reads=[x.floats, total.floats], writes=[out.floats, *out.in_bits.values()])
        return out, total

    def activation(self, x: Rows, kind: str, *, gated: bool) -> Rows:
        """``act(x)``, or ``act(first half) * second half``."""
        width = x.width // 2 if gated else x.width
        out = Rows(self, width, x.count)
        out.bits_written.update(out.in_bits)

        def emit() -> None:
            args = ActivationStruct(
                x=x.address,
                x_stride=x.width,
                out=out.address,
                out_stride=width,
                num_cols=width,
                kind=ACTIVATION_KINDS[kind],
                gated=gated,
                rounded=out.quantized_struct(),
            )
            self._library.pagemill_record_activation(self._program, args, x.count)

        self._add(emit, reads=[x.floats], writes=[out.floats, *out.in_bits.values()])
        return out

    def add(self, a: Rows, b: Rows) -> Rows:
        """``a + b``."""
        out = Rows(self, a.width, a.count)

        def emit() -> None:
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

        self._add(emit, reads=[a.floats, b.floats], writes=[out.floats])
        return out

    def quantize(self, x: Rows, bits: int) -> None:
        """``x`` in 8 or 14 bits, by an op of its own."""
        x.bits_written.add(bits)

        def emit() -> None:
            args = QuantizeRowsStruct(x.address, x.width, x.width, x.quantized_struct([bits]))
            self._library.pagemill_record_quantize_rows(self._program, args, x.count)

        self._add(emit, reads=[x.floats], writes=[x.in_bits[bits]])

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
    ) -> Rows:
        """Normalize and rotate queries; keys and values go to the cache.

        Returns:
            What takes the place of ``qkv``.
        """
        self._keep += [cos, sin]
        norms = [self._address_of(norm) for norm in (query_norm, key_norm)]

        def emit() -> None:
            args = RotaryWriteStruct(
                qkv=qkv.address,
                qkv_stride=qkv.width,
                num_heads=num_heads,
                query_norm=norms[0],
                key_norm=norms[1],
                norm_eps=norm_eps,
                num_pairs=0 if cos is None else cos.shape[1],
                cos=None if cos is None else cos.ctypes.data,
                sin=None if sin is None else sin.ctypes.data,
                cache=cache,
            )
            self._library.pagemill_record_rotary_write(self._program, args)

        self._add(emit, reads=[qkv.floats], writes=[])
        return Rows(self, qkv.width, qkv.count, qkv.floats)

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
        # Each head is written by itself, so it must not share a scale with the next.
        if cache.head_dim % QUANTIZED_COLUMNS == 0:
            out.bits_written.add(8)

        def emit() -> None:
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
                rounded=out.quantized_struct(),
            )
            self._library.pagemill_record_attention(self._program, args)

        writes = [out.floats, *(out.in_bits[bits] for bits in out.bits_written)]
        self._add(emit, reads=[qkv.floats], writes=writes)
        return out

    def _add(
        self, emit: Callable[[], None], *, reads: Sequence[Buffer], writes: Sequence[Buffer]
    ) -> None:
        self._ops.append(RecordedOp(emit, reads, writes))

    def _in_bits(self, x: Rows, bits: int) -> Buffer:
        """What a linear map reads; recorded once however many ops ask."""
        if bits not in x.bits_written:
            self.quantize(x, bits)
        return x.in_bits[bits]

    def _address_of(self, tensor: torch.Tensor | None) -> int | None:
        """Address of a float32 parameter, which is kept alive; None for None."""
        if tensor is None:
            return None
        values = tensor.detach().float().contiguous()
        self._keep.append(values)
        return values.data_ptr()

    def _segments(self, weight: PackedLinear) -> ctypes.Array[LinearSegmentStruct]:
        """``weight`` as the library takes it."""
        self._keep.append(weight)
        segments = (LinearSegmentStruct * len(weight.segments))()
        for struct, segment in zip(segments, weight.segments, strict=True):
            address = ctypes.addressof(segment.weight.struct)
            struct.packed = None if segment.weight.is_float else address
            struct.floats = address if segment.weight.is_float else None
            struct.first_column = segment.first_row
        return segments
