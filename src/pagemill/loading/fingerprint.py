"""Which weights a model has: a hash of its files, made when it is first asked for."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path

from pagemill.errors import ModelError


class ModelFingerprint:
    """Of a GGUF file, or of the safetensors files of a directory.

    Args:
        source_path: the file or directory that the model was loaded from.
    """

    def __init__(self, source_path: Path) -> None:
        is_directory = source_path.is_dir()
        paths = sorted(source_path.glob("*.safetensors")) if is_directory else [source_path]
        self._files = {path: _state(path) for path in paths}

    @cached_property
    def hexdigest(self) -> str:
        """SHA-256 over the files' contents.

        Raises:
            ModelError: a file was changed since the model was loaded from it.
        """
        total = hashlib.sha256()
        for path, state in self._files.items():
            if not path.is_file() or _state(path) != state:
                raise ModelError(f"{path} was changed after the model was loaded from it")
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        return total.hexdigest()


def _state(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns
