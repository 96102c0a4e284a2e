from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagemill import SamplingParams
from pagemill.kvcache.manager import KVCacheManager
from pagemill.request import NOT_DECODING, Request, RequestTimes, Sequence
from pagemill.scheduler.decode_rows import DecodeRows

B = 4
KV = KVCacheManager(num_blocks=10_000, block_size=B, prefix_caching=False)


def sequence(seq_id: int, num_tokens: int) -> Sequence:
    """A sequence with blocks for all its tokens; the last one is not computed yet."""
    tokens = [1000 * seq_id + i for i in range(num_tokens)]
    params = SamplingParams(max_tokens=100)
    request = Request(
        str(seq_id), None, tokens[:-1], params, 100, frozenset(), 0, RequestTimes(0.0)
    )
    blocks = KV.new_sequence()
    KV.grow(blocks, num_tokens)
    return Sequence(seq_id, request, 0, seq_id, None, tokens, blocks, tokens[-1:])


def rows_of(*sequences: Sequence) -> DecodeRows:
    rows = DecodeRows(B)
    for seq in sequences:
        rows.add(seq)
    return rows


def check(rows: DecodeRows, sequences: list[Sequence]) -> None:
    """Every row is that of its sequence, and every sequence has one."""
    assert len(rows) == len(rows.tasks) == len(sequences)
    assert {seq.seq_id for seq in rows.sequences} == {seq.seq_id for seq in sequences}
    for row, seq in enumerate(rows.sequences):
        assert seq.row == row
        assert rows.tasks[row].logits_row == row
        assert rows.tasks[row].seed == seq.seed
        assert rows.tasks[row].output_token_ids is seq.output_token_ids
        assert rows.lengths[row] == len(seq.token_ids)
        assert rows.last_tokens[row] == seq.token_ids[-1]
        table = seq.blocks.table
        assert list(rows.tables[row, : len(table)]) == table
        assert seq.num_computed_tokens == len(seq.token_ids) - 1


def test_a_sequence_gets_a_row_with_all_that_a_step_needs_of_it() -> None:
    a, b = sequence(1, 3), sequence(2, 9)
    a.num_prefilled_tokens = 2
    rows = rows_of(a, b)
    check(rows, [a, b])
    assert list(rows.lengths[:2]) == [3, 9]
    assert list(rows.last_tokens[:2]) == [1002, 2008]
    assert (a.num_uncomputed_tokens, b.num_uncomputed_tokens) == (1, 1)


def test_the_last_sequence_takes_the_row_of_the_one_that_leaves() -> None:
    a, b, c = sequence(1, 3), sequence(2, 9), sequence(3, 6)
    rows = rows_of(a, b, c)
    rows.remove(a)
    assert rows.sequences == [c, b]
    check(rows, [b, c])
    assert (a.row, a.num_computed_tokens) == (NOT_DECODING, 2)
    rows.remove(b)  # the last one itself
    assert rows.sequences == [c]
    check(rows, [c])
    assert b.num_computed_tokens == 8
    rows.remove(c)
    assert len(rows) == 0
    rows.add(a)
    check(rows, [a])


def test_an_array_that_becomes_too_small_grows_and_keeps_its_rows() -> None:
    wide = sequence(99, B * 40)
    many = [sequence(i, i % 13 + 1) for i in range(50)]
    rows = rows_of(*many[:10])
    rows.add(wide)
    assert rows.tables.shape == (16, 64)
    for seq in many[10:]:
        rows.add(seq)
    assert rows.tables.shape == (64, 64)
    assert len(rows.lengths) == len(rows.last_tokens) == 64
    check(rows, [*many, wide])
    rows.reserve(65, 1)
    assert rows.tables.shape == (128, 64)
    check(rows, [*many, wide])


def test_a_table_that_grew_beyond_the_width_of_the_array_is_taken_over() -> None:
    seq, other = sequence(1, 16 * B), sequence(2, 1)
    rows = rows_of(seq, other)
    assert rows.tables.shape == (16, 16)
    KV.grow(seq.blocks, 16 * B + 1)
    rows.note_table(seq)
    assert rows.tables.shape == (16, 32)
    check(rows, [seq, other])


def test_a_sequence_needs_room_when_its_table_is_full_or_its_tail_is_shared() -> None:
    at_the_end, beyond, sharing = sequence(1, 2 * B), sequence(2, 2 * B), sequence(3, B + 2)
    rows = rows_of(at_the_end, beyond, sharing)
    assert rows.without_room() == []
    for seq in rows.sequences:
        seq.append_token(7, -1.0)
    assert rows.advance([7, 7, 7]) == [at_the_end, beyond]
    assert rows.without_room() == [at_the_end, beyond]
    fork = KV.fork(sharing.blocks, B + 2, B + 2)
    rows.note_table(sharing)
    KV.grow(at_the_end.blocks, 2 * B + 1)
    rows.note_table(at_the_end)
    assert rows.without_room() == [beyond, sharing]
    KV.free(fork)
    KV.grow(sharing.blocks, B + 3)
    rows.note_table(sharing)
    assert rows.without_room() == [beyond]


def test_only_the_rows_of_the_step_advance() -> None:
    a, b, late = sequence(1, B), sequence(2, 2), sequence(3, B)
    rows = rows_of(a, b, late)
    for seq in (a, b):
        seq.append_token(5, -1.0)
    assert rows.advance([5, 5]) == [a]
    check(rows, [a, b, late])
    b.append_token(6, -1.0)
    a.append_token(6, -1.0)
    assert rows.advance([6, 6]) == []
    b.append_token(7, -1.0)
    a.append_token(7, -1.0)
    assert rows.advance([7, 7]) == [b]
    check(rows, [a, b, late])


@given(st.lists(st.integers(0, 99), max_size=60))
def test_rows_stay_dense_and_right_whoever_comes_grows_and_goes(choices: list[int]) -> None:
    rows, inside, outside = DecodeRows(B), list[Sequence](), list[Sequence]()
    for i, choice in enumerate(choices):
        if choice % 3 == 0 or not inside:
            seq = outside.pop() if outside and choice % 2 else sequence(i, choice + 1)
            rows.add(seq)
            inside.append(seq)
        elif choice % 3 == 1:
            seq = inside.pop(choice % len(inside))
            rows.remove(seq)
            outside.append(seq)
        else:
            for seq in inside:
                seq.append_token(choice, -1.0)
                KV.grow(seq.blocks, len(seq.token_ids))
            whole = rows.advance([choice] * len(rows))
            assert whole == [s for s in rows.sequences if (len(s.token_ids) - 1) % B == 0]
            for seq in rows.without_room():
                rows.note_table(seq)
            assert rows.without_room() == []
        check(rows, inside)
        assert all(seq.row == NOT_DECODING for seq in outside)
    for seq in inside + outside:
        KV.free(seq.blocks)
