"""From a step's plan to the flat arrays of a `Batch`."""

from __future__ import annotations

import numpy as np

from pagemill.batch import Batch, SamplingTask, ScoringTask
from pagemill.kvcache.manager import KVCacheManager
from pagemill.request import Sequence
from pagemill.scheduler.scheduler import SchedulerOutput


def build_batch(plan: SchedulerOutput, kv: KVCacheManager) -> Batch:
    """Lay out the scheduled tokens of ``plan``; changes nothing.

    A row needs logits if a token is drawn from it (the last uncomputed token of a sequence) or if
    it predicts a prompt token whose log-probability was asked for and is not known yet.
    """
    num_sequences = len(plan.scheduled)
    tables = [kv.block_table(seq.seq_id) for seq, _ in plan.scheduled]
    widest = max((len(table) for table in tables), default=0)
    block_tables = np.zeros((num_sequences, widest), np.int64)
    query_start_loc = np.zeros(num_sequences + 1, np.int64)
    context_lens = np.zeros(num_sequences, np.int64)
    token_ids = np.empty(plan.num_tokens, np.int64)
    positions = np.empty(plan.num_tokens, np.int64)
    slot_mapping = np.empty(plan.num_tokens, np.int64)
    logits_indices: list[int] = []
    sampling: list[SamplingTask] = []
    scoring: list[ScoringTask] = []

    row = 0
    for i, (seq, num_tokens) in enumerate(plan.scheduled):
        start = seq.num_computed_tokens
        end = start + num_tokens
        rows = slice(row, row + num_tokens)
        table = block_tables[i]
        table[: len(tables[i])] = tables[i]
        token_ids[rows] = seq.token_ids[start:end]
        positions[rows] = np.arange(start, end)
        logical, offset = np.divmod(positions[rows], kv.block_size)
        slot_mapping[rows] = table[logical] * kv.block_size + offset
        context_lens[i] = end
        for position in seq.positions_to_score(start, end):
            scoring.append(_scoring_task(seq, position, len(logits_indices)))
            logits_indices.append(row + position - start)
        if end == seq.num_tokens and seq.request.max_tokens > 0:
            sampling.append(_sampling_task(seq, len(logits_indices)))
            logits_indices.append(row + num_tokens - 1)
        row += num_tokens
        query_start_loc[i + 1] = row

    return Batch(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=slot_mapping,
        query_start_loc=query_start_loc,
        context_lens=context_lens,
        block_tables=block_tables,
        logits_indices=np.array(logits_indices, np.int64),
        sampling=sampling,
        scoring=scoring,
    )


def _scoring_task(seq: Sequence, position: int, logits_row: int) -> ScoringTask:
    num_logprobs = seq.request.params.prompt_logprobs
    assert num_logprobs is not None
    return ScoringTask(logits_row, seq.token_ids[position + 1], num_logprobs)


def _sampling_task(seq: Sequence, logits_row: int) -> SamplingTask:
    request = seq.request
    return SamplingTask(
        logits_row=logits_row,
        params=request.params,
        prompt_token_ids=request.prompt_token_ids,
        output_token_ids=seq.output_token_ids,
        seed=seq.seed,
        end_token_ids=request.end_token_ids,
    )
