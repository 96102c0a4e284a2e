"""Run jobs on an engine and tell a listener what comes: no input, no output of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pagemill.engine import LLMEngine
from pagemill.errors import RequestError, RequestTooLargeError
from pagemill.outputs import RequestOutput
from pagemill.sampling_params import SamplingParams

Message = dict[str, Any]
"""One of a conversation: ``{"role": "user", "content": "…"}``."""


@dataclass(frozen=True)
class Job:
    """One prompt to answer."""

    request_id: str
    prompt: str | Sequence[int]
    params: SamplingParams
    request_fields: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `LLMEngine.add_request`."""
    shrink_to_fit: bool = False
    """``params.max_tokens`` is only a default: take what the context leaves if that is less."""
    source: str = ""
    """Where it comes from, for error messages (``prompts.txt, line 7``)."""
    messages: Sequence[Message] | None = None
    """The conversation that ``prompt`` is in the model's chat format, if it is one."""


class Listener(Protocol):
    """Told of every change, in the order in which the engine reports them."""

    def update(self, output: RequestOutput) -> None:
        """Take note of a request's new state; ``output.finished`` on its last."""
        ...


def run_jobs(
    engine: LLMEngine,
    jobs: Sequence[Job],
    listener: Listener,
    interrupted: Callable[[], bool] = lambda: False,
    *,
    accepted: Callable[[], None] = lambda: None,
) -> bool:
    """Run all jobs to their end in shared batches.

    When ``interrupted`` turns true, the unfinished ones are aborted after the step in progress and
    reported with ``finish_reason="abort"``. However this ends, no job is left in the engine.
    ``accepted`` is called once, when none of the jobs can be refused any more.

    Returns:
        Whether all ran to their end, that is, none was interrupted.

    Raises:
        RequestError: a job cannot be served as asked; then none has been started.
    """
    unfinished = {job.request_id: None for job in jobs}
    try:
        for job in jobs:
            _add(engine, job)
        accepted()
        while unfinished:
            stop = interrupted()
            if stop:
                for request_id in unfinished:
                    engine.abort(request_id)
            for output in engine.step():
                if output.finished:
                    unfinished.pop(output.request_id, None)
                listener.update(output)
            if stop:
                return False
        return True
    finally:
        for request_id in unfinished:
            engine.abort(request_id, report=False)


def _add(engine: LLMEngine, job: Job) -> None:
    try:
        try:
            engine.add_request(job.request_id, job.prompt, job.params, **job.request_fields)
        except RequestTooLargeError:
            if not job.shrink_to_fit:
                raise
            # Without max_tokens the engine gives what fits, or says why nothing does.
            params = replace(job.params, max_tokens=None)
            engine.add_request(job.request_id, job.prompt, params, **job.request_fields)
    except RequestError as error:
        if not job.source:
            raise
        raise RequestError(f"{job.source}: {error}") from error
