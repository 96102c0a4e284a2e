"""GPT-2: learned positions, LayerNorm, biases everywhere, weights stored as ``[in, out]``."""

from __future__ import annotations

import torch

from pagemill.layers.attention import Attention
from pagemill.layers.embedding import Embedding, LMHead
from pagemill.layers.linear import Linear
from pagemill.layers.mlp import PlainMLP
from pagemill.layers.norm import LayerNorm
from pagemill.layers.rope import RotaryTable
from pagemill.loading.weights import Weights
from pagemill.model_config import ModelConfig
from pagemill.runner.device_batch import DeviceBatch
from pagemill.runner.kv_pool import KVPool


class GPT2Block:
    """One layer: ``x += attention(norm(x)); x += mlp(norm(x))``."""

    def __init__(self, config: ModelConfig, weights: Weights, layer: int) -> None:
        prefix, hidden, eps = f"transformer.h.{layer}", config.hidden_size, config.norm_eps
        self._attention_norm = LayerNorm(weights, f"{prefix}.ln_1", hidden, eps)
        self._attention = Attention(
            config,
            layer,
            Linear.load_transposed(weights, f"{prefix}.attn.c_attn", hidden, 3 * hidden),
            Linear.load_transposed(weights, f"{prefix}.attn.c_proj", hidden, hidden),
        )
        self._mlp_norm = LayerNorm(weights, f"{prefix}.ln_2", hidden, eps)
        self._mlp = PlainMLP(config, weights, f"{prefix}.mlp")

    def __call__(self, x: torch.Tensor, batch: DeviceBatch, kv: KVPool) -> torch.Tensor:
        """``[T, hidden_size]`` to ``[T, hidden_size]``."""
        x = x + self._attention(self._attention_norm(x), batch, kv)
        return x + self._mlp(self._mlp_norm(x))


class GPT2Model:
    """Implements `pagemill.models.protocol.Model`."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        hidden = config.hidden_size
        self.rotations: list[RotaryTable] = []
        self._tokens = Embedding(weights, "transformer.wte", config.vocab_size, hidden)
        self._positions = Embedding(
            weights, "transformer.wpe", config.max_position_embeddings, hidden
        )
        self._blocks = [GPT2Block(config, weights, layer) for layer in range(config.num_layers)]
        self._norm = LayerNorm(weights, "transformer.ln_f", hidden, config.norm_eps)
        self._lm_head = LMHead(config, weights, self._tokens)

    def forward(self, batch: DeviceBatch, kv: KVPool) -> torch.Tensor:
        """See `Model.forward`."""
        x = self._tokens(batch.token_ids) + self._positions(batch.positions)
        for block in self._blocks:
            x = block(x, batch, kv)
        return self._norm(x)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Model.compute_logits`."""
        return self._lm_head(hidden)
