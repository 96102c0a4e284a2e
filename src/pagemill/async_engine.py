"""`AsyncLLMEngine`: an `LLMEngine` on a thread of its own, for callers on an asyncio loop.

    loop of the caller                         the engine's thread
    ------------------                         -------------------
    generate() ── add_request ──> commands ──> between two steps
         ^                                     step()
         └── newest output of the request <─── outputs, once a step for all requests

The native kernels release Python's lock while they compute, so HTTP, tokenizing and JSON go on
beside a step. Each request has a mailbox for one output, the newest: outputs are snapshots, so a
reader who is slow misses nothing and costs no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from pagemill.call_arguments import Prompt
from pagemill.engine import LLMEngine
from pagemill.errors import EngineError
from pagemill.outputs import EmbeddingOutput, RequestOutput
from pagemill.sampling_params import SamplingParams

T = TypeVar("T")

logger = logging.getLogger("pagemill.engine")

IDLE_SECONDS = 0.5
"""How often an idle engine's thread shows that it is alive."""
MAX_RESTARTS = 1


class EngineState(enum.Enum):
    """What an `AsyncLLMEngine` can do."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    """It failed more often than it may be restarted, or could not be made."""
    CLOSED = "closed"


class _Command(Generic[T]):
    """A function of the engine, to be called on its thread."""

    def __init__(self, function: Callable[[LLMEngine], T]) -> None:
        self._function = function
        self.result: Future[T] = Future()

    def run(self, engine: LLMEngine) -> None:
        if not self.result.set_running_or_notify_cancel():
            return
        try:
            self.result.set_result(self._function(engine))
        except BaseException as error:  # nothing may end the thread
            self.result.set_exception(_ordinary(error))

    def fail(self, error: EngineError) -> None:
        if self.result.set_running_or_notify_cancel():
            self.result.set_exception(EngineError(str(error)))


class _Mailbox:
    """The newest output of one request, or how it failed; used on the caller's loop only."""

    def __init__(self) -> None:
        self.is_closed = False
        """Nobody will take anything any more."""
        self._output: RequestOutput | None = None
        self._error: EngineError | None = None
        self._reader: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput) -> None:
        self._output = output
        self._wake()

    def fail(self, error: EngineError) -> None:
        self._error = error
        self._wake()

    async def take(self) -> RequestOutput:
        if self._output is None and self._error is None:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        output, self._output = self._output, None
        if output is None:
            assert self._error is not None
            raise EngineError(str(self._error)) from self._error
        return output

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class AsyncLLMEngine:
    """Runs an engine's loop in a thread, and lets coroutines of one asyncio loop use it.

    Args:
        make_engine: makes the engine, on its thread; called again once if the engine fails.
    """

    def __init__(self, make_engine: Callable[[], LLMEngine]) -> None:
        self._make_engine = make_engine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._started: asyncio.Future[None] | None = None
        self._commands: deque[_Command[Any]] = deque()
        self._wakes = threading.Event()
        self._closing = False
        self._ended = False
        """Nobody takes commands any more."""
        self._names: set[str] = set()
        self._mailboxes: dict[str, _Mailbox] = {}
        """Of requests that the engine has."""
        self._failure: EngineError | None = None
        self.state = EngineState.LOADING
        self.num_restarts = 0
        self.last_advance_seconds = time.monotonic()
        """When the loop was last seen between two steps."""

    @property
    def num_unfinished_requests(self) -> int:
        """Requests that `generate` and `embed` are following."""
        return len(self._names)

    @property
    def failure(self) -> EngineError | None:
        """Why the engine failed, if it did."""
        return self._failure

    async def start(self) -> None:
        """Make the engine and begin; returns when it is ready.

        Raises:
            PagemillError: it cannot be made; what ``make_engine`` raised.
        """
        assert self._thread is None, "it starts once"
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="pagemill-engine", daemon=True)
        self._thread.start()
        await asyncio.shield(self._started)

    def generate(
        self,
        request_id: str,
        prompt: Prompt,
        sampling_params: SamplingParams,
        *,
        priority: int = 0,
        deadline_seconds: float | None = None,
        cache_salt: str | None = None,
        arrival_seconds: float | None = None,
        stream: bool = True,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run a request; yields its newest snapshot whenever there is one, the last one finished.

        Whoever stops before the end, by leaving the loop or by cancellation, aborts the request:
        what it holds is free before the step after next. (Close the generator, as
        `contextlib.aclosing` does.)

        Args:
            request_id: unique among unfinished requests.
            prompt: a text, or better its token ids: the engine's thread does nothing else while it
                encodes.
            sampling_params: as for `LLMEngine.add_request`.
            priority: likewise.
            deadline_seconds: likewise.
            cache_salt: likewise.
            arrival_seconds: when the request arrived, on `time.monotonic`; None: now.
            stream: yield after every token, not only the last output.

        Raises:
            RequestError: it can never be served as asked.
            EngineError: the engine failed, is not ready, or was closed.
        """
        return self._follow(
            request_id,
            lambda engine: engine.add_request(
                request_id,
                prompt,
                sampling_params,
                priority,
                deadline_seconds=deadline_seconds,
                cache_salt=cache_salt,
                arrival_seconds=arrival_seconds,
                stream=stream,
            ),
        )

    async def embed(
        self,
        request_id: str,
        prompt: Prompt,
        *,
        normalize: bool = False,
        priority: int = 0,
        deadline_seconds: float | None = None,
        cache_salt: str | None = None,
        arrival_seconds: float | None = None,
    ) -> EmbeddingOutput:
        """Embed a prompt; a cancelled call aborts its request, as for `generate`.

        Args:
            request_id: as for `generate`.
            prompt: likewise; it may be as long as the context.
            normalize: scale the embedding to length 1; one of all zeros stays so.
            priority: as for `generate`.
            deadline_seconds: likewise.
            cache_salt: likewise.
            arrival_seconds: likewise.

        Raises:
            RequestError: it can never be served as asked.
            ModelError: the model computed NaN or infinity; the engine and all others go on.
            EngineError: the engine failed, is not ready, or was closed; or the request was aborted.
        """
        outputs = self._follow(
            request_id,
            lambda engine: engine.add_embedding_request(
                request_id,
                prompt,
                priority,
                deadline_seconds=deadline_seconds,
                cache_salt=cache_salt,
                arrival_seconds=arrival_seconds,
            ),
        )
        async with contextlib.aclosing(outputs):
            return EmbeddingOutput.of(await anext(outputs), normalize=normalize)

    async def _follow(
        self, request_id: str, add: Callable[[LLMEngine], None]
    ) -> AsyncGenerator[RequestOutput, None]:
        """Add a request and yield its newest snapshot whenever there is one, to the last.

        Whoever stops before, aborts it.
        """
        self._check_ready()
        if request_id in self._names:
            raise ValueError(f"request_id {request_id!r} is in use")
        mailbox = _Mailbox()
        finished = False

        def add_and_open(engine: LLMEngine) -> None:
            add(engine)
            # Behind what there is still to deliver of a request that had this name before.
            self._post(self._open, request_id, mailbox)

        self._names.add(request_id)
        try:
            await self.call(add_and_open)
            while not finished:
                output = await mailbox.take()
                finished = output.finished
                if finished:
                    self._forget(request_id, mailbox)
                yield output
        finally:
            if not finished:
                self._forget(request_id, mailbox)
                self._send(_Command(lambda engine: engine.abort(request_id, report=False)))

    def _open(self, request_id: str, mailbox: _Mailbox) -> None:
        if not mailbox.is_closed:
            self._mailboxes[request_id] = mailbox

    def _forget(self, request_id: str, mailbox: _Mailbox) -> None:
        mailbox.is_closed = True
        self._names.discard(request_id)
        if self._mailboxes.get(request_id) is mailbox:
            del self._mailboxes[request_id]

    async def call(self, function: Callable[[LLMEngine], T]) -> T:
        """Call ``function`` with the engine, on its thread, between two steps.

        Raises:
            EngineError: the engine is not ready, fails, or is closed before that.
            Exception: whatever ``function`` raised.
        """
        self._check_ready()
        command = _Command(function)
        self._send(command)
        return await asyncio.wrap_future(command.result)

    async def close(self) -> None:
        """End the loop and close the engine; requests under way fail. Closing twice is harmless."""
        self._closing = True
        self._wakes.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self.state = EngineState.CLOSED

    def _check_ready(self) -> None:
        if self.state is not EngineState.READY or self._closing:
            why = f": {self._failure}" if self._failure is not None else ""
            raise EngineError(f"the engine is {self.state.value}{why}")

    def _send(self, command: _Command[Any]) -> None:
        self._commands.append(command)
        self._wakes.set()
        if self._ended:  # the thread may have looked for the last time before this came
            self._fail_commands()

    # From here on: the engine's thread.

    def _run(self) -> None:
        engine = self._first_engine()
        while engine is not None:
            failure = self._serve_until_failure(engine)
            _close(engine)
            engine = None  # its memory is needed for the next one
            if failure is not None:
                engine = self._next_engine(failure)
        self._post(self._fail_requests, self._failure or EngineError("the engine was closed"))
        self._ended = True
        self._fail_commands()

    def _fail_commands(self) -> None:
        """On either thread, which may be there at the same time."""
        error = self._failure or EngineError("the engine was closed")
        with contextlib.suppress(IndexError):
            while True:
                self._commands.popleft().fail(error)

    def _serve_until_failure(self, engine: LLMEngine) -> EngineError | None:
        """How the engine failed, without what the error's traceback holds; None: it was asked to
        close.
        """
        try:
            self._serve(engine)
        except BaseException as error:  # from native code there are others than `Exception`
            # As text: a log that keeps the error would keep the engine, and all its memory.
            logger.error("the engine failed\n%s", traceback.format_exc())
            return EngineError(str(error) if isinstance(error, EngineError) else repr(error))
        return None

    def _serve(self, engine: LLMEngine) -> None:
        """Step until asked to close."""
        while not self._closing:
            while self._commands:
                self._commands.popleft().run(engine)
            self.last_advance_seconds = time.monotonic()
            if engine.has_unfinished_requests():
                self._post(self._deliver, engine.step())
            else:
                self._wakes.wait(IDLE_SECONDS)
                self._wakes.clear()

    def _first_engine(self) -> LLMEngine | None:
        started = self._started
        assert started is not None
        try:
            engine = self._make_engine()
        except BaseException as error:
            self._post(self._set_failed, EngineError(str(error)))
            self._post(_set_unless_done, started, _ordinary(error))
            return None
        self.last_advance_seconds = time.monotonic()
        self._post(self._set_ready)
        self._post(_set_unless_done, started, None)
        return engine

    def _next_engine(self, failure: EngineError) -> LLMEngine | None:
        """After a failure: another engine if there may be one."""
        if self.num_restarts == MAX_RESTARTS or self._closing:
            self._give_up(failure)
            return None
        self.num_restarts += 1
        self._post(self._set_loading)
        self._post(self._fail_requests, failure)
        try:
            engine = self._make_engine()
        except BaseException as error:
            logger.exception("another engine could not be made")
            again = f"{type(error).__name__}: {error}"
            self._give_up(EngineError(f"{failure}; and making another one failed: {again}"))
            return None
        self.last_advance_seconds = time.monotonic()
        self._post(self._set_ready)
        return engine

    def _give_up(self, failure: EngineError) -> None:
        self._failure = failure
        self._post(self._set_failed, failure)
        self._post(self._fail_requests, failure)

    def _post(self, function: Callable[..., None], *args: Any) -> None:
        """Call something on the caller's loop."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended before us
            self._loop.call_soon_threadsafe(function, *args)

    # On the caller's loop again.

    def _set_loading(self) -> None:
        self.state = EngineState.LOADING

    def _set_ready(self) -> None:
        self.state = EngineState.READY

    def _set_failed(self, failure: EngineError) -> None:
        self._failure = failure
        self.state = EngineState.FAILED

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            mailbox = self._mailboxes.get(output.request_id)
            if mailbox is not None:
                mailbox.put(output)

    def _fail_requests(self, error: EngineError) -> None:
        for mailbox in self._mailboxes.values():
            mailbox.fail(error)


def _ordinary(error: BaseException) -> Exception:
    """``error``, or one that says so where it is none that a coroutine should raise."""
    return error if isinstance(error, Exception) else EngineError(repr(error))


def _close(engine: LLMEngine) -> None:
    try:
        engine.close()
    except BaseException:
        logger.exception("the engine could not be closed")


def _set_unless_done(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
