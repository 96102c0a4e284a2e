"""The options that commands share, as dataclasses that become command line options.

Every option is None (or empty, or off) unless it was given, so that the defaults of `EngineConfig`,
of `SamplingParams` and of a JSON line's own fields hold where the user said nothing.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from pagemill.config import DEFAULT_MODEL, EngineConfig
from pagemill.errors import ConfigError

R = TypeVar("R")


def _sampling(*names: str, help: str, metavar: str | None = None) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel="Sampling")


def _engine(*names: str, help: str, metavar: str | None = None) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel="Engine")


ModelOption = Annotated[
    str,
    typer.Option(
        "-m",
        "--model",
        help="An alias, a .gguf file, a directory with config.json, or a Hugging Face id.",
        metavar="MODEL",
    ),
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(
        help=f"An alias, a .gguf file, a directory or a Hugging Face id (default {DEFAULT_MODEL}).",
        metavar="MODEL",
        show_default=False,
    ),
]
DebugOption = Annotated[
    bool,
    typer.Option("--debug", help="Show the traceback of an error (so does PAGEMILL_DEBUG=1)."),
]


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Fields of `SamplingParams` that have an option of their own."""

    max_tokens: Annotated[
        int | None, _sampling("--max-tokens", help="Most tokens of an answer.", metavar="N")
    ] = None
    temperature: Annotated[
        float | None,
        _sampling("--temperature", help="0 always takes the most likely token.", metavar="T"),
    ] = None
    top_p: Annotated[
        float | None,
        _sampling("--top-p", help="Keep the likeliest tokens up to this mass.", metavar="P"),
    ] = None
    top_k: Annotated[
        int | None, _sampling("--top-k", help="Keep the K likeliest tokens; 0: all.", metavar="K")
    ] = None
    min_p: Annotated[
        float | None,
        _sampling("--min-p", help="Keep tokens at least this part as likely as the best."),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        _sampling("--repetition-penalty", help="Above 1 discourages tokens seen so far."),
    ] = None
    presence_penalty: Annotated[
        float | None,
        _sampling("--presence-penalty", help="Taken once from each token of the answer so far."),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        _sampling("--frequency-penalty", help="Taken each time that a token occurred."),
    ] = None
    seed: Annotated[
        int | None, _sampling("--seed", help="The same seed gives the same answer.", metavar="S")
    ] = None
    stop: Annotated[
        list[str] | None,
        _sampling("--stop", help="End before this text; may be given again.", metavar="TEXT"),
    ] = None
    min_tokens: Annotated[
        int | None, _sampling("--min-tokens", help="Fewest tokens of an answer.", metavar="N")
    ] = None
    ignore_eos: Annotated[
        bool, _sampling("--ignore-eos", help="Go on after the end-of-sequence token.")
    ] = False

    def given(self) -> dict[str, Any]:
        """Fields of `SamplingParams` that the user set, by name."""
        return _given(self)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Fields of `EngineConfig` that have an option of their own."""

    tokenizer: Annotated[
        str | None,
        _engine("--tokenizer", help="Where its tokenizer is, if not with the model.", metavar="P"),
    ] = None
    dtype: Annotated[
        str | None, _engine("--dtype", help="auto, float32, bfloat16 or float16.", metavar="D")
    ] = None
    num_threads: Annotated[
        int | None,
        _engine("--num-threads", help="Threads that compute; default: all processors."),
    ] = None
    max_model_len: Annotated[
        int | None,
        _engine("--max-model-len", help="Longest prompt and answer together, in tokens."),
    ] = None
    rope_scaling: Annotated[
        str | None,
        _engine(
            "--rope-scaling", help='E.g. \'{"rope_type": "ntk", "factor": 4.0}\'.', metavar="JSON"
        ),
    ] = None
    block_size: Annotated[
        int | None, _engine("--block-size", help="Tokens in a block of KV cache; default 16.")
    ] = None
    num_kv_blocks: Annotated[
        int | None, _engine("--num-kv-blocks", help="Blocks in the KV pool.")
    ] = None
    kv_cache_memory: Annotated[
        str | None,
        _engine("--kv-cache-memory", help='Bytes of the KV pool, e.g. "2GiB".', metavar="SIZE"),
    ] = None
    max_num_seqs: Annotated[
        int | None, _engine("--max-num-seqs", help="Most sequences that run at once.")
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, _engine("--max-num-batched-tokens", help="Most tokens of one step.")
    ] = None
    scheduling_policy: Annotated[
        str | None, _engine("--scheduling-policy", help="fcfs or priority.", metavar="NAME")
    ] = None
    check_invariants: Annotated[
        bool, _engine("--check-invariants", help="Audit the block accounting after each step.")
    ] = False

    def config(self, model: str) -> EngineConfig:
        """The engine's configuration; `ConfigError` for what cannot work."""
        given = _given(self)
        if self.rope_scaling is not None:
            given["rope_scaling"] = _json_object("--rope-scaling", self.rope_scaling)
        return EngineConfig.from_kwargs(model=model, **given)


def _given(options: object) -> dict[str, Any]:
    """Options that were set. By identity: a temperature of 0 equals False and is one."""
    return {
        name: value
        for name, value in vars(options).items()
        if value is not None and value is not False and value != []
    }


def _json_object(name: str, text: str) -> Mapping[str, Any]:
    example = '\'{"rope_type": "ntk", "factor": 4.0}\''
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{name} must be a JSON object such as {example}, got {text!r}: {error}"
        ) from None
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be a JSON object such as {example}, got {text!r}")
    return value


def expand_options(command: Callable[..., R]) -> Callable[..., R]:
    """Let a command take option groups: a parameter whose type is a dataclass stands for one
    option for each of its fields, and receives the dataclass filled in.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            groups[parameter.name] = hint
            parameters += _parameters_of(hint)
        else:
            parameters.append(
                parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)
            )

    def expanded(**arguments: Any) -> R:
        for name, group in groups.items():
            own = {f.name: arguments.pop(f.name) for f in dataclasses.fields(group)}
            arguments[name] = group(**own)
        return command(**arguments)

    expanded.__name__, expanded.__doc__ = command.__name__, command.__doc__
    expanded.__annotations__ = {p.name: p.annotation for p in parameters}
    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return expanded


def _parameters_of(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]
        )
        for f in dataclasses.fields(group)
    ]
