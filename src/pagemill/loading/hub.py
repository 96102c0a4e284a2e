"""Models from the Hugging Face hub, through ``huggingface_hub`` (the optional extra ``hub``)."""

from __future__ import annotations

import glob
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from tqdm import tqdm

from pagemill.errors import ModelError, ModelNotFoundError, UnsupportedModelError
from pagemill.loading.progress import is_shown

_REFERENCE: Final = re.compile(
    r"(?P<repo>[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*)"
    r"(@(?P<revision>[A-Za-z0-9._/-]+))?(:(?P<file>[^:]+\.gguf))?"
)
# Weights, configuration, tokenizer and template; no pickles, no other formats.
_WANTED: Final = ["*.json", "*.safetensors", "*.jinja"]
_UNWANTED: Final = ["*/*", "consolidated*.safetensors"]


@dataclass(frozen=True, slots=True)
class HubReference:
    """``org/name``, ``org/name@revision``, ``org/name:file.gguf``, or both."""

    repo: str
    revision: str | None
    file: str | None
    """A GGUF file of the repository; None: the safetensors checkpoint."""


def parse_hub_reference(model: str) -> HubReference | None:
    """Read a model's name as a hub id; None if it does not look like one."""
    match = _REFERENCE.fullmatch(model)
    if match is None or (match["file"] is None and model.endswith(".gguf")):
        return None
    return HubReference(match["repo"], match["revision"], match["file"])


def fetch_hub(reference: HubReference, *, progress: bool | None = None) -> Path:
    """Download, or find in the hub's own cache, a GGUF file or a directory with a checkpoint.

    Raises `ModelNotFoundError` if there is no such repository, revision or file, and `ModelError`
    if the library is not installed, the repository is gated, or the hub cannot be reached.
    """
    try:
        import huggingface_hub
    except ImportError:
        raise ModelError(
            f"{reference.repo!r} is no alias and no path on this machine; to get it from the "
            "Hugging Face hub, install the extra: pip install 'pagemill[hub]'"
        ) from None
    try:
        snapshot = huggingface_hub.snapshot_download(
            reference.repo,
            revision=reference.revision,
            allow_patterns=[glob.escape(reference.file)] if reference.file else _WANTED,
            ignore_patterns=None if reference.file else _UNWANTED,
            tqdm_class=None if is_shown(progress) else _NoBar,
        )
    except Exception as error:  # whatever its HTTP client raises too
        _refuse(reference, error)
    path = Path(snapshot)
    if reference.file:
        path = path / reference.file
    if not (path.is_file() or any(path.glob("*.safetensors"))):
        raise _nothing_usable(reference, huggingface_hub)
    return path


class _NoBar(tqdm):  # type: ignore[misc]  # tqdm has no types
    """A bar that is never shown."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})


def _refuse(reference: HubReference, error: Exception) -> NoReturn:
    from huggingface_hub import errors

    repo, revision = reference.repo, reference.revision or "main"
    if isinstance(error, errors.GatedRepoError):
        raise ModelError(
            f"{repo}: access is granted on request only: accept the conditions on the model's "
            "page, then log in with `hf auth login` or set HF_TOKEN"
        ) from error
    if isinstance(error, errors.RepositoryNotFoundError):
        raise ModelNotFoundError(
            f"{repo}: no such path on this machine, and no such repository on the hub "
            "(if it is private: `hf auth login` or HF_TOKEN)"
        ) from error
    if isinstance(error, errors.RevisionNotFoundError):
        raise ModelNotFoundError(f"{repo}: no revision {revision!r}") from error
    if isinstance(error, errors.HFValidationError):
        raise ModelNotFoundError(f"{repo}: not a valid hub id: {error}") from error
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    raise ModelError(
        f"{repo}: no such path on this machine, and cannot be fetched from the hub: {first_line} "
        "-- check the network, the proxy and HF_ENDPOINT (and HF_HUB_OFFLINE), or give the path of "
        "a local copy as the model"
    ) from error


def _nothing_usable(reference: HubReference, hub: Any) -> ModelError:
    """Say what the repository does hold."""
    try:
        files = sorted(hub.HfApi().list_repo_files(reference.repo, revision=reference.revision))
    except Exception as error:  # only to say more; offline, there is no more to say
        return ModelError(
            f"{reference.repo}: no safetensors or chosen GGUF file in the local copy: {error}"
        )
    ggufs = [name for name in files if name.endswith(".gguf")]
    at_revision = f"{reference.repo}@{reference.revision}" if reference.revision else reference.repo
    if ggufs:
        shown = ", ".join(f"{at_revision}:{name}" for name in ggufs[:8])
        problem = f"no file {reference.file!r}" if reference.file else "no safetensors files"
        return ModelNotFoundError(
            f"{reference.repo}: {problem}; name one of its GGUF files: {shown}"
        )
    if reference.file:
        return ModelNotFoundError(f"{reference.repo}: no file {reference.file!r}, nor any .gguf")
    if any(name.endswith((".bin", ".pt", ".pth")) for name in files):
        return UnsupportedModelError(
            f"{reference.repo}: the weights are pickle files, and loading a pickle runs code that "
            "it contains; get a repository with safetensors"
        )
    return ModelNotFoundError(f"{reference.repo}: holds no model: {', '.join(files[:8])}")
