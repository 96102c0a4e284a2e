"""vLLM's build for CPUs, its engine in this process. Runs in `host.py`.

Threads, KV cache and libraries to be preloaded come in environment variables: see
``contenders.py``.
"""

from __future__ import annotations

import time
from typing import Any

import vllm
from vllm import LLM, SamplingParams


class Engine:
    """A ``vllm.LLM``.

    Args:
        model: a Hugging Face directory.
        dtype: of weights and arithmetic.
        batched_tokens: most tokens of a step.
    """

    def __init__(self, model: str, dtype: str, batched_tokens: int) -> None:
        self._llm = LLM(
            model,
            dtype=dtype,
            max_model_len=2048,
            enable_prefix_caching=True,
            max_num_seqs=64,
            max_num_batched_tokens=batched_tokens,
            disable_log_stats=True,
        )
        self._num_requests = 0

    def about(self) -> dict[str, Any]:
        """Version."""
        return {"version": vllm.__version__}

    def single(self, prompt: list[int], max_tokens: int) -> tuple[float, float, int]:
        """Time one request, step by step."""
        engine = self._llm.llm_engine
        self._num_requests += 1
        began = time.perf_counter()
        first = None
        num_tokens = 0
        ask: Any = {"prompt_token_ids": prompt}
        engine.add_request(f"single-{self._num_requests}", ask, _params(max_tokens))
        while engine.has_unfinished_requests():
            for output in engine.step():
                num_tokens = len(output.outputs[0].token_ids)
                if first is None and num_tokens:
                    first = time.perf_counter()
        ended = time.perf_counter()
        assert first is not None
        return first - began, ended - began, num_tokens

    def many(self, requests: list[tuple[list[int], int]]) -> tuple[float, list[int]]:
        """Time many requests at once."""
        prompts: Any = [{"prompt_token_ids": prompt} for prompt, _ in requests]
        params = [_params(max_tokens) for _, max_tokens in requests]
        began = time.perf_counter()
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        total_s = time.perf_counter() - began
        return total_s, [len(output.outputs[0].token_ids) for output in outputs]


def _params(max_tokens: int) -> Any:
    return SamplingParams(
        temperature=0,
        max_tokens=max_tokens,
        min_tokens=max_tokens,
        ignore_eos=True,
        detokenize=False,
    )
