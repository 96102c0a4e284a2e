"""The vocabulary ops on the native kernels: a batch of rows in one call, on the thread pool.

How near it is to `NumpyVocabulary`: adjusted logits, greedy tokens, ranks and the order of top
tokens are equal, always. Log-probabilities differ by the rounding of exp and of sums in float32
(below 1e-5). Both draw with the same uniform number from cumulative weights in float64, so tokens
are equal but where that number falls on the border between two tokens within rounding: 1e-6 of the
mass at most where single-precision weights decide (no filter, or which tokens top-p keeps), 1e-12
elsewhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pagemill.batch import SampledToken, SamplingTask, ScoringTask, TokenLogprobs
from pagemill.errors import EngineError
from pagemill.kernels.native import ThreadPool
from pagemill.kernels.sampling_library import (
    KIND_DRAW,
    KIND_SCORE,
    STATUS_BAD_TOKEN,
    VocabAdjustmentsStruct,
    VocabBatchStruct,
    VocabOutcomeStruct,
    VocabTaskStruct,
    sampling_library,
)
from pagemill.sampling.adjustments import Adjustments
from pagemill.sampling.vocabulary import DoubleArray, FloatArray, UInt64Array


class NativeVocabulary:
    """A `VocabularyOps` on the threads of ``pool``; one call of it at a time."""

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool
        self._functions = sampling_library()
        self._vocab_size = 0
        self._workspaces: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._workspaces_address = 0

    def uniforms(self, keys: UInt64Array, positions: UInt64Array) -> DoubleArray:
        """See `VocabularyOps`."""
        out = np.empty(len(keys), np.float64)
        self._functions.pagemill_uniforms(
            keys.ctypes.data, positions.ctypes.data, len(keys), out.ctypes.data
        )
        return out

    def sample(
        self, rows: FloatArray, tasks: Sequence[SamplingTask], uniforms: Sequence[float]
    ) -> list[SampledToken]:
        """See `VocabularyOps`."""
        entries = (VocabTaskStruct * len(tasks))()
        row_address, row_bytes, vocab_size = _layout(rows)
        kept = []  # what entries point to
        max_top = 0
        for entry, task, uniform in zip(entries, tasks, uniforms, strict=True):
            params = task.params
            entry.logits = row_address + task.logits_row * row_bytes
            if params.logprobs is None:
                entry.num_top = -1
            else:
                entry.num_top = params.logprobs
                max_top = max(max_top, params.logprobs)
            if params.temperature != 0.0:
                entry.kind = KIND_DRAW
                entry.temperature = params.temperature
                entry.top_p, entry.min_p, entry.top_k = params.top_p, params.min_p, params.top_k
                entry.uniform = uniform
            adjustments = Adjustments.of(task, vocab_size)
            if adjustments is not None:
                struct = adjustments_struct(adjustments)
                kept.append((adjustments, struct))
                entry.adjustments = ctypes.addressof(struct)
        return self._run(entries, vocab_size, max_top)

    def score(self, rows: FloatArray, tasks: Sequence[ScoringTask]) -> list[TokenLogprobs]:
        """See `VocabularyOps`."""
        entries = (VocabTaskStruct * len(tasks))()
        row_address, row_bytes, vocab_size = _layout(rows)
        max_top = 0
        for entry, task in zip(entries, tasks, strict=True):
            entry.kind = KIND_SCORE
            entry.logits = row_address + task.logits_row * row_bytes
            entry.token_id = range(vocab_size)[task.token_id]
            entry.num_top = task.num_logprobs
            max_top = max(max_top, task.num_logprobs)
        return [logprobs for _, logprobs in self._run(entries, vocab_size, max_top)]

    def _run(
        self, entries: ctypes.Array[VocabTaskStruct], vocab_size: int, max_top: int
    ) -> list[SampledToken]:
        """Do the tasks, whose ``num_top`` is at most ``max_top``."""
        count = len(entries)
        if count == 0:
            return []
        self._make_workspaces(vocab_size)
        outcomes = (VocabOutcomeStruct * count)()
        batch = VocabBatchStruct(
            tasks=ctypes.addressof(entries),
            num_tasks=count,
            vocab_size=vocab_size,
            outcomes=ctypes.addressof(outcomes),
            workspaces=self._workspaces_address,
            num_workspaces=self._pool.num_threads,
        )
        if max_top > 0:
            top_ids = np.empty((count, max_top), np.int64)
            top_logprobs = np.empty((count, max_top), np.float64)
            batch.max_top = max_top
            batch.top_ids, batch.top_logprobs = top_ids.ctypes.data, top_logprobs.ctypes.data
        self._functions.pagemill_vocab_run(batch, self._pool.handle)
        results = []
        for i, outcome in enumerate(outcomes):
            if outcome.status == STATUS_BAD_TOKEN:
                raise EngineError(
                    f"task {i} of the sampler names a token outside the vocabulary of {vocab_size}"
                )
            top: tuple[tuple[int, float], ...] = ()
            if outcome.num_top > 0:
                ids, values = top_ids[i, : outcome.num_top], top_logprobs[i, : outcome.num_top]
                top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
            token_id = outcome.token_id if outcome.token_id >= 0 else None
            logprobs = TokenLogprobs(outcome.logprob, outcome.rank, top)
            results.append(SampledToken(token_id, logprobs))
        return results

    def _make_workspaces(self, vocab_size: int) -> None:
        """Have memory for a row of each thread; what is not used of it takes none."""
        if vocab_size != self._vocab_size:
            size = self._functions.pagemill_vocab_workspace_bytes(vocab_size)
            self._workspaces = np.zeros(size * self._pool.num_threads, np.uint8)
            self._workspaces_address = self._workspaces.ctypes.data
            self._vocab_size = vocab_size


def adjustments_struct(adjustments: Adjustments) -> VocabAdjustmentsStruct:
    """As the library takes them; ``adjustments`` must outlive the result."""
    return VocabAdjustmentsStruct(
        adjustments.allowed.buffer_info(),
        adjustments.forbidden.buffer_info(),
        adjustments.biased.buffer_info(),
        adjustments.biases.buffer_info()[0],
        adjustments.prompt.buffer_info(),
        adjustments.output.buffer_info(),
        adjustments.repetition_penalty,
        adjustments.frequency_penalty,
        adjustments.presence_penalty,
    )


def _layout(rows: FloatArray) -> tuple[int, int, int]:
    """Address of the rows, bytes from one to the next, logits in each."""
    return rows.ctypes.data, rows.strides[0], rows.shape[1]
