from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from pagemill.bench.report import Table, read_json, replace_generated, write_json
from pagemill.errors import ConfigError

TABLE = Table(
    title="Speed",
    columns=("scenario", "ours", "a | b"),
    rows=[("S1", "12.5", "3"), ("[S2]", "1", "2")],
    notes=("Ratios are paired.",),
)


def test_a_table_is_the_same_on_a_terminal_and_in_a_document() -> None:
    stream = io.StringIO()
    TABLE.print(Console(file=stream, width=80))
    shown = stream.getvalue()
    assert [word in shown for word in ("Speed", "12.5", "[S2]", "a | b", "Ratios are paired.")]
    assert TABLE.markdown() == (
        "| scenario | ours | a \\| b |\n|---|---|---|\n| S1 | 12.5 | 3 |\n| [S2] | 1 | 2 |\n\n"
        "Ratios are paired."
    )


def test_a_table_too_wide_for_the_terminal_is_shown_as_lists() -> None:
    stream = io.StringIO()
    TABLE.print(Console(file=stream, width=20))
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert lines[:4] == ["Speed", "scenario  S1", "ours      12.5", "a | b     3"]


def test_a_generated_table_replaces_the_one_before_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "doc.md"
    path.write_text("a\n<!-- generated: x -->\nold\n\nold\n<!-- end: x -->\nb <!-- end: y -->\n")
    for content in ("new", "newer\n"):
        replace_generated(path, "x", content)
    assert path.read_text() == (
        "a\n<!-- generated: x -->\nnewer\n<!-- end: x -->\nb <!-- end: y -->\n"
    )
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has the marker <!-- generated: x --> 0 times"),
        ("<!-- generated: x -->", "has the marker <!-- end: x --> 0 times"),
        ("<!-- generated: x -->" * 2 + "<!-- end: x -->", "<!-- generated: x --> 2 times"),
        ("<!-- end: x --> <!-- generated: x -->", "comes before"),
    ],
)
def test_a_document_without_the_markers_is_refused_by_name(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "doc.md"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        replace_generated(path, "x", "new")
    assert str(path) in str(caught.value)
    assert path.read_text() == text


def test_a_document_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.md"):
        replace_generated(tmp_path / "none.md", "x", "new")


def test_a_result_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"benchmark": "peers", "figure": 1.5})
    with pytest.raises(TypeError):
        write_json(path, {"benchmark": object()})
    assert read_json(path, "peers") == {"benchmark": "peers", "figure": 1.5}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", [None, "{", "[]", json.dumps({"benchmark": "roofline"})])
def test_a_file_that_is_no_result_of_the_benchmark_is_refused(
    tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "result.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"result\.json"):
        read_json(path, "peers")
