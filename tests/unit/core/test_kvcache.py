from __future__ import annotations

import pytest

from pagemill import InvariantError
from pagemill.kvcache.allocator import BlockAllocator
from pagemill.kvcache.manager import KVCacheManager


def test_the_block_freed_longest_ago_is_reused_first_and_a_tail_before_its_head() -> None:
    allocator = BlockAllocator(4)
    table = allocator.take(3)
    assert table == [0, 1, 2]
    allocator.release(table)
    assert allocator.take(4) == [3, 2, 1, 0]


def test_growing_is_all_or_nothing() -> None:
    kv = KVCacheManager(num_blocks=4, block_size=8)
    assert kv.grow_to(1, 17)
    assert len(kv.block_table(1)) == 3
    assert not kv.grow_to(2, 9)
    kv.audit([1])
    assert kv.num_free_blocks == 1
    assert kv.grow_to(2, 8)
    assert kv.num_free_blocks == 0
    kv.free(1)
    kv.free(1)
    kv.audit([2])
    assert kv.num_free_blocks == 3


def test_the_last_generated_token_needs_no_slot() -> None:
    kv = KVCacheManager(num_blocks=2, block_size=8)
    assert kv.fits_ever(num_prompt_tokens=10, max_tokens=7)
    assert not kv.fits_ever(num_prompt_tokens=10, max_tokens=8)
    assert kv.fits_ever(num_prompt_tokens=16, max_tokens=0)


def test_the_audit_names_a_block_with_too_many_owners() -> None:
    kv = KVCacheManager(num_blocks=4, block_size=8)
    kv.grow_to(1, 8)
    kv.grow_to(2, 8)
    kv.block_table(2)[0] = kv.block_table(1)[0]
    with pytest.raises(InvariantError, match="block 0 has reference count 1 but 2 owners"):
        kv.audit([1, 2])


def test_the_audit_names_a_leaked_block() -> None:
    kv = KVCacheManager(num_blocks=4, block_size=8)
    kv.grow_to(1, 30)
    lost = kv.block_table(1).pop()
    with pytest.raises(InvariantError, match=f"block {lost} has reference count 1 but 0 owners"):
        kv.audit([1])


def test_the_audit_names_a_sequence_that_holds_blocks_without_running() -> None:
    kv = KVCacheManager(num_blocks=4, block_size=8)
    kv.grow_to(7, 8)
    with pytest.raises(InvariantError, match=r"\[7\]"):
        kv.audit([])


def test_releasing_a_block_twice_is_noticed() -> None:
    allocator = BlockAllocator(2)
    table = allocator.take(1)
    allocator.release(table)
    with pytest.raises(InvariantError, match="block 0"):
        allocator.release(table)
