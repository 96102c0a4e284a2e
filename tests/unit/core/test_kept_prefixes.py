"""Pinned prefixes stay, saved ones come back, and a file is never believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pagemill import (
    EngineError,
    InvalidFileError,
    InvalidParameterError,
    RequestError,
    RequestTooLargeError,
    SamplingParams,
)
from pagemill.engine import LLMEngine
from tests.core_helpers import BLOCK, alone, prompt_of, run_to_end, simulated_engine, tokens

PARAMS = SamplingParams(temperature=0, max_tokens=4)
PREFIX = prompt_of(3 * BLOCK + 7)
BLOCK_BYTES = BLOCK * 8
RECORD_BYTES = 16 + 16 + 4 * BLOCK + BLOCK_BYTES + 16


def engine_with_blocks(**options: object) -> LLMEngine:
    return simulated_engine(**({"block_bytes": BLOCK_BYTES} | options))  # type: ignore[arg-type]


def compute(engine: LLMEngine, prompt: list[int]) -> int:
    """Run a request to its end; how many of its prompt tokens were cached."""
    engine.add_request("r", prompt, PARAMS)
    output = run_to_end(engine)["r"]
    assert tokens(output) == tokens(alone(prompt, PARAMS))
    return output.num_cached_tokens


def flood(engine: LLMEngine) -> None:
    """Evict all that can be evicted."""
    for i in range(6):
        compute(engine, prompt_of(10 * BLOCK, start=50 + i))


def test_a_pinned_prefix_outlives_a_flood_and_an_unpinned_one_does_not() -> None:
    engine = engine_with_blocks(num_kv_blocks=20)
    compute(engine, PREFIX)
    pinned = engine.kept_prefixes.pin(PREFIX)
    assert (pinned.num_tokens, pinned.num_blocks) == (len(PREFIX), 4)
    for _ in range(2):
        flood(engine)
        assert compute(engine, [*PREFIX, 1, 2, 3]) == len(PREFIX)
    engine.kept_prefixes.unpin(pinned)
    engine.kept_prefixes.unpin(pinned)
    flood(engine)
    assert compute(engine, [*PREFIX, 1, 2, 3]) == 0


def test_a_pin_of_another_engine_is_refused_and_takes_nobody_elses_blocks() -> None:
    engines = [engine_with_blocks(num_kv_blocks=20) for _ in range(2)]
    for engine in engines:
        compute(engine, PREFIX)
    pins = [engine.kept_prefixes.pin(PREFIX) for engine in engines]
    assert pins[0].number == pins[1].number
    with pytest.raises(InvalidParameterError, match="pinned is another engine's; unpin it there"):
        engines[1].kept_prefixes.unpin(pins[0])
    for engine, pinned in zip(engines, pins, strict=True):
        assert engine.memory_report().pinned == 4
        engine.kept_prefixes.unpin(pinned)
        assert engine.memory_report().pinned == 0


@pytest.mark.parametrize("pinned", [None, "x", 1])
def test_what_is_no_pin_is_refused(pinned: object) -> None:
    with pytest.raises(InvalidParameterError, match="pinned must be what pin_prefix has returned"):
        engine_with_blocks().kept_prefixes.unpin(pinned)  # type: ignore[arg-type]


def test_pinned_blocks_count_when_a_request_is_sized() -> None:
    engine = engine_with_blocks(num_kv_blocks=10)
    compute(engine, PREFIX)
    engine.kept_prefixes.pin(PREFIX)
    with pytest.raises(RequestTooLargeError, match=r"need 7 KV blocks .*10 \(4 of them pinned\)"):
        engine.add_request("r", prompt_of(6 * BLOCK, 2), PARAMS)
    engine.add_request("r", prompt_of(5 * BLOCK, 2), SamplingParams(max_tokens=BLOCK + 1))
    assert len(tokens(run_to_end(engine)["r"])[0]) == BLOCK + 1


def test_a_pin_that_would_leave_a_request_under_way_without_room_is_refused() -> None:
    engine = engine_with_blocks(num_kv_blocks=10)
    compute(engine, PREFIX)
    engine.add_request("big", prompt_of(5 * BLOCK, 2), SamplingParams(max_tokens=3 * BLOCK))
    with pytest.raises(RequestTooLargeError, match="would leave 6 KV blocks, but request 'big'"):
        engine.kept_prefixes.pin(PREFIX)
    run_to_end(engine)


def test_a_prefix_that_is_not_computed_cannot_be_pinned() -> None:
    engine = engine_with_blocks()
    with pytest.raises(RequestError, match="only 0 of the prefix's 55 tokens"):
        engine.kept_prefixes.pin(PREFIX)
    compute(engine, PREFIX)
    with pytest.raises(RequestError, match="only 0 of"):
        engine.kept_prefixes.pin(PREFIX, cache_salt="mine")


def test_a_saved_cache_saves_the_computation_after_a_restart(tmp_path: Path) -> None:
    first = engine_with_blocks()
    compute(first, PREFIX)
    compute(first, [*PREFIX[: 2 * BLOCK], *prompt_of(20, start=8)])
    assert first.kept_prefixes.save(tmp_path / "cache") == 4  # whole blocks, shared ones once
    second = engine_with_blocks()
    loaded = second.kept_prefixes.load(tmp_path / "cache")
    assert (loaded.num_loaded, loaded.num_known, loaded.num_damaged) == (4, 0, 0)
    second.audit()
    assert compute(second, [*PREFIX, 1, 2, 3]) == 3 * BLOCK
    again = second.kept_prefixes.load(tmp_path / "cache")
    assert (again.num_loaded, again.num_known) == (0, 4)


def test_what_belongs_to_a_salt_is_not_saved(tmp_path: Path) -> None:
    engine = engine_with_blocks()
    engine.add_request("r", PREFIX, PARAMS, cache_salt="mine")
    run_to_end(engine)
    assert engine.kept_prefixes.save(tmp_path / "cache") == 0


@pytest.mark.parametrize("at", [0, 16, 40, 200])
@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_damaged_block_and_what_continues_it_are_skipped(
    tmp_path: Path, damaged: int, at: int
) -> None:
    path = tmp_path / "cache"
    first = engine_with_blocks()
    compute(first, PREFIX)
    assert first.kept_prefixes.save(path) == 3
    content = bytearray(path.read_bytes())
    header = len(content) - 3 * RECORD_BYTES
    content[header + damaged * RECORD_BYTES + at] ^= 1
    path.write_bytes(content)
    second = engine_with_blocks()
    loaded = second.kept_prefixes.load(path)
    assert (loaded.num_loaded, loaded.num_damaged) == (damaged, 3 - damaged)
    assert compute(second, [*PREFIX, 1]) == damaged * BLOCK


def test_a_record_with_a_right_checksum_in_the_wrong_place_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    first = engine_with_blocks()
    compute(first, PREFIX)
    first.kept_prefixes.save(path)
    content = path.read_bytes()
    header = len(content) - 3 * RECORD_BYTES
    path.write_bytes(content[:header] + content[header + RECORD_BYTES :])  # without the first
    loaded = engine_with_blocks().kept_prefixes.load(path)
    assert (loaded.num_loaded, loaded.num_damaged) == (0, 3)


@pytest.mark.parametrize(
    ("length", "num_whole"),
    [
        *[(length, None) for length in (0, 10, 18, 60)],
        *[(-1, 2), (-RECORD_BYTES - 5, 1)],
        *[(-RECORD_BYTES * missing, 3 - missing) for missing in (1, 2, 3)],
    ],
)
def test_a_truncated_file_gives_what_is_whole_and_counts_the_rest_or_is_refused(
    tmp_path: Path, length: int, num_whole: int | None
) -> None:
    path = tmp_path / "cache"
    first = engine_with_blocks()
    compute(first, PREFIX)
    first.kept_prefixes.save(path)
    path.write_bytes(path.read_bytes()[:length])
    engine = engine_with_blocks()
    if num_whole is None:
        with pytest.raises(InvalidFileError):
            engine.kept_prefixes.load(path)
        return
    loaded = engine.kept_prefixes.load(path)
    assert (loaded.num_loaded, loaded.num_damaged) == (num_whole, 3 - num_whole)


@pytest.mark.parametrize("count", [b"-3", b"99999999999", b'"3"', b"true", b"null", b"3.0"])
def test_a_header_without_a_count_that_can_be_is_refused(tmp_path: Path, count: bytes) -> None:
    path = tmp_path / "cache"
    first = engine_with_blocks()
    compute(first, PREFIX)
    first.kept_prefixes.save(path)
    content = path.read_bytes()
    magic, length = content[:16], int.from_bytes(content[16:20], "little")
    header = content[20 : 20 + length].replace(b'"num_blocks": 3', b'"num_blocks": ' + count)
    assert count in header
    path.write_bytes(magic + len(header).to_bytes(4, "little") + header + content[20 + length :])
    with pytest.raises(InvalidFileError, match="its header is damaged"):
        engine_with_blocks().kept_prefixes.load(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"fingerprint": lambda: "0123456789abcdef" * 4},
            "of another model, or computed with other options: .* quantization, kv_cache_dtype",
        ),
        ({"block_size": 8}, "block_size 16"),
        ({"block_bytes": 64}, "block_bytes 128"),
    ],
)
def test_a_foreign_file_is_refused(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    first = engine_with_blocks()
    compute(first, PREFIX)
    first.kept_prefixes.save(tmp_path / "cache")
    with pytest.raises(InvalidFileError, match=message) as error:
        engine_with_blocks(**options).kept_prefixes.load(tmp_path / "cache")
    assert "0123456789abcdef" not in str(error.value)


def test_loading_evicts_nothing_and_stops_where_no_block_is_empty(tmp_path: Path) -> None:
    first = engine_with_blocks()
    compute(first, PREFIX)
    first.kept_prefixes.save(tmp_path / "cache")
    small = engine_with_blocks(num_kv_blocks=4)
    compute(small, prompt_of(2 * BLOCK, start=5))
    loaded = small.kept_prefixes.load(tmp_path / "cache")
    assert (loaded.num_loaded, loaded.num_without_room, loaded.num_damaged) == (1, 2, 0)
    assert compute(small, prompt_of(2 * BLOCK, start=5)) == 2 * BLOCK - 1


def test_a_save_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    engine = engine_with_blocks()
    compute(engine, PREFIX)
    engine.kept_prefixes.save(path)
    before = path.read_bytes()

    def fail(block_id: int) -> bytes:
        raise OSError("no space left on device")

    engine.runner.read_block = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no space"):
        engine.kept_prefixes.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_blocks_below_an_evicted_one_are_loaded_again(tmp_path: Path) -> None:
    first = engine_with_blocks()
    compute(first, PREFIX)
    first.kept_prefixes.save(tmp_path / "cache")
    second = engine_with_blocks(num_kv_blocks=12)
    second.kept_prefixes.load(tmp_path / "cache")
    head = second.kv.unsalted_nodes()[0].block_id
    second.kv._evict(head)
    second.kv._allocator.forget(head)
    loaded = second.kept_prefixes.load(tmp_path / "cache")
    assert (loaded.num_loaded, loaded.num_known, loaded.num_damaged) == (3, 0, 0)
    assert compute(second, PREFIX) == 3 * BLOCK
    second.audit()


def test_a_load_that_fails_takes_no_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with_blocks()
    compute(engine, PREFIX)
    engine.kept_prefixes.save(tmp_path / "cache")
    second = engine_with_blocks()

    def fail(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(second.runner, "write_block", fail)
    with pytest.raises(OSError, match="no"):
        second.kept_prefixes.load(tmp_path / "cache")
    second.audit()
    assert second.memory_report().empty == second.memory_report().total


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_saved_file_has_the_permissions_that_the_umask_leaves(tmp_path: Path, umask: int) -> None:
    engine = engine_with_blocks()
    before = os.umask(umask)
    try:
        engine.kept_prefixes.save(tmp_path / "cache")
    finally:
        os.umask(before)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_save_that_fails_names_the_path_that_was_given(tmp_path: Path) -> None:
    engine = engine_with_blocks()
    compute(engine, PREFIX)
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    for name, error in (
        ("nowhere/cache", FileNotFoundError),
        ("directory", IsADirectoryError),
        ("file/cache", NotADirectoryError),
    ):
        path = tmp_path / name
        with pytest.raises(error) as raised:
            engine.kept_prefixes.save(path)
        assert raised.value.filename == str(path)
        assert "tmp'" not in str(raised.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "file"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_disk_that_is_full_is_named_by_the_path_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_with_blocks()
    compute(engine, PREFIX)

    def full(path: Path, mode: str) -> object:
        path.touch()
        return open("/dev/full", "wb")

    monkeypatch.setattr("pagemill.kvcache.prefix_file.open", full, raising=False)
    with pytest.raises(OSError, match="No space left on device") as raised:
        engine.kept_prefixes.save(tmp_path / "cache")
    assert raised.value.filename == str(tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [5, True, None, b"cache", ["cache"]])
def test_what_is_no_path_is_refused(path: object) -> None:
    kept = engine_with_blocks().kept_prefixes
    for call in (kept.save, kept.load):
        with pytest.raises(InvalidParameterError, match="path must be the name of a file"):
            call(path)  # type: ignore[arg-type]


def test_a_closed_engine_keeps_no_prefixes(tmp_path: Path) -> None:
    engine = engine_with_blocks()
    compute(engine, PREFIX)
    pinned = engine.kept_prefixes.pin(PREFIX)
    engine.kept_prefixes.save(tmp_path / "cache")
    engine.close()
    for call in (engine.kept_prefixes.save, engine.kept_prefixes.load):
        with pytest.raises(EngineError, match="takes no more work: it was closed"):
            call(tmp_path / "cache")
    with pytest.raises(EngineError, match="closed"):
        engine.kept_prefixes.pin(PREFIX)
    engine.kept_prefixes.unpin(pinned)


def test_without_partial_hits_a_prefix_is_pinned_by_whole_blocks() -> None:
    engine = engine_with_blocks(prefix_cache_partial_hits=False)
    compute(engine, PREFIX)
    pinned = engine.kept_prefixes.pin(PREFIX)
    assert (pinned.num_tokens, pinned.num_blocks) == (3 * BLOCK, 3)
    with pytest.raises(RequestError, match="only 48 of the prefix's 64 tokens"):
        engine.kept_prefixes.pin(prompt_of(4 * BLOCK))


@pytest.mark.parametrize("header", [b"[" * 500_000, b'{"a":' * 100_000])
def test_a_header_of_nothing_but_brackets_is_damaged(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "cache"
    path.write_bytes(b"pagemill prefix\n" + len(header).to_bytes(4, "little") + header)
    with pytest.raises(InvalidFileError, match="header is damaged"):
        engine_with_blocks().kept_prefixes.load(path)
