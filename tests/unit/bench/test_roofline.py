"""``pagemill bench roofline``: what is counted, how shares come about, what is reported."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pagemill.bench import figures
from pagemill.bench.roofline import command, op, peaks, report, shapes
from pagemill.bench.roofline.attention import Sequences
from pagemill.bench.roofline.command import Limits, RooflineCommand
from pagemill.bench.roofline.op import Op, OpResult, Sample
from pagemill.bench.roofline.peaks import Peaks
from pagemill.bench.roofline.shapes import SMOLLM2, Shapes
from pagemill.cli.app import run
from pagemill.errors import ConfigError, EngineError
from pagemill.kernels import HeadShape, native, peaks_library

needs_library = pytest.mark.skipif(native.load() is None, reason="no native library")


def an_op(**changes: Any) -> Op:
    fields: dict[str, Any] = {
        "kind": "linear",
        "name": "qkv",
        "format": "Q4_0",
        "num_rows": 1,
        "num_bytes": 1000,
        "num_macs": 5000,
        "arithmetic": "int8",
        "in_cache": False,
        "run": lambda: None,
        "ops_per_run": 1,
    }
    return Op(**(fields | changes))


def test_shares_are_of_the_peaks_of_the_same_moment() -> None:
    # The machine slows down to half, and the op with it: the share stays.
    fast = Sample(2.0, Peaks(read_bytes=1000, int8_macs=10_000, float32_macs=500))
    slow = Sample(4.0, Peaks(read_bytes=500, int8_macs=5000, float32_macs=250))
    result = OpResult(an_op(), [fast, slow, slow])
    assert result.seconds == 4.0
    assert result.bandwidth_share == 0.5
    assert result.arithmetic_share == 0.25
    assert result.bound == "memory"
    in_floats = OpResult(an_op(arithmetic="float32", num_macs=800), [fast, slow])
    assert in_floats.arithmetic_share == 0.8
    assert in_floats.bound == "arithmetic"
    without = OpResult(an_op(arithmetic=None, num_macs=0), [fast])
    assert without.arithmetic_share is None
    assert without.bound == "memory"


class FakeMeter:
    """Each sample finds a machine that reads one byte a second more."""

    def __init__(self, log: list[str]) -> None:
        self.log, self.speed = log, 0

    def sample(self) -> Peaks:
        self.log.append("peaks")
        self.speed += 1
        return Peaks(self.speed, 1, 1)


def test_peaks_are_measured_before_and_after_every_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "_SAMPLE_SECONDS", 0.0)
    log: list[str] = []

    @contextmanager
    def group() -> Iterator[Sequence[Op]]:
        log.append("made")
        yield [
            an_op(name="a", run=lambda: log.append("a")),
            an_op(name="b", run=lambda: log.append("b"), in_cache=True),
        ]
        log.append("freed")

    first, second = op.measure(group, FakeMeter(log), 2)  # type: ignore[arg-type]
    one_repeat = ["peaks", "a", "peaks", "b", "b", "peaks"]  # b once for the caches
    assert log == ["made", "a", "b", *one_repeat, *one_repeat, "freed"]
    assert [sample.peaks.read_bytes for sample in first.samples] == [1.5, 4.5]
    assert [sample.peaks.read_bytes for sample in second.samples] == [2.5, 5.5]


def test_a_run_of_several_ops_counts_as_several(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(op, "_SAMPLE_SECONDS", 3.0)
    assert op._seconds_of(an_op(ops_per_run=4)) == 3.0 / (3 * 4)


def test_the_work_of_attention_is_what_each_row_sees() -> None:
    for sequences in (Sequences(3, 100, 1), Sequences(1, 256, 256), Sequences(2, 50, 7)):
        pairs = sum(
            1
            for _ in range(sequences.num_sequences)
            for position in range(sequences.context - sequences.rows_each, sequences.context)
            for key in range(sequences.context)
            if key <= position
        )
        assert sequences.num_macs(SMOLLM2) == pairs * 9 * (64 + 64)
    assert Sequences(2, 10, 1).kv_bytes(SMOLLM2, "bfloat16") == 2 * 10 * 3 * 2 * 64 * 2
    assert Sequences(2, 10, 1).kv_bytes(SMOLLM2, "int8") == 2 * 10 * 3 * 2 * (64 + 4)


def test_sizes_of_caches_and_memory_are_read_from_the_system(tmp_path: Path) -> None:
    assert peaks.last_level_cache_bytes(tmp_path) is None
    for index, size in enumerate(["48K", "1024K", "260M"]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert peaks.last_level_cache_bytes(tmp_path) == 260 << 20
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:    50 kB\n")
    assert peaks.available_memory_bytes(tmp_path / "meminfo") == 50 * 1024


@pytest.mark.parametrize(
    ("cache", "memory", "expected"),
    [
        (32 << 20, 1 << 40, Limits(128 << 20, 16 << 20, 512 << 20)),
        (None, 1 << 40, Limits(128 << 20, 0, 512 << 20)),
        # As a virtual machine may state its host's: what fits is used, and the report says so.
        (512 << 20, 1 << 30, Limits(256 << 20, 256 << 20, 256 << 20)),
    ],
)
def test_copies_are_four_times_the_cache_if_memory_allows(
    monkeypatch: pytest.MonkeyPatch, cache: int | None, memory: int, expected: Limits
) -> None:
    monkeypatch.setattr(command, "last_level_cache_bytes", lambda: cache)
    monkeypatch.setattr(command, "available_memory_bytes", lambda: memory)
    assert Limits.of_this_machine() == expected


def test_wrong_names_are_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="--shapes must be one of smollm2, large, all, got tiny"):
        RooflineCommand(num_threads=1, repeats=1, shapes="tiny")
    with pytest.raises(ConfigError, match="--formats: no format 'Q2_K'; there are Q4_0, Q4_1"):
        RooflineCommand(num_threads=1, repeats=1, formats="Q4_0,Q2_K")
    with pytest.raises(ConfigError, match="--from-json measures nothing"):
        RooflineCommand(num_threads=1, repeats=1, json=Path("a"), from_json=Path("b"))
    assert run(["bench", "roofline", "--formats", "Q2_K"]) == 2
    assert "no format 'Q2_K'" in capsys.readouterr().err


@needs_library
def test_a_rate_is_in_bytes_a_second_and_of_a_loop_that_computed_its_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = native.load()
    assert library is not None
    with peaks.PeakMeter(library, 2, buffer_bytes=1 << 20) as meter:
        began = time.perf_counter()
        bytes_a_second = meter.read()
        # What was seen from outside took longer, so in bytes and seconds it was no faster.
        assert bytes_a_second >= (1 << 20) / (time.perf_counter() - began)
        monkeypatch.setattr(peaks_library, "read_words", lambda *_: 7)
        with pytest.raises(EngineError, match="the read loop computed 7 instead of"):
            meter.sample()


def a_result(ops: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rate = {"median": 18e9, "best": 20e9}
    return {
        "benchmark": "roofline",
        "environment": {
            "cpu": "a processor",
            "isa": "avx512",
            "num_threads": 2,
            "repeats": 5,
            "date": "2026-01-02T03:04:05",
            "commit": "0123456789abcdef",
        },
        "watch": {"seconds": 1.0, "foreign_share": 0.25, "steal_share": 0.0},
        "memory": {
            "last_level_cache_bytes": 100 << 20,
            "read_buffer_bytes": 1 << 30,
            "working_set_bytes": 128 << 20,
        },
        "peaks": {
            str(n): dict.fromkeys(("read_bytes", "int8_macs", "float32_macs"), rate) for n in (1, 2)
        },
        "ops": list(ops),
    }


def a_figure(**changes: Any) -> dict[str, Any]:
    sample = Sample(1e-3, Peaks(1e9, 1e9, 1e9))
    return OpResult(an_op(num_bytes=500_000, num_macs=250_000), [sample]).to_json() | changes


def test_a_cell_has_the_time_and_the_binding_share_first() -> None:
    result = a_result(
        [
            a_figure(),
            a_figure(num_rows=32, bandwidth_share=0.1, arithmetic_share=0.72, bound="arithmetic"),
        ]
    )
    by_title = {table.title: table for table in report.tables(result)}
    table = by_title["Linear maps, weights from memory"]
    assert table.columns == ["", "format", "M = 1", "M = 32"]
    assert table.rows == [["qkv", "Q4_0", "1 ms, m 50 (a 25)", "1 ms, a 72 (m 10)"]]
    assert "Linear maps, weights from the cache" not in by_title
    peaks_of = by_title["What the machine allows"]
    assert peaks_of.columns == ["", "1 thread", "2 threads"]
    assert peaks_of.rows[0] == ["read bandwidth", "18.0 (20.0) GB/s", "18.0 (20.0) GB/s"]
    notes = " ".join(peaks_of.notes)
    assert "less than twice the cache" in notes
    assert "other processes had 25% of the processors" in notes


def test_targets_name_the_op_that_is_furthest_away() -> None:
    wide = {"num_rows": 32, "name": "down"}
    widest = wide | {"num_rows": 256}
    result = a_result(
        [
            a_figure(bandwidth_share=0.9),
            a_figure(bandwidth_share=0.4, name="out"),
            a_figure(**wide, arithmetic_share=0.5),
            a_figure(**wide, arithmetic_share=0.6, in_cache=True),
            a_figure(**widest, arithmetic_share=0.8, in_cache=True),
            a_figure(**wide, arithmetic_share=0.7, arithmetic="float32", format="float32"),
            a_figure(num_rows=8, arithmetic_share=0.01, bandwidth_share=0.01),
        ]
    )
    table = next(t for t in report.tables(result) if t.title.endswith("against their targets"))
    assert [row[1:] for row in table.rows] == [
        ["85%", "65%", "40% (out, Q4_0, M = 1)"],
        ["70%", "50%", "50% (down, Q4_0, M = 32)"],
        ["70%", "70%", "60% (down, Q4_0, M = 32)"],
        ["70%", "70%", "70% (down, float32, M = 32)"],
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.0, "2 s"), (0.01234, "12.3 ms"), (3e-5, "30 µs"), (4.56e-7, "456 ns"), (5e-10, "0.5 ns")],
)
def test_durations_have_three_digits(seconds: float, text: str) -> None:
    assert figures.duration(seconds) == text


TINY = Shapes("tiny", (("out", 32, 64), ("down", 48, 256)), HeadShape(4, 2, 16), 64, 96, 100)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that the command measures, in a second."""
    monkeypatch.setattr(shapes, "_CHOICES", {"smollm2": (TINY,)})
    monkeypatch.setattr(command, "NUM_ROWS", (1, 3))
    monkeypatch.setattr(command, "CONTEXTS", (20,))
    monkeypatch.setattr(command, "PREFILL_ROWS", 8)
    monkeypatch.setattr(command, "PREFILL_CONTEXTS", (8, 20))
    monkeypatch.setattr(command, "_PEAK_SAMPLES", 1)
    monkeypatch.setattr(peaks, "read_buffer_bytes", lambda: 1 << 20)
    monkeypatch.setattr(op, "_SAMPLE_SECONDS", 0.0)
    limits = Limits(working_set_bytes=20_000, cache_bytes=30_000, largest_bytes=1 << 20)
    monkeypatch.setattr(Limits, "of_this_machine", lambda: limits)


