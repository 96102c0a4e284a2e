"""This engine, as a peer of the others. Runs in `host.py`."""

from __future__ import annotations

import random
import time
from typing import Any

from pagemill import LLM, SamplingParams
from pagemill.kernels import native


class Engine:
    """An `LLM`.

    Args:
        model: whatever `LLM` takes.
        threads: that compute.
        write_whole_cache: serve prompts first, until every block of the pool has been written to.
            Others write to all of their cache when they start; here memory comes from the system
            as it is needed for the first time.
        settings: further fields of `EngineConfig`.
    """

    def __init__(
        self, model: str, threads: int, *, write_whole_cache: bool = False, **settings: Any
    ) -> None:
        self._llm = LLM(model, num_threads=threads, **settings)
        self._num_requests = 0
        if write_whole_cache:
            numbers = random.Random(-1)
            for _ in range(0, self._llm.pool.num_blocks * self._llm.engine.kv.block_size, 1024):
                self.single([numbers.randrange(1000, 10000) for _ in range(1024)], 1)

    def about(self) -> dict[str, Any]:
        """The instruction set, and how large the pool is."""
        library = native.load()
        return {
            "isa": None if library is None else library.isa,
            "kv_pool_bytes": self._llm.pool.total_bytes,
        }

    def single(self, prompt: list[int], max_tokens: int) -> tuple[float, float, int]:
        """Time one request."""
        engine = self._llm.engine
        began = time.perf_counter()
        first = None
        num_tokens = 0
        self._add(prompt, max_tokens, stream=True)
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
        engine = self._llm.engine
        num_tokens: dict[str, int] = {}
        began = time.perf_counter()
        names = [self._add(prompt, tokens, stream=False) for prompt, tokens in requests]
        while engine.has_unfinished_requests():
            for output in engine.step():
                num_tokens[output.request_id] = len(output.outputs[0].token_ids)
        total_s = time.perf_counter() - began
        return total_s, [num_tokens[name] for name in names]

    def _add(self, prompt: list[int], max_tokens: int, *, stream: bool) -> str:
        self._num_requests += 1
        name = str(self._num_requests)
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self._llm.engine.add_request(name, prompt, params, stream=stream)
        return name
