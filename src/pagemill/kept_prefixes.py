"""Prefixes that are to stay: pinned in the pool, or saved to a file and loaded again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pagemill.batch import ModelRunner
from pagemill.errors import InvalidParameterError, RequestError, RequestTooLargeError
from pagemill.kvcache.manager import KVCacheManager
from pagemill.kvcache.prefix_cache import CachedBlock
from pagemill.kvcache.prefix_file import (
    LoadedPrefixes,
    Record,
    Shape,
    read_prefix_file,
    write_prefix_file,
)
from pagemill.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class PinnedPrefix:
    """Blocks that nobody else gets until `KeptPrefixes.unpin`."""

    number: int
    num_tokens: int
    num_blocks: int
    engine_mark: object = field(repr=False)
    """Stands for the engine whose blocks they are: numbers begin at 1 in each."""


class KeptPrefixes:
    """Pins, saves and loads what the prefix cache holds. Only between two steps.

    Args:
        kv: the block accounting.
        scheduler: knows who still has to fit beside what is pinned.
        runner: holds the bytes.
        block_bytes: of a block's keys and values in all layers.
        fingerprint: names the model and all that its keys and values depend on.
        check_alive: raises `EngineError` once the engine takes no more work.
    """

    def __init__(
        self,
        kv: KVCacheManager,
        scheduler: Scheduler,
        runner: ModelRunner,
        block_bytes: int,
        fingerprint: Callable[[], str],
        check_alive: Callable[[], None],
    ) -> None:
        self._kv = kv
        self._scheduler = scheduler
        self._runner = runner
        self._block_bytes = block_bytes
        self._fingerprint = fingerprint
        self._check_alive = check_alive
        self._engine_mark = object()

    def pin(self, token_ids: Sequence[int], cache_salt: str | None = None) -> PinnedPrefix:
        """Keep the blocks of a prefix that has been computed; without partial hits, the whole ones.

        Raises:
            RequestError: it is not in the cache (run it first), or prefix caching is off.
            RequestTooLargeError: without these blocks a request could not finish that is under way.
            EngineError: the engine has failed or was closed.
        """
        self._check_alive()
        hit = self._kv.find_prefix(
            self._kv.new_sequence(cache_salt), token_ids, max_tokens=len(token_ids)
        )
        num_found = len(hit.nodes) * self._kv.block_size + hit.num_partial_tokens
        of_use = 1 if self._kv.partial_hits else self._kv.block_size
        if num_found < len(token_ids) // of_use * of_use:
            raise RequestError(
                f"only {num_found} of the prefix's {len(token_ids)} tokens are in the cache; run "
                f"it first, with enable_prefix_caching on"
            )
        left = self._kv.num_usable_after_pin(hit)
        for seq in (*self._scheduler.running, *self._scheduler.waiting):
            request = seq.request
            needed = self._kv.blocks_needed_at_most(request.num_prompt_tokens, request.max_tokens)
            if needed > left:
                raise RequestTooLargeError(
                    f"pinning these {len(token_ids)} tokens would leave {left} KV blocks, but "
                    f"request {request.request_id!r}, which is under way, may need {needed}"
                )
        number, num_blocks = self._kv.pin(hit)
        return PinnedPrefix(number, num_found, num_blocks, self._engine_mark)

    def unpin(self, pinned: PinnedPrefix) -> None:
        """Let the blocks go; they stay in the cache until somebody needs them. Harmless twice.

        Raises:
            InvalidParameterError: it is no pin, or not one of this engine's.
        """
        if not isinstance(pinned, PinnedPrefix):
            raise InvalidParameterError("pinned", pinned, "must be what pin_prefix has returned")
        if pinned.engine_mark is not self._engine_mark:
            raise InvalidParameterError("pinned", pinned, "is another engine's; unpin it there")
        self._kv.unpin(pinned.number)

    def save(self, path: str | Path) -> int:
        """Write every whole block of the cache to a file; returns how many.

        Prefixes under a cache salt stay out of it: they belong to somebody.

        Raises:
            OSError: it cannot be written; what had its name before is as it was.
            EngineError: the engine has failed or was closed.
        """
        self._check_alive()
        path = _checked_path(path)
        nodes = self._kv.unsalted_nodes()
        write_prefix_file(path, self._shape(), len(nodes), map(self._record, nodes))
        return len(nodes)

    def load(self, path: str | Path) -> LoadedPrefixes:
        """Bring the blocks of a file into empty blocks of the pool.

        Raises:
            InvalidFileError: it is no such file, or of another model or configuration.
            RequestError: prefix caching is off, so nobody would find them.
            OSError: it cannot be read.
            EngineError: the engine has failed or was closed.
        """
        self._check_alive()
        path = _checked_path(path)
        if not self._kv.prefix_caching:
            raise RequestError("enable_prefix_caching is off, so nobody would find a file's blocks")
        return self._kv.restore(read_prefix_file(path, self._shape()), self._runner.write_block)

    def _shape(self) -> Shape:
        return Shape(self._fingerprint(), self._kv.block_size, self._block_bytes)

    def _record(self, node: CachedBlock) -> Record:
        assert node.parent is not None
        content = self._runner.read_block(node.block_id)
        return Record(node.digest, node.parent.digest, node.tokens, content)


def _checked_path(path: object) -> Path:
    """A path of the caller's. An integer would be taken for an open file."""
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidParameterError("path", path, "must be the name of a file")
    return Path(path)
