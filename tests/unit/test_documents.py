"""What the documents say is what the project does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pagemill.kernels import native
from pagemill.server.schemas.chat import ChatRequest
from pagemill.server.schemas.completions import CompletionRequest
from pagemill.server.schemas.embeddings import EmbeddingRequest
from pagemill.server.schemas.tokenization import TokenizeRequest

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_ci_runs_the_two_commands_that_the_readme_begins_with() -> None:
    first, second = re.findall(r"^```\n(.*)\n(.*)\n```", (ROOT / "README.md").read_text(), re.M)[0]
    ci = (ROOT / ".ci" / "run").read_text()
    check = (ROOT / "scripts" / "check").read_text()
    assert first.replace("pip install .", "pip install --quiet .") in ci
    install, test = second.split(" && ")
    assert install.replace("install", "install --quiet") in ci
    assert f"\n{test} " in check
    assert "scripts/check" in ci


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_named_files_exist(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert (document.parent / target).exists(), target
    for name in re.findall(r"`((?:[\w.]+/)*[\w]+(?:\.py|/))`", text):
        places = [ROOT, ROOT / "src" / "pagemill"]
        assert any((place / name).exists() for place in places), name


def test_python_blocks_of_the_documents_compile() -> None:
    for document in DOCUMENTS:
        for block in re.findall(r"```python\n(.*?)```", document.read_text(), re.S):
            compile(block, document.name, "exec")


@pytest.mark.skipif(native.load() is None, reason="PyTorch's sums differ in their last bits")
def test_the_examples_of_the_guide_print_what_is_below_them(
    smollm2_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (ROOT / "docs" / "kv-memory-guide.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```\n^```\n(.*?)^```$", text, re.S | re.M)
    assert len(examples) == text.count("```python") >= 6
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code, printed in examples:
        exec(compile(code, "kv-memory-guide.md", "exec"), names)
        assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    "request_body", [CompletionRequest, ChatRequest, EmbeddingRequest, TokenizeRequest]
)
def test_every_field_of_a_request_is_in_the_servers_documents(request_body: type) -> None:
    text = "".join((ROOT / "docs" / name).read_text() for name in ("server.md", "api.md"))
    fields = request_body.model_fields  # type: ignore[attr-defined]
    assert not [name for name in fields if f"`{name}`" not in text and f'"{name}":' not in text]
