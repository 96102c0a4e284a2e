"""What the server is asked, as streams with the time at which each begins."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pagemill.bench.workload import FIRST_ID, LAST_ID, Request, many_lengths

Kind = Literal["stream", "short", "long"]


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    num_streams: int = 64
    steady_tokens: tuple[int, int] = (64, 96)
    """Of each stream of the steady workload: in, out."""
    longest_tokens: int = 384
    """Of a stream of the mixed workload; longer ones are cut."""
    background: tuple[int, int, int] = (16, 64, 256)
    """Streams that run all the time beside a long prompt: how many, tokens in, tokens out."""
    short: tuple[int, int, int] = (40, 32, 4)
    """Requests that come one after another, likewise."""
    short_every_s: float = 0.1
    long_tokens: int = 4000
    long_at_s: float = 1.5
    """When the long prompt comes."""


FULL = Scale()
FAST = Scale(4, (16, 8), 48, (2, 8, 16), (4, 8, 2), 0.02, 100, 0.05)
"""Fits a model with a context of 128 tokens."""


@dataclass(frozen=True)
class Timed:
    """A request, and when it comes."""

    request: Request
    kind: Kind = "stream"
    at_s: float = 0.0

    def to_json(self, model: str) -> Mapping[str, Any]:
        """As the client takes it."""
        body = {
            "model": model,
            "prompt": self.request.prompt_token_ids,
            "max_tokens": self.request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        return {"at_s": self.at_s, "body": body}


@dataclass(frozen=True)
class Draw:
    """Draws requests; each tag gives others, of the same lengths.

    Attributes:
        scale: how large.
        vocab_size: of the model.
    """

    scale: Scale
    vocab_size: int

    def throughput(self, workload: str, tag: str) -> list[Request]:
        """All at once: ``mixed`` lengths as in S3 of `pagemill.bench.workload`, or ``steady`` ones,
        of which none ends before the others.
        """
        scale = self.scale
        lengths = [scale.steady_tokens] * scale.num_streams
        if workload == "mixed":
            lengths = many_lengths()[: scale.num_streams]
        longest = scale.longest_tokens
        return [
            self._one(
                f"{workload}-{tag}-{i}", min(num_in, longest // 2), min(num_out, longest // 2)
            )
            for i, (num_in, num_out) in enumerate(lengths)
        ]

    def beside_long(self, tag: str, *, with_long: bool) -> list[Timed]:
        """Streams, short requests one after another, and perhaps a long prompt among them."""
        scale = self.scale
        count, num_in, num_out = scale.background
        timed = [Timed(self._one(f"back-{tag}-{i}", num_in, num_out)) for i in range(count)]
        count, num_in, num_out = scale.short
        began_s = scale.long_at_s - scale.short_every_s
        timed += [
            Timed(
                self._one(f"short-{tag}-{i}", num_in, num_out),
                "short",
                began_s + i * scale.short_every_s,
            )
            for i in range(count)
        ]
        return [*timed, *([self.long(tag, scale.long_at_s)] if with_long else [])]

    def long(self, tag: str, at_s: float = 0.0) -> Timed:
        """The long prompt."""
        return Timed(self._one(f"long-{tag}", self.scale.long_tokens, 1), "long", at_s)

    def _one(self, tag: str, num_in: int, num_out: int) -> Request:
        generator = random.Random(tag)
        last = min(LAST_ID, self.vocab_size - 1)
        first = min(FIRST_ID, last // 4)
        return Request([generator.randint(first, last) for _ in range(num_in)], num_out)


def of_kind(timed: Sequence[Timed], told: Sequence[Any], kind: Kind) -> list[Any]:
    """What the client told of the requests of one kind."""
    return [stream for one, stream in zip(timed, told, strict=True) if one.kind == kind]
