"""Hugging Face transformers: ``generate`` on PyTorch. Runs in `host.py`.

It has no continuous batching here: many requests run in static batches, longest answers first, so
that the requests of a batch end at about the same time.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers

PADDING_ID = 2


class Engine:
    """A causal language model.

    Args:
        model: a Hugging Face directory.
        threads: that compute.
        dtype: of weights and arithmetic.
        batch_size: requests in a static batch.
    """

    def __init__(self, model: str, threads: int, dtype: str, batch_size: int) -> None:
        torch.set_num_threads(threads)
        logging: Any = transformers.logging
        logging.set_verbosity_error()
        self._batch_size = batch_size
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
        self._model = loaded.eval()

    def about(self) -> dict[str, Any]:
        """Versions."""
        return {"version": transformers.__version__, "torch": torch.__version__}

    def single(self, prompt: list[int], max_tokens: int) -> tuple[float, float, int]:
        """Time one request, streamed."""
        streamer = _FirstToken()
        began = time.perf_counter()
        num_tokens = self._generate([prompt], max_tokens, streamer)
        ended = time.perf_counter()
        assert streamer.first is not None
        return streamer.first - began, ended - began, num_tokens

    def many(self, requests: list[tuple[list[int], int]]) -> tuple[float, list[int]]:
        """Time many requests; those of a batch are answered as long as its longest."""
        began = time.perf_counter()
        ordered = sorted(requests, key=lambda request: -request[1])
        for start in range(0, len(ordered), self._batch_size):
            batch = ordered[start : start + self._batch_size]
            longest = max(max_tokens for _, max_tokens in batch)
            num_tokens = self._generate([prompt for prompt, _ in batch], longest)
            assert num_tokens == longest, (num_tokens, longest)
        return time.perf_counter() - began, [max_tokens for _, max_tokens in requests]

    def _generate(self, prompts: list[list[int]], max_tokens: int, streamer: Any = None) -> int:
        """Complete prompts, padded on the left; returns how many tokens each got."""
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), PADDING_ID)
        mask = torch.zeros((len(prompts), width), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=max_tokens,
                min_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=PADDING_ID,
                eos_token_id=None,
                streamer=streamer,
            )
        return int(out.shape[1]) - width


class _FirstToken:
    """A streamer that remembers when the first token came: the prompt itself comes before it."""

    def __init__(self) -> None:
        self._num_calls = 0
        self.first: float | None = None

    def put(self, _: Any) -> None:
        self._num_calls += 1
        if self._num_calls == 2:
            self.first = time.perf_counter()

    def end(self) -> None:
        pass
