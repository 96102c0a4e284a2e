"""The ``pagemill`` command: parse, run, and turn what happened into an exit code. See
`pagemill.cli.failures` for the codes.

Parsing and running are apart: a command's function checks its options and returns what is to be
run, so that nothing that happens while running is taken for a usage error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from pagemill import __version__
from pagemill.cli import EXIT_INTERRUPTED, bench, bench_kv, defaults
from pagemill.cli.failures import EXIT_CLOSED_PIPE, drop_stdout, report_failure
from pagemill.cli.option_groups import expand_options
from pagemill.cli.options import (
    FILE,
    FLAG,
    INT,
    JSON_LINE_HELP,
    TEXT,
    DebugOption,
    EngineOptions,
    ModelArgument,
    ModelOption,
    SamplingOptions,
)
from pagemill.cli.parsed import Parsed
from pagemill.cli.server_options import ServerOptions
from pagemill.config import DEFAULT_MODEL
from pagemill.errors import ConfigError

app = typer.Typer(
    name="pagemill",
    help="Run large language models: exact, watchable, on this machine.",
    epilog='Try: pagemill generate -p "The capital of France is"',
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


bench_kv.add_commands(bench.app)
app.add_typer(bench.app, name="bench")


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", metavar=FLAG)
    ] = False,
) -> None:
    """Run large language models: exact, watchable, on this machine."""
    if version:
        typer.echo(f"pagemill {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


@app.command(epilog=JSON_LINE_HELP)
@expand_options(defaults.GENERATE)
def generate(
    sampling: SamplingOptions,
    engine: EngineOptions,
    model: ModelOption = DEFAULT_MODEL,
    prompt: Annotated[
        list[str] | None,
        typer.Option("-p", "--prompt", help="A prompt; may be given again.", metavar=TEXT),
    ] = None,
    prompts_file: Annotated[
        str | None,
        typer.Option(
            "--prompts-file",
            help="One prompt a line, or JSON lines as shown below; - reads standard input.",
            metavar=FILE,
        ),
    ] = None,
    n: Annotated[
        int | None,
        typer.Option(
            "--n",
            help="Answers to each prompt; default 1.",
            metavar=INT,
            rich_help_panel="Sampling",
        ),
    ] = None,
    logprobs: Annotated[
        int | None,
        typer.Option(
            "--logprobs",
            help="With --json: log-probabilities of this many likeliest tokens and the chosen one.",
            metavar=INT,
            rich_help_panel="Sampling",
        ),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat",
            help="Each prompt is a user's message, written as the model's chat template has it.",
            metavar=FLAG,
        ),
    ] = False,
    system: Annotated[
        str | None,
        typer.Option("--system", help="With --chat: how the model is to behave.", metavar=TEXT),
    ] = None,
    echo: Annotated[
        bool, typer.Option("--echo", help="Repeat the prompt first.", metavar=FLAG)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a prompt.", metavar=FLAG)
    ] = False,
    stats: Annotated[
        bool,
        typer.Option("--stats", help="Show speed, latencies and memory in the end.", metavar=FLAG),
    ] = False,
    debug: DebugOption = False,
) -> Parsed:
    """Complete prompts, or with --chat answer them.

    Takes the most likely tokens (temperature 0) and stops after 256, unless told otherwise.
    """
    from pagemill.cli.generate import GenerateCommand

    if echo and as_json:
        raise ConfigError("--echo is for text; with --json the prompt is there anyway; drop one")
    if system is not None and not chat:
        raise ConfigError("--system is part of a conversation; add --chat")
    fields = sampling.given()
    if n is not None:
        fields["n"] = n
    if logprobs is not None:
        fields["logprobs"] = logprobs
        if not as_json:
            raise ConfigError("--logprobs is shown with --json only; add --json")
    command = GenerateCommand(
        config=engine.config(model),
        texts=prompt or (),
        prompts_file=prompts_file,
        sampling=fields,
        chat=chat,
        system=system,
        echo=echo,
        as_json=as_json,
        show_stats=stats,
    )
    return Parsed(command, debug)


@app.command()
@expand_options(defaults.CHAT)
def chat(
    sampling: SamplingOptions,
    engine: EngineOptions,
    model: ModelOption = DEFAULT_MODEL,
    system: Annotated[
        str | None,
        typer.Option("--system", help="How the model is to behave.", metavar=TEXT),
    ] = None,
    once: Annotated[
        str | None,
        typer.Option("--once", help="Answer this message only, and leave.", metavar=TEXT),
    ] = None,
    debug: DebugOption = False,
) -> Parsed:
    """Talk with the model. Without a terminal: one message a line from standard input.

    Draws with temperature 0.2 and top_p 0.9, unless told otherwise.
    """
    from pagemill.cli.chat import ChatCommand

    command = ChatCommand(
        config=engine.config(model), sampling=sampling.given(), system=system, once=once
    )
    return Parsed(command, debug)


@app.command()
@expand_options({})
def serve(
    server: ServerOptions,
    engine: EngineOptions,
    model: ModelArgument = None,
    named: Annotated[
        str | None, typer.Option("-m", "--model", help="The same.", metavar="MODEL")
    ] = None,
    debug: DebugOption = False,
) -> Parsed:
    """Answer clients of the OpenAI API over HTTP, until Ctrl-C or SIGTERM.

    /v1/completions, /v1/chat/completions and what belongs to them; /health, /live, /metrics.
    """
    from pagemill.cli.serve import ServeCommand

    name = _one_model(model, named) or DEFAULT_MODEL
    command = ServeCommand(config=engine.config(name), settings=server.settings())
    return Parsed(command, debug)


@app.command()
@expand_options({})
def info(
    engine: EngineOptions,
    model: ModelArgument = None,
    named: Annotated[
        str | None, typer.Option("-m", "--model", help="The same.", metavar="MODEL")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.", metavar=FLAG)] = False,
    debug: DebugOption = False,
) -> Parsed:
    """Show what would run: the model, the kernels, the memory, how many blocks fit."""
    from pagemill.cli.info import InfoCommand

    name = _one_model(model, named)
    command = InfoCommand(
        config=engine.config(name or DEFAULT_MODEL), is_default=name is None, as_json=as_json
    )
    return Parsed(command, debug)


def _one_model(model: str | None, named: str | None) -> str | None:
    if model is not None and named is not None:
        raise ConfigError(f"the model is named twice, as {model} and as {named}; name it once")
    return model or named


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (of this process by default); returns the exit code."""
    debug = os.environ.get("PAGEMILL_DEBUG", "0") not in ("", "0")
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # what a terminal cannot show is no reason to stop
            stream.reconfigure(errors="replace")
    try:
        parsed = _parse(sys.argv[1:] if arguments is None else arguments)
        if isinstance(parsed, int):
            code = parsed
        else:
            debug = debug or parsed.debug
            code = parsed.command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("\n" if sys.stderr.isatty() else "")
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        drop_stdout()
        code = EXIT_CLOSED_PIPE
    except Exception as error:
        code = report_failure(error, debug)
    return code


def _parse(arguments: Sequence[str]) -> Parsed | int:
    """The command to run; an exit code if there is nothing to run (``--help``, ``--version``)."""
    parsed: Parsed | int = typer.main.get_command(app).main(
        args=list(arguments), prog_name="pagemill", standalone_mode=False
    )
    return parsed
