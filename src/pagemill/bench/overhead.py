"""How much of a decode step is not arithmetic: where Python spends time in `LLMEngine.step`.

One request decodes alone, so that the arithmetic is as short as it gets. Each phase of a step is
timed around the engine's own calls, without the time of phases inside it; what native code takes is
a phase of its own.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pagemill.bench.command import BenchCommand, measured_on, rounds
from pagemill.bench.figures import model_name, percent
from pagemill.bench.progress import Progress
from pagemill.bench.report import Table
from pagemill.config import DEFAULT_MODEL, EngineConfig
from pagemill.engine import LLMEngine
from pagemill.errors import EngineError
from pagemill.request import Request
from pagemill.sampling_params import SamplingParams

NATIVE: Final = "native kernels"
OTHER: Final = "the rest of step()"
PHASES: Final = (
    NATIVE,
    "schedule",
    "build the batch",
    "call the kernels",
    "sample",
    "apply",
    "make outputs",
    OTHER,
)
"""Of a step, in its order but for the first and the last."""
PROMPT_TOKENS: Final = 128
OUTPUT_TOKENS: Final = 128
_SAMPLING: Final = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True),
    "drawn": SamplingParams(temperature=0.8, top_p=0.95, max_tokens=OUTPUT_TOKENS, ignore_eos=True),
}


class PhaseClock:
    """Seconds spent in each phase, phases inside it left out.

    Args:
        now: seconds of a monotonic clock.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._running: list[str] = []
        self._since = 0.0
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the body to ``name``."""
        self._count_up()
        self._running.append(name)
        try:
            yield
        finally:
            self._count_up()
            self._running.pop()

    @contextmanager
    def timing(self, owner: Any, attribute: str, name: str) -> Iterator[None]:
        """While in the body, count every call of ``owner.attribute`` to ``name``."""
        original = getattr(owner, attribute)
        is_own = attribute in vars(owner)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                return original(*args, **kwargs)

        setattr(owner, attribute, timed)
        try:
            yield
        finally:
            if is_own:
                setattr(owner, attribute, original)
            else:
                delattr(owner, attribute)

    def take(self) -> dict[str, float]:
        """What was counted since the last time, and begin again."""
        counted, self.seconds = dict(self.seconds), defaultdict(float)
        return counted

    def _count_up(self) -> None:
        now = self._now()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


@contextmanager
def _timed_steps(engine: LLMEngine) -> Iterator[PhaseClock]:
    """Time the phases of ``engine``'s steps, which runs on the native kernels."""
    from pagemill.kernels import native
    from pagemill.runner import native_runner

    clock, library = PhaseClock(), native.library()
    with ExitStack() as stack:
        for owner, attribute, phase in (
            (engine, "step", OTHER),
            (engine.scheduler, "schedule", "schedule"),
            (engine, "_build", "build the batch"),
            (engine, "_execute", "call the kernels"),
            (native_runner, "sample_and_score", "sample"),
            (library, "pagemill_program_run", NATIVE),
            (library, "pagemill_vocab_run", NATIVE),
            (engine, "_apply", "apply"),
            (Request, "to_output", "make outputs"),
        ):
            stack.enter_context(clock.timing(owner, attribute, phase))
        yield clock


def time_decode(
    engine: LLMEngine, params: SamplingParams, *, stream: bool, seed: int
) -> list[dict[str, float]]:
    """Seconds of each phase in each decode step of one request, the first and last left out."""
    prompt = random.Random(seed).choices(range(engine.runner.vocab_size), k=PROMPT_TOKENS)
    engine.add_request("overhead", prompt, params, stream=stream)
    steps = []
    with _timed_steps(engine) as clock:
        while engine.has_unfinished_requests():
            engine.step()
            steps.append(clock.take())
    return steps[2:-1]


def summarize(steps: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Medians over steps, in microseconds; and what share of a step was not native code."""
    phases = {
        phase: statistics.median(step.get(phase, 0.0) for step in steps) * 1e6 for phase in PHASES
    }
    totals = [sum(step.values()) for step in steps]
    python = [total - step[NATIVE] for total, step in zip(totals, steps, strict=True)]
    shares = [part / total for part, total in zip(python, totals, strict=True)]
    return {
        "steps": len(steps),
        "step_us": statistics.median(totals) * 1e6,
        "python_us": statistics.median(python) * 1e6,
        "python_share": statistics.median(shares),
        "phases_us": phases,
    }


@dataclass(frozen=True, kw_only=True)
class OverheadCommand(BenchCommand):
    """A parsed ``pagemill bench overhead``.

    Attributes:
        model: what is run.
    """

    NAME: ClassVar[str] = "overhead"

    model: str = DEFAULT_MODEL

    def measure(self) -> dict[str, Any]:
        """Each kind of request in turn, ``repeats`` times."""
        from pagemill.assembly import build_engine
        from pagemill.kernels import native

        if native.load() is None:
            raise EngineError(f"no native kernels to measure: {native.unavailable_reason()}")
        config = EngineConfig(model=self.model, num_threads=self.num_threads, num_kv_blocks=64)
        engine = build_engine(config).engine
        kinds = [(kind, stream) for kind in _SAMPLING for stream in (False, True)]
        steps: dict[tuple[str, bool], list[dict[str, float]]] = defaultdict(list)
        try:
            with Progress(self.repeats * len(kinds)) as progress:
                for seed, turn in rounds(kinds, self.repeats):
                    for kind, stream in turn:
                        progress.doing(f"{kind}, {'stream' if stream else 'no stream'}")
                        steps[kind, stream] += time_decode(
                            engine, _SAMPLING[kind], stream=stream, seed=seed
                        )
                        progress.done()
        finally:
            engine.close()
        return {
            "model": self.model,
            "decodes": [
                {"sampling": kind, "stream": stream, **summarize(steps[kind, stream])}
                for kind, stream in kinds
            ],
        }

    def tables(self, result: Mapping[str, Any]) -> list[Table]:
        """Phases by rows, kinds of requests by columns."""
        decodes = result["decodes"]
        columns = [
            f"{decode['sampling']}, {'streamed' if decode['stream'] else 'not streamed'}"
            for decode in decodes
        ]
        rows = [
            [phase, *(f"{decode['phases_us'][phase]:.0f} µs" for decode in decodes)]
            for phase in PHASES
        ]
        rows.append(["a step", *(f"{decode['step_us']:.0f} µs" for decode in decodes)])
        outside = [f"{d['python_us']:.0f} µs, {percent(d['python_share'])}" for d in decodes]
        rows.append(["of it not native", *outside])
        notes = [
            f"{model_name(result)}: medians over {decodes[0]['steps']} decode steps of each kind, "
            f"one request of {PROMPT_TOKENS} tokens at a time. *Drawn* is with temperature and "
            f"top-p.",
            *measured_on(result),
        ]
        return [Table("Where a decode step at batch 1 goes", ["", *columns], rows, notes)]
