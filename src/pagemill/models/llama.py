"""Llama (SmolLM2, Llama 2 and 3) and Mistral: pre-norm blocks, rotary positions, gated MLP.

Mistral differs by its sliding window, Qwen2 by biases, Qwen3 by norms of query and key; those are
settings of the configuration.
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
from pagemill.runner.device_batch import DeviceBatch
from pagemill.runner.kv_pool import KVPool


class LlamaBlock:
    """One layer: ``x += attention(norm(x)); x += mlp(norm(x))``."""

    def __init__(
        self, config: ModelConfig, weights: Weights, layer: int, rope: RotaryTable
    ) -> None:
        prefix, size, eps = f"model.layers.{layer}", config.hidden_size, config.norm_eps
        self._attention_norm = RMSNorm.load(weights, f"{prefix}.input_layernorm", size, eps)
        self._attention = Attention.load(config, weights, f"{prefix}.self_attn", layer, rope)
        self._mlp_norm = RMSNorm.load(weights, f"{prefix}.post_attention_layernorm", size, eps)
        self._mlp = GatedMLP(config, weights, f"{prefix}.mlp")

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, batch: DeviceBatch, kv: KVPool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The last block's output, not yet added to ``residual``, to this one's likewise."""
        if residual is None:
            normed, residual = self._attention_norm(x), x
        else:
            normed, residual = self._attention_norm.add(x, residual)
        attended = self._attention(normed, batch, kv)
        normed, residual = self._mlp_norm.add(attended, residual)
        return self._mlp(normed), residual


class LlamaModel:
    """Implements `pagemill.models.protocol.Model`."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        assert config.rope is not None, "the configuration reader gives this family a rope"
        rope = RotaryTable(config.rope, config.max_model_len)
        self.rotations = [rope]
        self._tokens = Embedding(
            weights, "model.embed_tokens", config.vocab_size, config.hidden_size
        )
        self._blocks = [
            LlamaBlock(config, weights, layer, rope) for layer in range(config.num_layers)
        ]
        self._norm = RMSNorm.load(weights, "model.norm", config.hidden_size, config.norm_eps)
        self._lm_head = LMHead(config, weights, self._tokens)

    def forward(self, batch: DeviceBatch, kv: KVPool) -> torch.Tensor:
        """See `Model.forward`."""
        x, residual = self._tokens(batch.token_ids), None
        for block in self._blocks:
            x, residual = block(x, residual, batch, kv)
        if residual is None:
            return self._norm(x)
        return self._norm.add(x, residual)[0]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Model.compute_logits`."""
        return self._lm_head(hidden)
