"""`ServerContext`: what the handlers of one server share, on ``app.state.context``."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from pagemill.async_engine import AsyncLLMEngine, EngineState
from pagemill.engine import LLMEngine
from pagemill.loading.tokenizer import FileTokenizer
from pagemill.server.errors import ApiError
from pagemill.server.key_file import read_key_file
from pagemill.server.keys import ANONYMOUS, Caller, Keyring
from pagemill.server.lifecycle import Lifecycle
from pagemill.server.metrics import ServerMetrics
from pagemill.server.settings import ServerSettings

log = logging.getLogger("pagemill.server")

RETRY_SECONDS = 2
"""What a client is told to wait for when nobody can know."""


class LoadedEngine(Protocol):
    """What `pagemill.assembly.Assembly` has and a server needs."""

    @property
    def engine(self) -> LLMEngine:
        """Not started."""

    @property
    def tokenizer(self) -> FileTokenizer | None:
        """None: prompts are token ids."""


@dataclass
class Work:
    """A request that was let in to compute."""

    num_tokens_used: int | None = None
    """To be set at its end: tokens of its prompts and answers, which its caller's limit of tokens
    is charged with. None: all that were reserved."""


class ServerContext:
    """Made before the model is loaded; its engine loads it when it is started.

    Args:
        settings: limits and options.
        load: finds and loads the model; called on the engine's thread.
        model: its name, an alias or a path, as it was given.

    Raises:
        ConfigError: the file of keys cannot be used.

    Attributes:
        settings: as given.
        keyring: the keys that are let in; None: everybody is.
        engine: runs the requests.
        lifecycle: whether new requests are taken.
        metrics: what is counted.
        model_id: the name that clients use.
        model_root: the name that the model was found by.
        created: when the server started, in Unix seconds.
    """

    def __init__(
        self, settings: ServerSettings, load: Callable[[], LoadedEngine], model: str
    ) -> None:
        self.settings = settings
        self.keyring: Keyring | None = None
        if settings.api_key_file is not None:
            self.keyring = read_key_file(settings.api_key_file, warn=log.warning)
        self.model_id = settings.served_model_name or model
        self.model_root = model
        self.created = int(time.time())
        self.lifecycle = Lifecycle()
        self.metrics = ServerMetrics(self.model_id)
        self.engine = AsyncLLMEngine(self._make_engine)
        self._load = load
        self._loaded: LoadedEngine | None = None
        self._num_open_sequences = 0
        self._watch()

    @property
    def tokenizer(self) -> FileTokenizer | None:
        """Raises ApiError 503 while the model is being loaded."""
        return self._model().tokenizer

    @property
    def max_model_len(self) -> int:
        """Longest prompt and answer together, in tokens. Raises ApiError 503 likewise."""
        return self._model().engine.max_model_len

    @property
    def num_open_sequences(self) -> int:
        """Sequences of all requests that were let in by `work`."""
        return self._num_open_sequences

    @contextmanager
    def work(
        self, num_sequences: int, *, caller: Caller = ANONYMOUS, num_tokens: int = 0
    ) -> Iterator[Work]:
        """Around every request that computes, its stream included.

        Args:
            num_sequences: prompts, times samples of each.
            caller: whose limit of tokens it counts against.
            num_tokens: the most that it can use: prompts, and ``max_tokens`` of each sample. So
                many are reserved, and what was not used is given back: see `Work`.

        Raises:
            ApiError: 503 (loading, failed, closed), 429 with the seconds to wait (the queue is
                full, or the caller has used its tokens), 400 (more than the queue can ever hold).
        """
        self.check_ready()
        self._check_queue(num_sequences)
        self._take_tokens(caller, num_tokens)
        work = Work()
        self._num_open_sequences += num_sequences
        try:
            yield work
        finally:
            self._num_open_sequences -= num_sequences
            if caller.tokens is not None and work.num_tokens_used is not None:
                caller.tokens.settle(num_tokens, work.num_tokens_used)

    def check_open(self) -> None:
        """Raises ApiError 503 unless a new request is let in."""
        if self.lifecycle.draining:
            raise ApiError(503, "the server is shutting down", retry_after=RETRY_SECONDS)
        self.check_ready()

    def check_not_ended(self) -> None:
        """After the engine failed a request: raises ApiError 503 if that says more.

        That the next engine is being loaded says less: this request was under way, and is lost.
        """
        if self.lifecycle.draining or self.engine.state is not EngineState.LOADING:
            self.check_open()

    def check_ready(self) -> None:
        """Raises ApiError 503 unless the engine can take work, as it does also while draining."""
        state = self.engine.state
        if state is EngineState.READY:
            return
        if state is EngineState.LOADING:
            raise ApiError(503, "the model is being loaded", retry_after=RETRY_SECONDS)
        if state is EngineState.FAILED:
            raise ApiError(503, "the engine has failed", code="engine_failed")
        raise ApiError(503, "the server is shutting down", retry_after=RETRY_SECONDS)

    def _check_queue(self, num_sequences: int) -> None:
        running = self._model().engine.config.max_num_seqs
        waiting = self.settings.max_queued_sequences
        if num_sequences > running + waiting:
            raise ApiError(
                400,
                f"the request has {num_sequences} sequences (prompts times samples), more than "
                f"this server takes at once: {running} that run and {waiting} that wait",
            )
        if self._num_open_sequences + num_sequences > running + waiting:
            raise ApiError(
                429,
                f"the queue is full: {self._num_open_sequences} sequences are under way, and "
                f"{running + waiting} is the most; try again later",
                code="queue_full",
                retry_after=RETRY_SECONDS,
            )

    def _take_tokens(self, caller: Caller, num_tokens: int) -> None:
        if caller.tokens is None:
            return
        wait_seconds = caller.tokens.take(num_tokens)
        if wait_seconds:
            raise ApiError(
                429,
                f"this may use {num_tokens} tokens, and too little is left of the "
                f"{caller.tokens.per_minute} a minute of the key {caller.name!r}; lower "
                f"max_tokens, or come back later",
                code="rate_limit_exceeded",
                retry_after=math.ceil(wait_seconds),
            )

    def _model(self) -> LoadedEngine:
        if self._loaded is None:
            self.check_ready()
        assert self._loaded is not None, "a ready engine has been loaded"
        return self._loaded

    def _watch(self) -> None:
        """Let the metrics show what is known here."""
        watch = self.metrics.watch
        watch("num_open_sequences", "Sequences let in.", "gauge", lambda: self._num_open_sequences)
        watch(
            "num_requests_in_flight",
            "HTTP requests being answered.",
            "gauge",
            lambda: self.lifecycle.num_in_flight,
        )
        watch(
            "asyncio_tasks",
            "Tasks of the server's loop.",
            "gauge",
            lambda: len(asyncio.all_tasks()),
        )
        watch(
            "engine_ready",
            "1 while the engine takes requests.",
            "gauge",
            lambda: self.engine.state is EngineState.READY,
        )
        watch(
            "engine_restarts",
            "Times that a failed engine was replaced.",
            "counter",
            lambda: self.engine.num_restarts,
        )

    def _make_engine(self) -> LLMEngine:
        """On the engine's thread; once more after a failure, when the engine before is closed."""
        self._loaded = self._load()
        self.metrics.follow(self._loaded.engine)
        return self._loaded.engine
