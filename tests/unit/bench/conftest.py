"""A tiny model, and a benchmark of it from the command line to the document."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pagemill.bench.report import NOT_MEASURED
from pagemill.cli.app import run
from tests.parity.tiny_models import llama


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two random layers, a context of 128, a vocabulary of 259, no tokenizer."""
    directory = tmp_path_factory.mktemp("tiny")
    llama(vocab_size=259).save_pretrained(directory)
    return directory


class Reported(NamedTuple):
    """What a benchmark left."""

    result: dict[str, Any]
    """Its JSON."""
    shown: str
    document: str


Benchmark = Callable[..., Reported]


@pytest.fixture
def benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Benchmark:
    """Runs ``pagemill bench NAME``; then again from its JSON, which must give the same tables."""

    def call(name: str, *arguments: str) -> Reported:
        file, document = tmp_path / "result.json", tmp_path / "doc.md"
        empty = f"<!-- generated: {name} -->\n{NOT_MEASURED}\n<!-- end: {name} -->\n"
        document.write_text(empty)
        written = ["--json", str(file), "--docs", str(document)]
        assert run(["bench", name, *arguments, "--threads", "1", *written]) == 0
        shown, generated = capsys.readouterr().out, document.read_text()
        document.write_text(empty)
        assert run(["bench", name, "--from-json", str(file), "--docs", str(document)]) == 0
        assert document.read_text() == generated
        assert capsys.readouterr().out == shown
        return Reported(json.loads(file.read_text()), shown, generated)

    return call


def result_of(name: str, **fields: Any) -> dict[str, Any]:
    """A made-up result of benchmark ``name``."""
    return {
        "benchmark": name,
        "environment": {
            "cpu": "a processor",
            "isa": "avx512",
            "num_threads": 2,
            "repeats": 3,
            "date": "2026-01-02T03:04:05",
            "commit": "0123456789abcdef",
        },
        "fast": False,
        "watch": {"seconds": 1.0, "foreign_share": 0.25, "steal_share": 0.0},
        "model": "a-model",
        "block_size": 16,
    } | fields
