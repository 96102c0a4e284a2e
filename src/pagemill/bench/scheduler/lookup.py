"""How long it takes to look for what is computed of a prompt already, by the prompt's length."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

from pagemill.bench.scheduler.trace import BLOCK_SIZE
from pagemill.bench.shared_model import random_prompt
from pagemill.kvcache.manager import KVCacheManager, blocks_for_tokens
from pagemill.kvcache.sequence_blocks import SequenceBlocks

LENGTHS: Final = (256, 1024, 4096, 16384, 65536)
FAST_LENGTHS: Final = (64, 256, 1024)
_VOCAB_SIZE: Final = 50_000
_RUNS: Final = 11


def lookup(num_tokens: int, tag: str) -> dict[str, Any]:
    """Look for a prompt that is cached as a whole, and for one of which nothing is.

    Returns medians of some runs, in seconds. A first look names the blocks of the prompt by their
    hashes; whoever waits looks again in each step, and they have their names then.
    """
    kv = KVCacheManager(blocks_for_tokens(num_tokens, BLOCK_SIZE) + 1, BLOCK_SIZE)
    cached = random_prompt(f"lookup {tag}", num_tokens, _VOCAB_SIZE)
    owner = kv.new_sequence()
    kv.allocate(owner, num_tokens, kv.find_prefix(owner, cached, num_tokens - 1))
    kv.note_computed(owner, cached, num_tokens)
    unknown = [(token + 1) % _VOCAB_SIZE for token in cached]

    hit = _seconds(kv, cached, [kv.new_sequence() for _ in range(_RUNS)])
    miss = _seconds(kv, unknown, [kv.new_sequence() for _ in range(_RUNS)])
    again = _seconds(kv, cached, [kv.new_sequence()] * (_RUNS + 1))
    return {
        "num_tokens": num_tokens,
        "num_blocks": num_tokens // BLOCK_SIZE,
        "hit_seconds": hit,
        "miss_seconds": miss,
        "again_seconds": again,
    }


def _seconds(kv: KVCacheManager, token_ids: list[int], looking: Sequence[SequenceBlocks]) -> float:
    times = []
    for blocks in looking:
        began = time.perf_counter()
        kv.find_prefix(blocks, token_ids, len(token_ids) - 1)
        times.append(time.perf_counter() - began)
    return statistics.median(times)
