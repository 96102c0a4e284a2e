"""The fields that choose tokens: the same for completions and for chats."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from pagemill.sampling_params import MAX_N
from pagemill.server.schemas.base import RequestBody, StreamOptions, only_default

_INTEGERS = {"type": "array", "items": {"type": "integer"}}

Stop = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                {"type": "null"},
            ]
        }
    ),
]
TokenIds = Annotated[Any, WithJsonSchema({"anyOf": [_INTEGERS, {"type": "null"}]})]
"""Checked by `pagemill.SamplingParams`, which says which of them is wrong."""
Bias = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "object", "additionalProperties": {"type": "number"}},
                {"type": "null"},
            ]
        }
    ),
]


class SamplingFields(RequestBody):
    """Bounds that are not given here are those of `pagemill.SamplingParams`."""

    model: str = Field(description="The served model's name, as /v1/models lists it.")
    n: int | None = Field(None, ge=1, le=MAX_N, description="Samples of each prompt.")
    stream: bool | None = Field(None, description="Answer by server-sent events.")
    stream_options: StreamOptions | None = None

    temperature: float | None = Field(None, description="0 takes the likeliest token always.")
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Bias = Field(None, description="Token id to what is added to its logit.")
    seed: int | None = Field(
        None, ge=-(2**63), lt=2**64, description="The same seed gives the same answer."
    )
    stop: Stop = Field(None, description="Texts that end the answer.")

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: TokenIds = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: Stop = None
    bad_words_token_ids: Annotated[
        Any,
        WithJsonSchema({"anyOf": [{"type": "array", "items": _INTEGERS}, {"type": "null"}]}),
    ] = None
    allowed_token_ids: TokenIds = None

    priority: int | None = Field(
        None, description="Smaller is more urgent; needs the scheduling policy 'priority'."
    )
    cache_salt: str | None = Field(
        None, description="Computed prefixes are shared among requests of the same salt only."
    )

    user: str | None = Field(None, description="Accepted; changes nothing.")
    metadata: dict[str, Any] | None = Field(None, description="Accepted; changes nothing.")
    store: bool | None = Field(None, description="Accepted; nothing is stored.")
    service_tier: str | None = Field(None, description="Accepted; there is one tier.")


__all__ = ["Bias", "SamplingFields", "Stop", "TokenIds", "only_default"]
