"""The options that commands share, as dataclasses that become command line options.

Every option is None (or empty, or off) unless it was given, so that the defaults of `EngineConfig`,
of `SamplingParams` and of a JSON line's own fields hold where the user said nothing. What the help
shows as a default is in a group's ``DEFAULTS``, or given with the command.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import typer

from pagemill.config import DEFAULT_MODEL, EngineConfig
from pagemill.errors import ConfigError

INT, FLOAT, TEXT, NAME, FILE, FLAG = "INT", "FLOAT", "TEXT", "NAME", "FILE", ""
"""Placeholders of values in the help; a flag has none."""
JSON_LINE_HELP = """\
A JSON line of --prompts-file has either "prompt": a text or a list of token ids, or "messages": \
[{"role": "user", "content": "Hi"}] of a conversation. Beside it may be "priority", \
"deadline_seconds", "cache_salt" and any sampling field, which wins over the option: \
temperature, top_p, top_k, min_p, repetition_penalty, \
presence_penalty, frequency_penalty, logit_bias, allowed_token_ids, bad_words, \
bad_words_token_ids, seed, n, stop, stop_token_ids, include_stop_str_in_output, ignore_eos, \
min_tokens, max_tokens, logprobs, prompt_logprobs, skip_special_tokens."""


def _sampling(*names: str, help: str, metavar: str) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel="Sampling")


def _engine(*names: str, help: str, metavar: str) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel="Engine")


ModelOption = Annotated[
    str,
    typer.Option(
        "-m",
        "--model",
        help="An alias, a .gguf file, a directory with config.json, or a Hugging Face id; "
        f"default {DEFAULT_MODEL}.",
        metavar="MODEL",
        show_default=False,
    ),
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(
        help="An alias, a .gguf file, a directory with config.json, or a Hugging Face id; "
        f"default {DEFAULT_MODEL}.",
        metavar="MODEL",
        show_default=False,
    ),
]
DebugOption = Annotated[
    bool,
    typer.Option(
        "--debug", help="Show the traceback of an error (so does PAGEMILL_DEBUG=1).", metavar=FLAG
    ),
]


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Fields of `SamplingParams` that have an option of their own."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "min_tokens": 0,
    }
    """As in `SamplingParams`, whose import takes too long for a help text."""

    max_tokens: Annotated[
        int | None, _sampling("--max-tokens", help="Most tokens of an answer.", metavar=INT)
    ] = None
    temperature: Annotated[
        float | None,
        _sampling("--temperature", help="0 always takes the most likely token.", metavar=FLOAT),
    ] = None
    top_p: Annotated[
        float | None,
        _sampling("--top-p", help="Keep the likeliest tokens up to this mass.", metavar=FLOAT),
    ] = None
    top_k: Annotated[
        int | None,
        _sampling("--top-k", help="Keep this many likeliest tokens, with 0 all.", metavar=INT),
    ] = None
    min_p: Annotated[
        float | None,
        _sampling(
            "--min-p", help="Keep tokens at least this part as likely as the best.", metavar=FLOAT
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        _sampling(
            "--repetition-penalty", help="Above 1 discourages tokens seen so far.", metavar=FLOAT
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        _sampling(
            "--presence-penalty",
            help="Taken once from each token of the answer so far.",
            metavar=FLOAT,
        ),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        _sampling(
            "--frequency-penalty", help="Taken each time that a token occurred.", metavar=FLOAT
        ),
    ] = None
    seed: Annotated[
        int | None,
        _sampling(
            "--seed",
            help="Equal prompts with the same seed get equal answers. Without one the engine's "
            f"own seed ({EngineConfig.seed}) makes runs repeatable.",
            metavar=INT,
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        _sampling("--stop", help="End before this text; may be given again.", metavar=TEXT),
    ] = None
    min_tokens: Annotated[
        int | None, _sampling("--min-tokens", help="Fewest tokens of an answer.", metavar=INT)
    ] = None
    ignore_eos: Annotated[
        bool,
        _sampling("--ignore-eos", help="Go on after the end-of-sequence token.", metavar=FLAG),
    ] = False

    def given(self) -> dict[str, Any]:
        """Fields of `SamplingParams` that the user set, by name."""
        return _given(self)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Fields of `EngineConfig` that have an option of their own."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "tokenizer": "the model's own",
        "dtype": EngineConfig.dtype,
        "quantization": "none",
        "num_threads": "the processors that it may use",
        "cpu_affinity": "none",
        "max_model_len": "what the model was trained for",
        "rope_scaling": "the model's own",
        "block_size": EngineConfig.block_size,
        "num_kv_blocks": "what --kv-cache-memory holds",
        "kv_cache_memory": "a share of the free memory",
        "kv_cache_dtype": EngineConfig.kv_cache_dtype,
        "max_num_seqs": EngineConfig.max_num_seqs,
        "max_num_batched_tokens": EngineConfig.max_num_batched_tokens,
        "scheduling_policy": EngineConfig.scheduling_policy,
    }

    tokenizer: Annotated[
        str | None,
        _engine(
            "--tokenizer",
            help="A directory, a tokenizer.json or a .gguf file.",
            metavar=FILE,
        ),
    ] = None
    dtype: Annotated[
        str | None,
        _engine(
            "--dtype", help="Of the weights: auto, float32, bfloat16 or float16.", metavar=NAME
        ),
    ] = None
    quantization: Annotated[
        str | None,
        _engine(
            "--quantization",
            help="What float weights become: int8 or int4. With --dtype float32 also those that a "
            "GGUF file has quantized.",
            metavar=NAME,
        ),
    ] = None
    num_threads: Annotated[
        int | None, _engine("--num-threads", help="Threads that compute.", metavar=INT)
    ] = None
    cpu_affinity: Annotated[
        str | None,
        _engine(
            "--cpu-affinity",
            help='Pin the threads: auto, or CPU numbers such as "0-3,8".',
            metavar=TEXT,
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        _engine(
            "--max-model-len", help="Longest prompt and answer together, in tokens.", metavar=INT
        ),
    ] = None
    rope_scaling: Annotated[
        str | None,
        _engine(
            "--rope-scaling",
            help='For example \'{"rope_type": "ntk", "factor": 4.0}\'.',
            metavar="JSON",
        ),
    ] = None
    block_size: Annotated[
        int | None, _engine("--block-size", help="Tokens in a block of KV cache.", metavar=INT)
    ] = None
    num_kv_blocks: Annotated[
        int | None, _engine("--num-kv-blocks", help="Blocks in the KV pool.", metavar=INT)
    ] = None
    kv_cache_memory: Annotated[
        str | None,
        _engine("--kv-cache-memory", help='Bytes of the KV pool, such as "2GiB".', metavar="SIZE"),
    ] = None
    kv_cache_dtype: Annotated[
        str | None,
        _engine(
            "--kv-cache-dtype",
            help="Of keys and values: auto, float32, bfloat16 or int8.",
            metavar=NAME,
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        _engine("--max-num-seqs", help="Most sequences that run at once.", metavar=INT),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        _engine("--max-num-batched-tokens", help="Most tokens of one step.", metavar=INT),
    ] = None
    scheduling_policy: Annotated[
        str | None, _engine("--scheduling-policy", help="fcfs, priority or deadline.", metavar=NAME)
    ] = None
    check_invariants: Annotated[
        bool,
        _engine(
            "--check-invariants",
            help="Audit the block accounting after each step.",
            metavar=FLAG,
        ),
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
