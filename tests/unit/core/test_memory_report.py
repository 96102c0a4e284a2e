from __future__ import annotations

from pagemill import SamplingParams
from tests.core_helpers import BLOCK, prompt_of, run_to_end, simulated_engine


def test_the_report_tells_where_every_block_is() -> None:
    engine = simulated_engine(num_kv_blocks=40)
    engine.add_request("old", prompt_of(2 * BLOCK, 9), SamplingParams(max_tokens=1))
    run_to_end(engine)
    engine.kept_prefixes.pin(prompt_of(BLOCK, 9))
    engine.add_request("r", prompt_of(2 * BLOCK + 5), SamplingParams(n=3, max_tokens=20, seed=1))
    engine.step()
    report = engine.memory_report()
    # Two whole blocks and a half-full one in three tables; one block pinned, one cached.
    assert (report.total, report.referenced, report.shared) == (40, 4, 3)
    assert (report.pinned, report.cached, report.empty) == (1, 1, 35)
    assert (report.table_entries, report.used_tokens) == (9, 2 * BLOCK + 5)
    assert report.fragmented_tokens == BLOCK - 5
    assert report.utilization == (2 * BLOCK + 5) / (3 * BLOCK)
    engine.step()
    after = engine.memory_report()
    # The half-full block has two copies now, and the original belongs to one.
    assert (after.referenced, after.shared, after.table_entries) == (6, 2, 9)
    assert engine.stats()["cow_copies"] == 2
    assert (after.used_tokens, after.fragmented_tokens) == (2 * BLOCK + 3 * 6, 3 * (BLOCK - 6))
    run_to_end(engine)
    idle = engine.memory_report()
    assert (idle.referenced, idle.table_entries, idle.used_tokens, idle.swapped) == (1, 0, 0, 0)
    assert idle.empty + idle.cached + idle.referenced == idle.total


def test_swapped_and_evicted_blocks_are_reported() -> None:
    engine = simulated_engine(num_kv_blocks=6, num_swap_slots=20)
    for i in range(3):
        engine.add_request(f"{i}", prompt_of(30, i), SamplingParams(max_tokens=40, seed=1))
    most_swapped = 0
    while engine.has_unfinished_requests():
        engine.step()
        most_swapped = max(most_swapped, engine.memory_report().swapped)
    assert most_swapped >= 2
    assert engine.memory_report().evicted > 0
    run_to_end(engine)
