"""``pagemill generate``: answer prompts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pagemill.cli import EXIT_INTERRUPTED, prompts
from pagemill.cli.opening import note, opened
from pagemill.cli.prompts import Ask
from pagemill.cli.streaming import Job, Listener, run_jobs
from pagemill.cli.writers import JsonWriter, ProgressBar, TextWriter, write_json_line
from pagemill.config import EngineConfig
from pagemill.engine import LLMEngine
from pagemill.errors import RequestError
from pagemill.interrupts import InterruptFlag
from pagemill.outputs import RequestOutput


@dataclass(frozen=True, kw_only=True)
class GenerateCommand:
    """A parsed ``pagemill generate``; call it to run it."""

    config: EngineConfig
    texts: Sequence[str]
    prompts_file: str | None
    sampling: dict[str, Any]
    """Fields of `SamplingParams` that hold for each prompt."""
    chat: bool = False
    """Each prompt is a user's message."""
    system: str | None = None
    """Opens each conversation; only with ``chat``."""
    echo: bool = False
    as_json: bool = False
    show_stats: bool = False

    def __call__(self) -> int:
        """Run to the end or to Ctrl-C; returns the exit code.

        Raises:
            RequestError: a prompt cannot be served as asked; then none is answered.
        """
        jobs = self._jobs()  # before the model is loaded: that takes longer than a typing error
        with opened(self.config) as assembly:
            return self.run(assembly.engine, prompts.render_chats(jobs, assembly.tokenizer))

    def run(self, engine: LLMEngine, jobs: Sequence[Job]) -> int:
        """Answer ``jobs`` on an engine that is there; returns the exit code."""
        interrupted = InterruptFlag()
        bar = None
        text = None if self.as_json else self._text_writer(jobs, interrupted)
        writer: Listener = text or JsonWriter(jobs, sys.stdout)
        if self._shows_bar:
            writer = bar = ProgressBar(writer, len(jobs), engine.metrics, sys.stderr)
        answers = _AnswerCount(writer)
        try:
            with interrupted:
                completed = run_jobs(
                    engine, jobs, answers, interrupted, accepted=bar.open if bar else _nothing
                )
        finally:
            if bar is not None:
                bar.close()
            if text is not None:
                text.end_line()
        num_answers = sum(job.params.n for job in jobs)
        if not completed and num_answers > 1:
            self._note(f"interrupted: {answers.num_complete} of {num_answers} answers are complete")
        if self.show_stats:
            self._print_stats(engine)
        return 0 if completed else EXIT_INTERRUPTED

    @property
    def _shows_bar(self) -> bool:
        return self.prompts_file is not None and sys.stderr.isatty() and not self._stderr_is_json

    @property
    def _stderr_is_json(self) -> bool:
        """Whether standard error is for one JSON object, and so for nothing else."""
        return self.as_json and self.show_stats

    def _note(self, text: str) -> None:
        if not self._stderr_is_json:
            note(text)

    def _text_writer(self, jobs: Sequence[Job], interrupted: Callable[[], bool]) -> TextWriter:
        if self.prompts_file is None:
            return TextWriter(jobs, sys.stdout, echo=self.echo, interrupted=interrupted)
        return TextWriter(jobs, sys.stdout, live=False, echo=self.echo)

    def _jobs(self) -> list[Job]:
        asks = prompts.from_options(self.texts)
        if self.prompts_file is not None:
            asks += prompts.from_file(self.prompts_file)
        if not asks:
            raise RequestError("no prompt; give one with -p TEXT, or many with --prompts-file FILE")
        if self.chat:
            asks = prompts.as_chats(asks, self.system)
        jobs = prompts.make_jobs(asks, self.sampling)
        for ask, job in zip(asks, jobs, strict=True):
            self._refuse_what_would_not_show(ask, job)
        if any(job.params.n > 1 and job.params.greedy for job in jobs):
            self._note(
                "n > 1 with temperature 0 gives the same answer n times; try --temperature 0.8"
            )
        return jobs

    def _refuse_what_would_not_show(self, ask: Ask, job: Job) -> None:
        if self.echo and (ask.messages is not None or not isinstance(ask.prompt, str)):
            what = "token ids" if ask.messages is None else "a conversation"
            raise RequestError(f"{ask.source}: --echo repeats a text, but this is {what}; drop it")
        for name in ("logprobs", "prompt_logprobs"):
            if not self.as_json and getattr(job.params, name) is not None:
                raise RequestError(f"{ask.source}: {name} is shown with --json only; add --json")

    def _print_stats(self, engine: LLMEngine) -> None:
        stats = engine.metrics.stats()
        if self.as_json:
            write_json_line(stats, sys.stderr)
            return
        from rich.console import Console

        from pagemill.cli.stats import print_stats

        print_stats(stats, Console(stderr=True))


class _AnswerCount:
    """Passes on to a writer, and counts the answers that came to their own end."""

    def __init__(self, writer: Listener) -> None:
        self._writer = writer
        self.num_complete = 0

    def update(self, output: RequestOutput) -> None:
        if output.finished:
            self.num_complete += sum(c.finish_reason != "abort" for c in output.outputs)
        self._writer.update(output)


def _nothing() -> None:
    pass
