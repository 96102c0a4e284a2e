"""Which computed blocks can be used again, and by whom.

A tree of the blocks whose content is known. A node is one block; its path from the root spells all
tokens up to its end.

    root(salt) ── "You are a help" ── "ful assistant." ── "What is ..."      full blocks
                                                       └─ "Name thr"         a half-full tail

A block is found by the chained hash of its path, and believed only if its tokens are equal and its
parent is the block found before it: a collision costs a hit, never a wrong answer. A tail, or a
block that agrees in its first tokens only, is found by its parent, and copied.

Nothing here owns a block: `KVCacheManager` does, and says when one is lost.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter
from typing import NamedTuple
from weakref import WeakValueDictionary

from pagemill.kvcache.block_hash import TOKEN_BYTES, HashFunction, digest

_EVICTED = -1
"""The ``block_id`` of a node whose block was given to somebody else."""
_NO_BLOCK = -2
_NO_CHILDREN: list[CachedBlock] = []
"""Stays empty: whoever gets a child gets a list of its own."""
_tokens_of = attrgetter("tokens")


class CachedBlock:
    """A node: a block whose content is computed and never changes."""

    __slots__ = ("__weakref__", "block_id", "children", "digest", "parent", "tokens")

    def __init__(
        self, block_id: int, tokens: bytes, parent: CachedBlock | None, digest: bytes
    ) -> None:
        self.block_id = block_id
        self.tokens = tokens
        self.parent = parent
        self.digest = digest
        # Most blocks have one or none, and Python's garbage collector goes through all lists and
        # tuples again and again.
        self.children: list[CachedBlock] = _NO_CHILDREN
        """Sorted by tokens, which are unique."""

    @property
    def num_tokens(self) -> int:
        """Token slots that hold something: fewer than a block has in a tail."""
        return len(self.tokens) // TOKEN_BYTES

    @property
    def is_evicted(self) -> bool:
        """Whether the block is somebody else's now."""
        return self.block_id == _EVICTED


class PrefixHit(NamedTuple):
    """What of a sequence is computed already."""

    nodes: list[CachedBlock]
    """Whole blocks from the first on, to be shared."""
    partial: CachedBlock | None
    """A block whose first tokens come next, to be copied; None if there is none."""
    num_partial_tokens: int
    """How many of them."""


