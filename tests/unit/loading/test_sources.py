from __future__ import annotations

from pathlib import Path

import pytest

from pagemill.errors import ModelNotFoundError, UnsupportedModelError
from pagemill.loading import sources
from pagemill.loading.hub import HubReference
from pagemill.loading.sources import resolve_model


def test_a_file_and_a_directory_are_themselves(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    assert resolve_model(str(file)) == file
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model.gguf").touch()
    assert resolve_model("~/model.gguf") == tmp_path / "model.gguf"


def test_a_path_wins_over_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert resolve_model("org/name") == Path("org/name")


def test_a_hub_id_goes_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fake_fetch(reference: HubReference, *, progress: bool | None) -> Path:
        asked.append((reference, progress))
        return Path("/snapshot")

    monkeypatch.setattr(sources, "fetch_hub", fake_fetch)
    assert resolve_model("org/name@v1", progress=False) == Path("/snapshot")
    assert asked == [(HubReference("org/name", "v1", None), False)]


@pytest.mark.parametrize("name", ["smolm2", "SmolLM2-135M", "smollm2_135m"])
def test_an_unknown_name_lists_the_aliases_and_the_nearest(name: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model(name)
    message = str(caught.value)
    assert f"model {name!r}" in message
    assert "Did you mean 'smollm2-135m'?" in message
    assert "gemma3-270m" in message


@pytest.mark.parametrize("name", ["", "./missing.gguf", "dir/missing.gguf", "x\0y"])
def test_a_name_that_leads_nowhere_is_refused_without_a_guess(name: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model(name)
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["./missing.gguf", "missing.gguf", "dir/missing.gguf", "/no/such/model", "~/missing"]
)
def test_what_looks_like_a_path_is_said_not_to_exist(name: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model(name)
    assert str(caught.value) == f"model {name!r}: there is no such file or directory"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("model.bin", "runs code"), ("model.pt", "runs code"), ("x.safetensors", "directory")],
)
def test_files_that_are_no_model_of_their_own_are_refused(
    tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / name).touch()
    with pytest.raises(UnsupportedModelError, match=reason):
        resolve_model(str(tmp_path / name))
