"""The command as a whole: with engines that compute nothing, and with our own on a real model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pagemill.bench.peers import race as race_module
from pagemill.bench.peers.contenders import Contender, Setup
from pagemill.bench.peers.installed import Installed
from pagemill.bench.workload import Request
from pagemill.cli.app import run
from tests.unit.bench.peers.fakes import fake, start

DOCUMENT = "\n".join(
    f"<!-- generated: {name} -->\nas it was\n<!-- end: {name} -->"
    for name in ("peers", "peers-memory", "peers-start", "peers-settings")
)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[Contender]:
    """Engines that take the place of all that could take part."""
    engines: list[Contender] = [
        fake("pagemill", "Q4_1", seconds=[10.0, 20.0, 40.0, 20.0, 20.0], ttft_s=0.0),
        fake("llama.cpp", "slots", seconds=[30.0, 60.0, 60.0, 120.0, 120.0]),
        fake("ctranslate2", "slow", weights="8-bit", seconds=[90.0]),
        fake("ctranslate2", "int8", weights="8-bit", seconds=[40.0, 40.0, 90.0, 90.0, 90.0]),
    ]
    monkeypatch.setattr(Setup, "contenders", lambda *_: engines)
    monkeypatch.setattr(race_module, "SETTLE_S", 0.0)
    return engines


def command(*arguments: str, model: Path) -> int:
    return run(["bench", "peers", str(model), "--threads", "1", *arguments])


def test_one_command_measures_writes_and_shows(
    fakes: list[Contender],
    smollm2_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    saved, document = tmp_path / "result.json", tmp_path / "doc.md"
    document.write_text(DOCUMENT)
    code = command(
        *("--scenarios", "S5,S3", "--repeats", "3", "--neighbour-repeats", "2"),
        *("--json", str(saved), "--docs", str(document)),
        model=smollm2_path,
    )
    shown = capsys.readouterr()
    assert (code, len(fakes)) == (0, 4)
    assert "not installed: vllm: no --peers-dir was given" in shown.err
    result = json.loads(saved.read_text())
    assert result["environment"]["num_threads"] == 1
    assert result["model"]["stored_as"]["Q4_1"] == 210
    assert result["model"]["file_type"] == "Q4_1"
    assert [len(result["races"][name]["runs"]) for name in ("S3", "S5")] == [10, 6]
    # Ours took 10, 20, 40 s and ctranslate2 40, 40, 90 s: 4, 2 and 2.25 times as long.
    text = document.read_text()
    (row,) = (line for line in text.splitlines() if line.startswith("| S3:"))
    assert "224 tok/s" in row
    assert "74.7 tok/s (slots)" in row
    assert "112 tok/s (int8)" in row
    assert "2.25 x ctranslate2 | >= 2 x | met |" in row
    (row,) = (line for line in text.splitlines() if line.startswith("| S5:"))
    assert "100% of its quiet figure (224 tok/s)" in row
    assert "50% of its quiet figure (37.3 tok/s)" in row
    assert text.count("as it was") == 2
    assert "ctranslate2 1.2.3" in text

    again = tmp_path / "again.md"
    again.write_text(DOCUMENT)
    assert run(["bench", "peers", "--from-json", str(saved), "--docs", str(again)]) == 0
    assert again.read_text() == text
    assert capsys.readouterr().out == shown.out

    other = tmp_path / "other.json"
    other.write_text(json.dumps(result | {"model": {"name": "gemma3-270m"}}))
    assert run(["bench", "peers", "--from-json", f"{saved},{other}"]) == 2
    assert "one set of tables is about one model" in capsys.readouterr().err


def test_an_engine_that_dies_is_told_and_the_rest_is_measured(
    fakes: list[Contender],
    smollm2_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fakes[1] = fake("llama.cpp", "slots", seconds=[30.0], dies_in_run=1)
    saved = tmp_path / "result.json"
    code = command("--scenarios", "S3", "--repeats", "1", "--json", str(saved), model=smollm2_path)
    assert code == 1
    shown = capsys.readouterr()
    assert "S3: llama.cpp slots: its process ended while running 64 requests" in shown.err
    found = re.search(r"logs are in (\S+)", shown.err)
    assert found is not None
    assert any("line 99" in log.read_text() for log in Path(found[1]).iterdir())
    runs = json.loads(saved.read_text())["races"]["S3"]["runs"]
    assert ["failed" in run for run in runs] == [False, True, False, False]


def test_an_engine_that_is_too_slow_is_a_result(
    fakes: list[Contender], smollm2_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes[1:] = [fake("vllm", "bfloat16", weights="bfloat16", seconds=[], hangs=True)]
    arguments = ("--scenarios", "S1", "--repeats", "1", "--limit", "2", "--peers", "vllm")
    assert command(*arguments, model=smollm2_path) == 0
    shown = capsys.readouterr()
    assert "took longer than 2 s" in shown.err
    assert "> 2 s" in shown.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scenarios", "S6"], "--scenarios: no 'S6'; there are S1, S2"),
        (["--scenarios", "S5"], "S5 is held against S3; add S3"),
        (["--peers", "vlm"], "did you mean 'vllm'?"),
        (["--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["--neighbour-repeats", "0"], "--neighbour-repeats must be at least 1, got 0"),
        (["--limit", "0"], "--limit must be above 0 seconds, got 0"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
        (["--json", "/none/x.json"], "--json=/none/x.json: there is no directory /none"),
        (["--docs", "/none/x.md"], "--docs=/none/x.md: there is no"),
        (["--from-json", "/none/x.json"], "cannot read a result from /none/x.json"),
        (["--from-json", "x.json", "--json", "y.json"], "measures nothing that --json could write"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "peers", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_document_without_a_place_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "doc.md"
    document.write_text("# Nothing\n")
    assert run(["bench", "peers", "--docs", str(document)]) == 2
    assert f"{document} has the marker <!-- generated: peers -->" in capsys.readouterr().err


def test_our_own_engine_answers_as_a_peer(smollm2_path: Path, tmp_path: Path) -> None:
    setup = Setup(Installed(), smollm2_path, "Q4_1", num_threads=1)
    contender = setup.ours_with(num_kv_blocks=64)
    with start(contender, tmp_path) as driver:
        assert driver.about["kv_pool_bytes"] > 0
        single = driver.run("single", [Request([600, 700, 800], 5)], 120)
        assert single.ttft_s is not None
        assert 0 < single.ttft_s < single.total_s
        many = driver.run("many", [Request([600 + i] * 20, 3 + i) for i in range(3)], 120)
        assert (many.ttft_s, many.num_output_tokens) == (None, 12)
        assert many.total_s > 0


def test_our_own_engine_is_measured_alone_where_nothing_else_is_installed(
    smollm2_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    saved = tmp_path / "result.json"
    arguments = ("--scenarios", "S1,S1-float32", "--repeats", "2", "--json", str(saved))
    assert command(*arguments, model=smollm2_path) == 0
    result = json.loads(saved.read_text())
    runs = result["races"]["S1"]["runs"]
    assert [r["contender"] for r in runs] == ["pagemill Q4_1"] * 2
    assert all(r["figure"] > 0 and r["num_output_tokens"] == 128 for r in runs)
    assert result["races"]["S1-float32"]["runs"] == []
    assert "not installed" in capsys.readouterr().out
