"""The sizes that are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pagemill.errors import ConfigError
from pagemill.kernels import HeadShape
from pagemill.model_config import ModelConfig

NUM_ROWS: Final = (1, 8, 32, 256)
"""M: a decode of so many sequences, or a chunk of a prompt."""


@dataclass(frozen=True)
class Shapes:
    """Layers of one size."""

    name: str
    linears: Sequence[tuple[str, int, int]]
    """Name, N, K."""
    heads: HeadShape
    hidden_size: int
    intermediate_size: int
    vocab_size: int

    @property
    def qkv_size(self) -> int:
        """Queries, keys and values of a token."""
        return (self.heads.num_heads + 2 * self.heads.num_kv_heads) * self.heads.head_dim

    def config(self, num_layers: int, max_model_len: int) -> ModelConfig:
        """A Llama of these sizes."""
        return ModelConfig.from_hf(
            {
                "model_type": "llama",
                "hidden_size": self.hidden_size,
                "intermediate_size": self.intermediate_size,
                "num_attention_heads": self.heads.num_heads,
                "num_key_value_heads": self.heads.num_kv_heads,
                "head_dim": self.heads.head_dim,
                "num_hidden_layers": num_layers,
                "vocab_size": self.vocab_size,
                "max_position_embeddings": max_model_len,
            }
        )


SMOLLM2: Final = Shapes(
    "SmolLM2-135M",
    (
        ("qkv", 960, 576),
        ("out", 576, 576),
        ("gate_up", 3072, 576),
        ("down", 576, 1536),
        ("head", 49152, 576),
    ),
    HeadShape(9, 3, 64),
    hidden_size=576,
    intermediate_size=1536,
    vocab_size=49152,
)
LARGE: Final = Shapes(
    "large",
    (("square", 4096, 4096),),
    HeadShape(32, 8, 128),
    hidden_size=4096,
    intermediate_size=14336,
    vocab_size=8192,
)
_CHOICES: Final = {"smollm2": (SMOLLM2,), "large": (LARGE,), "all": (SMOLLM2, LARGE)}


def shapes_named(name: str) -> Sequence[Shapes]:
    """What ``--shapes`` means.

    Raises:
        ConfigError: there are no such shapes.
    """
    if name not in _CHOICES:
        raise ConfigError(f"--shapes must be one of {', '.join(_CHOICES)}, got {name}")
    return _CHOICES[name]
