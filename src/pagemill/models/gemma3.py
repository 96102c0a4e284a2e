"""Gemma 3, text only: norms before and after each block, local and global layers.

The stored norm weights are differences from 1. The embedding is scaled by sqrt(hidden_size).
"""

from __future__ import annotations

import torch

from pagemill.layers.attention import Attention
from pagemill.layers.embedding import Embedding, LMHead
from pagemill.layers.mlp import GatedMLP
from pagemill.layers.norm import RMSNorm
from pagemill.layers.rope import RotaryTable
from pagemill.loading.weights import Weights
from pagemill.model_config import ModelConfig
from pagemill.rope_config import RopeConfig
from pagemill.runner.device_batch import DeviceBatch
from pagemill.runner.kv_pool import KVPool


def _load_norm(config: ModelConfig, weights: Weights, name: str) -> RMSNorm:
    return RMSNorm.load(weights, name, config.hidden_size, config.norm_eps, offset=1.0)


class Gemma3Block:
    """One layer: ``x += norm(attention(norm(x))); x += norm(mlp(norm(x)))``."""

    def __init__(
        self, config: ModelConfig, weights: Weights, layer: int, rope: RotaryTable
    ) -> None:
        prefix = f"model.layers.{layer}"
        self._before_attention = _load_norm(config, weights, f"{prefix}.input_layernorm")
        self._attention = Attention.load(
            config, weights, f"{prefix}.self_attn", layer, rope, norm_offset=1.0
        )
        self._after_attention = _load_norm(config, weights, f"{prefix}.post_attention_layernorm")
        self._before_mlp = _load_norm(config, weights, f"{prefix}.pre_feedforward_layernorm")
        self._mlp = GatedMLP(config, weights, f"{prefix}.mlp")
        self._after_mlp = _load_norm(config, weights, f"{prefix}.post_feedforward_layernorm")

    def __call__(self, x: torch.Tensor, batch: DeviceBatch, kv: KVPool) -> torch.Tensor:
        """``[T, hidden_size]`` to ``[T, hidden_size]``."""
        attended = self._attention(self._before_attention(x), batch, kv)
        normed, x = self._before_mlp.add(self._after_attention(attended), x)
        return x + self._after_mlp(self._mlp(normed))


class Gemma3Model:
    """Implements `pagemill.models.protocol.Model`."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        tables: dict[RopeConfig, RotaryTable] = {}
        self._tokens = Embedding(
            weights, "model.embed_tokens", config.vocab_size, config.hidden_size
        )
        # The model was trained with the factor rounded to its weights' dtype.
        factor = torch.tensor(config.hidden_size**0.5).to(weights.dtype)
        self._embedding_factor = factor.item()
        self._blocks = []
        for layer in range(config.num_layers):
            rope = config.layer_rope(layer)
            assert rope is not None, "the configuration reader gives this family a rope"
            if rope not in tables:
                tables[rope] = RotaryTable(rope, config.max_model_len)
            self._blocks.append(Gemma3Block(config, weights, layer, tables[rope]))
        self.rotations = list(tables.values())
        self._norm = _load_norm(config, weights, "model.norm")
        self._lm_head = LMHead(config, weights, self._tokens)

    def forward(self, batch: DeviceBatch, kv: KVPool) -> torch.Tensor:
        """See `Model.forward`."""
        x = self._tokens(batch.token_ids, self._embedding_factor)
        for block in self._blocks:
            x = block(x, batch, kv)
        return self._norm(x)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Model.compute_logits`."""
        return self._lm_head(hidden)
