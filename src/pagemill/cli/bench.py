"""``pagemill bench``: each benchmark one command, that measures, compares and reports.

A benchmark's own module, in `pagemill.bench`, is imported when its command is to run.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from pagemill.cli.option_groups import expand_options
from pagemill.cli.options import FILE, FLAG, FLOAT, INT, TEXT, DebugOption, ModelArgument
from pagemill.cli.parsed import Parsed
from pagemill.config import DEFAULT_MODEL
from pagemill.errors import ConfigError

app = typer.Typer(
    help="Measure this machine, this engine, and others beside it.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    """Measure this machine, this engine, and others beside it."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """What every benchmark takes."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "num_threads": "the processors that it may use",
    }

    num_threads: Annotated[
        int | None,
        typer.Option("--threads", "--num-threads", help="Threads that compute.", metavar=INT),
    ] = None
    json: Annotated[
        Path | None,
        typer.Option("--json", help="Write everything that was measured.", metavar=FILE),
    ] = None
    docs: Annotated[
        Path | None,
        typer.Option(
            "--docs", help="Put the tables between their markers in this document.", metavar=FILE
        ),
    ] = None
    from_json: Annotated[
        Path | None,
        typer.Option(
            "--from-json", help="Measure nothing: make the tables of this result.", metavar=FILE
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.num_threads is not None and self.num_threads < 1:
            raise ConfigError(f"--threads must be at least 1, got {self.num_threads}")
        # Hours of measuring must not end in a file that cannot be written.
        for name, path in (("--json", self.json), ("--docs", self.docs)):
            if path is not None and not path.absolute().parent.is_dir():
                raise ConfigError(f"{name}={path}: there is no directory {path.absolute().parent}")

    @property
    def threads(self) -> int:
        """Threads that compute. Imports torch if the user gave no number."""
        if self.num_threads is not None:
            return self.num_threads
        from pagemill.kernels.native import available_cpus

        return available_cpus()


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ReportOptions):
    """What a benchmark of time takes."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = ReportOptions.DEFAULTS

    repeats: Annotated[
        int, typer.Option("--repeats", help="Measure each thing so often.", metavar=INT)
    ] = 5

    def __post_init__(self) -> None:
        ReportOptions.__post_init__(self)
        if self.repeats < 1:
            raise ConfigError(f"--repeats must be at least 1, got {self.repeats}")


@app.command()
@expand_options({})
def peers(
    options: BenchOptions,
    model: ModelArgument = DEFAULT_MODEL,
    peers_dir: Annotated[
        Path | None,
        typer.Option(
            "--peers-dir",
            help="Where the other engines are; docs/performance.md says how they get there.",
            metavar="DIR",
        ),
    ] = None,
    scenarios: Annotated[
        str | None,
        typer.Option(
            "--scenarios",
            help="Only these, with commas between: S1, S2, S3, S4, S5, S1-float32, S3-float32, "
            "S1-bfloat16, S3-bfloat16, memory, start.",
            metavar="NAMES",
        ),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(
            "--peers",
            help="Only these, with commas between: llama.cpp, openvino, vllm, transformers, "
            "ctranslate2.",
            metavar="NAMES",
        ),
    ] = None,
    neighbour_repeats: Annotated[
        int, typer.Option("--neighbour-repeats", help="--repeats of S5.", metavar=INT)
    ] = 3,
    limit: Annotated[
        float,
        typer.Option(
            "--limit", help="End a run that takes more seconds, and report it so.", metavar=FLOAT
        ),
    ] = 300.0,
    debug: DebugOption = False,
) -> Parsed:
    """Run this engine and others in turn: same model, same prompts, same threads.

    Each round runs every engine once; figures are medians, and ratios medians of the rounds'
    ratios. Meant for a machine that has nothing else to do; takes long with many engines.
    --from-json takes several results, with commas between.
    """
    from pagemill.bench.peers.command import MEASUREMENTS, PeersCommand
    from pagemill.bench.peers.installed import PEERS
    from pagemill.bench.peers.show import ShowPeersCommand

    if options.from_json is not None:
        if options.json is not None:
            raise ConfigError("--from-json measures nothing that --json could write; drop one")
        paths = [Path(name.strip()) for name in str(options.from_json).split(",")]
        return Parsed(ShowPeersCommand(from_json=paths, docs=options.docs), debug)
    if neighbour_repeats < 1:
        raise ConfigError(f"--neighbour-repeats must be at least 1, got {neighbour_repeats}")
    if not limit > 0:
        raise ConfigError(f"--limit must be above 0 seconds, got {limit}")
    command = PeersCommand(
        model=model or DEFAULT_MODEL,
        peers_dir=peers_dir,
        measurements=chosen("--scenarios", scenarios, MEASUREMENTS),
        peers=chosen("--peers", peers, PEERS),
        repeats=options.repeats,
        neighbour_repeats=neighbour_repeats,
        num_threads=options.threads,
        limit_s=limit,
        json=options.json,
        docs=options.docs,
    )
    return Parsed(command, debug)


@app.command()
@expand_options({})
def roofline(
    options: BenchOptions,
    shapes: Annotated[
        str,
        typer.Option("--shapes", help="smollm2, large or all.", metavar=TEXT),
    ] = "smollm2",
    formats: Annotated[
        str | None,
        typer.Option(
            "--formats", help="Of weights, as in Q4_0,float32; default all.", metavar=TEXT
        ),
    ] = None,
    debug: DebugOption = False,
) -> Parsed:
    """Measure what this machine allows, and what share of it each op of the kernels reaches."""
    from pagemill.bench.roofline import RooflineCommand

    command = RooflineCommand(
        num_threads=options.threads,
        repeats=options.repeats,
        shapes=shapes,
        formats=formats,
        json=options.json,
        docs=options.docs,
        from_json=options.from_json,
    )
    return Parsed(command, debug)


@app.command()
@expand_options({})
def overhead(
    options: BenchOptions, model: ModelArgument = None, debug: DebugOption = False
) -> Parsed:
    """Measure what part of a decode step at batch 1 is Python, by phase."""
    from pagemill.bench.overhead import OverheadCommand

    command = OverheadCommand(
        model=model or DEFAULT_MODEL,
        num_threads=options.threads,
        repeats=options.repeats,
        json=options.json,
        docs=options.docs,
        from_json=options.from_json,
    )
    return Parsed(command, debug)


@app.command()
@expand_options({})
def serving(
    options: BenchOptions,
    model: ModelArgument = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="A short run, to see that it works.", metavar=FLAG)
    ] = False,
    debug: DebugOption = False,
) -> Parsed:
    """Measure what HTTP costs, and what a long prompt costs those beside it.

    A real server and a real client, each a process, beside `LLM.generate` in a third one.
    """
    from pagemill.bench.serving.command import ServingCommand

    command = ServingCommand(
        model=model or DEFAULT_MODEL,
        num_threads=options.threads,
        repeats=options.repeats,
        fast=fast,
        json=options.json,
        docs=options.docs,
        from_json=options.from_json,
    )
    return Parsed(command, debug)


@app.command()
@expand_options({})
def numerics(
    options: ReportOptions,
    model: ModelArgument = None,
    text: Annotated[
        Path | None,
        typer.Option(
            "--text", help="A text to predict; default one that ships with it.", metavar=FILE
        ),
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(
            "--formats",
            help="Of weights, keys and values, as in stored,int8,stored+kv-int8; default all.",
            metavar=TEXT,
        ),
    ] = None,
    window: Annotated[
        int, typer.Option("--window", help="Tokens of the text in one prompt.", metavar=INT)
    ] = 512,
    debug: DebugOption = False,
) -> Parsed:
    """Measure what each format of weights, keys and values costs in exactness, against float32."""
    from pagemill.bench.numerics import NumericsCommand

    if options.from_json is not None and (model or text or formats):
        raise ConfigError("--from-json measures nothing; drop MODEL, --text and --formats")
    command = NumericsCommand(
        model=model or DEFAULT_MODEL,
        text=text,
        formats=formats,
        window_tokens=window,
        num_threads=options.threads,
        json=options.json,
        docs=options.docs,
        from_json=options.from_json,
    )
    return Parsed(command, debug)


def chosen(option: str, given: str | None, known: Sequence[str]) -> list[str]:
    """Names of an option's list, in the order of ``known``; all of them if None was given.

    Raises:
        ConfigError: a name is unknown.
    """
    if given is None:
        return list(known)
    names = [name.strip() for name in given.split(",")]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{option}: no {name!r}; there are {', '.join(known)}{hint}")
    return [name for name in known if name in names]
