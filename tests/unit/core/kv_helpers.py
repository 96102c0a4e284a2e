"""Sequences in a `KVCacheManager` without an engine; their tokens are their positions."""

from __future__ import annotations

from pagemill.batch import MoveKind
from pagemill.kvcache.manager import KVCacheManager
from pagemill.kvcache.prefix_cache import PrefixHit
from pagemill.kvcache.sequence_blocks import SequenceBlocks

NOTHING = PrefixHit([], None, 0)
COPY, SWAP_OUT, SWAP_IN = MoveKind.COPY, MoveKind.SWAP_OUT, MoveKind.SWAP_IN


def manager(num_blocks: int = 8, block_size: int = 4, **options: object) -> KVCacheManager:
    return KVCacheManager(num_blocks, block_size, **options)  # type: ignore[arg-type]


def holding(kv: KVCacheManager, num_tokens: int) -> SequenceBlocks:
    """A sequence with slots for so many tokens, nothing of which is known."""
    blocks = kv.new_sequence()
    kv.allocate(blocks, num_tokens, NOTHING)
    return blocks


def computed(
    kv: KVCacheManager, tokens: list[int], cache_salt: str | None = None
) -> SequenceBlocks:
    """A sequence that has computed all its tokens, sharing what it found."""
    blocks = kv.new_sequence(cache_salt)
    kv.allocate(blocks, len(tokens), kv.find_prefix(blocks, tokens, len(tokens) - 1))
    kv.note_computed(blocks, tokens, len(tokens))
    return blocks


def leave_behind(kv: KVCacheManager, tokens: list[int]) -> None:
    """A sequence that has come and gone."""
    kv.free(computed(kv, tokens), tokens, len(tokens))


def text(length: int, start: int = 0) -> list[int]:
    return list(range(start, start + length))
