"""What a caller gets back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from pagemill.errors import EngineError, ModelError
from pagemill.pooling import FloatArray, scaled_to_length_1

if TYPE_CHECKING:
    from pagemill.request import RequestTimes

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's log-probability, in nats, under the raw model distribution: before penalties,
    bias, temperature and filters.
    """

    logprob: float
    rank: int
    """1 for the most likely token of the whole vocabulary."""
    decoded_token: str
    """The token's own text; bytes that make no character are shown as U+FFFD."""


LogprobsAtPosition = dict[int, Logprob]
"""Token id to log-probability: the most likely tokens, and the chosen one in any case."""


@dataclass(slots=True)
class CompletionOutput:
    """One of a request's ``n`` samples."""

    index: int
    text: str
    """Decoded so far; ends before a stop string or stop token, and never inside a character."""
    token_ids: list[int]
    """Generated ids, the end-of-sequence or stop token included."""
    logprobs: list[LogprobsAtPosition] | None
    """One entry for each of ``token_ids``, if ``SamplingParams.logprobs`` asked for them."""
    cumulative_logprob: float
    """Sum over ``token_ids``, in nats."""
    finish_reason: FinishReason | None
    """None while it runs; ``stop`` (end of sequence, stop token or stop string), ``length``
    (``max_tokens`` or the end of the context) or ``abort``."""
    stop_reason: int | str | None
    """The stop string or stop token id that ended it; None for the end of sequence. Also
    ``"no_token_possible"`` (the request's own constraints exclude every token) and, with
    ``abort``, ``"damaged_logits"`` or, of an embedding, ``"damaged_embedding"`` (the model computed
    NaN or infinity)."""


@dataclass(slots=True)
class RequestOutput:
    """A request's state after a step; the last one has ``finished`` set."""

    request_id: str
    prompt: str | None
    """As given; None if the prompt was given as token ids."""
    prompt_token_ids: list[int]
    """One list for all outputs of a request; the engine has its own."""
    prompt_logprobs: list[LogprobsAtPosition | None] | None
    """One entry for each prompt token (None for the first), if asked for."""
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int
    """Prompt tokens whose computation a prefix cache saved."""
    metrics: RequestTimes
    """When it arrived, was first scheduled, gave its first token and ended."""
    embedding: FloatArray | None = None
    """Of the prompt, ``[hidden_size]``, if `LLMEngine.add_embedding_request` asked for it and it
    did not end with ``abort``. Its one entry of ``outputs`` has no tokens."""


@dataclass(slots=True, eq=False)
class EmbeddingOutput:
    """The embedding of one prompt."""

    request_id: str
    prompt: str | None
    """As given; None if the prompt was given as token ids."""
    prompt_token_ids: list[int]
    embedding: FloatArray
    """``[hidden_size]``, finite: the mean over all of ``prompt_token_ids`` of the last hidden
    state, behind the final norm."""
    metrics: RequestTimes
    """When it arrived, was first scheduled and ended."""

    @classmethod
    def of(cls, output: RequestOutput, *, normalize: bool) -> Self:
        """Take what the engine's last output of an embedding request says.

        Args:
            output: has ``finished`` set.
            normalize: scale the embedding to length 1.

        Raises:
            ModelError: the model computed NaN or infinity.
            EngineError: the request was aborted.
        """
        if output.embedding is None:
            what = f"request {output.request_id!r} has no embedding"
            if output.outputs[0].stop_reason is None:
                raise EngineError(f"{what}: it was aborted")
            raise ModelError(f"{what}: the model computed NaN or infinity for its prompt")
        return cls(
            request_id=output.request_id,
            prompt=output.prompt,
            prompt_token_ids=output.prompt_token_ids,
            embedding=scaled_to_length_1(output.embedding) if normalize else output.embedding,
            metrics=output.metrics,
        )
