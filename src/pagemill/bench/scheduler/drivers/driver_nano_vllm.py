"""nano-vllm's scheduler, without a model or a device. Runs in `host.py`.

Its package imports CUDA kernels when it is imported, and its configuration imports transformers.
The scheduler's modules need neither, so they are imported without them.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import time
from importlib import metadata
from types import ModuleType, SimpleNamespace
from typing import Any

_PACKAGE = "nanovllm"
_DRAWN = 7


def _module(name: str) -> Any:
    return importlib.import_module(f"{_PACKAGE}.{name}")


def _prepare_package() -> None:
    """Make the package importable module by module."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None:
        raise ModuleNotFoundError(f"no module named {_PACKAGE}")
    package = ModuleType(_PACKAGE)
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[_PACKAGE] = package
    # The scheduler names this class as the type of a parameter, which is a `SimpleNamespace` here.
    configuration = ModuleType(f"{_PACKAGE}.config")
    vars(configuration)["Config"] = SimpleNamespace
    sys.modules[configuration.__name__] = configuration


_prepare_package()
_sequence, _scheduler = _module("engine.sequence"), _module("engine.scheduler")
_params = _module("sampling_params")


def about() -> dict[str, Any]:
    """The distribution that holds the package, and its version."""
    names = metadata.packages_distributions().get(_PACKAGE, [])
    if not names:
        return {"engine": "nano-vllm", "version": "of a checkout"}
    return {"engine": names[0], "version": metadata.version(names[0])}


class Driven:
    """A ``nanovllm.engine.scheduler.Scheduler``, timed. It computes prompts and decodes in
    different steps.

    Args:
        trace: sizes of the pool and of steps.
    """

    def __init__(self, trace: dict[str, Any]) -> None:
        # The class asks for multiples of 256, which its kernels need and its scheduler does not.
        _sequence.Sequence.block_size = trace["block_size"]
        config = SimpleNamespace(
            max_num_seqs=trace["num_running"],
            max_num_batched_tokens=trace["max_num_batched_tokens"],
            eos=-1,
            num_kvcache_blocks=trace["num_blocks"],
            kvcache_block_size=trace["block_size"],
            hf_config=None,
        )
        self._scheduler = _scheduler.Scheduler(config)
        parameters = inspect.signature(self._scheduler.postprocess).parameters
        self._tells_prefill = len(parameters) > 2
        self._numbers: dict[int, int] = {}

    def add(self, number: int, prompt: list[int], max_tokens: int) -> None:
        """Queue a request."""
        params = _params.SamplingParams(temperature=1.0, max_tokens=max_tokens, ignore_eos=True)
        sequence = _sequence.Sequence(prompt, params)
        self._numbers[sequence.seq_id] = number
        self._scheduler.add(sequence)

    def step(self) -> tuple[int, int, list[int], dict[str, float]]:
        """One step, in parts."""
        began = time.perf_counter()
        sequences, is_prefill = self._scheduler.schedule()
        scheduled = time.perf_counter()
        rows = sum(map(_rows_of, sequences)) if is_prefill else len(sequences)
        lengths = [len(sequence) for sequence in sequences]
        tokens = [_DRAWN] * len(sequences)
        told = (is_prefill,) if self._tells_prefill else ()
        before = time.perf_counter()
        self._scheduler.postprocess(sequences, tokens, *told)
        after = time.perf_counter()
        drawn = sum(len(s) > length for s, length in zip(sequences, lengths))  # noqa: B905
        ended = [self._numbers.pop(s.seq_id) for s in sequences if s.is_finished]
        return rows, drawn, ended, {"schedule": scheduled - began, "update": after - before}


def _rows_of(sequence: Any) -> int:
    """Tokens of a prompt that this step computes; versions that cut prompts say so."""
    uncached = len(sequence) - sequence.num_cached_tokens
    return int(getattr(sequence, "num_scheduled_tokens", uncached))
