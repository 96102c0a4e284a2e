from __future__ import annotations

from collections import Counter

from pagemill.batch import BlockMove
from pagemill.kvcache.manager import KVCacheManager
from pagemill.kvcache.sequence_blocks import SequenceBlocks
from tests.unit.core.kv_helpers import (
    COPY,
    NOTHING,
    computed,
    holding,
    leave_behind,
    manager,
    text,
)


def test_shared_blocks_cost_nothing_if_somebody_holds_them_and_one_free_block_if_nobody_does() -> (
    None
):
    kv = manager()
    running = computed(kv, text(8))
    leave_behind(kv, text(10, start=100))
    assert (kv.num_free_blocks, kv.num_cached_blocks) == (6, 3)
    tables = [running]
    for prompt, needed, num_computed in [
        (text(12), 1, 8),  # two referenced blocks
        (text(12, start=100), 3, 10),  # two cached ones, and the head of a third
        (text(12, start=100), 1, 10),  # now they are referenced, the third is still cached
        (text(4, start=200), 1, 0),
    ]:
        blocks = kv.new_sequence()
        hit = kv.find_prefix(blocks, prompt, len(prompt) - 1)
        assert kv.blocks_to_take(hit, len(prompt)) == needed
        before = kv.num_free_blocks
        assert kv.allocate(blocks, len(prompt), hit) == num_computed
        assert before - kv.num_free_blocks == needed
        tables.append(blocks)
        kv.take_moves()
        kv.audit(tables)
    assert kv.num_free_blocks == 0
    assert (kv.num_whole_hits, kv.num_partial_hits) == (6, 2)
    assert (kv.usage, kv.num_cached_blocks) == (1.0, 0)


def test_what_leaves_is_counted_as_free_unless_somebody_else_holds_it() -> None:
    kv = manager()
    first = computed(kv, text(8))
    second = computed(kv, text(12))
    assert first.table == second.table[:2]
    assert kv.num_free_blocks == 5
    both = Counter(first.table + second.table)
    assert kv.num_free_after(Counter(first.table)) == 5
    assert kv.num_free_after(Counter(second.table)) == 6
    assert kv.num_free_after(both) == 8
    hit = kv.find_prefix(kv.new_sequence(), text(12), 12)
    assert kv.blocks_to_take(hit, 13) == 1
    assert kv.blocks_to_take(hit, 13, Counter(second.table)) == 2
    assert kv.blocks_to_take(hit, 13, both) == 4


def test_the_head_of_a_block_is_copied_even_from_a_block_that_the_copy_itself_evicts() -> None:
    kv = manager(num_blocks=3)
    leave_behind(kv, text(12))
    blocks = kv.new_sequence()
    hit = kv.find_prefix(blocks, [*text(10), 99, 99], 11)
    assert hit.partial is not None
    source = hit.partial.block_id
    assert kv.allocate(blocks, 12, hit) == 10
    # Nothing else is free, so the source is the target.
    assert kv.take_moves() == [BlockMove(COPY, source, source)]
    kv.check_writable([source])
    kv.audit([blocks])
    assert kv.num_evictions == 1


def test_the_source_of_a_copy_is_evicted_last() -> None:
    kv = manager(num_blocks=3)
    leave_behind(kv, text(4, start=50))  # block 0, the least recently released
    leave_behind(kv, text(4, start=60))
    blocks = kv.new_sequence()
    hit = kv.find_prefix(blocks, [50, 51, 9, 9, 9, 9], 5)
    assert kv.allocate(blocks, 6, hit) == 2
    assert blocks.table == [2, 1]
    assert kv.take_moves() == [BlockMove(COPY, 0, 2)]


def test_computed_blocks_are_found_while_they_run_and_half_full_ones_once_they_are_over() -> None:
    kv = manager()
    tokens = text(11)
    blocks = holding(kv, 11)

    def num_found() -> int:
        hit = kv.find_prefix(kv.new_sequence(), tokens, 11)
        return len(hit.nodes) * 4 + hit.num_partial_tokens

    for num_computed, found in [(3, 0), (4, 4), (7, 4), (10, 8)]:
        kv.note_computed(blocks, tokens, num_computed)
        assert num_found() == found
    kv.free(blocks, tokens, 10)
    assert num_found() == 10
    assert (kv.num_free_blocks, kv.num_cached_blocks) == (8, 3)


def test_a_tail_that_a_fork_may_still_write_to_is_not_registered() -> None:
    kv = manager()
    tokens = text(6)
    first = computed(kv, tokens)
    second = kv.fork(first, 6, 6)
    kv.free(first, tokens, 6)
    assert kv.find_prefix(kv.new_sequence(), tokens, 6).partial is None
    assert kv.grow(second, 7)
    kv.check_writable(second.table[1:])
    kv.free(second, [*tokens, 7], 7)
    assert kv.find_prefix(kv.new_sequence(), [*tokens, 7], 7).num_partial_tokens == 3


