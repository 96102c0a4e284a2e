"""Beam search gives what Hugging Face's ``generate(num_beams=..., do_sample=False)`` gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from pagemill import LLM, Beam, SamplingParams
from pagemill.kernels import native
from tests.core_helpers import assert_idle
from tests.parity.paged import random_tokens
from tests.parity.tiny_models import gemma3, gpt2, llama

MAX_TOKENS = 16
PAD = 1
PROMPTS = [random_tokens(length, seed=length) for length in (1, 6, 17, 30)]
OFTEN = list(range(3, 97, 8))
"""End-of-sequence ids so many that one of them is always near."""
MODELS: dict[str, Callable[..., PreTrainedModel]] = {
    "llama": llama,
    "gemma3": gemma3,
    "gpt2": gpt2,
}


@pytest.fixture(
    scope="module",
    params=list(itertools.product(MODELS, [None, 3, OFTEN])),
    ids=lambda param: f"{param[0]}-{'often' if param[1] == OFTEN else param[1]}",
)
def models(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[PreTrainedModel, LLM]]:
    """Theirs and ours, with no end of sequence, a rare one, or many."""
    torch.set_num_threads(1)
    name, eos = request.param
    directory = tmp_path_factory.mktemp(name)
    theirs = MODELS[name](eos_token_id=eos)
    theirs.save_pretrained(directory)
    with LLM(str(directory), num_threads=1, num_kv_blocks=64, check_invariants=True) as ours:
        yield theirs, ours


def their_beams(
    theirs: Any, prompt: list[int], beam_width: int, **options: Any
) -> tuple[list[list[int]], list[float]]:
    """Token ids, without padding, and scores (none for one beam) of all beams."""
    with torch.inference_mode():
        result = theirs.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=beam_width,
            num_return_sequences=beam_width,
            do_sample=False,
            max_new_tokens=MAX_TOKENS,
            pad_token_id=PAD,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    eos = theirs.config.eos_token_id
    end_ids = eos if isinstance(eos, list) else [eos]
    beams = []
    for sequence in result.sequences[:, len(prompt) :].tolist():
        ends = [i for i, token_id in enumerate(sequence) if token_id in end_ids]
        beams.append(sequence[: ends[0] + 1] if ends else sequence)
    return beams, [] if beam_width == 1 else result.sequences_scores.tolist()


@pytest.mark.parametrize("beam_width", [1, 2, 4, 5])
def test_beams_and_scores_are_theirs(models: tuple[PreTrainedModel, LLM], beam_width: int) -> None:
    theirs, ours = models
    outcomes: set[str] = set()
    reasons: set[str] = set()
    for length_penalty, early_stopping in itertools.product(
        [0.0, 0.6, 1.0, 2.0, -1.0], [False, True, "never"]
    ):
        options: dict[str, Any] = {}
        if beam_width > 1:  # they warn of options that greedy search ignores
            options = {"length_penalty": length_penalty, "early_stopping": early_stopping}
        outputs = ours.beam_search(
            PROMPTS,
            beam_width,
            MAX_TOKENS,
            length_penalty,
            early_stopping=early_stopping,  # type: ignore[arg-type]
            use_tqdm=False,
        )
        for prompt, output in zip(PROMPTS, outputs, strict=True):
            beams, scores = their_beams(theirs, prompt, beam_width, **options)
            assert [beam.token_ids for beam in output.beams] == beams, options
            for beam, score in zip(output.beams, scores, strict=False):
                assert beam.score == pytest.approx(score, rel=1e-4, abs=1e-4)
            reasons |= {beam.finish_reason for beam in output.beams}
        outcomes.add(repr(outputs))
    assert_idle(ours.engine)
    if theirs.config.eos_token_id == OFTEN:
        assert "stop" in reasons
        # The options matter, so that confusing them would show.
        assert len(outcomes) > (6 if beam_width > 1 else 1)
    elif theirs.config.eos_token_id is None:
        assert reasons == {"length"}


def test_prompts_of_one_batch_of_theirs_are_ours_too(models: tuple[PreTrainedModel, LLM]) -> None:
    """They pad on the left and stop when all are done; neither shows in a prompt's beams."""
    theirs: Any = models[0]
    ours = models[1]
    longest = max(map(len, PROMPTS))
    padded = [[PAD] * (longest - len(prompt)) + prompt for prompt in PROMPTS]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS]
    with torch.inference_mode():
        sequences = theirs.generate(
            torch.tensor(padded),
            attention_mask=torch.tensor(mask),
            num_beams=3,
            num_return_sequences=2,
            do_sample=False,
            max_new_tokens=MAX_TOKENS,
            pad_token_id=PAD,
        )
    outputs = ours.beam_search(PROMPTS, 3, MAX_TOKENS, n=2, use_tqdm=False)
    beams = [beam.token_ids for output in outputs for beam in output.beams]
    for beam, sequence in zip(beams, sequences[:, longest:].tolist(), strict=True):
        assert sequence[: len(beam)] == beam
        assert set(sequence[len(beam) :]) <= {PAD}


