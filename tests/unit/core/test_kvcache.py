from __future__ import annotations

from collections.abc import Callable

import pytest

from pagemill import InvariantError
from pagemill.batch import BlockMove
from pagemill.kvcache.manager import KVCacheManager, blocks_for_tokens
from pagemill.kvcache.sequence_blocks import SequenceBlocks
from tests.unit.core.kv_helpers import (
    COPY,
    SWAP_OUT,
    computed,
    holding,
    leave_behind,
    manager,
    text,
)


def test_growing_is_all_or_nothing() -> None:
    kv = manager(num_blocks=4, block_size=8)
    first, second = kv.new_sequence(), kv.new_sequence()
    assert kv.grow(first, 17)
    assert len(first.table) == 3
    assert not kv.grow(second, 9)
    assert second.table == []
    kv.audit([first])
    assert kv.num_free_blocks == 1
    assert kv.grow(second, 8)
    assert kv.grow(second, 8)
    assert len(second.table) == 1
    assert kv.num_free_blocks == 0
    kv.free(first)
    kv.free(first)
    kv.audit([second])
    assert kv.num_free_blocks == 3
    assert kv.take_moves() == []


def test_the_last_generated_token_needs_no_slot() -> None:
    kv = manager(num_blocks=2, block_size=8)
    assert kv.fits_ever(num_prompt_tokens=10, max_tokens=7)
    assert not kv.fits_ever(num_prompt_tokens=10, max_tokens=8)
    assert kv.fits_ever(num_prompt_tokens=16, max_tokens=0)
    assert kv.fits_ever(num_prompt_tokens=16, max_tokens=1)
    assert not kv.fits_ever(num_prompt_tokens=17, max_tokens=0)
    assert kv.max_sequence_tokens == 17
    assert [blocks_for_tokens(n, 8) for n in (0, 1, 8, 9)] == [0, 1, 1, 2]


def test_a_fork_shares_all_blocks_and_the_first_to_write_to_a_half_full_one_copies_it() -> None:
    kv = manager()
    first = computed(kv, text(10))
    second, third = kv.fork(first, 10, 10), kv.fork(first, 10, 10)
    assert first.table == second.table == third.table
    assert kv.num_free_blocks == 5
    kv.audit([first, second, third])
    shared = first.table[2]
    for blocks in (second, first):
        assert kv.grow(blocks, 11)
        assert kv.take_moves() == [BlockMove(COPY, shared, blocks.table[2])]
        assert blocks.table[2] != shared
    # The last owner has nobody to copy for.
    assert kv.grow(third, 11)
    assert kv.grow(first, 12)
    assert kv.take_moves() == []
    assert third.table[2] == shared
    assert kv.num_cow_copies == 2
    kv.check_writable([first.table[2], second.table[2], third.table[2]])
    kv.audit([first, second, third])


def test_a_fork_at_the_end_of_a_block_copies_nothing() -> None:
    kv = manager()
    first = computed(kv, text(8))
    second = kv.fork(first, 8, 8)
    for blocks in (first, second):
        assert kv.grow(blocks, 9)
    assert first.table[:2] == second.table[:2]
    assert first.table[2] != second.table[2]
    assert (kv.num_cow_copies, kv.take_moves()) == (0, [])


def test_a_fork_that_ends_inside_a_whole_block_copies_it_and_its_origin_does_not() -> None:
    kv = manager()
    first = computed(kv, text(10))
    second = kv.fork(first, 10, 7)
    assert second.table == first.table[:2]
    assert second.nodes == first.nodes[:1]
    assert kv.grow(first, 11)
    assert kv.take_moves() == []
    kv.free(first)  # what it shares is still known, and so not to be written to
    shared = second.table[1]
    assert kv.grow(second, 8)
    assert kv.take_moves() == [BlockMove(COPY, shared, second.table[1])]
    kv.check_writable([second.table[1]])
    assert kv.find_prefix(kv.new_sequence(), text(8), 8).nodes[1].block_id == shared
    kv.audit([second])


def test_a_copy_on_write_without_a_free_block_changes_nothing() -> None:
    kv = manager(num_blocks=3)
    first = computed(kv, text(10))
    second = kv.fork(first, 10, 10)
    assert not kv.grow(first, 11)
    assert first.shares_tail
    assert first.table == second.table
    kv.free(second)
    assert kv.grow(first, 11)
    assert kv.num_cow_copies == 0


def test_moves_are_handed_out_once_and_in_the_order_in_which_they_were_planned() -> None:
    kv = manager(num_blocks=4, num_swap_slots=4)
    leave_behind(kv, text(6))  # blocks 0 and 1, a tail
    victim = holding(kv, 8)  # blocks 2 and 3
    assert kv.swap_out(victim, 7)
    again = kv.new_sequence()
    kv.allocate(again, 16, kv.find_prefix(again, text(16), 15))
    assert again.table[0] == 0
    assert kv.take_moves() == [
        BlockMove(SWAP_OUT, 2, victim.swap_slots[0]),
        BlockMove(SWAP_OUT, 3, victim.swap_slots[1]),
        BlockMove(COPY, 1, again.table[1]),
    ]
    assert kv.take_moves() == []


def test_a_move_that_was_never_made_is_noticed() -> None:
    kv = manager()
    first = computed(kv, text(2))
    second = kv.fork(first, 2, 2)
    kv.grow(first, 3)
    with pytest.raises(InvariantError, match="1 moves were planned and never made"):
        kv.audit([first, second])


def share_a_block(kv: KVCacheManager, blocks: SequenceBlocks) -> None:
    kv.fork(blocks, 8, 8)


def register_a_block(kv: KVCacheManager, blocks: SequenceBlocks) -> None:
    kv.note_computed(blocks, text(8), 8)


def give_it_back(kv: KVCacheManager, blocks: SequenceBlocks) -> None:
    kv.free(blocks)


@pytest.mark.parametrize("change", [share_a_block, register_a_block, give_it_back])
def test_a_block_is_writable_to_its_only_owner_until_its_content_is_known(
    change: Callable[[KVCacheManager, SequenceBlocks], None],
) -> None:
    kv = manager()
    blocks = holding(kv, 8)
    kv.check_writable(blocks.table)
    block_id = blocks.table[0]
    change(kv, blocks)
    with pytest.raises(InvariantError, match=f"block {block_id} is about to be written to, but"):
        kv.check_writable([block_id])


def test_the_audit_names_a_block_with_too_many_owners_and_one_with_too_few() -> None:
    kv = manager()
    first, second = holding(kv, 4), holding(kv, 8)
    kv.audit([first, second])
    with pytest.raises(InvariantError, match="block 1 has reference count 1 but 0 owners"):
        kv.audit([first])
    second.table[0] = first.table[0]
    with pytest.raises(InvariantError, match="block 0 has reference count 1 but 2 owners"):
        kv.audit([first, second])
