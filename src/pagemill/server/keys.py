"""Who may ask: callers, and the file of their keys.

    [[keys]]
    name = "alice"                    # in logs; not secret
    key = "sk-..."                    # or sha256 = "<64 hex digits>", its hash
    priority = 0                      # smaller is more urgent; needs scheduling_policy="priority"
    requests_per_minute = 60
    tokens_per_minute = 100_000       # prompts and answers together
    cache_salt = "alice"              # share computed prefixes with nobody of another salt

Only ``name`` and the key are required. Keys are kept as SHA-256 hashes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass

from pagemill.server.rate_limits import TokenBucket


@dataclass(frozen=True, eq=False, kw_only=True)
class Caller:
    """Whose request it is: in ``request.state.caller`` of every request that may compute."""

    name: str
    """For logs."""
    priority: int = 0
    """What its requests have at best; smaller is more urgent."""
    cache_salt: str | None = None
    requests: TokenBucket | None = None
    """Its requests a minute; None: no limit."""
    tokens: TokenBucket | None = None
    """Its tokens a minute, prompts and answers together."""
    has_key: bool = True

    def priority_for(self, requested: int | None) -> int:
        """The priority of a request that asks for one: a key's own, or a less urgent one."""
        if requested is None:
            return self.priority
        return max(requested, self.priority) if self.has_key else requested

    def salt_for(self, requested: str | None) -> str | None:
        """The cache salt of a request that brings one: no two callers' pairs make the same."""
        if self.cache_salt is None and requested is None:
            return None
        return json.dumps([self.cache_salt, requested])


ANONYMOUS = Caller(name="anonymous", has_key=False)
"""Everybody, where there are no keys."""


class Keyring:
    """Keys and whose they are.

    Args:
        entries: SHA-256 hash of a key, and its caller.
    """

    def __init__(self, entries: Sequence[tuple[bytes, Caller]]) -> None:
        self._entries = tuple(entries)

    @property
    def callers(self) -> list[Caller]:
        """In the order of the file."""
        return [caller for _, caller in self._entries]

    def find(self, key: str) -> Caller | None:
        """The caller with this key. Takes the same time whichever key it is, or if it is none."""
        presented = hash_of(key)
        found = None
        for known, caller in self._entries:
            if hmac.compare_digest(known, presented):
                found = caller
        return found


def hash_of(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
