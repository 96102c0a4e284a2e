"""How near decoding comes to what memory can deliver."""

from __future__ import annotations

import math

from pagemill.loading.loader import load_model
from pagemill.loading.weights import WeightFiles, stored_rows

_FLOAT32_BYTES = 4
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


def decode_weight_bytes(model: str) -> int:
    """Bytes of weights, as they are stored, that one decoded token must read.

    All of them, but for an embedding that is not the output projection too: of that it reads a row.
    """
    weights = load_model(model).weights
    names = set(weights.names())
    if _HEAD in names:
        names.discard(_EMBEDDING)
    return sum(_stored_bytes(weights, name) for name in names)


def _stored_bytes(weights: WeightFiles, name: str) -> int:
    rows = stored_rows(weights, name)
    if rows is not None:
        return len(rows.data)
    return math.prod(weights.shape(name)) * _FLOAT32_BYTES


def mean_context(num_prompt_tokens: int, num_output_tokens: int) -> float:
    """Tokens whose keys and values a decoded token reads, on average over an answer.

    The first token of the answer comes with the prompt; decoding the second reads the prompt and
    the first.
    """
    return num_prompt_tokens + num_output_tokens / 2
