"""Counter-based random numbers: a draw is a pure function of (key, position).

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
(SC 2011): ten rounds turn a 128-bit counter and a 64-bit key into 128 random bits. There is no
state to keep, so a sampled token cannot depend on batch-mates, chunking or preemption.

The counter's four words are (position low, position high, 0, domain). The domain keeps the three
uses apart, so that no seed derived here equals another one's draws except by chance.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInt64Array = npt.NDArray[np.uint64]

_ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_KEY_INCREMENTS = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
_LOW_WORD = np.uint64(0xFFFFFFFF)
_WORD_BITS = np.uint64(32)

_DOMAIN_DRAW = 0
_DOMAIN_SAMPLE = 1
_DOMAIN_REQUEST = 2


def philox4x32(counters: UInt64Array, keys: UInt64Array) -> UInt64Array:
    """Philox4x32-10. 32-bit words held in uint64: counters [4, L], keys [2, L] -> [4, L]."""
    # Words 0 and 2 are multiplied in a round, words 1 and 3 are mixed into the products.
    multiplied, mixed = counters[0::2], counters[1::2]
    for _ in range(_ROUNDS):
        products = multiplied * _MULTIPLIERS
        multiplied = (products >> _WORD_BITS)[::-1] ^ mixed ^ keys
        mixed = (products & _LOW_WORD)[::-1]
        keys = (keys + _KEY_INCREMENTS) & _LOW_WORD
    return np.stack([multiplied[0], mixed[0], multiplied[1], mixed[1]])


def uniforms(keys: UInt64Array, positions: UInt64Array) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each pair: keys [L], positions [L] -> [L], multiples of 2^-53."""
    words = _words(keys, positions, _DOMAIN_DRAW)
    high, low = words[0] >> np.uint64(5), words[1] >> np.uint64(6)
    bits: UInt64Array = (high << np.uint64(26)) | low
    return bits.astype(np.float64) * 2.0**-53


def derive_seed(seed: int, sample_index: int) -> int:
    """Give each of a request's ``n`` samples its own 64-bit seed.

    Sample 0 has the request's own seed: it is the sample that ``n=1`` would have given.
    """
    return seed if sample_index == 0 else _derive(seed, sample_index, _DOMAIN_SAMPLE)


def derive_request_seed(engine_seed: int, arrival_number: int) -> int:
    """Give a request without a seed one, from the engine's and its number in order of arrival."""
    return _derive(engine_seed, arrival_number, _DOMAIN_REQUEST)


def _derive(seed: int, number: int, domain: int) -> int:
    key = np.array([seed], dtype=np.uint64)
    words = _words(key, np.array([number], dtype=np.uint64), domain)
    return int(words[0, 0]) << 32 | int(words[1, 0])


def _words(keys: UInt64Array, positions: UInt64Array, domain: int) -> UInt64Array:
    counters = np.zeros((4, len(positions)), dtype=np.uint64)
    counters[0], counters[1] = positions & _LOW_WORD, positions >> _WORD_BITS
    counters[3] = domain
    return philox4x32(counters, np.stack([keys & _LOW_WORD, keys >> _WORD_BITS]))
