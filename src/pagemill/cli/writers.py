"""Listeners that show answers: as text while it comes, as JSON lines, with a progress bar."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from tqdm import tqdm

from pagemill.cli.serialize import output_to_dict
from pagemill.cli.streaming import Job, Listener
from pagemill.metrics import MetricsCollector
from pagemill.outputs import CompletionOutput, RequestOutput

HEADER_CHARACTERS = 60
"""How much of a prompt a header shows."""
_BAR_FORMAT = (
    "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} "
    "[{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"
)
"""tqdm's own, but always requests a second: it would turn to seconds a request when slow."""


@dataclass(frozen=True)
class _Answer:
    """One sample of one job, in the order in which they are shown."""

    job: Job
    job_number: int
    sample: int


class TextWriter:
    """Writes answers in the order of their jobs, the first unfinished one as it comes.

    A single answer is written bare; of several, each has a header. An answer that was aborted is
    written as far as it came, and left out if it has no text yet.

    Args:
        jobs: what will be answered.
        out: where to.
        live: write the first unfinished answer while it grows; otherwise only whole ones.
        echo: write the prompt before its answer.
        lead: write this before anything else, if there is anything.
        interrupted: whether the user pressed Ctrl-C, which terminals show in the middle of the
            line; what is still to be written then begins on a fresh one.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        out: TextIO,
        *,
        live: bool = True,
        echo: bool = False,
        lead: str = "",
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._out = out
        self._live = live
        self._echo = echo
        self._lead = lead
        self._interrupted = interrupted
        self._left_interrupted_line = False
        self._num_jobs = len(jobs)
        self._answers = [
            _Answer(job, number, sample)
            for number, job in enumerate(jobs, 1)
            for sample in range(job.params.n)
        ]
        self._latest: dict[str, RequestOutput] = {}
        self._current = 0
        self._begun = False
        self._num_written = 0
        self._at_line_start = True
        self._on_terminal = out.isatty()

    def update(self, output: RequestOutput) -> None:
        """Write what this makes showable."""
        self._latest[output.request_id] = output
        while self._current < len(self._answers) and self._advance():
            pass
        self._out.flush()

    def end_line(self) -> None:
        """Leave the cursor at the beginning of a line, whatever was written."""
        self._leave_interrupted_line()
        if not self._at_line_start:
            self._write("\n")
            self._out.flush()

    def _advance(self) -> bool:
        """Write more of the current answer; whether it is done and the next one's turn has come."""
        answer = self._answers[self._current]
        output = self._latest.get(answer.job.request_id)
        if output is None:
            return False
        completion = output.outputs[answer.sample]
        done = completion.finish_reason is not None
        if done or self._live:
            self._show(answer, output, completion)
        if done:
            self._next(answer)
        return done

    def _show(self, answer: _Answer, output: RequestOutput, completion: CompletionOutput) -> None:
        if not self._begun:
            if completion.finish_reason == "abort" and not completion.text:
                return
            self._begin(answer, output)
        self._write(completion.text[self._num_written :])
        self._num_written = len(completion.text)
        if completion.finish_reason is not None:
            self.end_line()

    def _begin(self, answer: _Answer, output: RequestOutput) -> None:
        self._begun = True
        self._write(self._lead)
        if len(self._answers) > 1:
            self._lead = "\n"  # before the next one
            self._write(f"{_bold(self._header(answer), self._on_terminal)}\n", raw=True)
        if self._echo and output.prompt is not None:
            self._write(output.prompt)

    def _header(self, answer: _Answer) -> str:
        number = f"{answer.job_number}/{self._num_jobs}" if self._num_jobs > 1 else ""
        samples = answer.job.params.n
        sample = f"sample {answer.sample + 1}/{samples}" if samples > 1 else ""
        label = ", ".join(part for part in (number, sample) if part)
        return f"[{label}] {_shortened(_asked(answer.job))}"

    def _next(self, answer: _Answer) -> None:
        if answer.sample == answer.job.params.n - 1:
            del self._latest[answer.job.request_id]
        self._current += 1
        self._begun = False
        self._num_written = 0

    def _leave_interrupted_line(self) -> None:
        if self._on_terminal and not self._left_interrupted_line and self._interrupted():
            self._left_interrupted_line = self._at_line_start = True
            self._out.write("\n")

    def _write(self, text: str, *, raw: bool = False) -> None:
        if text:
            self._leave_interrupted_line()
            self._at_line_start = text.endswith("\n")
            self._out.write(text if raw or not self._on_terminal else printable(text))


