"""What a model is made of: the one description that all architectures are read into.

    config.json  ─┐                         with_overrides(max_model_len, rope_scaling)
                  ├─> ModelConfig.from_hf ──────────────────> ModelConfig ──> build_model
    GGUF metadata ┘   (translated to the same keys)                       └─> capacity planning

No torch here: the scheduler and the capacity planner need the numbers without the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pagemill.errors import ConfigError
from pagemill.rope_config import RopeConfig, read_rope

Activation = Literal["silu", "gelu", "gelu_tanh"]

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gpt2", "gemma3_text")


@dataclass(frozen=True)
class ModelConfig:
    """Shapes, variants and limits of one decoder-only language model."""

    architecture: str
    """Hugging Face's ``model_type``; one of `ARCHITECTURES`."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    """As the checkpoint states it."""
    max_model_len: int
    """Tokens, prompt and output together, that one sequence may have as served."""
    norm_eps: float
    hidden_act: Activation
    tie_word_embeddings: bool
    attention_scale: float
    """Multiplies query·key."""
    sliding_windows: tuple[int | None, ...]
    """For each layer, how many positions back a token sees, itself included; None: all."""
    rope: RopeConfig | None
    """None: learned positions (GPT-2)."""
    local_rope: RopeConfig | None = None
    """For the layers with a sliding window, where they differ (Gemma 3)."""
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    attention_soft_cap: float | None = None
    logits_soft_cap: float | None = None

    @classmethod
    def from_hf(cls, hf_config: Mapping[str, Any]) -> ModelConfig:
        """Read the content of a ``config.json``.

        Raises:
            UnsupportedModelError: the architecture or a field's value is not implemented.
            InvalidFileError: a field is missing or of the wrong type.
        """
        from pagemill.hf_config import read_model_config  # it needs this class

        return read_model_config(hf_config)

    def with_overrides(
        self, max_model_len: int | None = None, rope_scaling: Mapping[str, Any] | None = None
    ) -> ModelConfig:
        """This model served with another length or another way to scale its positions.

        ``rope_scaling`` replaces the checkpoint's own scaling (of the global layers, where the
        model has local ones too) and raises ``max_model_len`` to the trained length times
        ``factor`` unless ``max_model_len`` is given as well.

        Raises:
            ConfigError: the positions do not reach that far, or the dictionary is not valid.
        """
        rope = self.rope
        limit = self.max_position_embeddings if rope is None else rope.max_len
        if rope_scaling is not None:
            rope = self._scaled_rope(rope_scaling)
            limit = rope.max_len
        served_len = limit if max_model_len is None else max_model_len
        if served_len < 1:
            raise ConfigError(f"max_model_len must be at least 1, got {served_len}")
        if served_len > limit:
            raise ConfigError(self._too_long(served_len, limit))
        return replace(self, rope=rope, max_model_len=served_len)

    def layer_rope(self, layer: int) -> RopeConfig | None:
        """The rotary frequencies of ``layer``."""
        local = self.local_rope is not None and self.sliding_windows[layer] is not None
        return self.local_rope if local else self.rope

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes of KV cache that one token takes over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype_bytes

    @property
    def num_parameters(self) -> int:
        """How many weights the model has; a tied output projection counts once."""
        hidden, q_size = self.hidden_size, self.num_heads * self.head_dim
        kv_size = self.num_kv_heads * self.head_dim
        attention = hidden * (2 * q_size + 2 * kv_size)
        attention += self.qkv_bias * (q_size + 2 * kv_size) + self.out_bias * hidden
        attention += self.qk_norm * 2 * self.head_dim
        num_matrices = 2 if self.architecture == "gpt2" else 3
        mlp = num_matrices * hidden * self.intermediate_size
        mlp += self.mlp_bias * ((num_matrices - 1) * self.intermediate_size + hidden)
        norm = 2 * hidden if self.architecture == "gpt2" else hidden
        norms_per_layer = 4 if self.architecture == "gemma3_text" else 2
        embeddings = self.vocab_size * hidden * (1 if self.tie_word_embeddings else 2)
        if self.rope is None:
            embeddings += self.max_position_embeddings * hidden
        return embeddings + self.num_layers * (attention + mlp + norms_per_layer * norm) + norm

    def _scaled_rope(self, rope_scaling: Mapping[str, Any]) -> RopeConfig:
        if self.rope is None:
            raise ConfigError(
                f"rope_scaling: architecture {self.architecture!r} has learned positions, "
                f"{self.max_position_embeddings} of them, which cannot be scaled; leave it out"
            )
        rope = read_rope(
            rope_scaling,
            head_dim=self.head_dim,
            max_position_embeddings=self.rope.trained_len,
            theta=self.rope.theta,
            partial_rotary_factor=self.rope.rotary_dim / self.head_dim,
            error=ConfigError,
            source="rope_scaling",
        )
        return replace(rope, max_len=int(rope.trained_len * rope.factor))

    def _too_long(self, served_len: int, limit: int) -> str:
        if self.rope is None:
            remedy = "its positions are learned, so no setting extends them"
        else:
            remedy = (
                'to go further, scale the positions, e.g. rope_scaling={"rope_type": "ntk", '
                f'"factor": {max(2.0, float(-(-served_len // self.rope.trained_len)))}}}'
            )
        return f"max_model_len must be at most {limit} for this model, got {served_len}; {remedy}"
