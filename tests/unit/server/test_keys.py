"""A file of keys is believed only if all of it is right, and a key gives away nothing."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

import pytest

from pagemill.errors import ConfigError
from pagemill.server.key_file import read_key_file
from pagemill.server.keys import ANONYMOUS, Caller, Keyring

ALICE, BOB = "sk-alice-0123456789", "sk-bob-0123456789ab"


def no_warning(text: str) -> None:
    raise AssertionError(text)


def write(path: Path, text: str) -> Path:
    file = path / "keys.toml"
    file.write_text(text)
    file.chmod(0o600)
    return file


def read(path: Path, text: str) -> Keyring:
    return read_key_file(write(path, text), warn=no_warning)


def refusal(path: Path, text: str) -> str:
    """The message without the file's name, which must be in it."""
    with pytest.raises(ConfigError) as raised:
        read(path, text)
    message = str(raised.value)
    assert message.startswith(f"{path / 'keys.toml'}")
    assert ALICE not in message
    return message.removeprefix(f"{path / 'keys.toml'}")


def test_a_file_with_everything_in_it_is_read(tmp_path: Path) -> None:
    keyring = read(
        tmp_path,
        f"""
        [[keys]]
        name = "alice"
        key = "{ALICE}"
        priority = -5
        requests_per_minute = 60
        tokens_per_minute = 1000
        cache_salt = "a"

        [[keys]]
        name = "bob"
        sha256 = "{hashlib.sha256(BOB.encode()).hexdigest()}"
        """,
    )
    alice, bob = keyring.callers
    assert keyring.find(ALICE) is alice
    assert keyring.find(BOB) is bob
    assert (alice.name, alice.priority, alice.cache_salt) == ("alice", -5, "a")
    assert alice.requests is not None
    assert alice.tokens is not None
    assert (alice.requests.per_minute, alice.tokens.per_minute) == (60, 1000)
    assert (bob.priority, bob.cache_salt, bob.requests, bob.tokens) == (0, None, None, None)


@pytest.mark.parametrize(
    "key", ["", "sk", ALICE[:-1], ALICE + "x", ALICE.upper(), "é" * 20, "\udc80"]
)
def test_what_is_no_key_finds_nobody(tmp_path: Path, key: str) -> None:
    assert read(tmp_path, f'[[keys]]\nname = "a"\nkey = "{ALICE}"').find(key) is None


def test_every_key_is_compared_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def counting(known: bytes, presented: bytes) -> bool:
        compared.append((len(known), len(presented)))
        return known == presented

    monkeypatch.setattr(hmac, "compare_digest", counting)
    entries = [(hashlib.sha256(f"{i}".encode()).digest(), Caller(name=f"{i}")) for i in range(5)]
    for key in ("0", "4", "none of them"):
        compared.clear()
        Keyring(entries).find(key)
        assert compared == [(32, 32)] * 5


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (f'key = "{ALICE}"', ", entry 1: it has no name"),
        ('name = "a"', ", entry 1 ('a'): it needs either a key or its sha256"),
        (f'name = "a"\nkey = "{ALICE}"\nsha256 = "00"', "either a key or its sha256"),
        ('name = "a"\nkey = "short"', "('a'): key must be at least 16 .* got one of 5 characters"),
        (f'name = "a"\nkey = "{ALICE} "', "without spaces"),
        ('name = "a"\nkey = 5', "key must be a text, got a int"),
        ('name = "a"\nsha256 = "00"', "sha256 must be the 64 hex digits"),
        (f'name = "a"\nkey = "{ALICE}"\npriority = 1001', "priority must be .* 1000, got 1001"),
        (f'name = "a"\nkey = "{ALICE}"\npriority = "1"', "priority must be an integer"),
        (f'name = "a"\nkey = "{ALICE}"\npriority = true', "priority must be an integer"),
        (f'name = "a"\nkey = "{ALICE}"\nrequests_per_minute = 0', "must be .* between 1 .* got 0"),
        (f'name = "a"\nkey = "{ALICE}"\ntokens_per_minute = 1.5', "tokens_per_minute must be"),
        (f'name = "a"\nkey = "{ALICE}"\ncache_salt = ""', "cache_salt must be a text"),
        (f'name = "a\\nb"\nkey = "{ALICE}"', "name must be a text of printable characters"),
        (f'name = "a"\nkey = "{ALICE}"\nprioritty = 1', "unknown field 'prioritty'; did you mean"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_place(tmp_path: Path, entry: str, message: str) -> None:
    pattern = message.replace("(", r"\(").replace(")", r"\)")
    assert re.search(pattern, refusal(tmp_path, f"[[keys]]\n{entry}"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no keys; each begins with a line [[keys]]"),
        ("keys = []", "it has no keys"),
        ("keys = [1]", ", entry 1: it must be a table"),
        ("[keys]\nname = 'a'", "it has no keys"),
        ("[[key]]\nname = 'a'", "unknown name 'key'"),
        (f"[[keys]]\nkey = {ALICE}", "it is not TOML: "),
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(tmp_path, text)


def test_two_entries_share_neither_name_nor_key(tmp_path: Path) -> None:
    first = f'[[keys]]\nname = "a"\nkey = "{ALICE}"\n'
    same_name = refusal(tmp_path, first + f'[[keys]]\nname = "a"\nkey = "{BOB}"')
    assert same_name == ", entry 2 ('a'): name must be another than those before it, got 'a'"
    same_key = refusal(tmp_path, first + f'[[keys]]\nname = "b"\nkey = "{ALICE}"')
    assert same_key == ", entry 2 ('b'): its key is that of an entry before it"


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_key_file(tmp_path / "none.toml", warn=no_warning)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_key_file(tmp_path, warn=no_warning)
    with pytest.raises(ConfigError, match="no regular file"):
        read_key_file("/dev/null", warn=no_warning)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    binary.chmod(0o600)
    with pytest.raises(ConfigError, match="it is not UTF-8"):
        read_key_file(binary, warn=no_warning)


def test_a_file_that_others_may_read_is_warned_of(tmp_path: Path) -> None:
    file = write(tmp_path, f'[[keys]]\nname = "a"\nkey = "{ALICE}"')
    file.chmod(0o644)
    warnings: list[str] = []
    read_key_file(file, warn=warnings.append)
    assert warnings == [f"{file} can be read by others than its owner (mode 0644); chmod 600 it"]


def test_a_request_is_at_most_as_urgent_as_its_key() -> None:
    batch = Caller(name="batch", priority=5)
    assert [batch.priority_for(p) for p in (None, -10, 5, 9)] == [5, 5, 5, 9]
    assert [ANONYMOUS.priority_for(p) for p in (None, -10, 9)] == [0, -10, 9]


def test_no_two_callers_can_make_the_same_salt() -> None:
    callers = [ANONYMOUS, *(Caller(name="x", cache_salt=s) for s in ("a", "b", 'a", "b', "null"))]
    requested = [None, "a", "b", 'a", "b', "null", '["a", "b"]']
    salts = [caller.salt_for(salt) for caller in callers for salt in requested]
    assert len(set(salts)) == len(salts)
    assert ANONYMOUS.salt_for(None) is None
