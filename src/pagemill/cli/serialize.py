"""`RequestOutput` as plain JSON values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pagemill.outputs import CompletionOutput, LogprobsAtPosition, RequestOutput


def output_to_dict(
    output: RequestOutput, messages: Sequence[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """All of an output, and the conversation that it answers, if any.

    Seconds are differences; a log-probability of minus infinity is null.
    """
    result: dict[str, Any] = {"request_id": output.request_id, "prompt": output.prompt}
    if messages is not None:
        result["messages"] = messages
    result["prompt_token_ids"] = output.prompt_token_ids
    if output.prompt_logprobs is not None:
        result["prompt_logprobs"] = [_position(position) for position in output.prompt_logprobs]
    times = output.metrics
    return result | {
        "outputs": [_completion(completion) for completion in output.outputs],
        "num_cached_tokens": output.num_cached_tokens,
        "metrics": {
            "queue_seconds": times.queue_seconds,
            "ttft_seconds": times.ttft_seconds,
            "e2e_seconds": times.e2e_seconds,
            "num_preemptions": times.num_preemptions,
        },
    }


def _completion(completion: CompletionOutput) -> dict[str, Any]:
    logprobs = completion.logprobs
    return {
        "index": completion.index,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "logprobs": None if logprobs is None else [_position(position) for position in logprobs],
        "cumulative_logprob": _finite(completion.cumulative_logprob),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
    }


def _position(logprobs: LogprobsAtPosition | None) -> list[dict[str, Any]] | None:
    """Best first; the chosen token is among them."""
    if logprobs is None:
        return None
    return [
        {
            "token_id": token_id,
            "token": entry.decoded_token,
            "logprob": _finite(entry.logprob),
            "rank": entry.rank,
        }
        for token_id, entry in logprobs.items()
    ]


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
