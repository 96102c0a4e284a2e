"""The examples of the documents do what they say: a real server, the real model."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.processes import REAL, ServerProcess

DOCUMENTS = sorted((Path(__file__).parent.parent.parent / "docs").glob("*.md"))
EXAMPLE = re.compile(r"^```sh\n(curl .*?)^```\n(?:^```json\n(.*?)^```$)?", re.S | re.M)
PYTHON = re.compile(r"^```python\n(.*?)^```\n", re.S | re.M)
KEY = "sk-0123456789abcdef"

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[str]:
    """Where a server listens that is started as the document starts its first."""
    with ServerProcess("--num-kv-blocks", "128", module=REAL) as process:
        url = process.url()
        process.wait_for_line("serving ", seconds=300)
        yield url


def examples() -> list[tuple[str, str]]:
    return [found for document in DOCUMENTS for found in EXAMPLE.findall(document.read_text())]


def fits(shown: Any, got: Any) -> bool:
    """Whether an answer is what the document shows, where ``...`` stands for any value."""
    if shown == "...":
        return True
    if isinstance(shown, dict) and isinstance(got, dict):
        return shown.keys() == got.keys() and all(fits(shown[k], got[k]) for k in shown)
    if isinstance(shown, list) and isinstance(got, list):
        return len(shown) == len(got) and all(map(fits, shown, got))
    return bool(shown == got)


def test_there_are_examples() -> None:
    assert len(examples()) >= 15
    assert any(shown for _, shown in examples())


@needs_curl
@pytest.mark.parametrize(("code", "shown"), examples(), ids=lambda text: text.split("\n")[0][:60])
def test_an_example_gets_the_answer_that_is_below_it(server: str, code: str, shown: str) -> None:
    done = subprocess.run(
        ["bash", "-e", "-c", code.replace("http://127.0.0.1:8000", server)],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PAGEMILL_KEY": KEY, "PATH": "/usr/local/bin:/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    if shown:
        assert fits(json.loads(shown), json.loads(done.stdout)), done.stdout
    elif done.stdout.startswith("{"):
        assert "error" not in json.loads(done.stdout), done.stdout
    elif done.stdout.startswith("data: "):
        assert done.stdout.endswith("data: [DONE]\n\n"), done.stdout
        assert '"error"' not in done.stdout


def test_the_python_example_prints_an_answer(server: str) -> None:
    (server_document,) = (path for path in DOCUMENTS if path.name == "server.md")
    (code,) = PYTHON.findall(server_document.read_text())
    done = subprocess.run(
        [sys.executable, "-c", code.replace("http://127.0.0.1:8000", server)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
