"""``pagemill bench``: each benchmark one command, that measures, compares and reports.

A benchmark's own module, in `pagemill.bench`, is imported when its command is to run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from pagemill.cli.option_groups import expand_options
from pagemill.cli.options import FILE, INT, TEXT, DebugOption
from pagemill.cli.parsed import Parsed
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
class BenchOptions:
    """What every benchmark takes."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "num_threads": "the processors that it may use",
    }

    repeats: Annotated[
        int, typer.Option("--repeats", help="Measure each thing so often.", metavar=INT)
    ] = 5
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
        if self.repeats < 1:
            raise ConfigError(f"--repeats must be at least 1, got {self.repeats}")
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
