"""From a request's fields to `SamplingParams`, within the server's limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sized
from typing import Any

from pagemill.errors import InvalidParameterError
from pagemill.sampling_params import SamplingParams, parse_logit_bias
from pagemill.server.context import ServerContext
from pagemill.server.errors import ApiError
from pagemill.server.prompts import required_tokenizer
from pagemill.server.schemas.sampling import SamplingFields

SAME_IN_BOTH = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "bad_words_token_ids",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
)
"""Fields of a request that `SamplingParams` calls the same."""


def check_limits(
    body: SamplingFields, num_prompts: int, samples: int, context: ServerContext
) -> None:
    """Refuse what asks for too much, before anything is made of it.

    Args:
        body: the request.
        num_prompts: how many prompts it has.
        samples: of each prompt, those that are not returned included.
        context: whose limits hold.

    Raises:
        ApiError: 400, naming the field.
    """
    settings = context.settings
    most = settings.max_sequences_per_request
    if num_prompts * samples > most:
        raise ApiError(
            400,
            f"{num_prompts} prompts with {samples} samples each are more than the {most} "
            f"sequences that one request may have; send several requests",
            param="n" if samples == (body.n or 1) else "best_of",
        )
    _check_length("stop", body.stop, settings.max_stop)
    _check_length("stop_token_ids", body.stop_token_ids, settings.max_stop)
    for name in ("logit_bias", "allowed_token_ids", "bad_words", "bad_words_token_ids"):
        _check_length(name, getattr(body, name), settings.max_bias_entries)
    if body.stream_options is not None and not body.stream:
        rule = "stream_options is for streams only; set stream to true or leave it out"
        raise ApiError(400, rule, param="stream_options")


def _check_length(name: str, value: object, most: int) -> None:
    if isinstance(value, Sized) and not isinstance(value, str) and len(value) > most:
        raise ApiError(
            400, f"{name} has {len(value)} entries; this server takes {most}", param=name
        )


def check_logprobs(name: str, value: int | None, context: ServerContext) -> None:
    """Raises ApiError 400 beyond the server's limit."""
    most = context.settings.max_logprobs
    if value is not None and value > most:
        raise ApiError(400, f"{name} must be at most {most}, got {value}", param=name)


def sampling_params(body: SamplingFields, context: ServerContext, **fixed: Any) -> SamplingParams:
    """What the request asks of the sampler; call it in a thread, since it may encode words.

    Args:
        body: the request.
        context: whose tokenizer.
        fixed: further fields of `SamplingParams`.

    Raises:
        ApiError: 400, naming the field.
    """
    fields = {name: getattr(body, name) for name in SAME_IN_BOTH}
    fields = {name: value for name, value in fields.items() if value is not None} | fixed
    try:
        if isinstance(body.logit_bias, dict):
            fields["logit_bias"] = parse_logit_bias(body.logit_bias)
        if body.seed is not None:
            fields["seed"] = body.seed % 2**64  # the API's seeds may be negative
        params = SamplingParams(**fields)
        if params.bad_words:
            tokenizer = required_tokenizer(context, "bad_words")
            params = params.with_bad_words(lambda word: tokenizer.encode(word, False))
            params = dataclasses.replace(params, bad_words=())
    except InvalidParameterError as error:
        raise ApiError(400, str(error), param=_field_in(error.field)) from error
    return params


def _field_in(described: str) -> str:
    """``logit_bias`` of "each key of logit_bias" or "logit_bias[5]"."""
    named = [name for name in SAME_IN_BOTH if name in described]
    return max(named, key=len, default=described)
