"""Who else is in the batch must not matter: seeds, penalties and end tokens."""

from __future__ import annotations

import itertools

import pytest
import torch

from pagemill.batch import SamplingTask
from pagemill.philox import derive_request_seed
from tests.unit.sampling.sampling_helpers import random_logits, sample, task

pytestmark = pytest.mark.usefixtures("vocabulary")

VOCAB_SIZE = 997


def generate(requests: dict[str, SamplingTask], num_tokens: int = 12) -> dict[str, list[int]]:
    """Run a step for all requests at a time, on a toy model: logits from the last token alone."""
    outputs: dict[str, list[int]] = {name: [] for name in requests}
    for _ in range(num_tokens):
        logits, tasks = [], []
        for row, (name, first) in enumerate(requests.items()):
            last = [*first.prompt_token_ids, *outputs[name]][-1]
            logits.append(random_logits(VOCAB_SIZE, seed=last, scale=1.5))
            tasks.append(
                SamplingTask(
                    row,
                    first.params,
                    first.prompt_token_ids,
                    outputs[name],
                    first.seed,
                    first.end_token_ids,
                )
            )
        for name, sampled in zip(requests, sample(torch.stack(logits), tasks), strict=True):
            assert sampled.token_id is not None
            outputs[name].append(sampled.token_id)
    return outputs


def test_seed_42_gives_the_same_beside_a_batch_mate_without_a_seed_four_times() -> None:
    seeded = task(prompt=[3, 1], stream=42, seed=42)
    alone = generate({"seeded": seeded})["seeded"]
    others = []
    for arrival in range(4):
        unseeded = task(prompt=[3, 1], stream=derive_request_seed(0, arrival))
        pair = {"other": unseeded, "seeded": seeded}
        if arrival % 2:
            pair = dict(reversed(pair.items()))
        outputs = generate(pair)
        assert outputs["seeded"] == alone
        others.append(outputs["other"])
    assert all(a != b for a, b in itertools.combinations([alone, *others], 2))


def test_a_repetition_penalty_acts_on_its_own_request_in_both_orders() -> None:
    penalized = task(prompt=[5, 6], temperature=0, repetition_penalty=1.8)
    plain = task(prompt=[5, 6], temperature=0)
    forward = generate({"penalized": penalized, "plain": plain}, num_tokens=40)
    backward = generate({"plain": plain, "penalized": penalized}, num_tokens=40)
    assert forward == backward
    assert forward["penalized"] == generate({"penalized": penalized}, num_tokens=40)["penalized"]
    assert forward["plain"] == generate({"plain": plain}, num_tokens=40)["plain"]
    assert forward["plain"] != forward["penalized"]


def test_min_tokens_holds_back_every_end_token_of_its_own_request_only() -> None:
    ends = list(range(0, VOCAB_SIZE, 2))  # so many that an unmasked draw meets one at once
    held_back = task(prompt=[9], stream=1, end=ends, min_tokens=8)
    free = task(prompt=[9], stream=2, end=ends)
    outputs = generate({"free": free, "held back": held_back})
    assert not set(outputs["held back"][:8]) & set(ends)
    assert set(outputs["held back"][8:]) & set(ends)
    assert set(outputs["free"][:8]) & set(ends)


def test_ignoring_the_models_end_tokens_leaves_the_requests_own_stop_tokens_masked() -> None:
    # With ignore_eos the engine names only stop_token_ids as end tokens: those stay possible
    # that end nothing.
    logits = torch.tensor([[5.0, 4.0, 3.0, 0.0]])
    ignoring = task(temperature=0, ignore_eos=True, min_tokens=1, stop_token_ids=[1], end=[1])
    assert sample(logits, [ignoring])[0].token_id == 0
    obeying = task(temperature=0, min_tokens=1, stop_token_ids=[1], end=[0, 1, 2])
    assert sample(logits, [obeying])[0].token_id == 3