class JsonWriter:
    """Writes one JSON object a line for each finished request, in the order of the jobs."""

    def __init__(self, jobs: Sequence[Job], out: TextIO) -> None:
        self._out = out
        self._jobs = jobs
        self._finished: dict[str, RequestOutput] = {}
        self._num_written = 0

    def update(self, output: RequestOutput) -> None:
        """Write what has become complete."""
        if not output.finished:
            return
        self._finished[output.request_id] = output
        while self._num_written < len(self._jobs):
            job = self._jobs[self._num_written]
            ready = self._finished.pop(job.request_id, None)
            if ready is None:
                break
            write_json_line(output_to_dict(ready, job.messages), self._out)
            self._num_written += 1


class ProgressBar:
    """Shows how many requests are done, and tokens a second, around another listener.

    It appears with `open`. The bar is wiped before the other one writes, for both may write on the
    same terminal.
    """

    def __init__(
        self, inner: Listener, num_jobs: int, metrics: MetricsCollector, stream: TextIO
    ) -> None:
        self._inner = inner
        self._num_jobs = num_jobs
        self._metrics = metrics
        self._stream = stream
        self._shares_terminal = stream.isatty() and sys.stdout.isatty()
        self._bar: tqdm[Any] | None = None

    def open(self) -> None:
        """Draw the empty bar."""
        self._bar = tqdm(
            total=self._num_jobs,
            desc="requests",
            unit="req",
            file=self._stream,
            miniters=0,  # the speed is redrawn although no request has finished
            bar_format=_BAR_FORMAT,
        )

    def update(self, output: RequestOutput) -> None:
        """Pass on and redraw."""
        assert self._bar is not None, "requests are run after they have been accepted"
        wipe = self._shares_terminal and output.finished
        if wipe:
            self._bar.clear()
        self._inner.update(output)
        speed = f"{self._metrics.generation_tokens_per_second:.1f} tok/s"
        self._bar.set_postfix_str(speed, refresh=wipe)
        aborted = any(completion.finish_reason == "abort" for completion in output.outputs)
        self._bar.update(int(output.finished and not aborted))

    def close(self) -> None:
        """Draw the final state and end the line, if the bar is there."""
        if self._bar is not None:
            self._bar.close()


def write_json_line(value: dict[str, Any], out: TextIO) -> None:
    """Write one JSON object and a newline, at once."""
    out.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")
    out.flush()


def printable(text: str) -> str:
    """Text for a terminal: a model, or a file's prompt, cannot move its cursor or set its title."""
    if text.isprintable():
        return text
    return "".join(
        c if c in "\n\t" or not (ord(c) < 32 or 127 <= ord(c) < 160) else "\ufffd" for c in text
    )


def _asked(job: Job) -> str | Sequence[int]:
    """What an answer's header shows: of a conversation, the last message."""
    return job.prompt if job.messages is None else job.messages[-1].get("content") or ""


def _shortened(prompt: str | Sequence[int]) -> str:
    """The beginning of a prompt on one line."""
    if not isinstance(prompt, str):
        return f"{len(prompt)} token ids"
    line = printable(" ".join(prompt[: HEADER_CHARACTERS * 4].split()))
    shorter = len(line) > HEADER_CHARACTERS
    return line[: HEADER_CHARACTERS - 1] + "…" if shorter else line


def _bold(text: str, on_terminal: bool) -> str:
    return f"\x1b[1m{text}\x1b[0m" if on_terminal else text