def test_a_tail_behind_an_evicted_block_is_not_kept_since_nobody_would_find_it() -> None:
    kv = manager(num_blocks=6)
    tokens = text(7)
    first, second = holding(kv, 7), holding(kv, 7)
    kv.note_computed(first, tokens, 7)
    kv.note_computed(second, tokens, 7)
    kv.free(first, tokens, 4)
    other = holding(kv, 16)
    assert kv.num_evictions == 1
    kv.free(second, tokens, 7)
    assert kv.num_cached_blocks == 0
    kv.audit([other])


def test_an_equal_block_of_a_sequence_under_way_takes_the_place_of_an_evicted_one() -> None:
    kv = manager(num_blocks=7)
    tokens = text(12)
    first, second = holding(kv, 12), holding(kv, 13)
    kv.note_computed(first, tokens, 8)
    kv.note_computed(second, tokens, 8)
    assert [node.block_id for node in second.nodes] == first.table[:2]
    kv.free(first, tokens, 8)
    other = holding(kv, 12)  # evicts the two that were registered
    assert kv.num_evictions == 2
    kv.note_computed(second, tokens, 12)
    assert [node.block_id for node in second.nodes] == second.table[:3]
    assert kv.find_prefix(kv.new_sequence(), tokens, 12).nodes == second.nodes
    kv.audit([second, other])


def test_the_next_block_of_a_sequence_under_way_is_known_by_name() -> None:
    kv = manager()
    running, waiting = kv.new_sequence(), kv.new_sequence()
    kv.allocate(running, 14, kv.find_prefix(running, text(14), 13))
    hit = kv.find_prefix(waiting, text(12), 11)
    missing = kv.first_missing(waiting, hit)
    assert missing is not None
    assert kv.next_digest(running, 3) == missing
    assert kv.next_digest(running, 4) != missing
    assert kv.next_digest(running, 12) != missing
    kv.note_computed(running, text(14), 4)
    hit = kv.find_prefix(waiting, text(12), 11)
    missing = kv.first_missing(waiting, hit)
    assert missing is not None
    assert kv.next_digest(running, 4) == missing
    other = kv.new_sequence("salt")
    missing = kv.first_missing(other, kv.find_prefix(other, text(12), 11))
    assert missing is not None
    assert kv.next_digest(running, 0) != missing
    short = kv.new_sequence()
    assert kv.first_missing(short, kv.find_prefix(short, text(3), 2)) is None


def test_without_prefix_caching_nothing_is_kept_and_nothing_is_found() -> None:
    kv = manager(prefix_caching=False)
    leave_behind(kv, text(10))
    assert kv.num_cached_blocks == 0
    assert kv.find_prefix(kv.new_sequence(), text(10), 10) == NOTHING


def go_on(kv: KVCacheManager, blocks: SequenceBlocks, num_tokens: int) -> None:
    """Compute as far as ``num_tokens``."""
    assert kv.grow(blocks, num_tokens)
    kv.note_computed(blocks, text(num_tokens), num_tokens)
    kv.take_moves()


def evict_all_that_is_cached(kv: KVCacheManager) -> None:
    kv.free(holding(kv, 4 * kv.num_free_blocks))
    assert kv.num_cached_blocks == 0


def num_found(kv: KVCacheManager, num_tokens: int) -> int:
    hit = kv.find_prefix(kv.new_sequence(), text(num_tokens), num_tokens)
    return 4 * len(hit.nodes)


def test_a_block_computed_again_takes_the_place_of_an_equal_one_that_nobody_holds() -> None:
    """Else that one would be evicted first, and what continues it be found no more."""
    kv = manager()
    leave_behind(kv, text(8))
    second = computed(kv, text(8))  # the last token of its prompt is computed in any case
    go_on(kv, second, 12)
    evict_all_that_is_cached(kv)
    assert num_found(kv, 12) == 12
    kv.free(second, text(12), 12)
    assert kv.num_cached_blocks == 3
    evict_all_that_is_cached(kv)
    kv.audit([])


def test_what_continues_an_evicted_equal_block_is_found_again_once_the_sequence_goes_on() -> None:
    kv = manager()
    first, second = computed(kv, text(8)), computed(kv, text(8))
    assert first.table[1] != second.table[1]
    go_on(kv, second, 12)
    kv.free(first, text(8), 8)
    evict_all_that_is_cached(kv)
    assert num_found(kv, 12) == 4
    go_on(kv, second, 16)
    assert num_found(kv, 16) == 16
    kv.free(second, text(16), 16)
    assert kv.num_cached_blocks == 4
    evict_all_that_is_cached(kv)
    kv.audit([])
