"""The real ``huggingface_hub`` against a server on this machine, and names as the hub's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pagemill.errors import ModelError
from pagemill.loading.hub import HubReference, fetch_hub, parse_hub_reference
from tests.unit.loading.fake_hub import COMMIT, GATED, fake_hub

REPOSITORIES = {
    "org/whole": {
        "config.json": b"{}",
        "tokenizer.json": b"{ }",
        "model.safetensors": b"weights",
        "chat_template.jinja": b"{{ x }}",
        "pytorch_model.bin": b"pickle",
        "consolidated.safetensors": b"twice the same",
        "onnx/model.safetensors": b"another format",
        "README.md": b"words",
    },
    "org/quantized": {"config.json": b"{}", "m.Q4_0.gguf": b"GGUF4", "m.Q8_0.gguf": b"GGUF8"},
    "org/pickled": {"config.json": b"{}", "pytorch_model.bin": b"pickle"},
    "org/empty": {"README.md": b"words"},
}

# In a process of its own: huggingface_hub reads its environment when it is imported.
ASK = """
import json, sys
from pagemill.errors import PagemillError
from pagemill.loading.sources import resolve_model
answers = []
for model in json.loads(sys.argv[1]):
    try:
        answers.append(["found", str(resolve_model(model))])
    except PagemillError as error:
        answers.append([type(error).__name__, str(error)])
sys.stdout.write(json.dumps(answers))
"""


def ask(models: list[str], home: Path, **environment: str) -> list[list[str]]:
    """Where each name leads: ["found", path] or [error's class, message]."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    settings = {
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    result = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(models)],
        env=clean | settings | environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    answers: list[list[str]] = json.loads(result.stdout)
    return answers


def test_a_repository_is_fetched_without_pickles_and_other_formats(tmp_path: Path) -> None:
    with fake_hub(REPOSITORIES) as (endpoint, downloads):
        names = ["org/whole", "org/whole@v1", f"org/whole@{COMMIT}", "org/quantized:m.Q8_0.gguf"]
        answers = ask(names, tmp_path, HF_ENDPOINT=endpoint)
    assert [kind for kind, _ in answers] == ["found"] * 4, answers
    whole, tagged, pinned, file = (Path(path) for _, path in answers)
    wanted = {"config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja"}
    assert {path.name for path in whole.iterdir()} == wanted
    assert (whole / "model.safetensors").read_bytes() == b"weights"
    assert whole == tagged == pinned
    assert file.read_bytes() == b"GGUF8"
    expected = {f"org/whole/{name}" for name in wanted} | {"org/quantized/m.Q8_0.gguf"}
    assert set(downloads) == expected
    assert len(downloads) == len(expected)  # the second and third name found them in the cache

    # Now the server is gone: what was fetched is still found.
    again = ask(["org/whole", "org/other"], tmp_path, HF_HUB_OFFLINE="1", HF_ENDPOINT=endpoint)
    assert again[0] == ["found", str(whole)]
    assert again[1][0] == "ModelError"
    assert "HF_HUB_OFFLINE" in again[1][1]


def test_each_refusal_of_the_hub_says_what_to_do(tmp_path: Path) -> None:
    cases = {
        "org/missing": ("ModelNotFoundError", "no such repository on the hub"),
        "org/whole@v9": ("ModelNotFoundError", "no revision 'v9'"),
        GATED: ("ModelError", "accept the conditions"),
        "org/quantized": ("ModelNotFoundError", "org/quantized:m.Q4_0.gguf"),
        "org/quantized@v1:nope.gguf": ("ModelNotFoundError", "org/quantized@v1:m.Q4_0.gguf"),
        "org/whole:nope.gguf": ("ModelNotFoundError", "no file 'nope.gguf'"),
        "org/pickled": ("UnsupportedModelError", "runs code"),
        "org/empty": ("ModelNotFoundError", "holds no model: README.md"),
        "org/bad--name": ("ModelNotFoundError", "not a valid hub id"),
    }
    with fake_hub(REPOSITORIES) as (endpoint, downloads):
        answers = ask(list(cases), tmp_path, HF_ENDPOINT=endpoint)
    for (model, (kind, text)), answer in zip(cases.items(), answers, strict=True):
        assert answer[0] == kind, (model, answer)
        assert text in answer[1], (model, answer)
    assert all(name.endswith("config.json") for name in downloads), "a refusal fetched weights"


def test_a_hub_that_cannot_be_reached_is_an_error_with_what_to_check(tmp_path: Path) -> None:
    [[kind, message]] = ask(["org/whole"], tmp_path, HF_ENDPOINT="http://127.0.0.1:1")
    assert kind == "ModelError"
    assert "check the network" in message


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"pip install 'pagemill\[hub\]'"):
        fetch_hub(HubReference("org/name", None, None))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("org/name", ("org/name", None, None)),
        ("Qwen/Qwen2.5-0.5B", ("Qwen/Qwen2.5-0.5B", None, None)),
        ("org/name@v1.0", ("org/name", "v1.0", None)),
        ("org/name@refs/pr/3", ("org/name", "refs/pr/3", None)),
        ("org/name:sub/f.gguf", ("org/name", None, "sub/f.gguf")),
        ("org/name@main:f.gguf", ("org/name", "main", "f.gguf")),
    ],
)
def test_hub_ids_are_recognized(model: str, expected: Any) -> None:
    assert parse_hub_reference(model) == HubReference(*expected)


@pytest.mark.parametrize(
    "model",
    ["name", "", "./org/name", "/org/name", "../name", "a/b/c", "dir/model.gguf", "org/name:x.bin"],
)
def test_what_is_no_hub_id_is_not_taken_for_one(model: str) -> None:
    assert parse_hub_reference(model) is None
