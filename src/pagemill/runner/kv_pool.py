"""The paged KV cache: two tensors a layer, cut into blocks.

keys of a layer   [num_blocks, block_size, num_kv_heads, head_dim]
                   block 0     block 1     block 2 ...
                  |k k k k ...|k k k k ...|
slot = block_id * block_size + offset
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pagemill.batch import BlockMove, MoveKind
from pagemill.model_config import ModelConfig
from pagemill.runner.swap_memory import SwapMemory


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

    def read_block(self, block_id: int) -> bytes:
        """Keys and values of a block, one layer after another."""
        return b"".join(
            part[block_id].cpu().numpy().tobytes() for layer in self._layers for part in layer
        )

    def write_block(self, block_id: int, content: bytes) -> None:
        """Put back what `read_block` gave."""
        numbers = torch.from_numpy(np.frombuffer(content, np.float32).copy())
        parts = numbers.view(2 * len(self._layers), -1)
        for part, values in zip((p for layer in self._layers for p in layer), parts, strict=True):
            part[block_id] = values.view_as(part[block_id])

    def move_blocks(self, moves: Sequence[BlockMove], swap: SwapMemory) -> None:
        """Make ``moves``, as if one after another.

        A swap slot holds the keys and values of one layer after another.
        """
        layers = self._layers
        slots = torch.from_numpy(swap.slots.view(np.float32))
        slots = slots.view(len(slots), len(layers), 2, slots.shape[1] // (2 * len(layers)))
        for kind, source, target in moves:
            for i, layer in enumerate(self._layers):
                for part, pool in enumerate(layer):
                    if kind is MoveKind.COPY:
                        pool[target] = pool[source]
                    elif kind is MoveKind.SWAP_OUT:
                        slots[target, i, part] = pool[source].flatten()
                    else:
                        pool[target] = slots[source, i, part].view_as(pool[target])

    @property
    def num_bytes(self) -> int:
        """Size of the pool if every block is used."""
        return sum(part.nbytes for layer in self._layers for part in layer)


def _zeros(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, device=device)
    return torch.from_numpy(np.zeros(shape, dtype=np.float32))  # calloc: zero pages on demand
