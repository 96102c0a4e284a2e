from __future__ import annotations

import weakref
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill.kvcache.block_hash import DIGEST_BYTES, digest, extras_bytes, token_bytes
from pagemill.kvcache.prefix_cache import CachedBlock, PrefixCache, PrefixHit

B = 4


class Tree:
    """A prefix cache that is spoken to in tokens; blocks get numbers in order of registration."""

    def __init__(self, block_size: int = B, **options: object) -> None:
        self.size = block_size
        self.cache = PrefixCache(block_size, **options)  # type: ignore[arg-type]
        self.num_blocks = 0

    def digests(self, tokens: Sequence[int], extras: bytes = b"") -> list[bytes]:
        names: list[bytes] = []
        self.cache.extend_digests(self.cache.root(extras), names, token_bytes(tokens))
        return names

    def register(self, tokens: Sequence[int], extras: bytes = b"") -> list[CachedBlock]:
        """Every whole block of ``tokens`` under its own number, and the tail, if there is one."""
        nodes: list[CachedBlock] = []
        parent = self.cache.root(extras)
        for i, name in enumerate(self.digests(tokens, extras)):
            content = token_bytes(tokens[i * self.size : (i + 1) * self.size])
            parent, _ = self.cache.register(parent, content, name, self.new_block())
            nodes.append(parent)
        if rest := len(tokens) % self.size:
            self.cache.register_tail(parent, token_bytes(tokens[-rest:]), self.new_block())
        return nodes

    def new_block(self) -> int:
        self.num_blocks += 1
        return self.num_blocks - 1

    def find(
        self, tokens: Sequence[int], max_tokens: int | None = None, extras: bytes = b""
    ) -> PrefixHit:
        names = self.digests(tokens, extras)
        most = len(tokens) if max_tokens is None else max_tokens
        return self.cache.find(self.cache.root(extras), names, token_bytes(tokens), most)

    def found(self, tokens: Sequence[int], max_tokens: int | None = None) -> int:
        """How many tokens are found."""
        hit = self.find(tokens, max_tokens)
        return len(hit.nodes) * self.size + hit.num_partial_tokens


def test_the_longest_registered_prefix_is_found() -> None:
    tree = Tree()
    nodes = tree.register(range(12))
    assert tree.find([*range(12), 99]) == PrefixHit(nodes, None, 0)
    assert tree.find([*range(8), 99, 10, 11, 12]) == PrefixHit(nodes[:2], None, 0)
    assert tree.find([99, *range(1, 12)]) == PrefixHit([], None, 0)
    assert [node.block_id for node in nodes] == [0, 1, 2]
    assert [node.parent for node in nodes] == [tree.cache.root(b""), *nodes[:2]]


def test_equal_blocks_behind_different_prefixes_are_different_blocks() -> None:
    tree = Tree()
    ones = tree.register([1] * B + [9] * B)
    assert tree.find([2] * B + [9] * B) == PrefixHit([], None, 0)
    twos = tree.register([2] * B + [9] * B)
    assert tree.find([2] * B + [9] * B).nodes == twos
    assert ones[1] is not twos[1]
    assert len(tree.cache) == 4


def test_no_more_is_found_than_is_asked_for() -> None:
    tree = Tree()
    nodes = tree.register(range(12))
    assert tree.find(range(12), max_tokens=11) == PrefixHit(nodes[:2], nodes[2], 3)
    assert tree.find(range(12), max_tokens=8) == PrefixHit(nodes[:2], None, 0)
    assert tree.find(range(12), max_tokens=1) == PrefixHit([], nodes[0], 1)
    assert tree.find(range(12), max_tokens=0) == PrefixHit([], None, 0)


@pytest.mark.parametrize("own", [65, 65 + 2**8, 65 + 2**16, 65 + 2**24, 2**31 - 1])
def test_token_ids_are_told_apart_by_all_their_bits(own: int) -> None:
    tree = Tree()
    tree.register([own] * 8)
    for other in (65, 321, 65 + 2**16, 65 + 2**24, 2**31 - 1):
        assert tree.found([other] * 8) == (8 if other == own else 0)


def test_of_many_children_the_one_that_agrees_longest_is_copied_from() -> None:
    tree = Tree(block_size=8)
    (head,) = tree.register([0] * 8)
    for first in range(0, 60, 3):
        for second in range(0, 60, 7):
            tree.register([0] * 8 + [first, second, 1, 2, 3, 4, 5, 6])
    hit = tree.find([0] * 8 + [33, 21, 1, 2, 9])
    assert hit.nodes == [head]
    assert hit.num_partial_tokens == 4
    assert hit.partial is not None
    assert hit.partial.tokens == token_bytes([33, 21, 1, 2, 3, 4, 5, 6])
    assert tree.found([0] * 8 + [33, 22, 1, 2]) == 9
    assert tree.found([0] * 8 + [34, 21, 1, 2]) == 8