class PrefixCache:
    """Finds and registers blocks.

    Args:
        block_size: token slots in a block.
        partial_hits: whether to look for blocks that agree only in their first tokens.
        hash_function: names blocks; another one for tests.
    """

    def __init__(
        self, block_size: int, *, partial_hits: bool = True, hash_function: HashFunction = digest
    ) -> None:
        self._block_bytes = block_size * TOKEN_BYTES
        self._partial_hits = partial_hits
        self._hash = hash_function
        # A root lives as long as a block or a sequence that refers to it: salts come and go.
        self._roots: WeakValueDictionary[bytes, CachedBlock] = WeakValueDictionary()
        self._by_digest: dict[bytes, CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}

    def __len__(self) -> int:
        return len(self._by_block)

    def knows(self, block_id: int) -> bool:
        """Whether the block is registered, whole or as a tail."""
        return block_id in self._by_block

    def root(self, extras: bytes) -> CachedBlock:
        """Where all prefixes with these extras begin."""
        root = self._roots.get(extras)
        if root is None:
            root = self._roots[extras] = CachedBlock(_NO_BLOCK, b"", None, self._hash(extras))
        return root

    def extend_digests(self, root: CachedBlock, digests: list[bytes], tokens: bytes) -> None:
        """Append to the chain ``digests`` the names of all whole blocks of ``tokens``."""
        size = self._block_bytes
        for start in range(len(digests) * size, len(tokens) - size + 1, size):
            before = digests[-1] if digests else root.digest
            digests.append(self._hash(before + tokens[start : start + size]))

    def digest_after(self, parent: CachedBlock, tokens: bytes) -> bytes:
        """The name of a whole block that continues ``parent``."""
        return self._hash(parent.digest + tokens)

    def find(
        self, root: CachedBlock, digests: list[bytes], tokens: bytes, max_tokens: int
    ) -> PrefixHit:
        """The longest computed prefix of ``tokens``, at most ``max_tokens`` long.

        Linear in the number of blocks; ``digests`` are those of all whole blocks of ``tokens``.
        """
        size = self._block_bytes
        nodes: list[CachedBlock] = []
        parent = root
        for i in range(max_tokens * TOKEN_BYTES // size):
            node = self._by_digest.get(digests[i])
            if node is None or node.parent is not parent:
                break
            if node.tokens != tokens[i * size : (i + 1) * size]:
                break
            nodes.append(node)
            parent = node
        if not self._partial_hits:
            return PrefixHit(nodes, None, 0)
        start = len(nodes) * size
        wanted = tokens[start : min(start + size, max_tokens * TOKEN_BYTES)]
        return PrefixHit(nodes, *_longest_match(parent, wanted))

    def register(
        self, parent: CachedBlock, tokens: bytes, digest: bytes, block_id: int
    ) -> tuple[CachedBlock, int | None]:
        """Make a full, computed block findable.

        Returns its node, and the block that had to give way to it, if any. If an equal block is
        registered already, that one's node is returned, and ``block_id`` stays unknown.
        """
        known = self._by_digest.get(digest)
        replaced = None
        if known is not None:
            if known.parent is parent and known.tokens == tokens:
                return known, None
            # A collision, or a block whose own parent was evicted: it cannot be found any more.
            replaced = known.block_id
            self._drop(known)
        node = self._by_digest[digest] = CachedBlock(block_id, tokens, parent, digest)
        self._attach(node)
        return node, replaced

    def register_tail(self, parent: CachedBlock, tokens: bytes, block_id: int) -> bool:
        """Make the first tokens of a half-full block findable, by those that continue ``parent``.

        Returns False if they are already, in this block or in another.
        """
        if not self._partial_hits or _longest_match(parent, tokens)[1] * TOKEN_BYTES == len(tokens):
            return False
        self._attach(CachedBlock(block_id, tokens, parent, b""))
        return True

    def rename(self, node: CachedBlock, block_id: int) -> None:
        """The content of ``node`` is kept in another block from now on, which is not known yet."""
        del self._by_block[node.block_id]
        node.block_id = block_id
        self._by_block[block_id] = node

    def forget_block(self, block_id: int) -> None:
        """The content of ``block_id`` is lost. What continues it is found no more."""
        self._drop(self._by_block[block_id])

    def get(self, digest: bytes, root: CachedBlock) -> CachedBlock | None:
        """The whole block of that name, or ``root`` if that is its name."""
        return root if digest == root.digest else self._by_digest.get(digest)

    def nodes_below(self, root: CachedBlock) -> list[CachedBlock]:
        """Every whole block that continues ``root``, parents before their children."""
        found: list[CachedBlock] = []
        level = [root]
        while level:
            level = [child for node in level for child in node.children if child.digest]
            found += level
        return found

    def _attach(self, node: CachedBlock) -> None:
        assert node.parent is not None
        siblings = node.parent.children
        if siblings:
            insort(siblings, node, key=_tokens_of)
        else:
            node.parent.children = [node]
        self._by_block[node.block_id] = node

    def _drop(self, node: CachedBlock) -> None:
        assert node.parent is not None
        del self._by_block[node.block_id]
        if node.digest:
            del self._by_digest[node.digest]
        siblings = node.parent.children
        del siblings[bisect_left(siblings, node.tokens, key=_tokens_of)]
        node.block_id = _EVICTED


def _longest_match(parent: CachedBlock, wanted: bytes) -> tuple[CachedBlock | None, int]:
    """The child of ``parent`` that agrees with ``wanted`` in the most first tokens, and how many.

    In a sorted list of texts, that one is next to where ``wanted`` itself would stand.
    """
    children = parent.children
    at = bisect_left(children, wanted, key=_tokens_of)
    best: tuple[CachedBlock | None, int] = (None, 0)
    for node in children[max(at - 1, 0) : at + 1]:
        length = _common_tokens(node.tokens, wanted)
        if length > best[1]:
            best = (node, length)
    return best


def _common_tokens(a: bytes, b: bytes) -> int:
    """Length of the common prefix, in tokens."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length // TOKEN_BYTES
    differ = int.from_bytes(a[:length], "big") ^ int.from_bytes(b[:length], "big")
    return (length - (differ.bit_length() + 7) // 8) // TOKEN_BYTES
