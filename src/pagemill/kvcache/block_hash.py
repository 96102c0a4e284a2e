"""Names for the contents of blocks: a chain of hashes over all tokens up to a block's end.

    hash of block 0 = H(hash of the extras, tokens 0 .. 15)
    hash of block 1 = H(hash of block 0,    tokens 16 .. 31)    ...

The values in a block depend on every token before it, so the name must, too. Extras are whatever
else makes the same tokens give other values, or must keep two users apart: a cache salt.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b

DIGEST_BYTES = 16
TOKEN_BYTES = 4

HashFunction = Callable[[bytes], bytes]


def digest(data: bytes) -> bytes:
    """BLAKE2b (RFC 7693), 128 bits: no two prefixes that anybody has seen share one."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def extras_bytes(cache_salt: str | None) -> bytes:
    """The extras of a request, each with its type and name, so that none can pass for another."""
    return json.dumps({"cache_salt": cache_salt}).encode()


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Token ids as 32-bit integers: 65 and 321 differ.

    Big-endian, so that the order of the texts is that of the ids.
    """
    ids = array("i", token_ids)
    assert ids.itemsize == TOKEN_BYTES
    if sys.byteorder == "little":
        ids.byteswap()
    return ids.tobytes()