def test_a_small_pool_and_few_slots_give_the_same_bits(models: tuple[PreTrainedModel, LLM]) -> None:
    if native.load() is None:
        pytest.skip("PyTorch promises no equal bits")
    _, ours = models
    expected = ours.beam_search(PROMPTS, 4, MAX_TOKENS, use_tqdm=False)
    for options in (
        {"num_kv_blocks": 8, "block_size": 8},
        {"num_kv_blocks": 8, "block_size": 8, "swap_space": "1MiB", "preemption_mode": "swap"},
        {"max_num_seqs": 3, "enable_prefix_caching": False},
        {"max_num_batched_tokens": 5, "block_size": 2, "num_kv_blocks": 40},
    ):
        with LLM(
            ours.engine.config.model, num_threads=1, check_invariants=True, **options
        ) as little:
            assert little.beam_search(PROMPTS, 4, MAX_TOKENS, use_tqdm=False) == expected
            assert_idle(little.engine)
            stats = little.stats()
        preempted = "num_preemptions_" + ("swap" if "swap_space" in options else "recompute")
        assert stats[preempted] > 0 or "max_num_seqs" in options


def test_smollm2_finds_likelier_text_than_greedy_search_does(smollm2_path: Path) -> None:
    prompts = ["The capital of France is", "Once upon a time there was a"]
    with LLM(str(smollm2_path), num_kv_blocks=64, num_threads=1, check_invariants=True) as llm:
        greedy = llm.generate(
            prompts, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True), use_tqdm=False
        )
        before = llm.stats()["num_computed_tokens"]
        outputs = llm.beam_search(prompts, 4, 24, ignore_eos=True, use_tqdm=False)
        computed = llm.stats()["num_computed_tokens"] - before
        assert llm.stats()["cow_copies"] > 0
        assert_idle(llm.engine)
        for output, plain in zip(outputs, greedy, strict=True):
            best = output.beams[0]
            assert best.cumulative_logprob > plain.outputs[0].cumulative_logprob
            assert best.cumulative_logprob == pytest.approx(
                rescored(llm, output.prompt_token_ids, best), abs=1e-3
            )
        assert all(beam.text.startswith(" Paris. The capital of") for beam in outputs[0].beams)
    # The prompts are in the prefix cache, but for their last token.
    assert computed == 2 * (1 + 4 * 23)


def rescored(llm: LLM, prompt_token_ids: list[int], beam: Beam) -> float:
    """The log-probability of a beam's tokens, given as a prompt."""
    token_ids = prompt_token_ids + beam.token_ids
    (output,) = llm.generate(
        [token_ids], SamplingParams(max_tokens=0, prompt_logprobs=0), use_tqdm=False
    )
    assert output.prompt_logprobs is not None
    total = 0.0
    for i in range(len(prompt_token_ids), len(token_ids)):
        known = output.prompt_logprobs[i]
        assert known is not None
        total += known[token_ids[i]].logprob
    return total
