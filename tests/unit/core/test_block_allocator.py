from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill import InvariantError
from pagemill.kvcache.allocator import BlockAllocator


def allocator_of(num_blocks: int) -> tuple[BlockAllocator, list[int]]:
    """An allocator, and the list of the blocks that it evicts."""
    evicted: list[int] = []
    return BlockAllocator(num_blocks, evicted.append), evicted


def test_the_empty_block_released_last_is_taken_first_and_untouched_memory_last() -> None:
    allocator, evicted = allocator_of(6)
    assert allocator.take(4) == [0, 1, 2, 3]
    allocator.release([1])
    allocator.release([3])
    assert allocator.take(4) == [3, 1, 4, 5]
    assert evicted == []


def test_cached_blocks_go_after_all_empty_ones_the_one_released_longest_ago_first() -> None:
    allocator, evicted = allocator_of(5)
    for block_id in allocator.take(4):
        allocator.keep(block_id)
    for block_id in (2, 0, 3, 1):
        allocator.release([block_id])
    assert (allocator.num_free_blocks, allocator.num_cached_blocks) == (5, 4)
    assert allocator.take(4) == [4, 2, 0, 3]
    assert evicted == [2, 0, 3]


def test_a_tail_is_evicted_before_its_head() -> None:
    allocator, evicted = allocator_of(3)
    table = allocator.take(3)
    for block_id in table:
        allocator.keep(block_id)
    allocator.release(table)
    assert allocator.take(3) == evicted == [2, 1, 0]


def test_a_shared_cached_block_is_not_evicted_and_counts_as_released_when_its_last_owner_goes() -> (
    None
):
    allocator, evicted = allocator_of(3)
    for block_id in allocator.take(3):
        allocator.keep(block_id)
    allocator.release([2, 1, 0])  # 0 is the next to go
    allocator.share([0])
    allocator.share([0])
    assert allocator.ref_count(0) == 2
    assert (allocator.num_free_blocks, allocator.num_cached_blocks) == (2, 2)
    allocator.release([0])
    assert allocator.num_free_blocks == 2
    allocator.release([0])
    assert allocator.take(3) == evicted == [1, 2, 0]


def test_a_touched_block_is_evicted_last_and_touching_a_referenced_one_changes_nothing() -> None:
    allocator, evicted = allocator_of(4)
    for block_id in allocator.take(4):
        allocator.keep(block_id)
    allocator.release([2, 1, 0])
    allocator.touch(0)
    allocator.touch(3)
    assert allocator.take(3) == evicted == [1, 2, 0]
    allocator.audit([[0, 1, 2, 3]])


def test_a_forgotten_block_is_empty_and_nobody_is_told_of_its_loss() -> None:
    allocator, evicted = allocator_of(3)
    for block_id in allocator.take(3):
        allocator.keep(block_id)
    allocator.release([1])
    allocator.forget(1)  # was cached
    allocator.forget(2)  # is referenced
    allocator.release([2])
    assert (allocator.num_free_blocks, allocator.num_cached_blocks) == (2, 0)
    assert allocator.take(2) == [2, 1]
    assert evicted == []


def test_an_evicted_block_is_kept_no_longer() -> None:
    allocator, evicted = allocator_of(1)
    allocator.keep(*allocator.take(1))
    allocator.release([0])
    assert allocator.take(1) == evicted == [0]
    allocator.release([0])
    assert allocator.num_cached_blocks == 0


def test_releasing_a_block_more_often_than_it_was_taken_is_noticed() -> None:
    allocator, _ = allocator_of(2)
    allocator.take(1)
    allocator.release([0])
    with pytest.raises(InvariantError, match="block 0 was released more often than taken"):
        allocator.release([0])


def lose_an_owner(allocator: BlockAllocator, tables: list[list[int]]) -> None:
    tables[0].pop()


def add_an_owner(allocator: BlockAllocator, tables: list[list[int]]) -> None:
    tables[1].append(1)


