from __future__ import annotations

from pathlib import Path

import pytest

from pagemill.bench.peers.installed import MODEL_FORMATS, PEERS, find_installed
from pagemill.errors import ConfigError


def make(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_everything_is_found_where_the_document_says(tmp_path: Path) -> None:
    programs = {p: make(tmp_path / p / "bin" / "python") for p in PEERS if p != "llama.cpp"}
    programs["llama.cpp"] = make(tmp_path / "llama.cpp" / "llama-server")
    models = {n: make(tmp_path / "models" / f"m{end}") for n, end in MODEL_FORMATS.items()}
    found = find_installed(tmp_path, "m")
    assert (found.programs, found.models, found.missing) == (programs, models, {})


def test_what_is_not_there_is_named_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    found = find_installed(tmp_path, "m")
    assert found.missing.keys() == {*PEERS, *MODEL_FORMATS}
    assert found.missing["vllm"] == f"there is no file {tmp_path / 'vllm' / 'bin' / 'python'}"
    assert found.missing["hf"] == f"there is no {tmp_path / 'models' / 'm-hf'}"


def test_without_a_directory_nothing_is_installed() -> None:
    assert find_installed(None, "m").missing.keys() == {*PEERS, *MODEL_FORMATS}


def test_peers_toml_says_where_else_things_are(tmp_path: Path) -> None:
    server = make(tmp_path / "elsewhere" / "server")
    python = make(tmp_path / "env" / "bin" / "python")
    model = make(tmp_path / "x.gguf")
    (tmp_path / "peers.toml").write_text(
        f'[peers]\n"llama.cpp" = "{server}"\nvllm = "env"\n[models]\nhf = "x.gguf"\n'
    )
    found = find_installed(tmp_path, "m")
    assert found.programs == {"llama.cpp": server, "vllm": python}
    assert found.models == {"hf": model}


def test_a_peer_without_a_model_that_it_reads_is_not_there(tmp_path: Path) -> None:
    for peer in ("vllm", "openvino"):
        make(tmp_path / peer / "bin" / "python")
    found = find_installed(tmp_path, "m")
    assert found.programs.keys() == {"openvino"}
    place = tmp_path / "models" / "m-hf"
    assert found.missing["vllm"] == f"it has no model: there is no {place}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[peers", "peers.toml: "),
        ('[peers]\nllama = "x"', r"\[peers\] has no 'llama'; it may have llama.cpp"),
        ("[models]\nhf = 1", r"\[models\] hf must be a path, got 1"),
        ('[models]\nhf = "a"\n[other]\n', "unknown 'other'"),
        ("peers = 1", r"peers must be a table"),
    ],
)
def test_a_peers_toml_that_is_wrong_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "peers.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        find_installed(tmp_path, "m")


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--peers-dir"):
        find_installed(tmp_path / "none", "m")