def test_without_partial_hits_only_whole_blocks_are_found_and_no_tails_are_kept() -> None:
    tree = Tree(partial_hits=False)
    nodes = tree.register(range(10))
    assert tree.find(range(10)) == PrefixHit(nodes, None, 0)
    assert tree.find(range(7)) == PrefixHit(nodes[:1], None, 0)
    assert len(tree.cache) == 2


def test_a_tail_is_found_by_its_parent_and_registered_only_if_it_says_something_new() -> None:
    tree = Tree()
    (head,) = tree.register(range(6))
    hit = tree.find(range(8))
    assert (hit.nodes, hit.num_partial_tokens) == ([head], 2)
    assert hit.partial is not None
    assert (hit.partial.block_id, hit.partial.num_tokens) == (1, 2)

    def register_tail(*tokens: int) -> bool:
        return tree.cache.register_tail(head, token_bytes(tokens), tree.new_block())

    assert not register_tail(4, 5)
    assert not register_tail(4)
    assert register_tail(4, 5, 6)
    assert register_tail(4, 7)
    assert tree.found([0, 1, 2, 3, 4, 5, 6, 7]) == 7
    assert tree.found([0, 1, 2, 3, 4, 7, 7, 7]) == 6
    tree.register([0, 1, 2, 3, 8, 8, 8, 8])
    assert not register_tail(8, 8, 8)


def test_a_block_that_is_known_already_stays_where_it_is() -> None:
    tree = Tree()
    first = tree.register(range(8))
    again = tree.register(range(8))
    assert again == first
    assert [node.block_id for node in again] == [0, 1]
    assert not tree.cache.knows(2)
    assert len(tree.cache) == 2


def test_a_collision_costs_a_hit_and_gives_no_wrong_block() -> None:
    tree = Tree(hash_function=lambda data: b"same")
    (ones,) = tree.register([1] * B)
    assert tree.find([1] * B).nodes == [ones]
    assert tree.find([2] * B) == PrefixHit([], None, 0)
    root, name = tree.cache.root(b""), b"same"
    twos, replaced = tree.cache.register(root, token_bytes([2] * B), name, 7)
    assert replaced == 0
    assert ones.is_evicted
    assert tree.find([2] * B).nodes == [twos]
    assert tree.find([1] * B) == PrefixHit([], None, 0)
    # The second block of a chain collides with the first: it is known, but not found.
    _, replaced = tree.cache.register(twos, token_bytes([3] * B), name, 8)
    assert replaced == 7
    assert tree.find([2] * B + [3] * B) == PrefixHit([], None, 0)


def test_what_continues_a_lost_block_is_found_again_only_once_it_is_computed_again() -> None:
    tree = Tree()
    old = tree.register(range(12))
    tree.cache.forget_block(0)
    assert old[0].is_evicted
    assert not tree.cache.knows(0)
    assert tree.find(range(12)) == PrefixHit([], None, 0)
    root, names = tree.cache.root(b""), tree.digests(range(12))
    head, replaced = tree.cache.register(root, token_bytes(range(4)), names[0], 10)
    assert replaced is None
    # Blocks 1 and 2 continue the old head.
    assert tree.find(range(12)) == PrefixHit([head], None, 0)
    middle, replaced = tree.cache.register(head, token_bytes(range(4, 8)), names[1], 11)
    assert replaced == 1
    assert tree.find(range(12)) == PrefixHit([head, middle], None, 0)
    tree.cache.forget_block(2)
    assert len(tree.cache) == 2


def test_nothing_is_shared_between_extras() -> None:
    tree = Tree()
    salts = [extras_bytes(salt) for salt in (None, "", "None", "null", "a", "b")]
    assert len(set(salts)) == len(salts)
    tree.register(range(8), salts[0])
    for salt in salts[1:]:
        assert tree.find(range(8), extras=salt) == PrefixHit([], None, 0)
        tree.register(range(8), salt)
    assert [tree.find(range(8), extras=salt).nodes[0].block_id for salt in salts] == [
        0, 2, 4, 6, 8, 10
    ]  # fmt: skip


