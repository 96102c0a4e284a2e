"""The scenarios that engines are compared in: which prompts, and what is measured of them.

    S1  one stream: 128 tokens in, 128 out                    decode tokens a second
    S2  one prompt of 1,024 tokens                            seconds to the first token
    S3  64 requests at once: 32-256 in, 16-128 out            output tokens a second
    S4  32 requests: 512 tokens in common, 32 own, 32 out     seconds to the end
    S5  S3 while another process spins on a core              output tokens a second

Prompts are random token ids from fixed seeds. Each round has other ids, so that no cache of an
earlier round helps, but the same lengths. Sampling is greedy, and the end of sequence is ignored.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

FIRST_ID, LAST_ID = 512, 48_999
"""Ids that are drawn: no special tokens, and within the vocabulary of SmolLM2."""
WARM_UP = "warm-up"
"""The round that nobody counts."""
WARM_UP_TOKENS = 4

Mode = Literal["single", "many"]


class Request(NamedTuple):
    """A prompt and how many tokens it is to be answered with."""

    prompt_token_ids: list[int]
    max_tokens: int

    def to_json(self) -> dict[str, Any]:
        """As drivers take it."""
        return self._asdict()


class Run(NamedTuple):
    """What a driver measured."""

    ttft_s: float | None
    """From the call to the first token; None where many requests ran at once."""
    total_s: float
    """From the call to the last token of the last request."""
    num_output_tokens: int


@dataclass(frozen=True)
class Scenario:
    """Prompts, and the figure that is made of a run."""

    name: str
    title: str
    mode: Mode
    unit: Literal["tok/s", "s"]
    draw: Callable[[str], list[Request]]
    """The requests of a round."""
    measure: Callable[[Run], float]
    """The figure, in ``unit``."""

    @property
    def higher_is_better(self) -> bool:
        """Of two figures, whether the larger one wins."""
        return self.unit == "tok/s"

    def requests(self, round_number: int) -> list[Request]:
        """What every engine is asked in this round."""
        return self.draw(str(round_number))

    def warm_up(self) -> list[Request]:
        """The scenario in other words, with short answers."""
        return [
            Request(prompt, min(tokens, WARM_UP_TOKENS)) for prompt, tokens in self.draw(WARM_UP)
        ]


def token_ids(tag: str, count: int) -> list[int]:
    """``count`` ids that depend on ``tag`` only."""
    generator = random.Random(tag)
    return [generator.randint(FIRST_ID, LAST_ID) for _ in range(count)]


def many_lengths() -> list[tuple[int, int]]:
    """Prompt and output lengths of S3: 9,916 tokens in, 4,481 out."""
    generator = random.Random(0)
    return [(generator.randint(32, 256), generator.randint(16, 128)) for _ in range(64)]


def _many(name: str) -> Callable[[str], list[Request]]:
    def draw(tag: str) -> list[Request]:
        return [
            Request(token_ids(f"{name}-{tag}-{i}", num_in), num_out)
            for i, (num_in, num_out) in enumerate(many_lengths())
        ]

    return draw


def _shared_prefix(tag: str) -> list[Request]:
    common = token_ids(f"s4-{tag}", 512)
    return [Request(common + token_ids(f"s4-{tag}-{i}", 32), 32) for i in range(32)]


def _decode_rate(run: Run) -> float:
    return (run.num_output_tokens - 1) / (run.total_s - _first(run))


def _first(run: Run) -> float:
    assert run.ttft_s is not None, "a driver tells the first token of a single request"
    return run.ttft_s


def _output_rate(run: Run) -> float:
    return run.num_output_tokens / run.total_s


_S1 = "S1: one stream, 128 in, 128 out"
_S3 = "S3: 64 requests at once, 32-256 in, 16-128 out"
SCENARIOS: Sequence[Scenario] = (
    Scenario(
        "S1",
        _S1,
        "single",
        "tok/s",
        lambda tag: [Request(token_ids(f"s1-{tag}", 128), 128)],
        _decode_rate,
    ),
    Scenario(
        "S2",
        "S2: time to the first token after 1,024",
        "single",
        "s",
        lambda tag: [Request(token_ids(f"s2-{tag}", 1024), 1)],
        _first,
    ),
    Scenario("S3", _S3, "many", "tok/s", _many("s3"), _output_rate),
    Scenario(
        "S4",
        "S4: 32 requests sharing 512 tokens, 32 own, 32 out",
        "many",
        "s",
        _shared_prefix,
        lambda run: run.total_s,
    ),
    Scenario(
        "S5", "S5: S3 beside a process that spins", "many", "tok/s", _many("s5"), _output_rate
    ),
)
