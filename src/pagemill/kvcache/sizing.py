"""How many blocks the KV pool gets, from what the machine has.

Without ``num_kv_blocks`` or ``kv_cache_memory`` the pool gets `DEFAULT_SHARE` of the memory that is
free once the weights are loaded, container limits respected, but never more than
``max_num_seqs`` sequences of the longest length could use. Pages of the pool that are never
written cost no memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pagemill.config import EngineConfig
from pagemill.errors import ConfigError
from pagemill.kvcache.manager import blocks_for_tokens

DEFAULT_SHARE = 0.5


class PoolSize(NamedTuple):
    """A KV pool's size and why it is that."""

    num_blocks: int
    block_bytes: int
    reason: str
    """For people: what decided it."""

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole pool."""
        return self.num_blocks * self.block_bytes


def size_pool(
    config: EngineConfig,
    *,
    block_bytes: int,
    max_model_len: int,
    free_bytes: int | None = None,
) -> PoolSize:
    """Decide the number of blocks.

    Args:
        config: ``num_kv_blocks``, ``kv_cache_memory``, ``block_size`` and ``max_num_seqs`` count.
        block_bytes: one block's keys and values over all layers.
        max_model_len: longest sequence, in tokens.
        free_bytes: free memory; None asks the machine.

    Raises:
        ConfigError: the memory holds not even one block, or what was asked for is not free.
    """
    free_bytes = free_memory_bytes() if free_bytes is None else free_bytes
    if config.num_kv_blocks is not None:
        pool = PoolSize(config.num_kv_blocks, block_bytes, "num_kv_blocks")
    else:
        pool = _pool_by_memory(config, block_bytes, max_model_len, free_bytes)
    if pool.total_bytes > free_bytes:
        raise ConfigError(
            f"{pool.num_blocks} KV blocks ({pool.reason}) take {_gib(pool.total_bytes)}, but "
            f"{_gib(free_bytes)} of memory are free; lower {pool.reason}"
        )
    return pool


def _pool_by_memory(
    config: EngineConfig, block_bytes: int, max_model_len: int, free_bytes: int
) -> PoolSize:
    """As many blocks as the memory holds, up to what could ever be used."""
    most_useful = config.max_num_seqs * blocks_for_tokens(max_model_len, config.block_size)
    if config.kv_cache_memory is not None:
        assert isinstance(config.kv_cache_memory, int), "EngineConfig has parsed it"
        budget_bytes, reason = config.kv_cache_memory, "kv_cache_memory"
    else:
        budget_bytes = int(free_bytes * DEFAULT_SHARE)
        reason = f"{DEFAULT_SHARE:.0%} of {_gib(free_bytes)} free memory"
    num_blocks = budget_bytes // block_bytes
    if num_blocks < 1:
        raise ConfigError(
            f"the KV pool would get {budget_bytes} bytes ({reason}), but one block of "
            f"{config.block_size} tokens takes {block_bytes}; raise kv_cache_memory"
        )
    if num_blocks > most_useful:
        reason = f"all that max_num_seqs={config.max_num_seqs} sequences of {max_model_len} can use"
    if config.kv_cache_memory is not None and budget_bytes > free_bytes:
        # Also where fewer blocks would do: a wrong number should not pass for a right one.
        raise ConfigError(
            f"kv_cache_memory={_gib(budget_bytes)} is more than the {_gib(free_bytes)} of memory "
            f"that are free"
        )
    return PoolSize(min(num_blocks, most_useful), block_bytes, reason)


def check_swap_fits(swap_bytes: int, pool: PoolSize, *, free_bytes: int | None = None) -> None:
    """Raise `ConfigError` unless a swap space in memory can be had beside the pool.

    Args:
        swap_bytes: its size.
        pool: that nothing has been written to yet.
        free_bytes: free memory; None asks the machine.
    """
    free_bytes = free_memory_bytes() if free_bytes is None else free_bytes
    if swap_bytes + pool.total_bytes > free_bytes:
        raise ConfigError(
            f"swap_space={_gib(swap_bytes)} in memory and a KV pool of {_gib(pool.total_bytes)} "
            f"({pool.reason}) are more than the {_gib(free_bytes)} of memory that are free; lower "
            f"swap_space, kv_cache_memory or num_kv_blocks, or give swap_path to swap to a file"
        )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"


def free_memory_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that this process may still use: the machine's, or its container's if that is less.

    Reads ``MemAvailable`` and the limits of control groups, versions 2 and 1. Page cache that the
    kernel would give back counts as free. `ConfigError` where none of them can be read.
    """
    candidates = [
        free
        for free in (_machine_free(proc), _cgroup_v2_free(proc, cgroup), _cgroup_v1_free(cgroup))
        if free is not None
    ]
    if not candidates:
        raise ConfigError("cannot tell how much memory is free; give kv_cache_memory")
    return max(min(candidates), 0)


def _machine_free(proc: Path) -> int | None:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return _sysconf_free()
    return None


def _sysconf_free() -> int | None:
    """Where there is no /proc (macOS): half of the physical memory, as a guess that is safe."""
    import os

    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError):
        return None


def _cgroup_v2_free(proc: Path, cgroup: Path) -> int | None:
    """The tightest limit on the path from this process's group to the root."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    if own is None:
        return None
    tightest: int | None = None
    group = cgroup / own.lstrip("/")
    while group == cgroup or cgroup in group.parents:
        free = _limit_minus_usage(group, "memory.max", "memory.current", "inactive_file")
        if free is not None:
            tightest = free if tightest is None else min(tightest, free)
        group = group.parent
    return tightest


def _cgroup_v1_free(cgroup: Path) -> int | None:
    return _limit_minus_usage(
        cgroup / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    )


def _limit_minus_usage(group: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    try:
        limit_bytes = int((group / limit).read_text())
        used_bytes = int((group / usage).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group, or the text "max": no limit
        return None
    return limit_bytes - used_bytes + int(stat.get(reclaimable, 0))
