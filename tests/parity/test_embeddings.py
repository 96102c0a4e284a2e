"""Embeddings of every architecture are Hugging Face transformers', and the same in any schedule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from pagemill import LLM, EmbeddingOutput, RequestOutput, SamplingParams
from pagemill.kernels import native
from pagemill.runner.native_runner import NativeRunner
from pagemill.runner.torch_runner import TorchRunner
from tests.parity.paged import random_tokens
from tests.parity.tiny_models import VARIANTS, gemma3, llama

TOLERANCE = 1e-4
PROMPTS = [random_tokens(45), random_tokens(1, seed=1), random_tokens(128, seed=2)]

needs_native = pytest.mark.skipif(native.load() is None, reason="no native library")


@pytest.fixture(params=["reference", "native"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type:
    """The runner that models are given: of PyTorch or of the native library."""
    torch.set_num_threads(1)
    if request.param == "native":
        if native.load() is None:
            pytest.skip("no native library")
        return NativeRunner
    monkeypatch.setattr(native, "load", lambda: None)
    return TorchRunner


def their_embedding(theirs: PreTrainedModel, token_ids: Sequence[int]) -> np.ndarray[Any, Any]:
    with torch.inference_mode():
        hidden = theirs.base_model(torch.tensor([list(token_ids)])).last_hidden_state[0]
    mean: np.ndarray[Any, Any] = hidden.double().mean(dim=0).numpy()
    return mean


def saved(theirs: PreTrainedModel, directory: Path) -> str:
    theirs.save_pretrained(directory)
    return str(directory)


def bits(output: EmbeddingOutput) -> bytes:
    return output.embedding.tobytes()


@pytest.mark.parametrize("variant", VARIANTS)
def test_embeddings_are_the_mean_of_the_last_hidden_states(
    variant: str, backend: type, tmp_path: Path
) -> None:
    theirs = VARIANTS[variant]()
    model = saved(theirs, tmp_path)
    with LLM(model, num_kv_blocks=64, num_threads=1, check_invariants=True) as llm:
        assert isinstance(llm.engine.runner, backend)
        outputs = llm.embed(PROMPTS, use_tqdm=False)
        scaled = llm.embed(PROMPTS, normalize=True, use_tqdm=False)
    for prompt, output, unit in zip(PROMPTS, outputs, scaled, strict=True):
        expected = their_embedding(theirs, prompt)
        assert expected.std() > 0.1, "a flat embedding would match whatever is computed"
        assert output.embedding.dtype == np.float32
        assert np.abs(output.embedding - expected).max() < TOLERANCE
        direction = expected / np.linalg.norm(expected)
        assert np.abs(unit.embedding - direction).max() < TOLERANCE


def test_more_rows_than_are_in_the_logits_at_a_time_are_all_there(
    backend: type, tmp_path: Path
) -> None:
    """A step with hundreds of rows for logits runs the output head several times, too."""
    scored = SamplingParams(max_tokens=0, prompt_logprobs=0)
    for make in (llama, gemma3):
        theirs = make(max_position_embeddings=1024)
        model = saved(theirs, tmp_path / make.__name__)
        with LLM(model, num_kv_blocks=256, max_num_batched_tokens=2048) as llm:
            engine = llm.engine
            engine.add_embedding_request("a", random_tokens(700, seed=1))
            engine.add_request("scored", random_tokens(600, seed=2), scored)
            engine.add_embedding_request("b", random_tokens(520, seed=3))
            outputs = {output.request_id: output for output in engine.step()}
        for name, count, seed in [("a", 700, 1), ("b", 520, 3)]:
            expected = their_embedding(theirs, random_tokens(count, seed=seed))
            ours = outputs[name].embedding
            assert ours is not None
            assert np.abs(ours - expected).max() < TOLERANCE


@pytest.fixture(scope="module", params=["tiny", "smollm2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random float weights, and real quantized ones."""
    if request.param == "smollm2":
        return str(request.getfixturevalue("smollm2_path"))
    return saved(llama(max_position_embeddings=1024), tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return [random_tokens(count, seed=count) for count in (300, 61, 200, 1, 128, 90)]


@pytest.fixture(scope="module")
def alone(model: str, prompts: list[list[int]]) -> list[bytes]:
    """Each prompt in a step of its own."""
    with LLM(model, num_kv_blocks=64, max_num_batched_tokens=1024, num_threads=1) as llm:
        outputs = [llm.embed(prompt, use_tqdm=False)[0] for prompt in prompts]
        assert llm.stats()["num_steps"] == len(prompts)
    return [bits(output) for output in outputs]


@needs_native
@pytest.mark.parametrize(
    ("budget", "num_threads"), [(1024, 2), (300, 1), (64, 2), (7, 2)], ids=lambda value: f"{value}"
)
def test_the_bits_are_the_same_in_any_batch_and_chunks(
    model: str, prompts: list[list[int]], alone: list[bytes], budget: int, num_threads: int
) -> None:
    with LLM(
        model,
        max_num_batched_tokens=budget,
        num_kv_blocks=128,
        num_threads=num_threads,
        check_invariants=True,
    ) as llm:
        assert [bits(output) for output in llm.embed(prompts, use_tqdm=False)] == alone
        # Again, with all of them in the prefix cache.
        assert [bits(output) for output in llm.embed(prompts, use_tqdm=False)] == alone


@needs_native
@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_the_bits_are_the_same_after_preemption_beside_generation(
    model: str,
    prompts: list[list[int]],
    alone: list[bytes],
    mode: str,
    enable_prefix_caching: bool,
) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    texts = [random_tokens(30, seed=i) for i in range(4)]
    with LLM(
        model,
        max_num_batched_tokens=48,
        num_kv_blocks=20,
        preemption_mode=mode,
        swap_space="64MiB" if mode == "swap" else 0,
        enable_prefix_caching=enable_prefix_caching,
        scheduling_policy="priority",
        num_threads=2,
        check_invariants=True,
    ) as llm:
        expected = [generated(llm.generate(text, params, use_tqdm=False)[0]) for text in texts]
        engine = llm.engine
        for i, prompt in enumerate(prompts):
            engine.add_embedding_request(f"{i}", prompt, priority=5)
        outputs: dict[str, RequestOutput] = {}
        for _ in range(3):  # the first prompt is under way
            outputs |= {output.request_id: output for output in engine.step()}
        for i, text in enumerate(texts):
            engine.add_request(f"text {i}", text, params, stream=False)
        while engine.has_unfinished_requests():
            outputs |= {output.request_id: output for output in engine.step()}
        stats = llm.stats()
    got = [outputs[f"{i}"] for i in range(len(prompts))]
    assert any(output.metrics.num_preemptions for output in got)
    assert (stats["num_preemptions_swap"] > 0) == (mode == "swap")
    assert [output.embedding.tobytes() for output in got if output.embedding is not None] == alone
    assert [generated(outputs[f"text {i}"]) for i in range(len(texts))] == expected


def generated(output: RequestOutput) -> tuple[list[int], float]:
    (completion,) = output.outputs
    return completion.token_ids, completion.cumulative_logprob


@needs_native
def test_texts_about_the_same_are_closer_than_others(smollm2_path: Path) -> None:
    texts = [
        "The cat sat on the mat and slept.",
        "A kitten was sleeping on the rug.",
        "Interest rates rose by half a percent in March.",
    ]
    with LLM(str(smollm2_path), num_kv_blocks=64) as llm:
        cat, kitten, rates = (o.embedding for o in llm.embed(texts, normalize=True, use_tqdm=False))
    assert float(cat @ kitten) > float(cat @ rates)
