"""``pagemill generate``: complete prompts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagemill.cli import EXIT_INTERRUPTED, prompts
from pagemill.cli.opening import note, opened
from pagemill.cli.streaming import Job, Listener, run_jobs
from pagemill.cli.writers import JsonWriter, ProgressBar, TextWriter, write_json_line
from pagemill.config import EngineConfig
from pagemill.engine import LLMEngine
from pagemill.errors import RequestError
from pagemill.interrupts import InterruptFlag


@dataclass(frozen=True, kw_only=True)
class GenerateCommand:
    """A parsed ``pagemill generate``; call it to run it."""

    config: EngineConfig
    texts: Sequence[str]
    prompts_file: str | None
    sampling: dict[str, Any]
    """Fields of `SamplingParams` that hold for each prompt."""
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
            return self.run(assembly.engine, jobs)

    def run(self, engine: LLMEngine, jobs: Sequence[Job]) -> int:
        """Answer ``jobs`` on an engine that is there; returns the exit code."""
        text = TextWriter(jobs, sys.stdout, live=self.prompts_file is None, echo=self.echo)
        listener: Listener = JsonWriter(jobs, sys.stdout) if self.as_json else text
        bar = None
        if self.prompts_file is not None:
            listener = bar = ProgressBar(listener, len(jobs), engine.metrics, sys.stderr)
        try:
            with InterruptFlag() as interrupted:
                completed = run_jobs(engine, jobs, listener, interrupted)
        finally:
            if bar is not None:
                bar.close()
            text.end_line()
        if self.show_stats:
            self._print_stats(engine)
        return 0 if completed else EXIT_INTERRUPTED

    def _jobs(self) -> list[Job]:
        asks = prompts.from_options(self.texts)
        if self.prompts_file is not None:
            asks += prompts.from_file(self.prompts_file)
        if not asks:
            raise RequestError("no prompt; give one with -p TEXT, or many with --prompts-file FILE")
        jobs = prompts.make_jobs(asks, self.sampling)
        if any(job.params.n > 1 and job.params.greedy for job in jobs):
            note("n > 1 with temperature 0 gives the same answer n times; try --temperature 0.8")
        return jobs

    def _print_stats(self, engine: LLMEngine) -> None:
        stats = engine.metrics.stats()
        if self.as_json:
            write_json_line(stats, sys.stderr)
            return
        from rich.console import Console

        from pagemill.cli.stats import print_stats

        print_stats(stats, Console(stderr=True))
