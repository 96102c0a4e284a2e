from __future__ import annotations

from pathlib import Path

import pytest

from pagemill import ConfigError, EngineConfig
from pagemill.kvcache.sizing import (
    DEFAULT_SHARE,
    PoolSize,
    check_swap_fits,
    free_memory_bytes,
    size_pool,
)

KV_BYTES = 1000


def test_the_pool_is_a_stated_share_of_free_memory() -> None:
    size = size_pool(
        EngineConfig(), block_bytes=16 * KV_BYTES, max_model_len=10**6, free_bytes=10**9
    )
    assert size.num_blocks == int(10**9 * DEFAULT_SHARE) // (16 * KV_BYTES)
    assert size.total_bytes <= 10**9 * DEFAULT_SHARE
    assert "50%" in size.reason


def test_the_pool_is_no_larger_than_all_sequences_can_use() -> None:
    config = EngineConfig(max_num_seqs=3)
    size = size_pool(config, block_bytes=16, max_model_len=100, free_bytes=2**40)
    assert size.num_blocks == 3 * 7
    assert "max_num_seqs=3" in size.reason


def test_num_kv_blocks_and_kv_cache_memory_decide_when_given() -> None:
    exact = size_pool(EngineConfig(num_kv_blocks=5), block_bytes=16, max_model_len=9)
    assert exact.num_blocks == 5
    config = EngineConfig(kv_cache_memory="1MB")
    assert size_pool(config, block_bytes=16 * KV_BYTES, max_model_len=10**6).num_blocks == 62


def test_memory_for_less_than_one_block_is_refused_with_both_sizes() -> None:
    config = EngineConfig(kv_cache_memory=15_999)
    with pytest.raises(ConfigError, match=r"15999 bytes.*takes 16000"):
        size_pool(config, block_bytes=16 * KV_BYTES, max_model_len=100)


def test_a_swap_space_that_has_no_room_beside_the_pool_is_refused_with_all_sizes() -> None:
    gib = 2**30
    pool = PoolSize(11, gib, "kv_cache_memory")
    check_swap_fits(11 * gib, pool, free_bytes=22 * gib)
    message = r"swap_space=30.0 GiB .*pool of 11.0 GiB \(kv_cache_memory\).*22.0 GiB .*free; lower"
    with pytest.raises(ConfigError, match=message):
        check_swap_fits(30 * gib, pool, free_bytes=22 * gib)


def machine(tmp_path: Path, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "proc", tmp_path / "cgroup"


MEMINFO = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"}


def test_free_memory_is_what_the_machine_says(tmp_path: Path) -> None:
    assert free_memory_bytes(*machine(tmp_path, MEMINFO)) == 8000 * 1024


def test_the_limit_of_any_enclosing_container_counts(tmp_path: Path) -> None:
    files = MEMINFO | {
        "proc/self/cgroup": "0::/outer/inner\n",
        "cgroup/outer/inner/memory.max": "max\n",
        "cgroup/outer/inner/memory.current": "10\n",
        "cgroup/outer/inner/memory.stat": "inactive_file 5\n",
        "cgroup/outer/memory.max": "1000000\n",
        "cgroup/outer/memory.current": "400000\n",
        "cgroup/outer/memory.stat": "anon 7\ninactive_file 1000\n",
    }
    assert free_memory_bytes(*machine(tmp_path, files)) == 601_000


def test_the_older_control_groups_count_too(tmp_path: Path) -> None:
    files = MEMINFO | {
        "cgroup/memory/memory.limit_in_bytes": "500000\n",
        "cgroup/memory/memory.usage_in_bytes": "100000\n",
        "cgroup/memory/memory.stat": "total_inactive_file 0\n",
    }
    assert free_memory_bytes(*machine(tmp_path, files)) == 400_000


def test_this_machine_has_some_free_memory() -> None:
    assert 2**20 < free_memory_bytes() < 2**50


def test_more_memory_than_is_free_is_refused_with_both_sizes() -> None:
    for config in (EngineConfig(kv_cache_memory="3GiB"), EngineConfig(num_kv_blocks=3 * 2**16)):
        with pytest.raises(ConfigError, match=r"3\.0 GiB.*2\.0 GiB"):
            size_pool(config, block_bytes=16 * 1024, max_model_len=10**6, free_bytes=2**31)
