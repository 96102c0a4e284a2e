"""Token ids to vectors, and vectors back to logits."""

from __future__ import annotations

import torch

from pagemill import kernels
from pagemill.layers.linear import Linear
from pagemill.loading.weights import Weights
from pagemill.model_config import ModelConfig


class Embedding:
    """A table of vectors ``[count, hidden_size]``."""

    def __init__(self, weights: Weights, name: str, count: int, hidden_size: int) -> None:
        self.weight = weights.matrix([f"{name}.weight"], hidden_size, [count])

    def __call__(self, ids: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """Float32 ``[T, hidden_size]``, times ``scale``."""
        return kernels.embedding(ids, self.weight, scale)


class LMHead:
    """Hidden states to logits; shares the token table's weight if the model ties them."""

    def __init__(self, config: ModelConfig, weights: Weights, tokens: Embedding) -> None:
        if config.tie_word_embeddings:
            self._linear = Linear(tokens.weight)
        else:
            self._linear = Linear.load(
                weights, "lm_head", config.hidden_size, config.vocab_size, bias=False
            )
        self._soft_cap = config.logits_soft_cap

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[L, hidden_size]`` to float32 logits ``[L, vocab_size]``."""
        logits = self._linear(hidden)
        return logits if self._soft_cap is None else kernels.soft_cap(logits, self._soft_cap)
