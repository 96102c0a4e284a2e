"""The paged KV cache: two tensors a layer, cut into blocks.

keys of a layer   [num_blocks, block_size, num_kv_heads, head_dim]
                   block 0     block 1     block 2 ...
                  |k k k k ...|k k k k ...|
slot = block_id * block_size + offset
"""

from __future__ import annotations

import numpy as np
import torch

from pagemill.model_config import ModelConfig


class KVPool:
    """Keys and values of every layer, float32.

    On the CPU the memory is mapped, not touched: the operating system gives a page when a block
    in it is first written, so a large pool costs only what is used.
    """

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, device: torch.device
    ) -> None:
        shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self._layers = [
            (_zeros(shape, device), _zeros(shape, device)) for _ in range(config.num_layers)
        ]

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of layer ``index``, ``[num_blocks, block_size, Hkv, D]`` each."""
        return self._layers[index]

    @property
    def num_bytes(self) -> int:
        """Size of the pool if every block is used."""
        return sum(part.nbytes for layer in self._layers for part in layer)


def _zeros(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, device=device)
    return torch.from_numpy(np.zeros(shape, dtype=np.float32))  # calloc: zero pages on demand
