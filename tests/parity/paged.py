"""Our models, built from a Hugging Face model in memory and driven through a paged cache."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from pagemill.batch import Batch
from pagemill.kernels import native
from pagemill.loading.weights import Packing, Weights
from pagemill.model_config import ModelConfig
from pagemill.models import Model, build_model
from pagemill.runner.device_batch import DeviceBatch
from pagemill.runner.kv_pool import KVPool
from pagemill.runner.native_runner import NativeRunner

CPU = torch.device("cpu")


class MemorySource:
    """A `WeightSource` over a state dictionary."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def load(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def our_config(theirs: PreTrainedModel) -> ModelConfig:
    return ModelConfig.from_hf(theirs.config.to_dict())


def our_model(
    theirs: PreTrainedModel,
    config: ModelConfig | None = None,
    dtype: torch.dtype = torch.float32,
    packing: Packing | None = None,
) -> Model:
    weights = Weights(MemorySource(theirs.state_dict()), dtype, packing=packing)
    return build_model(config or our_config(theirs), weights)


def their_logits(theirs: PreTrainedModel, token_ids: Sequence[int]) -> torch.Tensor:
    """``[len(token_ids), vocab_size]`` from one forward without a cache."""
    with torch.inference_mode():
        logits: torch.Tensor = theirs(torch.tensor([list(token_ids)])).logits[0]
    return logits


def random_tokens(count: int, seed: int = 0, vocab_size: int = 97) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, vocab_size, count)]


class PagedModel:
    """Steps of any mix of sequences, over a pool of shuffled blocks that starts full of NaN."""

    def __init__(
        self, model: Model, config: ModelConfig, num_blocks: int = 128, block_size: int = 4
    ) -> None:
        self.model = model
        self.pool = KVPool(config, num_blocks, block_size, CPU)
        for layer in range(config.num_layers):
            for part in self.pool.layer(layer):
                part.fill_(torch.nan)
        self.block_size = block_size
        self.free = list(np.random.default_rng(1).permutation(num_blocks))
        self.tables: dict[str, list[int]] = {}
        self.lens: dict[str, int] = {}

    @torch.inference_mode()
    def step(self, work: Mapping[str, Sequence[int]]) -> dict[str, torch.Tensor]:
        """Append tokens to each named sequence; the logits of every one of them."""
        slots, positions, starts = [], [], [0]
        for name, token_ids in work.items():
            table, start = self.tables.setdefault(name, []), self.lens.get(name, 0)
            end = start + len(token_ids)
            while len(table) * self.block_size < end:
                table.append(int(self.free.pop()))
            for position in range(start, end):
                block, offset = divmod(position, self.block_size)
                slots.append(table[block] * self.block_size + offset)
                positions.append(position)
            self.lens[name] = end
            starts.append(len(slots))
        width = max(len(self.tables[name]) for name in work)
        batch = Batch(
            token_ids=np.array([token for token_ids in work.values() for token in token_ids]),
            positions=np.array(positions),
            slot_mapping=np.array(slots),
            query_start_loc=np.array(starts),
            context_lens=np.array([self.lens[name] for name in work]),
            block_tables=np.array(
                [self.tables[name] + [0] * (width - len(self.tables[name])) for name in work]
            ),
            logits_indices=np.arange(len(slots)),
        )
        logits = self.logits(batch)
        return {name: logits[starts[i] : starts[i + 1]] for i, name in enumerate(work)}

    def logits(self, batch: Batch) -> torch.Tensor:
        """``[T, vocab_size]``: of every row."""
        hidden = self.model.forward(DeviceBatch.from_batch(batch, CPU), self.pool)
        return self.model.compute_logits(hidden)

    def run(self, name: str, chunks: Sequence[Sequence[int]]) -> torch.Tensor:
        """All logits of one sequence computed chunk by chunk."""
        return torch.cat([self.step({name: chunk})[name] for chunk in chunks])


class NativePagedModel(PagedModel):
    """The same on the native kernels, with two threads."""

    def __init__(
        self, model: Model, config: ModelConfig, num_blocks: int = 128, block_size: int = 4
    ) -> None:
        super().__init__(model, config, num_blocks, block_size)
        library = native.load()
        assert library is not None
        self.runner = NativeRunner(
            model,
            config,
            library,
            num_kv_blocks=num_blocks,
            block_size=block_size,
            max_num_batched_tokens=1024,
            num_threads=2,
        )
        for blocks in self.runner._kv._blocks:
            blocks.view(np.float32)[:] = np.nan

    def logits(self, batch: Batch) -> torch.Tensor:
        pieces: list[torch.Tensor] = []
        self.runner.run(batch, lambda first, logits: pieces.append(torch.tensor(logits)))
        return torch.cat(pieces)


def cut(token_ids: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    """``token_ids`` in pieces of ``sizes``, the rest one by one."""
    chunks, start = [], 0
    for size in sizes:
        chunks.append(token_ids[start : start + size])
        start += size
    return chunks + [[token] for token in token_ids[start:]]
