"""The attention block: projections, norms of query and key, rotation, cache, attention."""

from __future__ import annotations

import torch

from pagemill import kernels
from pagemill.layers.linear import Linear
from pagemill.layers.norm import RMSNorm
from pagemill.layers.rope import RotaryTable
from pagemill.loading.weights import Weights
from pagemill.model_config import ModelConfig
from pagemill.runner.device_batch import DeviceBatch
from pagemill.runner.kv_pool import KVPool


class Attention:
    """Grouped-query attention of one layer over the paged cache."""

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        qkv: Linear,
        out: Linear,
        rope: RotaryTable | None = None,
        query_norm: RMSNorm | None = None,
        key_norm: RMSNorm | None = None,
    ) -> None:
        """``qkv`` gives queries, keys and values one after another; ``rope`` None: no rotation."""
        self._layer = layer
        self._heads = kernels.HeadShape(config.num_heads, config.num_kv_heads, config.head_dim)
        self._norm_eps = config.norm_eps
        self._scale = config.attention_scale
        self._window = config.sliding_windows[layer]
        self._soft_cap = config.attention_soft_cap
        self._qkv, self._out = qkv, out
        self._rope = rope
        self._query_norm, self._key_norm = query_norm, key_norm

    @classmethod
    def load(
        cls,
        config: ModelConfig,
        weights: Weights,
        prefix: str,
        layer: int,
        rope: RotaryTable,
        *,
        norm_offset: float = 0.0,
    ) -> Attention:
        """Take the weights under ``prefix`` by the names that Llama and its kin use."""
        hidden, head_dim = config.hidden_size, config.head_dim
        query_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim
        names = [f"{prefix}.{name}" for name in ("q_proj", "k_proj", "v_proj")]
        sizes = [query_size, kv_size, kv_size]
        norms: list[RMSNorm] = []
        if config.qk_norm:
            for name in ("q_norm", "k_norm"):
                norms.append(
                    RMSNorm.load(
                        weights, f"{prefix}.{name}", head_dim, config.norm_eps, offset=norm_offset
                    )
                )
        return cls(
            config,
            layer,
            Linear.load_joined(weights, names, hidden, sizes, config.qkv_bias),
            Linear.load(weights, f"{prefix}.o_proj", query_size, hidden, config.out_bias),
            rope,
            *norms,
        )

    def __call__(self, x: torch.Tensor, batch: DeviceBatch, kv: KVPool) -> torch.Tensor:
        """``[T, hidden_size]`` to ``[T, hidden_size]``; writes this step's keys and values."""
        cache = kv.layer(self._layer)
        query = kernels.rotary_write_kv(
            self._qkv(x),
            self._heads,
            cache,
            batch.positions,
            batch.slot_mapping,
            rotation=self._rope,
            max_position=batch.max_position,
            query_norm=None if self._query_norm is None else self._query_norm.weight,
            key_norm=None if self._key_norm is None else self._key_norm.weight,
            norm_eps=self._norm_eps,
        )
        attended = kernels.paged_attention(
            query,
            self._heads,
            cache,
            batch.layout,
            scale=self._scale,
            window=self._window,
            soft_cap=self._soft_cap,
        )
        return self._out(attended)
