"""The engine's requests behind one request of a client's: one for each prompt.

All of them begin together, end together when one is refused or fails, and are aborted when nobody
listens any more. Like the engine's mailboxes, this keeps the newest snapshot of each only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

from pagemill.errors import EngineError, RequestError
from pagemill.outputs import RequestOutput
from pagemill.sampling_params import SamplingParams
from pagemill.server.context import ServerContext
from pagemill.server.errors import ApiError, refusal
from pagemill.token_processor import DAMAGED_LOGITS

Snapshot = tuple[int, RequestOutput]
"""Which prompt it is of, and how far that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one request of a client's gives the engine to do."""

    answer_id: str
    prompts: Sequence[Sequence[int]]
    params: Sequence[SamplingParams]
    """Of each prompt."""
    prompt_field: str
    """What clients call the prompt."""
    priority: int
    cache_salt: str | None
    arrival_seconds: float

    def max_total_tokens(self, max_model_len: int) -> int:
        """The most tokens that it can use, prompts included."""
        total = 0
        for ids, params in zip(self.prompts, self.params, strict=True):
            room = max(max_model_len - len(ids), 0)
            longest = room if params.max_tokens is None else min(params.max_tokens, room)
            total += len(ids) + params.n * longest
        return total


class Generation:
    """Runs a job, once.

    Args:
        context: whose engine.
        job: what to do.
    """

    def __init__(self, context: ServerContext, job: Job) -> None:
        self._context = context
        self._job = job
        self._newest: dict[int, RequestOutput] = {}
        """The last snapshot of each prompt that was handed out."""

    async def finished(self) -> list[RequestOutput]:
        """Run to the end; the last snapshot of each prompt, in their order."""
        async for _ in self.snapshots(stream=False):
            pass
        return [self._newest[index] for index in range(len(self._job.prompts))]

    async def snapshots(self, *, stream: bool = True) -> AsyncGenerator[list[Snapshot], None]:
        """What has changed since the last time, whenever something has. Close it when you stop.

        Raises:
            ApiError: the engine refused a prompt (400), or could not compute an answer (500).
            EngineError: it failed.
        """
        with self._refusals():
            if len(self._job.prompts) == 1:
                async with aclosing(self._one(0, stream)) as outputs:
                    async for output in outputs:
                        self._note(0, output)
                        yield [(0, output)]
            else:
                async with aclosing(self._merged(stream)) as groups:
                    async for group in groups:
                        for index, output in group:
                            self._note(index, output)
                        yield group

    def _note(self, index: int, output: RequestOutput) -> None:
        self._newest[index] = output
        for sample in output.outputs:
            if sample.finish_reason == "abort":
                raise _not_computed(sample.stop_reason)

    def usage(self) -> dict[str, Any]:
        """Tokens so far, in the form of the answer."""
        outputs = self._newest.values()
        num_prompt = sum(map(len, self._job.prompts))
        num_completion = sum(len(sample.token_ids) for o in outputs for sample in o.outputs)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
            "prompt_tokens_details": {"cached_tokens": sum(o.num_cached_tokens for o in outputs)},
        }

    async def _merged(self, stream: bool) -> AsyncGenerator[list[Snapshot], None]:
        merging = _Merged()
        tasks = [
            asyncio.create_task(merging.follow(index, self._one(index, stream)))
            for index in range(len(self._job.prompts))
        ]
        try:
            async for group in merging.groups(len(tasks)):
                yield group
        except RequestError as error:
            field = f"{self._job.prompt_field}[{merging.failed_index}]"
            raise refusal(error, prompt_field=field) from error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _one(self, index: int, stream: bool) -> AsyncGenerator[RequestOutput, None]:
        job = self._job
        return self._context.engine.generate(
            f"{job.answer_id}-{index}",
            job.prompts[index],
            job.params[index],
            priority=job.priority,
            cache_salt=job.cache_salt,
            arrival_seconds=job.arrival_seconds,
            stream=stream,
        )

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except RequestError as error:
            raise refusal(error, prompt_field=self._job.prompt_field) from error
        except EngineError:
            self._context.check_not_ended()
            raise


class _Merged:
    """The newest snapshots of several requests, handed out together."""

    def __init__(self) -> None:
        self._new: dict[int, RequestOutput] = {}
        self._num_ended = 0
        self._failure: Exception | None = None
        self.failed_index = 0
        """Which of them has failed, if one has."""
        self._happened = asyncio.Event()

    async def follow(self, index: int, outputs: AsyncGenerator[RequestOutput, None]) -> None:
        """Take over what one request reports, until it ends."""
        try:
            async with aclosing(outputs) as closing:
                async for output in closing:
                    self._new[index] = output
                    self._happened.set()
        except Exception as error:
            if self._failure is None:
                self._failure, self.failed_index = error, index
        self._num_ended += 1
        self._happened.set()

    async def groups(self, num_followed: int) -> AsyncGenerator[list[Snapshot], None]:
        """Until all have ended, or one has failed."""
        all_ended = False
        while not all_ended:
            await self._happened.wait()
            self._happened.clear()
            if self._failure is not None:
                raise self._failure
            all_ended = self._num_ended == num_followed
            group, self._new = sorted(self._new.items()), {}
            if group:
                yield group


def _not_computed(stop_reason: int | str | None) -> ApiError:
    """Of a sample that the engine ended for a reason of its own."""
    if stop_reason == DAMAGED_LOGITS:
        message = "the model computed no probabilities for this prompt (NaN or infinity)"
        return ApiError(500, message, code=DAMAGED_LOGITS)
    return ApiError(500, "the engine ended this request; try again", code="aborted")