@needs_library
@pytest.mark.usefixtures("tiny")
def test_the_command_measures_reports_and_reports_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, document = tmp_path / "roofline.json", tmp_path / "performance.md"
    document.write_text("<!-- generated: roofline -->\n<!-- end: roofline -->\n")
    options = ["--repeats", "2", "--threads", "2", "--json", str(file), "--docs", str(document)]
    assert run(["bench", "roofline", *options]) == 0
    shown = capsys.readouterr().out
    assert "What the machine allows" in shown
    result = json.loads(file.read_text())
    assert sorted(result["peaks"]) == ["1", "2"]
    assert result["environment"]["num_threads"] == 2
    kinds = {(o["kind"], o["format"], o["num_rows"], o["in_cache"]) for o in result["ops"]}
    # Every format where its rows are whole blocks, each at both M, from memory and the cache.
    for format_name in ("Q4_0", "Q8_0", "Q6_K", "int4", "int8", "float32", "bfloat16", "float16"):
        for num_rows in (1, 3):
            assert ("linear", format_name, num_rows, False) in kinds
            assert ("linear", format_name, num_rows, True) in kinds
    names = {o["name"] for o in result["ops"] if o["format"] == "Q4_K"}
    assert names == {"down 48 x 256"}
    for kv_dtype in ("float32", "bfloat16", "int8"):
        assert ("attention", kv_dtype, 3, False) in kinds
        assert ("attention", kv_dtype, 8, False) in kinds
    assert all(len(o["samples"]) == 2 and o["seconds"] > 0 for o in result["ops"])
    generated = document.read_text()
    assert "### Linear maps, weights from memory" in generated
    assert "down 48 x 256" in generated
    document.write_text("<!-- generated: roofline -->\n<!-- end: roofline -->\n")
    assert run(["bench", "roofline", "--from-json", str(file), "--docs", str(document)]) == 0
    assert document.read_text() == generated
    assert capsys.readouterr().out == shown
