"""From a step's plan to the flat arrays of a `Batch`."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from itertools import chain

import numpy as np

from pagemill.batch import Batch, PoolingTask, SamplingTask, ScoringTask
from pagemill.request import Sequence
from pagemill.scheduler.decode_rows import IntArray, sampling_task
from pagemill.scheduler.scheduler_output import Chunk, SchedulerOutput


def build_batch(plan: SchedulerOutput, block_size: int) -> Batch:
    """Lay out the scheduled tokens of ``plan``: decodes first, then chunks.

    A row needs logits if a token is drawn from it (the last uncomputed token of a sequence) or if
    it predicts a prompt token whose log-probability was asked for and is not known yet.
    """
    if not plan.chunks:
        return _decode_batch(plan, block_size)
    decodes, num_decodes = plan.decodes, plan.num_decodes
    num_sequences = num_decodes + len(plan.chunks)
    tables = _with_chunks(plan)
    counts = np.ones(num_sequences, np.int64)
    counts[num_decodes:] = [chunk.num_tokens for chunk in plan.chunks]
    context_lens = np.empty(num_sequences, np.int64)
    context_lens[:num_decodes] = decodes.lengths[:num_decodes]
    context_lens[num_decodes:] = [
        chunk.seq.num_computed_tokens + chunk.num_tokens for chunk in plan.chunks
    ]
    query_start_loc = np.zeros(num_sequences + 1, np.int64)
    np.cumsum(counts, out=query_start_loc[1:])

    token_ids = np.empty(plan.num_tokens, np.int64)
    token_ids[:num_decodes] = decodes.last_tokens[:num_decodes]
    token_ids[num_decodes:] = list(chain.from_iterable(map(_token_ids, plan.chunks)))
    # Row r of sequence b is at position context_lens[b] - (query_start_loc[b + 1] - r).
    sequence_of_row = np.repeat(np.arange(num_sequences), counts)
    positions = np.arange(plan.num_tokens) + (context_lens - query_start_loc[1:])[sequence_of_row]
    logical, offsets = np.divmod(positions, block_size)
    slot_mapping = tables[sequence_of_row, logical] * block_size + offsets

    batch = Batch(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=slot_mapping,
        query_start_loc=query_start_loc,
        context_lens=context_lens,
        block_tables=tables,
        logits_indices=np.arange(num_decodes),
        sampling=decodes.tasks[:num_decodes],
    )
    _add_chunk_tasks(batch, plan)
    return batch


def _decode_batch(plan: SchedulerOutput, block_size: int) -> Batch:
    """A row for each sequence, which is most steps: as few operations as can be."""
    decodes, count = plan.decodes, plan.num_decodes
    rows = np.arange(count + 1)
    lengths = decodes.lengths[:count].copy()
    positions = lengths - 1
    slot_mapping = decodes.tables[rows[:count], positions // block_size] * block_size
    slot_mapping += positions % block_size
    return Batch(
        token_ids=decodes.last_tokens[:count].copy(),
        positions=positions,
        slot_mapping=slot_mapping,
        query_start_loc=rows,
        context_lens=lengths,
        block_tables=decodes.tables[:count],
        logits_indices=rows[:count],
        sampling=decodes.tasks[:count],
    )


def _with_chunks(plan: SchedulerOutput) -> IntArray:
    """The block tables of decodes and chunks: ``[B, max_blocks]``, without copying the decodes'."""
    decodes, first = plan.decodes, plan.num_decodes
    widest = max((len(chunk.seq.blocks.table) for chunk in plan.chunks), default=0)
    decodes.reserve(first + len(plan.chunks), widest)
    for row, chunk in enumerate(plan.chunks, start=first):
        table = chunk.seq.blocks.table
        decodes.tables[row, : len(table)] = table
    return decodes.tables[: first + len(plan.chunks)]


def _token_ids(chunk: Chunk) -> SequenceOf[int]:
    start = chunk.seq.num_computed_tokens
    return chunk.seq.token_ids[start : start + chunk.num_tokens]


def _add_chunk_tasks(batch: Batch, plan: SchedulerOutput) -> None:
    """What is to be scored, pooled and drawn from the rows of the chunks."""
    logits_indices = batch.logits_indices.tolist()
    samples: dict[int, list[Sequence]] = {}
    for first, fork in plan.forks:
        samples.setdefault(first.seq_id, [first]).append(fork)
    for i, (seq, num_tokens, is_last) in enumerate(plan.chunks, start=plan.num_decodes):
        row = int(batch.query_start_loc[i])
        start = seq.num_computed_tokens
        for position in seq.positions_to_score(start, start + num_tokens):
            batch.scoring.append(_scoring_task(seq, position, len(logits_indices)))
            logits_indices.append(row + position - start)
        if to_pool := seq.positions_to_pool(start, start + num_tokens):
            batch.pooling.append(_pooling_task(seq, to_pool, row + to_pool.start - start))
        if is_last and seq.request.max_tokens > 0:
            batch.sampling += _sampling_tasks(samples.get(seq.seq_id, [seq]), len(logits_indices))
            logits_indices.append(row + num_tokens - 1)
    batch.logits_indices = np.array(logits_indices, np.int64)


def _scoring_task(seq: Sequence, position: int, logits_row: int) -> ScoringTask:
    num_logprobs = seq.request.params.prompt_logprobs
    assert num_logprobs is not None
    return ScoringTask(logits_row, seq.token_ids[position + 1], num_logprobs)


def _pooling_task(seq: Sequence, positions: range, first_row: int) -> PoolingTask:
    pooled = seq.request.pooled
    assert pooled is not None
    assert positions.start == pooled.num_tokens, "a row of the sum would be missing"
    return PoolingTask(first_row, len(positions), pooled.total)


def _sampling_tasks(samples: list[Sequence], logits_row: int) -> list[SamplingTask]:
    return [sampling_task(seq, logits_row) for seq in samples]