def list_a_block_twice(allocator: BlockAllocator, tables: list[list[int]]) -> None:
    allocator._empty.append(allocator._empty[0])


def list_an_empty_block_as_cached(allocator: BlockAllocator, tables: list[list[int]]) -> None:
    allocator._cached[allocator._empty[0]] = None


def free_an_owned_block(allocator: BlockAllocator, tables: list[list[int]]) -> None:
    allocator._empty.append(2)


def lose_a_free_block(allocator: BlockAllocator, tables: list[list[int]]) -> None:
    allocator._empty.pop()


def lose_a_cached_block(allocator: BlockAllocator, tables: list[list[int]]) -> None:
    allocator._cached.clear()


def keep_a_cached_block_no_more(allocator: BlockAllocator, tables: list[list[int]]) -> None:
    allocator._is_kept[3] = False


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_an_owner, "block 1 has reference count 2 but 1 owners"),
        (add_an_owner, "block 1 has reference count 2 but 3 owners"),
        (list_a_block_twice, "a block is listed twice as free"),
        (list_an_empty_block_as_cached, "a block is listed twice as free"),
        (free_an_owned_block, "a block is free and in a block table at once"),
        (lose_a_free_block, r"3 free \+ 3 referenced blocks of 7: 1 leaked"),
        (lose_a_cached_block, r"3 free \+ 3 referenced blocks of 7: 1 leaked"),
        (keep_a_cached_block_no_more, "block 3 is cached though its content is not kept"),
    ],
)
def test_the_audit_names_the_damage(
    damage: Callable[[BlockAllocator, list[list[int]]], None], message: str
) -> None:
    allocator, _ = allocator_of(7)
    allocator.take(4)
    allocator.share([1])
    allocator.keep(3)
    allocator.release([3])
    tables = [[0, 1], [1, 2]]
    allocator.audit(tables)
    damage(allocator, tables)
    with pytest.raises(InvariantError, match=message):
        allocator.audit(tables)


OPERATIONS = ("take", "share", "release", "keep", "forget", "touch")


@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 5)), max_size=80))
def test_any_sequence_of_operations_adds_up_and_evicts_in_order(
    operations: list[tuple[str, int]],
) -> None:
    """Against a model with one list of free blocks, in the order in which they may be taken."""
    allocator, evicted = allocator_of(6)
    owners = [0] * 6
    kept: set[int] = set()
    empty, cached, lost = [0, 1, 2, 3, 4, 5], list[int](), list[int]()  # from the next one on
    for operation, block_id in operations:
        if operation == "take" and (empty or cached):
            wanted = (empty or cached).pop(0)
            lost += [wanted] if wanted in kept else []
            kept.discard(wanted)
            owners[wanted] = 1
            assert allocator.take(1) == [wanted]
        elif operation == "share" and (owners[block_id] or block_id in cached):
            cached = [other for other in cached if other != block_id]
            owners[block_id] += 1
            allocator.share([block_id])
        elif operation == "release" and owners[block_id]:
            owners[block_id] -= 1
            if not owners[block_id] and block_id in kept:
                cached.append(block_id)
            elif not owners[block_id]:
                empty.insert(0, block_id)
            allocator.release([block_id])
        elif operation == "keep" and owners[block_id]:
            kept.add(block_id)
            allocator.keep(block_id)
        elif operation == "forget" and block_id in kept:
            kept.discard(block_id)
            if block_id in cached:
                cached.remove(block_id)
                empty.insert(0, block_id)
            allocator.forget(block_id)
        elif operation == "touch" and (owners[block_id] or block_id in cached):
            if block_id in cached:
                cached.remove(block_id)
                cached.append(block_id)
            allocator.touch(block_id)
        allocator.audit([[block_id] * count for block_id, count in enumerate(owners)])
        assert allocator.num_cached_blocks == len(cached)
        assert allocator.num_free_blocks == len(cached) + len(empty)
        assert evicted == lost
