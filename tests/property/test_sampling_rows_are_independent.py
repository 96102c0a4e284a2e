"""A row's outcome is bit for bit the same whatever rows accompany it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from pagemill.batch import ScoringTask
from tests.unit.sampling.sampling_helpers import random_logits, sample, score, task

pytestmark = pytest.mark.usefixtures("vocabulary")

PARAMS: list[dict[str, Any]] = [
    {"temperature": 0},
    {},
    {"temperature": 0.7},
    {"top_k": 50, "top_p": 0.9},
    {"top_p": 0.9, "temperature": 1.5},
    {"min_p": 0.05},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "top_k": 5},
    {"logit_bias": {3: 5.0}, "bad_words_token_ids": [[2, 3]], "min_tokens": 9},
]


@pytest.mark.parametrize("vocab_size", [1, 97, 50_000, 49_999])
def test_a_row_alone_and_in_batches_of_any_size_gives_the_same_bits(vocab_size: int) -> None:
    rng = random.Random(vocab_size)
    num_distinct = len(PARAMS) * 2
    rows = [random_logits(vocab_size, seed=seed) for seed in range(num_distinct)]

    def request(kind: int, row: int) -> Any:
        fields = PARAMS[kind % len(PARAMS)] if vocab_size > 5 else {}
        history = [token % vocab_size for token in (kind, 2, 3, 2)]
        return task(
            row, prompt=history, output=history[:3], end=[0], stream=kind, logprobs=3, **fields
        )

    def known(kind: int, row: int) -> ScoringTask:
        return ScoringTask(row, kind % vocab_size, 3)

    alone = [sample(rows[kind][None], [request(kind, 0)])[0] for kind in range(num_distinct)]
    scored = [score(rows[kind][None], [known(kind, 0)])[0] for kind in range(num_distinct)]
    threads = torch.get_num_threads()
    try:
        for batch_size in (1, 2, 3, 16, 33, 70):
            torch.set_num_threads(rng.choice([1, 2]))
            kinds = [rng.randrange(num_distinct) for _ in range(batch_size)]
            logits = torch.stack([rows[kind] for kind in kinds])
            before = logits.clone()
            # The tasks need not be in the order of the rows.
            order = rng.sample(range(batch_size), batch_size)
            results = sample(logits, [request(kinds[row], row) for row in order])
            assert results == [alone[kinds[row]] for row in order]
            assert score(logits, [known(kinds[row], row) for row in order]) == [
                scored[kinds[row]] for row in order
            ]
            assert torch.equal(logits, before), "the logits were modified"
    finally:
        torch.set_num_threads(threads)


def test_logits_that_are_a_view_of_something_larger_give_the_same() -> None:
    padded = torch.stack([random_logits(1003, seed=seed) for seed in range(4)])
    view = padded[::2, 1:1001]
    tasks = [task(0, stream=1, logprobs=2), task(1, stream=2, logprobs=2)]
    assert sample(view, tasks) == sample(view.clone(), tasks)