def test_a_root_vanishes_with_the_last_that_refers_to_it() -> None:
    cache = PrefixCache(B)
    root = cache.root(b"salt")
    assert cache.root(b"salt") is root
    content = token_bytes([1] * B)
    cache.register(root, content, cache.digest_after(root, content), 0)
    cache.register_tail(root, token_bytes([2]), 1)
    alive = weakref.ref(root)
    del root
    cache.forget_block(0)
    assert alive() is not None
    cache.forget_block(1)
    assert alive() is None
    assert cache.root(b"salt").children == []


def test_each_block_is_hashed_once_however_often_it_is_asked_for() -> None:
    hashed: list[bytes] = []

    def counting(data: bytes) -> bytes:
        hashed.append(data)
        return digest(data)

    cache = PrefixCache(B, hash_function=counting)
    root = cache.root(b"")
    names: list[bytes] = []
    for length in (0, 3, 11, 12, 12, 40):
        cache.extend_digests(root, names, token_bytes(range(length)))
    assert len(hashed) == 1 + 10  # the extras, and ten blocks
    assert len(set(names)) == 10
    assert {len(name) for name in names} == {DIGEST_BYTES}
    assert cache.digest_after(root, token_bytes(range(4))) == names[0]


def test_all_whole_blocks_below_a_root_are_listed_parents_first() -> None:
    tree = Tree()
    tree.register(range(13))
    tree.register([*range(4), 9, 9, 9, 9])
    tree.register([7] * 4, b"salt")
    root = tree.cache.root(b"")
    nodes = tree.cache.nodes_below(root)
    assert sorted(node.block_id for node in nodes) == [0, 1, 2, 5]  # 3 is a tail, 4 was known
    for i, node in enumerate(nodes):
        assert node.parent in [root, *nodes[:i]]
    salted = tree.cache.root(b"salt")
    assert [node.block_id for node in tree.cache.nodes_below(salted)] == [6]


def test_a_whole_block_is_got_by_its_name() -> None:
    tree = Tree()
    nodes = tree.register(range(9))
    root, names = tree.cache.root(b""), tree.digests(range(9))
    assert [tree.cache.get(name, root) for name in names] == nodes
    assert tree.cache.get(root.digest, root) is root
    assert tree.cache.get(b"another", root) is None


TOKENS = st.lists(st.sampled_from([0, 1, 256, 2**31 - 1]), max_size=14)


@given(
    block_size=st.integers(1, 5),
    texts=st.lists(st.tuples(TOKENS, st.none() | st.integers(0, 40)), max_size=12),
    wanted=st.lists(st.tuples(TOKENS, st.integers(0, 14)), min_size=1, max_size=8),
)
def test_what_is_found_is_what_a_search_of_all_blocks_finds(
    block_size: int, texts: list[tuple[list[int], int | None]], wanted: list[tuple[list[int], int]]
) -> None:
    """Registering, and after each text perhaps losing a block; then searching."""
    tree = Tree(block_size)
    known: set[CachedBlock] = set()
    for tokens, lost in texts:
        tree.register(tokens)
        known.update(tree.cache._by_block.values())
        if lost is not None and tree.cache.knows(lost):
            tree.cache.forget_block(lost)
    known = {node for node in known if not node.is_evicted}
    for tokens, most in wanted:
        most = min(most, len(tokens))
        hit = tree.find(tokens, most)
        nodes, longest = search(known, tree.cache.root(b""), tokens, most, block_size)
        assert hit.nodes == nodes
        assert hit.num_partial_tokens == longest
        assert (hit.partial is None) == (longest == 0)
        if hit.partial is not None:
            start = len(nodes) * block_size
            assert hit.partial in known
            assert hit.partial.tokens.startswith(token_bytes(tokens[start : start + longest]))


def search(
    known: set[CachedBlock], root: CachedBlock, tokens: list[int], most: int, block_size: int
) -> tuple[list[CachedBlock], int]:
    """Whole blocks of ``tokens[:most]`` from the root on, and the longest match of a next one."""
    nodes: list[CachedBlock] = []
    parent, rest = root, tokens[:most]
    while True:
        children = [node for node in known if node.parent is parent]
        content = token_bytes(rest[:block_size])
        same = [node for node in children if node.tokens == content]
        if len(rest) < block_size or not same:
            break
        (parent,) = same
        nodes.append(parent)
        rest = rest[block_size:]
    longest = 0
    for length in range(1, min(block_size, len(rest)) + 1):
        if any(node.tokens.startswith(token_bytes(rest[:length])) for node in children):
            longest = length
    return nodes, longest
