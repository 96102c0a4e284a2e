"""What schedulers are driven with: the same for every engine, as JSON."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any, Final

BLOCK_SIZE: Final = 16
STEADY, CHURN = "steady", "churn"
_PROMPTS: Final = {STEADY: (113, 128), CHURN: (32, 96)}
"""Shortest and longest. Of 16 neighbouring lengths, each fills its block in another step."""
_CHURN_OUTPUTS: Final = (64, 192)
_SPARE_STEPS: Final = 128
"""That a driver may take until all sequences are under way."""


@dataclass(frozen=True)
class Trace:
    """Requests that arrive in this order, so that ``num_running`` are always in flight."""

    kind: str
    num_running: int
    block_size: int
    num_blocks: int
    """Of the pool; nobody is preempted."""
    max_num_batched_tokens: int
    max_model_len: int
    num_warm_up_steps: int
    """After all of the first ``num_running`` are under way."""
    num_steps: int
    """That are measured."""
    lengths: list[tuple[int, int]]
    """Prompt and output of each request, in tokens; begun again at their end."""

    def to_json(self) -> dict[str, Any]:
        """As drivers take it."""
        return asdict(self)


def steady_trace(num_running: int, num_steps: int) -> Trace:
    """Nobody comes or goes while it is measured."""
    generator = random.Random(f"steady {num_running}")
    output = num_steps + _SPARE_STEPS
    lengths = [(generator.randint(*_PROMPTS[STEADY]), output) for _ in range(num_running)]
    return _trace(STEADY, num_running, num_steps, lengths)


def churn_trace(num_running: int, num_steps: int) -> Trace:
    """Requests end and arrive in every step; the first ones are as if they were half done."""
    generator = random.Random(f"churn {num_running}")
    longest = _CHURN_OUTPUTS[1]
    lengths = [
        (
            generator.randint(*_PROMPTS[CHURN]),
            generator.randint(1, longest)
            if i < num_running
            else generator.randint(*_CHURN_OUTPUTS),
        )
        for i in range(4 * num_running)
    ]
    return _trace(CHURN, num_running, num_steps, lengths)


def _trace(kind: str, num_running: int, num_steps: int, lengths: list[tuple[int, int]]) -> Trace:
    longest = max(prompt + output for prompt, output in lengths)
    return Trace(
        kind=kind,
        num_running=num_running,
        block_size=BLOCK_SIZE,
        num_blocks=num_running * (longest // BLOCK_SIZE + 2) + 64,
        # Enough for all prompts to be under way after a few steps.
        max_num_batched_tokens=16 * num_running + 2048,
        max_model_len=longest + 1,
        num_warm_up_steps=32,
        num_steps=num_steps,
        lengths=lengths,
    )
