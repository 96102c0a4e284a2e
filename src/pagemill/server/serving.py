"""From a checked request to its answer: the way that completions and chats share.

let in ── encode ── reserve the caller's tokens ── generate ── write ── settle the tokens
(429, 503)  (400)         (429)                   (400, 500)
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from pagemill.outputs import RequestOutput
from pagemill.server.context import ServerContext
from pagemill.server.errors import ApiError
from pagemill.server.event_stream import DONE, Reply
from pagemill.server.generation import Generation, Job
from pagemill.server.keys import Caller
from pagemill.server.schemas.sampling import SamplingFields

Usage = dict[str, Any]


class AnswerWriter(Protocol):
    """Writes one answer, whole or in chunks."""

    def chunks(self, index: int, output: RequestOutput, usage: Usage | None) -> list[str]:
        """The events that say what is new in prompt ``index``; with ``usage`` if that is given."""

    def usage_chunk(self, usage: Usage) -> str:
        """The last event but one."""

    def whole(self, outputs: Sequence[RequestOutput], usage: Usage) -> str:
        """The answer as JSON."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request after its prompts were encoded."""

    job: Job
    writer: AnswerWriter


async def serve(
    reply: Reply,
    context: ServerContext,
    caller: Caller,
    body: SamplingFields,
    *,
    num_sequences: int,
    prepare: Callable[[], Awaitable[Prepared]],
) -> None:
    """Answer a request.

    Args:
        reply: where to.
        context: of the server.
        caller: who asks.
        body: the request, its limits checked.
        num_sequences: prompts times samples.
        prepare: encodes the prompts.

    Raises:
        ApiError: it is refused, or failed.
        EngineError: the engine failed.
    """
    with context.work(num_sequences):
        prepared = await prepare()
        generation = Generation(context, prepared.job)
        with _reserved(context, caller, prepared.job, generation, streams=bool(body.stream)):
            if body.stream:
                await _write_stream(reply, body, generation, prepared.writer)
            else:
                outputs = await generation.finished()
                write = prepared.writer.whole
                await reply.json(await asyncio.to_thread(write, outputs, generation.usage()))


def envelope(answer_id: str, kind: str, context: ServerContext) -> dict[str, Any]:
    """What every answer, and every chunk of one, begins with."""
    return {
        "id": answer_id,
        "object": kind,
        "created": int(time.time()),
        "model": context.model_id,
    }


def with_list(
    head: Mapping[str, Any], name: str, entries: Iterable[Any], rest: Mapping[str, Any]
) -> str:
    """JSON of an object with a list in its middle, entry by entry.

    `json.dumps` holds Python's lock to its end, so of a large list nobody else would run for long.
    """
    written = ", ".join(map(json.dumps, entries))
    return f'{json.dumps(head)[:-1]}, "{name}": [{written}], {json.dumps(rest)[1:]}'


def wants_usage(body: SamplingFields) -> bool:
    """Whether a stream ends with the usage."""
    return body.stream_options is not None and bool(body.stream_options.include_usage)


async def _write_stream(
    reply: Reply, body: SamplingFields, generation: Generation, writer: AnswerWriter
) -> None:
    has_usage = wants_usage(body)
    options = body.stream_options
    in_each = has_usage and options is not None and bool(options.continuous_usage_stats)
    async with aclosing(generation.snapshots()) as groups:
        async for group in groups:
            usage = generation.usage() if in_each else None
            events: list[str] = []
            for index, output in group:
                events += writer.chunks(index, output, usage)
            if events:
                await reply.events("".join(events))
    end = writer.usage_chunk(generation.usage()) if has_usage else ""
    await reply.events(end + DONE, last=True)


@contextmanager
def _reserved(
    context: ServerContext, caller: Caller, job: Job, generation: Generation, *, streams: bool
) -> Iterator[None]:
    """Charge the caller with what is used in the end.

    A client that leaves before it was told anything is charged with all that was reserved: what
    was computed for it by then is not known.
    """
    if caller.tokens is None:
        yield
        return
    num_tokens = job.max_total_tokens(context.max_model_len)
    with context.work(0, caller=caller, num_tokens=num_tokens) as work:
        try:
            yield
        except ApiError as error:
            work.num_tokens_used = 0 if error.status == 400 else generation.usage()["total_tokens"]
            raise
        except BaseException:
            if streams:
                work.num_tokens_used = generation.usage()["total_tokens"]
            raise
        work.num_tokens_used = generation.usage()["total_tokens"]
