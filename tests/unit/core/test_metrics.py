from __future__ import annotations

import json

import pytest

from pagemill import SamplingParams
from pagemill.metrics import WINDOW, Distribution, percentile
from tests.core_helpers import prompt_of, run_to_end, simulated_engine

STEP = 0.010
TOKEN = 0.0001


def test_latencies_are_those_of_the_virtual_clock() -> None:
    engine = simulated_engine(max_num_batched_tokens=16)
    engine.add_request("r", prompt_of(40), SamplingParams(max_tokens=5))
    output = run_to_end(engine)["r"]
    # Chunks of 16, 16 and 8 tokens, then four decodes.
    ttft = 3 * STEP + 40 * TOKEN
    assert output.metrics.ttft_seconds == pytest.approx(ttft)
    assert output.metrics.e2e_seconds == pytest.approx(ttft + 4 * (STEP + TOKEN))
    stats = engine.metrics.stats()
    assert stats["ttft_seconds"]["p99"] == pytest.approx(ttft)
    assert stats["itl_seconds"]["count"] == 4
    assert stats["tpot_seconds"]["p50"] == pytest.approx(STEP + TOKEN)
    assert stats["num_prompt_tokens"] == 40
    assert stats["num_generation_tokens"] == 5
    assert stats["num_computed_tokens"] == 44
    assert stats["generation_tokens_per_second"] == pytest.approx(5 / (7 * STEP + 44 * TOKEN))
    assert stats["kv_usage_per_step"]["p50"] == pytest.approx(3 / 64)
    json.dumps(stats)


def test_waiting_counts_in_queue_time_and_ttft() -> None:
    engine = simulated_engine(max_num_seqs=1)
    for start, name in enumerate("ab"):
        engine.add_request(name, prompt_of(10, start), SamplingParams(max_tokens=10))
    outputs = run_to_end(engine)
    first, second = outputs["a"].metrics, outputs["b"].metrics
    assert first.ttft_seconds is not None
    assert first.queue_seconds == 0
    assert second.queue_seconds == first.e2e_seconds
    assert second.ttft_seconds == pytest.approx(2 * first.ttft_seconds + 9 * (STEP + TOKEN))


def test_queue_depths_and_pool_are_those_of_now() -> None:
    engine = simulated_engine(max_num_seqs=1, num_kv_blocks=64)
    for name in "ab":
        engine.add_request(name, prompt_of(20), SamplingParams(max_tokens=10))
    engine.step()
    stats = engine.metrics.stats()
    assert (stats["num_requests_running"], stats["num_requests_waiting"]) == (1, 1)
    assert (stats["kv_blocks_total"], stats["kv_blocks_free"]) == (64, 62)
    engine.close()
    assert engine.metrics.stats()["num_requests_finished"]["abort"] == 2


def test_percentiles_are_linear_between_observations() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([7.0], 99) == 7.0
    assert percentile([0.0, 10.0], 95) == 9.5


def test_memory_does_not_grow_with_observations() -> None:
    distribution = Distribution()
    for i in range(3 * WINDOW):
        distribution.observe(float(i))
    assert distribution.summary()["count"] == 3 * WINDOW
    assert distribution.summary()["p50"] > 2 * WINDOW
    assert len(distribution._recent) == WINDOW
    assert Distribution().summary() == {"count": 0}
