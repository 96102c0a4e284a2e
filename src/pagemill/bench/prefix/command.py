"""Runs requests that share prefixes, with the cache on and off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from pagemill.bench.command import BenchCommand, rounds
from pagemill.bench.prefix import tables
from pagemill.bench.progress import Progress
from pagemill.bench.report import Table
from pagemill.bench.shared_model import (
    BenchRequest,
    SharedModel,
    random_prompts_sharing,
    run_to_end,
)
from pagemill.config import DEFAULT_MODEL, EngineConfig

BLOCK_SIZE: Final = 16
OFF, ON, KNOWN = "off", "on", "known"
WHOLE_BLOCKS, PARTIAL = "whole blocks", "partial hits"


class Sharing(NamedTuple):
    """Requests that arrive at once and begin with the same tokens."""

    num_requests: int
    num_shared: int
    num_own: int
    num_output: int

    @property
    def possible_hit_rate(self) -> float:
        """If all but the first request found everything that they share."""
        found = (self.num_requests - 1) * self.num_shared
        return found / (self.num_requests * (self.num_shared + self.num_own))

    def requests(self, tag: str, vocab_size: int) -> list[BenchRequest]:
        """Random ones, that depend on ``tag`` only."""
        prompts = random_prompts_sharing(
            tag, self.num_requests, self.num_shared, self.num_own, vocab_size
        )
        return [BenchRequest(prompt, self.num_output) for prompt in prompts]


LONG: Final = Sharing(32, 512, 32, 32)
SHORT: Final = (Sharing(30, 48, 16, 1), Sharing(30, 53, 16, 1))
_FAST_LONG: Final = Sharing(6, 64, 8, 4)
_FAST_SHORT: Final = (Sharing(6, 48, 16, 1), Sharing(6, 53, 16, 1))


class Case(NamedTuple):
    """One thing that is measured in each round."""

    sharing: Sharing
    cache: str
    """`OFF`, `ON`, `KNOWN`; or `WHOLE_BLOCKS`, `PARTIAL`."""

    @property
    def options(self) -> dict[str, Any]:
        """Of the engine."""
        return {
            "enable_prefix_caching": self.cache != OFF,
            "prefix_cache_partial_hits": self.cache != WHOLE_BLOCKS,
        }


@dataclass(frozen=True, kw_only=True)
class PrefixCommand(BenchCommand):
    """A parsed ``pagemill bench prefix``.

    Attributes:
        model: what is run.
    """

    NAME: ClassVar[str] = "prefix"

    model: str = DEFAULT_MODEL

    def tables(self, result: Mapping[str, Any]) -> list[Table]:
        """See `pagemill.bench.prefix.tables`."""
        return tables.tables(result)

    def measure(self) -> dict[str, Any]:
        """Every case once in each round."""
        long, short = (_FAST_LONG, _FAST_SHORT) if self.fast else (LONG, SHORT)
        long_cases = [Case(long, cache) for cache in (OFF, ON, KNOWN)]
        short_cases = [Case(s, cache) for s in short for cache in (WHOLE_BLOCKS, PARTIAL)]
        config = EngineConfig(
            model=self.model,
            num_threads=self.num_threads,
            block_size=BLOCK_SIZE,
            num_kv_blocks=_most_blocks([long, *short]),
        )
        with (
            SharedModel(config) as model,
            Progress(self.repeats * (len(long_cases) + len(short_cases))) as progress,
        ):
            runs = [
                run
                for cases in (long_cases, short_cases)
                for run in _run_all(cases, model, self.repeats, progress)
            ]
        return {"model": self.model, "block_size": BLOCK_SIZE, "runs": runs}


def _most_blocks(all_sharing: Sequence[Sharing]) -> int:
    """Of all requests at once, nothing shared, so that nobody waits for memory."""
    return max(
        s.num_requests * -(-(s.num_shared + s.num_own + s.num_output) // BLOCK_SIZE)
        for s in all_sharing
    )


def _run_all(
    cases: Sequence[Case], model: SharedModel, repeats: int, progress: Progress
) -> Iterator[dict[str, Any]]:
    # Pages of the pool, threads, rotations: what happens once is nobody's.
    _run(cases[0], model, "warm-up")
    for repeat, ordered in rounds(cases, repeats):
        for case in ordered:
            progress.doing(f"{case.sharing.num_shared} shared, {case.cache}")
            yield {"repeat": repeat, **_run(case, model, str(repeat))}
            progress.done()


def _run(case: Case, model: SharedModel, tag: str) -> dict[str, Any]:
    sharing = case.sharing
    engine = model.engine(**case.options)
    # The same requests for every cache.
    requests = sharing.requests(f"prefix {sharing.num_shared} {tag}", model.runner.vocab_size)
    if case.cache == KNOWN:
        run_to_end(engine, [BenchRequest(requests[0].prompt_token_ids[: sharing.num_shared], 1)])
    before = engine.stats()
    seconds = run_to_end(engine, requests)
    after = engine.stats()

    def counted(name: str) -> int:
        return int(after[name] - before[name])

    query, hit = counted("prefix_cache_query_tokens"), counted("prefix_cache_hit_tokens")
    return {
        **sharing._asdict(),
        "cache": case.cache,
        "seconds": round(seconds, 5),
        "prompt_tokens": query,
        "hit_tokens": hit,
        "prefilled_tokens": query - hit,
        "hit_rate": round(hit / query, 5),
        "possible_hit_rate": round(sharing.possible_hit_rate, 5),
        "computed_tokens": counted("num_computed_tokens"),
        "num_steps": counted("num_steps"),
    }
