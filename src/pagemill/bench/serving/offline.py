"""`LLM.generate` without a server, to hold one against. Runs in ``bench/peers/drivers/host.py``."""

from __future__ import annotations

import time
from typing import Any

from pagemill import LLM, SamplingParams


class Engine:
    """An `LLM`.

    Args:
        model: whatever `LLM` takes.
        settings: further fields of `EngineConfig`.
    """

    def __init__(self, model: str, **settings: Any) -> None:
        self._llm = LLM(model, **settings)

    def about(self) -> dict[str, Any]:
        """What may be asked of the model."""
        engine = self._llm.engine
        return {
            "vocab_size": engine.runner.vocab_size,
            "max_model_len": engine.max_model_len,
            "step_tokens": engine.config.max_num_batched_tokens,
        }

    def many(self, requests: list[tuple[list[int], int]]) -> tuple[float, list[int]]:
        """Time many requests at once."""
        prompts = [prompt for prompt, _ in requests]
        params = [
            SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
            for _, tokens in requests
        ]
        began = time.perf_counter()
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        total_s = time.perf_counter() - began
        return total_s, [len(output.outputs[0].token_ids) for output in outputs]
