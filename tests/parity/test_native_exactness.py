"""Real models on the native kernels: a request has the same bits whatever else is going on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagemill import LLM, RequestOutput, SamplingParams
from pagemill.kernels import native

DATA = Path(__file__).parent.parent / "data"

pytestmark = pytest.mark.skipif(native.load() is None, reason="no native library")


def params(num_tokens: int) -> list[SamplingParams]:
    """Greedy and sampled, with what looks at the past."""
    return [
        SamplingParams(temperature=0, max_tokens=num_tokens, logprobs=5, prompt_logprobs=1),
        SamplingParams(seed=5, top_p=0.9, max_tokens=num_tokens, logprobs=3),
        SamplingParams(seed=6, top_k=40, frequency_penalty=0.5, max_tokens=num_tokens, logprobs=0),
        SamplingParams(seed=7, n=2, min_p=0.05, repetition_penalty=1.1, max_tokens=num_tokens),
    ]


def bits(output: RequestOutput) -> list[Any]:
    """All that a caller sees of a request."""
    return [output.prompt_logprobs] + [
        (c.token_ids, c.text, c.logprobs, c.cumulative_logprob, c.finish_reason)
        for c in output.outputs
    ]


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_smollm2_gives_the_same_bits_alone_and_in_any_schedule(
    smollm2_path: Path, dtype: str
) -> None:
    entries = json.loads((DATA / "smollm2_float32_greedy.json").read_text())[:12]
    prompts = [entry["prompt_token_ids"] for entry in entries]
    wanted = [params(48)[i % 4] for i in range(len(prompts))]
    with LLM(str(smollm2_path), dtype=dtype, num_kv_blocks=300, num_threads=1) as llm:
        alone = [
            bits(llm.generate(prompt, one, use_tqdm=False)[0])
            for prompt, one in zip(prompts, wanted, strict=True)
        ]
    for budget, num_kv_blocks, num_threads in [(4096, 300, 2), (64, 20, 2), (7, 300, 2), (1, 9, 1)]:
        with LLM(
            str(smollm2_path),
            dtype=dtype,
            max_num_batched_tokens=budget,
            num_kv_blocks=num_kv_blocks,
            num_threads=num_threads,
            check_invariants=True,
        ) as llm:
            together = llm.generate(prompts, wanted, use_tqdm=False)
            preempted = llm.stats()["num_preemptions_recompute"]
        assert [bits(output) for output in together] == alone, budget
        assert (preempted > 0) == (num_kv_blocks == 20), "the small pool is meant to preempt"
