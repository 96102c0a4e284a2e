"""Greedy continuations of real models, to the token, as Hugging Face transformers gives them.

The files in ``tests/data`` were computed in float32 from the same GGUF files, dequantized.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagemill import LLM, RequestError, RequestOutput, SamplingParams

DATA = Path(__file__).parent.parent / "data"
SMOLLM2: list[dict[str, Any]] = json.loads((DATA / "smollm2_float32_greedy.json").read_text())
GEMMA3: list[dict[str, Any]] = json.loads((DATA / "gemma3_float32_greedy.json").read_text())
BUDGETS = [16, 64, 4096]


def greedy(entry: dict[str, Any], limit: int) -> SamplingParams:
    """Ask for as many tokens as the file holds; it ends early at an end-of-sequence token."""
    return SamplingParams(temperature=0, max_tokens=limit, logprobs=5)


def assert_golden(output: RequestOutput, entry: dict[str, Any], tolerance: float = 2e-3) -> None:
    completion = output.outputs[0]
    assert completion.token_ids == entry["token_ids"]
    assert completion.text == entry["completion"].removesuffix("<|im_end|>")
    assert completion.logprobs is not None
    for ours, theirs in zip(completion.logprobs, entry["top5_logprobs"], strict=False):
        for token_id, logprob in theirs:
            if token_id in ours:  # the fifth may change places with the sixth
                assert ours[token_id].logprob == pytest.approx(logprob, abs=tolerance)
        assert sum(token_id in ours for token_id, _ in theirs) >= 4


@pytest.fixture(params=BUDGETS, scope="module")
def smollm2(request: pytest.FixtureRequest, smollm2_path: Path) -> Iterator[LLM]:
    with LLM(
        str(smollm2_path),
        dtype="float32",
        max_num_batched_tokens=request.param,
        num_kv_blocks=512,
        check_invariants=True,
    ) as llm:
        yield llm


def test_smollm2_gives_the_golden_tokens_alone(smollm2: LLM) -> None:
    for entry in SMOLLM2:
        (output,) = smollm2.generate(entry["prompt_token_ids"], greedy(entry, 48), use_tqdm=False)
        assert_golden(output, entry)


def test_smollm2_gives_the_golden_tokens_in_one_batch(smollm2: LLM) -> None:
    outputs = smollm2.generate(
        [entry["prompt_token_ids"] for entry in SMOLLM2],
        [greedy(entry, 48) for entry in SMOLLM2],
        use_tqdm=False,
    )
    for output, entry in zip(outputs, SMOLLM2, strict=True):
        assert_golden(output, entry)


@pytest.mark.parametrize("smollm2", [64], indirect=True)
def test_smollm2_texts_and_chats_become_the_golden_prompts(smollm2: LLM) -> None:
    assert {type(entry["prompt"]) for entry in SMOLLM2} == {str, list}
    for entry in SMOLLM2:
        run = smollm2.chat if isinstance(entry["prompt"], list) else smollm2.generate
        (output,) = run(entry["prompt"], SamplingParams(temperature=0, max_tokens=1))
        assert output.prompt_token_ids == entry["prompt_token_ids"]
        assert output.outputs[0].token_ids == entry["token_ids"][:1]


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> Iterator[LLM]:
    with LLM(str(gemma3_path), dtype="float32", num_kv_blocks=256, check_invariants=True) as llm:
        yield llm


def test_gemma3_gives_the_golden_tokens_alone_and_in_one_batch(gemma3: LLM) -> None:
    params = [greedy(entry, 24) for entry in GEMMA3]
    together = gemma3.generate([entry["prompt"] for entry in GEMMA3], params, use_tqdm=False)
    for output, entry, one in zip(together, GEMMA3, params, strict=True):
        assert output.prompt_token_ids == entry["prompt_token_ids"]
        assert_golden(output, entry)
        (alone,) = gemma3.generate(entry["prompt"], one, use_tqdm=False)
        assert_golden(alone, entry)


def test_chat_on_a_base_model_is_refused_with_that_reason(gemma3: LLM) -> None:
    with pytest.raises(RequestError, match="base model"):
        gemma3.chat([{"role": "user", "content": "Hello"}])
