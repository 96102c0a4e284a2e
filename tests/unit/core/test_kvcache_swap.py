from __future__ import annotations

import pytest

from pagemill import ConfigError, InvariantError
from pagemill.batch import BlockMove
from pagemill.kvcache.swap_space import SwapSpace
from pagemill.runner.swap_memory import SwapMemory
from tests.unit.core.kv_helpers import (
    SWAP_IN,
    SWAP_OUT,
    computed,
    holding,
    manager,
    text,
)


def test_swap_slots_are_taken_all_or_none_and_the_audit_names_a_lost_one() -> None:
    swap = SwapSpace(4)
    held = swap.take(3)
    assert held is not None
    assert len(set(held)) == 3
    assert swap.take(2) is None
    assert swap.num_used_slots == 3
    swap.audit([held, []])
    with pytest.raises(InvariantError, match="3 swap slots are free or held, of 4"):
        swap.audit([held[:2]])
    with pytest.raises(InvariantError, match="held twice"):
        swap.audit([held[:2], held[:1]])
    swap.release(held)
    assert swap.num_used_slots == 0
    swap.audit([])
    assert SwapSpace(0).take(1) is None


def test_a_sequence_is_swapped_out_whole_and_only_what_left_the_pool_is_swapped_in() -> None:
    kv = manager(num_swap_slots=4)
    tokens = text(14)
    blocks = computed(kv, tokens)
    table = list(blocks.table)
    assert kv.swap_out(blocks, 14)
    assert kv.take_moves() == [
        BlockMove(SWAP_OUT, block_id, slot)
        for block_id, slot in zip(table, blocks.swap_slots, strict=True)
    ]
    assert (kv.num_swapped_blocks, kv.num_free_blocks, kv.num_cached_blocks) == (4, 8, 3)
    kv.audit([], [blocks])
    other = holding(kv, 24)  # evicts the third block of three
    assert kv.num_evictions == 1
    hit = kv.find_swapped(blocks, tokens, 14)
    assert [node.block_id for node in hit.nodes] == table[:2]
    assert hit.partial is None
    kv.free(other)
    slots = list(blocks.swap_slots)
    needed, before = kv.blocks_to_take(hit, 17), kv.num_free_blocks
    kv.swap_in(blocks, 17, hit)
    assert before - kv.num_free_blocks == needed == 5
    assert blocks.table[:2] == table[:2]
    assert kv.take_moves() == [
        BlockMove(SWAP_IN, slots[i], blocks.table[i]) for i in range(2, len(slots))
    ]
    assert (kv.num_swapped_blocks, blocks.swap_slots) == (0, [])
    kv.note_computed(blocks, tokens, 14)
    kv.audit([blocks], [])
    kv.check_writable(blocks.table[3:])


def test_only_computed_blocks_are_swapped_out() -> None:
    kv = manager(num_swap_slots=4)
    blocks = holding(kv, 14)
    assert kv.swap_out(blocks, 5)
    assert len(blocks.swap_slots) == 2


def test_a_swap_out_that_does_not_fit_changes_nothing() -> None:
    kv = manager(num_swap_slots=2)
    blocks = holding(kv, 12)
    table = list(blocks.table)
    assert not kv.swap_out(blocks, 9)
    assert (blocks.table, blocks.swap_slots, kv.take_moves()) == (table, [], [])
    assert kv.swap_out(blocks, 8)


def test_freeing_a_swapped_sequence_gives_its_slots_back() -> None:
    kv = manager(num_swap_slots=4)
    blocks = holding(kv, 12)
    kv.swap_out(blocks, 12)
    kv.take_moves()
    kv.free(blocks, text(12), 12)
    kv.audit([], [blocks])
    assert kv.num_swapped_blocks == 0


def test_a_swap_space_that_the_system_gives_no_memory_for_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=f"swap_space: .* no {2**60} bytes of memory; lower it"):
        SwapMemory(1, 2**60)
