"""Benchmarks of the KV memory: ``pagemill bench memory``, ``prefix``, ``swap``, ``scheduler``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from pagemill.cli.bench import BenchOptions
from pagemill.cli.option_groups import expand_options
from pagemill.cli.options import FILE, FLAG, FLOAT, INT, DebugOption, ModelArgument
from pagemill.cli.parsed import Parsed
from pagemill.config import DEFAULT_MODEL
from pagemill.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class FastOption:
    """For benchmarks that have a short version."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {}

    fast: Annotated[
        bool,
        typer.Option("--fast", help="A short run, to see that it works.", metavar=FLAG),
    ] = False


def _shared(options: BenchOptions, short: FastOption) -> dict[str, Any]:
    """What every command of this module takes."""
    if options.from_json is not None and options.json is not None:
        raise ConfigError("--from-json measures nothing that --json could write; drop one")
    return {
        "num_threads": options.threads,
        "repeats": options.repeats,
        "fast": short.fast,
        "json": options.json,
        "docs": options.docs,
        "from_json": options.from_json,
    }


@expand_options({})
def memory(
    options: BenchOptions,
    short: FastOption,
    model: ModelArgument = None,
    num_requests: Annotated[
        int, typer.Option("--requests", help="How many, up to 128.", metavar=INT)
    ] = 64,
    max_model_len: Annotated[
        int,
        typer.Option(
            "--max-model-len", help="The context, which the first baseline reserves.", metavar=INT
        ),
    ] = 2048,
    block_size: Annotated[
        int, typer.Option("--block-size", help="Token slots in a block.", metavar=INT)
    ] = 16,
    debug: DebugOption = False,
) -> Parsed:
    """What share of the KV memory holds anything: contiguous reservation against paged blocks.

    Requests have the lengths of ShareGPT conversations. Scheduler, kernels and pool are the same.
    """
    from pagemill.bench.memory import MemoryCommand

    command = MemoryCommand(
        **_shared(options, short),
        model=model or DEFAULT_MODEL,
        num_requests=num_requests,
        max_model_len=max_model_len,
        block_size=block_size,
    )
    return Parsed(command, debug)


@expand_options({})
def prefix(
    options: BenchOptions,
    short: FastOption,
    model: ModelArgument = None,
    debug: DebugOption = False,
) -> Parsed:
    """What sharing computed prefixes saves: prefill work, wall time, and hits inside a block."""
    from pagemill.bench.prefix import PrefixCommand

    return Parsed(PrefixCommand(**_shared(options, short), model=model or DEFAULT_MODEL), debug)


@expand_options({})
def swap(
    options: BenchOptions,
    short: FastOption,
    model: ModelArgument = None,
    swap_dir: Annotated[
        Path | None,
        typer.Option(
            "--swap-dir",
            help="Where the swap file is created; default the directory for temporary files.",
            metavar="DIR",
        ),
    ] = None,
    debug: DebugOption = False,
) -> Parsed:
    """What a preemption costs: blocks out and in again, against computing them again.

    By length, to memory and to a file; then whole workloads, with swap, recompute and auto in turn.
    """
    from pagemill.bench.swap import SwapCommand

    if swap_dir is not None and not swap_dir.is_dir():
        raise ConfigError(f"--swap-dir={swap_dir} is no directory")
    command = SwapCommand(
        **_shared(options, short), model=model or DEFAULT_MODEL, swap_dir=swap_dir
    )
    return Parsed(command, debug)


@expand_options({})
def scheduler(
    options: BenchOptions,
    short: FastOption,
    vllm_python: Annotated[
        Path | None,
        typer.Option("--vllm-python", help="A Python that has vLLM.", metavar=FILE),
    ] = None,
    nano_vllm_python: Annotated[
        Path | None,
        typer.Option("--nano-vllm-python", help="A Python that has nano-vllm.", metavar=FILE),
    ] = None,
    limit: Annotated[
        float,
        typer.Option(
            "--limit", help="End a run that takes more seconds, and report it so.", metavar=FLOAT
        ),
    ] = 600.0,
    debug: DebugOption = False,
) -> Parsed:
    """What planning a step costs, by the number of sequences; no model.

    Other engines' schedulers are driven on the same trace, each in a process of its own.
    """
    from pagemill.bench.scheduler import SchedulerCommand

    if options.num_threads not in (None, 1):
        raise ConfigError(f"--threads={options.num_threads}: a scheduler is one thread; drop it")
    if not limit > 0:
        raise ConfigError(f"--limit must be above 0 seconds, got {limit}")
    for name, path in (("--vllm-python", vllm_python), ("--nano-vllm-python", nano_vllm_python)):
        if path is not None and not path.is_file():
            raise ConfigError(f"{name}={path}: there is no such file")
    command = SchedulerCommand(
        **_shared(replace(options, num_threads=1), short),
        vllm_python=vllm_python,
        nano_vllm_python=nano_vllm_python,
        limit_s=limit,
    )
    return Parsed(command, debug)


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this module to ``pagemill bench``."""
    for command in (memory, prefix, swap, scheduler):
        app.command()(command)
