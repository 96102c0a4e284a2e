"""CTranslate2's generator. Runs in `host.py`.

It has no continuous batching: many requests run in static batches, longest answers first. What all
prompts of a call have in common is given as a static prompt, which it computes once.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import ctranslate2

SHORTEST_STATIC_PROMPT = 64


class Engine:
    """A ``ctranslate2.Generator``.

    Args:
        model: a directory that ``ct2-transformers-converter`` wrote.
        threads: that compute.
        compute_type: ``int8``, ``float32``.
        batch_size: requests in a static batch.
    """

    def __init__(self, model: str, threads: int, compute_type: str, batch_size: int) -> None:
        self._batch_size = batch_size
        self._generator = ctranslate2.Generator(
            model, device="cpu", compute_type=compute_type, inter_threads=1, intra_threads=threads
        )
        with open(os.path.join(model, "vocabulary.json")) as file:
            self._tokens: list[str] = json.load(file)

    def about(self) -> dict[str, Any]:
        """Version."""
        return {"version": ctranslate2.__version__}

    def single(self, prompt: list[int], max_tokens: int) -> tuple[float, float, int]:
        """Time one request."""
        first: list[float] = []

        def on_token(_: Any) -> bool:
            if not first:
                first.append(time.perf_counter())
            return False

        began = time.perf_counter()
        (num_tokens,) = self._generate([prompt], max_tokens, callback=on_token)
        ended = time.perf_counter()
        return first[0] - began, ended - began, num_tokens

    def many(self, requests: list[tuple[list[int], int]]) -> tuple[float, list[int]]:
        """Time many requests; those of a batch are answered as long as its longest."""
        began = time.perf_counter()
        common = _common_length([prompt for prompt, _ in requests])
        options: dict[str, Any] = {}
        if common >= SHORTEST_STATIC_PROMPT:
            options["static_prompt"] = self._texts(requests[0][0][:common])
            options["cache_static_prompt"] = True
        else:
            common = 0
        ordered = sorted(requests, key=lambda request: -request[1])
        for start in range(0, len(ordered), self._batch_size):
            batch = ordered[start : start + self._batch_size]
            longest = max(max_tokens for _, max_tokens in batch)
            counts = self._generate([prompt[common:] for prompt, _ in batch], longest, **options)
            assert set(counts) == {longest}, (counts, longest)
        return time.perf_counter() - began, [max_tokens for _, max_tokens in requests]

    def _generate(self, prompts: list[list[int]], max_tokens: int, **options: Any) -> list[int]:
        """Complete prompts; returns how many tokens each got."""
        results = self._generator.generate_batch(
            [self._texts(prompt) for prompt in prompts],
            max_length=max_tokens,
            min_length=max_tokens,
            beam_size=1,
            sampling_topk=1,
            include_prompt_in_result=False,
            end_token=[],
            **options,
        )
        return [len(result.sequences_ids[0]) for result in results]

    def _texts(self, ids: list[int]) -> list[str]:
        return [self._tokens[i] for i in ids]


def _common_length(prompts: list[list[int]]) -> int:
    """How many first tokens all prompts have in common, leaving each at least one."""
    if len(prompts) < 2:
        return 0
    length = min(map(len, prompts)) - 1
    for position in range(length):
        if any(prompt[position] != prompts[0][position] for prompt in prompts):
            return position
    return length
