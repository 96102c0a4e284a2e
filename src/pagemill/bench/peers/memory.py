"""What the process takes, beside what it must: weights and KV pool.

A process of its own runs S3 once, with a KV pool of exactly the blocks that S3 fills, so that the
pool that is allowed for is a pool that is there.
"""

from __future__ import annotations

from typing import Any

from pagemill.bench.peers.contenders import Setup
from pagemill.bench.peers.race import DriverPool
from pagemill.bench.workload import Scenario
from pagemill.config import EngineConfig
from pagemill.errors import BenchmarkError
from pagemill.kvcache.manager import blocks_for_tokens


def measure_memory(
    setup: Setup, drivers: DriverPool, scenario: Scenario, *, weight_bytes: int, limit_s: float
) -> dict[str, Any]:
    """Resident memory after a scenario, now and at most; bytes.

    Args:
        setup: which model, how many threads.
        drivers: where the process is taken from; it is ended.
        scenario: what it runs.
        weight_bytes: of the weights as they are stored.
        limit_s: for the run.

    Raises:
        BenchmarkError: the process failed, or this system tells no memory.
    """
    requests = scenario.requests(0)
    num_blocks = sum(
        blocks_for_tokens(len(prompt) + max_tokens, EngineConfig.block_size)
        for prompt, max_tokens in requests
    )
    contender = setup.ours_with(num_kv_blocks=num_blocks)
    try:
        driver = drivers.get(contender)
        driver.run(scenario.mode, requests, limit_s)
        resident = driver.resident_bytes()
        pool_bytes = driver.about["kv_pool_bytes"]
    finally:
        drivers.drop(contender)
    if resident is None:
        raise BenchmarkError("this system has no /proc that tells how much memory a process takes")
    return {
        "resident_bytes": resident[0],
        "peak_bytes": resident[1],
        "weight_bytes": weight_bytes,
        "kv_pool_bytes": pool_bytes,
    }
