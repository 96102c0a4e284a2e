"""Computed blocks in a file: the format, and its refusal to believe what it reads.

    magic     16 bytes
    header    length (4 bytes), then JSON: format, fingerprint, block_size, block_bytes, num_blocks
    records   one a block, parents before their children:
              digest      16 bytes  of the chain up to this block
              parent      16 bytes  digest of the block before it, or of the root
              tokens      block_size * 4 bytes
              content     block_bytes of keys and values
              checksum    16 bytes  BLAKE2b of all that is before it in the record

The fingerprint says which model, computed how, the values belong to. A file with another one is
refused; a record whose checksum or whose place in the chain is wrong is skipped, and so is what
continues it. Records that the header counts and the file does not have, wherever it was cut off,
are damaged, too.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pagemill.config import MAX_KV_BLOCKS
from pagemill.errors import InvalidFileError
from pagemill.kvcache.block_hash import DIGEST_BYTES, TOKEN_BYTES, digest

MAGIC = b"pagemill prefix\n"
FORMAT = 2
_MOST_HEADER_BYTES = 1 << 20
# For messages: what a fingerprint is made of, see `pagemill.assembly`.
_FINGERPRINTED = (
    "the model's files, dtype, quantization, kv_cache_dtype, rope_scaling, max_model_len, the "
    "version of pagemill, or the kernels' instruction set"
)


class Shape(NamedTuple):
    """What a file's blocks are."""

    fingerprint: str
    block_size: int
    block_bytes: int


class Record(NamedTuple):
    """One block."""

    digest: bytes
    parent: bytes
    tokens: bytes
    content: bytes


@dataclass(slots=True)
class LoadedPrefixes:
    """What became of the blocks of a file."""

    num_loaded: int = 0
    num_known: int = 0
    """In the cache already."""
    num_damaged: int = 0
    """Checksum or place in the chain wrong, missing, or continuing a block that is."""
    num_without_room: int = 0
    """No block of the pool was empty any more, or they continue one that found none. Nothing is
    evicted for what may never be used."""


def write_prefix_file(path: Path, shape: Shape, num_blocks: int, records: Iterable[Record]) -> None:
    """Write a file of ``num_blocks`` records, whole or not at all.

    Raises:
        OSError: it cannot be written; names ``path``.
    """
    # In the same directory, so that taking the name is one atomic step.
    temporary = path.parent / f"{path.name[:50]}.{secrets.token_hex(8)}.tmp"
    header = json.dumps({"format": FORMAT, **shape._asdict(), "num_blocks": num_blocks}).encode()
    try:
        # Created as any file is: with the permissions that the umask leaves.
        with open(temporary, "xb") as file:
            try:
                file.write(MAGIC + len(header).to_bytes(4, "little") + header)
                for record in records:
                    data = b"".join(record)
                    file.write(data + digest(data))
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def read_prefix_file(path: Path, shape: Shape) -> Iterator[Record | None]:
    """The records of a file, and None for each that is damaged or missing.

    Raises:
        InvalidFileError: it is no such file, or of another model or configuration.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        num_blocks = _check_header(path, _read_header(path, file), shape)
        num_read = 0
        sizes = (DIGEST_BYTES, DIGEST_BYTES, shape.block_size * TOKEN_BYTES, shape.block_bytes)
        while data := file.read(sum(sizes) + DIGEST_BYTES):
            num_read += 1
            content, checksum = data[: sum(sizes)], data[sum(sizes) :]
            if digest(content) != checksum:
                yield None
                continue
            at = 0
            fields = []
            for size in sizes:
                fields.append(content[at : at + size])
                at += size
            yield Record(*fields)
        for _ in range(num_read, num_blocks):
            yield None


def _read_header(path: Path, file: BinaryIO) -> dict[str, Any]:
    if file.read(len(MAGIC)) != MAGIC:
        raise InvalidFileError(f"{path} is not a file of cached prefixes")
    length = int.from_bytes(file.read(4), "little")
    if length > _MOST_HEADER_BYTES:
        raise InvalidFileError(f"{path}: a header of {length} bytes; the file is damaged")
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise InvalidFileError(f"{path}: its header is damaged") from error
    if not isinstance(header, dict):
        raise InvalidFileError(f"{path}: its header is damaged")
    return header


def _check_header(path: Path, header: dict[str, Any], shape: Shape) -> int:
    """Refuse a file of other blocks; returns how many it should have."""
    for name, wanted in {"format": FORMAT, **shape._asdict()}.items():
        if header.get(name) == wanted:
            continue
        if name == "fingerprint":
            raise InvalidFileError(
                f"{path} holds prefixes of another model, or computed with other options: what "
                f"differs is {_FINGERPRINTED}; save the cache again with those in use"
            )
        raise InvalidFileError(
            f"{path} holds prefixes of {name} {header.get(name)!r}, but this engine has "
            f"{wanted!r}; save the cache again with the model and options in use"
        )
    num_blocks = header.get("num_blocks")
    if type(num_blocks) is not int or not 0 <= num_blocks <= MAX_KV_BLOCKS:
        raise InvalidFileError(f"{path}: its header is damaged")
    return num_blocks
