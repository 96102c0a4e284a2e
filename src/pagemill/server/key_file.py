"""Reads a file of keys, in the format that `pagemill.server.keys` shows; believes nothing in it."""

from __future__ import annotations

import difflib
import os
import stat
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pagemill.errors import ConfigError
from pagemill.server.keys import Caller, Keyring, hash_of
from pagemill.server.rate_limits import TokenBucket

MAX_FILE_BYTES = 2**20
MIN_KEY_CHARACTERS = 16
MAX_PER_MINUTE = 10**9
MAX_PRIORITY = 1000
"""As `pagemill.scheduler.policy.PriorityPolicy` has it."""
_OTHERS_MAY_READ = stat.S_IRGRP | stat.S_IROTH


def read_key_file(path: str | Path, *, warn: Callable[[str], None]) -> Keyring:
    """The keys of a file.

    Args:
        path: the file.
        warn: told if others than its owner may read it.

    Raises:
        ConfigError: it cannot be read, or something in it is wrong: names file, entry, field and
            value (of a key, only its length).
    """
    document = _parse(path, _read(path, warn))
    unknown = sorted(set(document) - {"keys"})
    if unknown:
        raise ConfigError(f"{path}: unknown name {unknown[0]!r}; a file of keys has [[keys]] only")
    entries = document.get("keys")
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path}: it has no keys; each begins with a line [[keys]]")
    found: list[tuple[bytes, Caller]] = []
    for i, fields in enumerate(entries):
        entry = _Entry(f"{path}, entry {i + 1}", fields)
        known, caller = entry.read()
        if caller.name in [other.name for _, other in found]:
            raise entry.refusal("name", caller.name, "must be another than those before it")
        if known in [other for other, _ in found]:
            raise ConfigError(f"{entry.place}: its key is that of an entry before it")
        found.append((known, caller))
    return Keyring(found)


def _read(path: str | Path, warn: Callable[[str], None]) -> bytes:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path}: it is no regular file")
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"api_key_file={str(path)!r} cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: it has more than {MAX_FILE_BYTES} bytes, so it is no key file")
    if status.st_mode & _OTHERS_MAY_READ:
        mode = stat.S_IMODE(status.st_mode)
        warn(f"{path} can be read by others than its owner (mode {mode:04o}); chmod 600 it")
    return content


def _parse(path: str | Path, content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except ValueError as error:  # also what is not UTF-8
        # tomllib's message names a place, and never shows a line of the file.
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise ConfigError(f"{path}: it is not TOML: {reason}") from None


class _Entry:
    """One table of ``[[keys]]``."""

    FIELDS = (
        "name",
        "key",
        "sha256",
        "priority",
        "requests_per_minute",
        "tokens_per_minute",
        "cache_salt",
    )

    def __init__(self, place: str, fields: object) -> None:
        self.place = place
        if not isinstance(fields, Mapping):
            raise ConfigError(f"{place}: it must be a table, which begins with [[keys]]")
        for field in fields:
            if field not in self.FIELDS:
                near = difflib.get_close_matches(field, self.FIELDS, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(self.FIELDS)}"
                raise ConfigError(f"{place}: unknown field {field!r}; {hint}")
        self._fields = fields
        name = self._text("name")
        if name is None:
            raise ConfigError(f"{place}: it has no name")
        self._name = name
        self.place = f"{place} ({name!r})"

    def read(self) -> tuple[bytes, Caller]:
        """The hash of its key, and its caller."""
        caller = Caller(
            name=self._name,
            priority=self._integer("priority", -MAX_PRIORITY, MAX_PRIORITY) or 0,
            requests=self._bucket("requests_per_minute"),
            tokens=self._bucket("tokens_per_minute"),
            cache_salt=self._text("cache_salt"),
        )
        return self._hash(), caller

    def refusal(self, field: str, value: object, rule: str) -> ConfigError:
        return ConfigError(f"{self.place}: {field} {rule}, got {value!r}")

    def _hash(self) -> bytes:
        if ("key" in self._fields) == ("sha256" in self._fields):
            raise ConfigError(f"{self.place}: it needs either a key or its sha256")
        if "sha256" in self._fields:
            digest = self._fields["sha256"]
            try:
                known = bytes.fromhex(digest) if isinstance(digest, str) else b""
            except ValueError:
                known = b""
            if len(known) != 32:
                raise ConfigError(f"{self.place}: sha256 must be the 64 hex digits of a hash")
            return known
        key = self._fields["key"]
        if not isinstance(key, str):
            raise ConfigError(f"{self.place}: key must be a text, got a {type(key).__name__}")
        if len(key) < MIN_KEY_CHARACTERS or not all("!" <= c <= "~" for c in key):
            raise ConfigError(
                f"{self.place}: key must be at least {MIN_KEY_CHARACTERS} printable ASCII "
                f"characters without spaces, got one of {len(key)} characters"
            )
        return hash_of(key)

    def _text(self, field: str) -> str | None:
        value = self._fields.get(field)
        if value is not None and (
            not isinstance(value, str) or not value or not value.isprintable()
        ):
            raise self.refusal(field, value, "must be a text of printable characters")
        return value

    def _integer(self, field: str, low: int, high: int) -> int | None:
        value = self._fields.get(field)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refusal(field, value, f"must be an integer between {low} and {high}")
        return value

    def _bucket(self, field: str) -> TokenBucket | None:
        per_minute = self._integer(field, 1, MAX_PER_MINUTE)
        return None if per_minute is None else TokenBucket(per_minute)
