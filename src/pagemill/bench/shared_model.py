"""One model, loaded once, and a fresh engine on it for each run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

from pagemill.assembly import build_engine, num_swap_slots
from pagemill.config import EngineConfig
from pagemill.engine import LLMEngine
from pagemill.errors import ConfigError
from pagemill.kvcache.manager import KVCacheManager
from pagemill.sampling_params import SamplingParams


class BenchRequest(NamedTuple):
    """A prompt, and how many tokens it is answered with: greedily, whatever they are."""

    prompt_token_ids: Sequence[int]
    max_tokens: int


class SharedModel:
    """A runner with its pool, and engines that take turns on it; closed on leaving the context.

    An engine knows nothing of what another one left in the pool. Only one may have unfinished
    requests.

    Args:
        config: of the runner, and of the engines where nothing else is said.
    """

    def __init__(self, config: EngineConfig) -> None:
        assembly = build_engine(config)
        self._engine = assembly.engine
        self.config = config
        self.runner = assembly.engine.runner
        self.max_model_len = assembly.engine.max_model_len
        self.num_kv_blocks = assembly.pool.num_blocks
        self.block_bytes = assembly.pool.block_bytes
        self.num_swap_slots = num_swap_slots(config, assembly.pool)

    def engine(
        self, *, kv: KVCacheManager | None = None, num_kv_blocks: int | None = None, **changes: Any
    ) -> LLMEngine:
        """A fresh engine. It owns nothing, and need not be closed.

        Args:
            kv: another block accounting.
            num_kv_blocks: it uses only the first of the runner's.
            changes: fields of `EngineConfig`.
        """
        return LLMEngine(
            replace(self.config, **changes),
            self.runner,
            None,
            num_kv_blocks=num_kv_blocks or self.num_kv_blocks,
            max_model_len=self.max_model_len,
            num_swap_slots=self.num_swap_slots,
            block_bytes=self.block_bytes,
            kv=kv,
        )

    def random_prompt(self, tag: str, num_tokens: int) -> list[int]:
        """Token ids that depend on ``tag`` only."""
        return random_prompt(tag, num_tokens, self.runner.vocab_size)

    def close(self) -> None:
        """Free the model."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def random_prompt(tag: str, num_tokens: int, vocab_size: int) -> list[int]:
    """Token ids that depend on ``tag`` only."""
    generator = random.Random(tag)
    return [generator.randrange(vocab_size) for _ in range(num_tokens)]


def random_prompts_sharing(
    tag: str, count: int, num_shared: int, num_own: int, vocab_size: int
) -> list[list[int]]:
    """Prompts that agree in their first ``num_shared`` tokens, and no two of them in one more.

    Raises:
        ConfigError: the vocabulary is too small for that.
    """
    if count > vocab_size:
        raise ConfigError(f"{count} prompts that differ in a token need as many, not {vocab_size}")
    shared = random_prompt(f"{tag} shared", num_shared, vocab_size)
    first_own = random.Random(f"{tag} own").sample(range(vocab_size), count)
    return [
        [*shared, first, *random_prompt(f"{tag} {i}", num_own - 1, vocab_size)]
        for i, first in enumerate(first_own)
    ]


def run_to_end(
    engine: LLMEngine,
    requests: Iterable[BenchRequest],
    after_step: Callable[[LLMEngine], None] | None = None,
) -> float:
    """Serve requests that arrive at once; returns the seconds that the steps took.

    Args:
        engine: without other requests.
        requests: what is asked of it.
        after_step: called after each step, and not counted.
    """
    began = time.perf_counter()
    for i, request in enumerate(requests):
        params = SamplingParams(temperature=0, max_tokens=request.max_tokens, ignore_eos=True)
        engine.add_request(str(i), request.prompt_token_ids, params, stream=False)
    seconds = time.perf_counter() - began
    while engine.has_unfinished_requests():
        began = time.perf_counter()
        engine.step()
        seconds += time.perf_counter() - began
        if after_step is not None:
            after_step(engine)
    return seconds
