"""The fields that choose tokens: the same for completions and for chats."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from pagemill.sampling_params import MAX_N
from pagemill.server.schemas.base import RequestBody, StreamOptions

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
    stream_options: StreamOptions | None = Field(None, description="For streams only.")

    temperature: float | None = Field(None, description="0 takes the likeliest token always.")
    top_p: float | None = Field(
        None, description="Draw among the likeliest tokens that have this probability together."
    )
    frequency_penalty: float | None = Field(
        None, description="Taken from the logit of a token for each time it was drawn."
    )
    presence_penalty: float | None = Field(
        None, description="Taken from the logit of each token that was drawn."
    )
    logit_bias: Bias = Field(None, description="Token id to what is added to its logit.")
    seed: int | None = Field(
        None, ge=-(2**63), lt=2**64, description="The same seed gives the same answer."
    )
    stop: Stop = Field(None, description="Texts that end the answer.")

    top_k: int | None = Field(
        None, description="Draw among so many of the likeliest tokens; 0 or -1: all."
    )
    min_p: float | None = Field(
        None, description="Draw among tokens at least so likely as this share of the likeliest."
    )
    repetition_penalty: float | None = Field(
        None, description="Tokens of the prompt and the answer become less likely above 1."
    )
    min_tokens: int | None = Field(
        None, description="Nothing ends the answer before so many tokens."
    )
    stop_token_ids: TokenIds = Field(None, description="Tokens that end the answer.")
    ignore_eos: bool | None = Field(None, description="Go on behind the token that ends a text.")
    include_stop_str_in_output: bool | None = Field(
        None, description="Let the answer end with the stop text."
    )
    skip_special_tokens: bool | None = Field(
        None, description="Leave special tokens out of the text: true."
    )
    bad_words: Stop = Field(None, description="Texts that are not written.")
    bad_words_token_ids: Annotated[
        Any,
        WithJsonSchema({"anyOf": [{"type": "array", "items": _INTEGERS}, {"type": "null"}]}),
    ] = Field(None, description="Sequences of tokens that are not written.")
    allowed_token_ids: TokenIds = Field(None, description="No other tokens are drawn.")

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
