"""What is counted about KV memory, and that it adds up."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill import SamplingParams
from pagemill.engine import LLMEngine
from tests.core_helpers import generate_all, prompt_of, run_to_end, simulated_engine

PARAMS = SamplingParams(max_tokens=4, seed=1)


def cached_tokens(engine: LLMEngine, prompt: list[int], params: SamplingParams = PARAMS) -> int:
    return generate_all(engine, [("r", prompt, params)])["r"].num_cached_tokens


def test_cached_tokens_are_those_that_were_not_computed() -> None:
    engine = simulated_engine()
    prompt = prompt_of(40)
    before = 0
    for asked, cached in [
        (prompt, 0),
        (prompt, 39),
        (prompt[:32] + prompt_of(9, 2), 32),
        (prompt[:37] + prompt_of(9, 3), 37),
        (prompt_of(9, 4), 0),
    ]:
        assert cached_tokens(engine, asked) == cached
        computed = engine.stats()["num_computed_tokens"]
        assert computed - before == len(asked) - cached + 3
        before = computed
    stats = engine.stats()
    assert stats["prefix_cache_query_tokens"] == 40 + 40 + 41 + 46 + 9
    assert stats["prefix_cache_hit_tokens"] == 39 + 32 + 37


def test_without_partial_hits_cached_tokens_are_whole_blocks() -> None:
    engine = simulated_engine(prefix_cache_partial_hits=False)
    assert [cached_tokens(engine, prompt_of(40)) for _ in range(2)] == [0, 32]


def test_without_prefix_caching_nothing_is_a_hit() -> None:
    engine = simulated_engine(enable_prefix_caching=False)
    assert [cached_tokens(engine, prompt_of(40)) for _ in range(2)] == [0, 0]
    assert engine.stats()["prefix_cache_query_tokens"] == 80
    assert engine.stats()["prefix_cache_hit_tokens"] == 0


def test_the_samples_of_a_request_are_one_query_and_sharing_a_prompt_among_them_is_no_hit() -> None:
    engine = simulated_engine()
    params = SamplingParams(max_tokens=4, seed=1, n=4)
    assert cached_tokens(engine, prompt_of(40), params) == 0
    assert cached_tokens(engine, prompt_of(40), params) == 39
    stats = engine.stats()
    assert stats["prefix_cache_query_tokens"] == 80
    assert stats["prefix_cache_hit_tokens"] == 39


def test_a_request_reports_its_cached_tokens_from_its_first_output_on() -> None:
    engine = simulated_engine()
    cached_tokens(engine, prompt_of(40))
    engine.add_request("r", prompt_of(40), PARAMS)
    assert [output.num_cached_tokens for output in engine.step()] == [39]
    engine.add_request("gone", prompt_of(40), PARAMS)
    engine.abort("gone")
    gone = next(output for output in engine.step() if output.request_id == "gone")
    assert gone.num_cached_tokens == 0
    run_to_end(engine)
    assert engine.stats()["prefix_cache_query_tokens"] == 80


@pytest.mark.parametrize("num_swap_slots", [0, 50])
def test_only_first_prefills_count_as_queries_and_hits(num_swap_slots: int) -> None:
    """What a preempted sequence finds again of its own is no hit."""
    engine = simulated_engine(num_kv_blocks=40, block_size=4, num_swap_slots=num_swap_slots)
    params = SamplingParams(max_tokens=100, seed=1)
    outputs = generate_all(engine, [(f"{i}", prompt_of(30, i), params) for i in range(8)])
    stats = engine.stats()
    swapped = stats["num_preemptions_swap"]
    assert stats["num_preemptions_recompute"] + swapped >= 8
    assert (swapped > 0) == (num_swap_slots > 0)
    assert engine.kv.num_whole_hits > 0, "some of its own blocks should still be there"
    assert stats["prefix_cache_query_tokens"] == 8 * 30
    assert stats["prefix_cache_hit_tokens"] == 0
    assert {output.num_cached_tokens for output in outputs.values()} == {0}
    assert sum(output.metrics.num_preemptions for output in outputs.values()) == (
        swapped + stats["num_preemptions_recompute"]
    )


def blocks(stats: dict[str, Any]) -> tuple[int, int, int, int]:
    """Free, cached, referenced, swapped."""
    free, cached, referenced, swapped = (
        stats[f"kv_blocks_{kind}"] for kind in ("free", "cached", "referenced", "swapped")
    )
    return free, cached, referenced, swapped


def test_blocks_are_counted_by_what_they_are() -> None:
    engine = simulated_engine(num_kv_blocks=20, num_swap_slots=20, max_num_seqs=1)
    assert blocks(engine.stats()) == (20, 0, 0, 0)
    engine.add_request("a", prompt_of(40), SamplingParams(max_tokens=12, seed=1, n=2))
    engine.step()
    # Its samples run one after the other.
    assert blocks(engine.stats()) == (17, 0, 3, 0)
    run_to_end(engine)
    # 51 tokens of each are computed: two whole blocks are shared, one and a tail are its own.
    assert blocks(engine.stats()) == (14, 6, 0, 0)
    engine.add_request("b", prompt_of(40), PARAMS)
    engine.step()
    assert blocks(engine.stats())[2] == 3


def test_blocks_add_up_after_every_step_and_each_kind_is_seen() -> None:
    engine = simulated_engine(num_kv_blocks=12, num_swap_slots=6, max_num_batched_tokens=32)
    for i in range(8):
        params = SamplingParams(max_tokens=40, seed=i, n=i % 2 + 1)
        engine.add_request(f"{i}", prompt_of(20, i % 3) + prompt_of(5, i), params)
    seen = set()
    while engine.has_unfinished_requests():
        engine.step()
        stats = engine.stats()
        free, cached, referenced, swapped = blocks(stats)
        assert free + cached + referenced == stats["kv_blocks_total"] == 12
        assert swapped <= 6
        assert stats["kv_usage"] == pytest.approx(referenced / 12)
        tables = [seq.blocks.table for seq in engine.scheduler.running]
        assert referenced == len({block_id for table in tables for block_id in table})
        assert swapped == sum(len(seq.blocks.swap_slots) for seq in engine.scheduler.waiting)
        seen |= {i for i, count in enumerate((free, cached, referenced, swapped)) if count}
    assert seen == {0, 1, 2, 3}
    assert blocks(engine.stats())[2:] == (0, 0)
    assert stats["cow_copies"] > 0
    assert stats["num_preemptions_swap"] > 0


@pytest.mark.parametrize(
    ("num_prompt_tokens", "n", "copies"), [(40, 1, 0), (40, 2, 1), (40, 4, 3), (32, 4, 0)]
)
def test_copies_on_write_are_counted(num_prompt_tokens: int, n: int, copies: int) -> None:
    engine = simulated_engine()
    params = SamplingParams(max_tokens=30, seed=1, n=n)
    generate_all(engine, [("r", prompt_of(num_prompt_tokens), params)])
    assert engine.stats()["cow_copies"] == copies
