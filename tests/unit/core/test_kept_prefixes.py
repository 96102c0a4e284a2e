"""Pinned prefixes stay, saved ones come back, and a file is never believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagemill import (
    InvalidFileError,
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
    assert (loaded.num_loaded, loaded.num_damaged) == (0, 2)


@pytest.mark.parametrize("length", [0, 10, 18, 60, -1, -RECORD_BYTES - 5])
def test_a_truncated_file_gives_what_is_whole_or_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "cache"
    first = engine_with_blocks()
    compute(first, PREFIX)
    first.kept_prefixes.save(path)
    path.write_bytes(path.read_bytes()[:length])
    engine = engine_with_blocks()
    if length >= 0:
        with pytest.raises(InvalidFileError):
            engine.kept_prefixes.load(path)
        return
    loaded = engine.kept_prefixes.load(path)
    assert loaded.num_damaged == 1
    assert loaded.num_loaded == (2 if length == -1 else 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fingerprint": lambda: "other"}, "fingerprint"),
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
    with pytest.raises(InvalidFileError, match=message):
        engine_with_blocks(**options).kept_prefixes.load(tmp_path / "cache")


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
