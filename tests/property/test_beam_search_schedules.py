"""Whatever the schedule, a beam search finds what brute force finds: the same beams, scores and
bits, in small pools and budgets, beside other searches and other requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagemill import BeamSearch, BeamSearchParams, RequestOutput, SamplingParams
from tests.beam_helpers import VOCAB_SIZE, BruteForce, beam_engine
from tests.core_helpers import assert_idle, prompt_of

FIRED: Counter[str] = Counter()
EVENTS = [
    "branch",
    "branch from a beam that ran ahead",
    "request begun again",
    "copy on write",
    "swapped",
    "recomputed",
    "stop",
    "length",
    "neighbour",
]
BRUTE_FORCE = BruteForce()


def prompts() -> st.SearchStrategy[list[int]]:
    """One of a few texts, up to any point."""
    return st.builds(
        lambda length, start: [token % VOCAB_SIZE for token in prompt_of(length, start)],
        st.integers(1, 24),
        st.integers(0, 2),
    )


def search_params() -> st.SearchStrategy[BeamSearchParams]:
    return st.builds(
        BeamSearchParams,
        beam_width=st.sampled_from([1, 2, 3, 4, 6]),
        max_tokens=st.sampled_from([1, 2, 7, 16, 24]),
        length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0, -1.0]),
        early_stopping=st.sampled_from([False, True, "never"]),
    )


def engine_options() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "enable_prefix_caching": st.booleans(),
            "prefix_cache_partial_hits": st.booleans(),
            "num_swap_slots": st.sampled_from([200, 0, 4, 200]),
            "max_num_batched_tokens": st.sampled_from([64, 1, 5, 64]),
            "max_num_seqs": st.sampled_from([64, 1, 3, 5, 64]),
        }
    )


@given(
    asked=st.lists(st.tuples(prompts(), search_params()), min_size=1, max_size=4),
    neighbours=st.lists(prompts(), max_size=2),
    end_ids=st.sampled_from([(), (3,), (3, 7, 8)]),
    block_size=st.sampled_from([1, 2, 3, 4, 8]),
    spare_blocks=st.sampled_from([0, 1, 3, 10, 40]),
    options=engine_options(),
)
def check_one_schedule(
    asked: list[tuple[list[int], BeamSearchParams]],
    neighbours: list[list[int]],
    end_ids: tuple[int, ...],
    block_size: int,
    spare_blocks: int,
    options: dict[str, Any],
) -> None:
    longest = max(
        [len(prompt) + (params.max_tokens or 0) for prompt, params in asked]
        + [len(prompt) + 12 for prompt in neighbours]
    )
    engine = beam_engine(
        num_kv_blocks=-(-longest // block_size) + spare_blocks,
        block_size=block_size,
        end_ids=end_ids,
        **options,
    )
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2)
    searches = []
    for i, (prompt, params) in enumerate(asked):
        searches.append(Watched(engine, f"search-{i}", prompt, params))
        if i < len(neighbours):
            engine.add_request(f"{i}", neighbours[i], greedy)
    last: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        outputs = {output.request_id: output for output in engine.step()}
        for search in searches:
            search.advance(outputs)
        last |= outputs
        assert engine.metrics.num_steps < 20_000, "the engine does not advance"
    assert_idle(engine)
    for search, (prompt, params) in zip(searches, asked, strict=True):
        assert search.finished
        found = [(beam.score, tuple(beam.token_ids)) for beam in search.output.beams]
        assert found == BRUTE_FORCE.search(prompt, params, end_ids)
        FIRED.update(beam.finish_reason for beam in search.output.beams)
    for i, prompt in enumerate(neighbours[: len(asked)]):
        token_ids = last[f"{i}"].outputs[0].token_ids
        for at, token_id in enumerate(token_ids):
            table = BRUTE_FORCE.table((*prompt, *token_ids[:at]))
            assert table[token_id] == max(table)
        FIRED["neighbour"] += 1
    stats = engine.stats()
    FIRED["copy on write"] += stats["cow_copies"]
    FIRED["swapped"] += stats["num_preemptions_swap"]
    FIRED["recomputed"] += stats["num_preemptions_recompute"]


class Watched(BeamSearch):
    """Notes what the search asks of the engine."""

    def advance(self, outputs: Mapping[str, RequestOutput]) -> None:
        engine, add_request, fork = self._engine, self._engine.add_request, self._engine.fork

        def watched_add(*args: Any, **kwargs: Any) -> None:
            FIRED["request begun again"] += 1
            add_request(*args, **kwargs)

        def watched_fork(request_id: str, *args: Any, **kwargs: Any) -> None:
            generated = len(engine._requests[request_id].sequences[0].output_token_ids)
            FIRED["branch"] += 1
            FIRED["branch from a beam that ran ahead"] += generated > kwargs["num_output_tokens"]
            fork(request_id, *args, **kwargs)

        engine.add_request, engine.fork = watched_add, watched_fork  # type: ignore[method-assign]
        try:
            super().advance(outputs)
        finally:
            engine.add_request, engine.fork = add_request, fork  # type: ignore[method-assign]


def test_every_schedule_finds_the_same_beams(long_run: bool) -> None:
    FIRED.clear()
    settings(
        max_examples=5_000 if long_run else 300,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )(check_one_schedule)()
    # Without these the property would say little.
    for what in EVENTS:
        assert FIRED[what] >= 20, (what, FIRED)
