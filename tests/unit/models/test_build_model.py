"""Building a model takes every weight there is, each of the shape that the configuration says."""

from __future__ import annotations

import multiprocessing
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pagemill.batch import Batch, SamplingTask, ScoringTask
from pagemill.errors import InvalidFileError, UnsupportedModelError
from pagemill.loading.weights import Weights
from pagemill.model_config import ModelConfig
from pagemill.models import Model, build_model
from pagemill.runner.kv_pool import KVPool
from pagemill.runner.torch_runner import TorchRunner
from pagemill.sampling_params import SamplingParams

FIELDS: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 6,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
CONFIG = ModelConfig.from_hf(FIELDS)
LAYER = "model.layers.0"
SHAPES = {
    "model.embed_tokens.weight": (11, 8),
    "model.norm.weight": (8,),
    f"{LAYER}.input_layernorm.weight": (8,),
    f"{LAYER}.post_attention_layernorm.weight": (8,),
    f"{LAYER}.self_attn.q_proj.weight": (8, 8),
    f"{LAYER}.self_attn.k_proj.weight": (4, 8),
    f"{LAYER}.self_attn.v_proj.weight": (4, 8),
    f"{LAYER}.self_attn.o_proj.weight": (8, 8),
    f"{LAYER}.mlp.gate_proj.weight": (6, 8),
    f"{LAYER}.mlp.up_proj.weight": (6, 8),
    f"{LAYER}.mlp.down_proj.weight": (8, 6),
}


class RandomSource:
    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self._shapes = shapes

    def names(self) -> Collection[str]:
        return self._shapes.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def load(self, name: str) -> torch.Tensor:
        seed = sum(name.encode())
        return torch.randn(self._shapes[name], generator=torch.Generator().manual_seed(seed))


def build(shapes: dict[str, tuple[int, ...]], config: ModelConfig = CONFIG) -> Model:
    return build_model(config, Weights(RandomSource(shapes), torch.float32))


def decode_batch(token_id: int = 3) -> Batch:
    one = np.array([0])
    return Batch(
        token_ids=np.array([token_id]),
        positions=one,
        slot_mapping=np.array([5]),
        query_start_loc=np.array([0, 1]),
        context_lens=np.array([1]),
        block_tables=np.array([[1]]),
        logits_indices=one,
        sampling=[
            SamplingTask(
                logits_row=0,
                params=SamplingParams(temperature=0.0, logprobs=1),
                prompt_token_ids=[token_id],
                output_token_ids=[],
                seed=0,
                end_token_ids=frozenset(),
            )
        ],
    )


def test_the_number_of_weights_is_what_the_configuration_counts() -> None:
    assert sum(int(np.prod(shape)) for shape in SHAPES.values()) == CONFIG.num_parameters


def test_a_missing_weight_is_named() -> None:
    name = f"{LAYER}.mlp.up_proj.weight"
    with pytest.raises(UnsupportedModelError, match=name):
        build({other: shape for other, shape in SHAPES.items() if other != name})


def test_an_untied_model_needs_its_output_projection() -> None:
    untied = replace(CONFIG, tie_word_embeddings=False)
    with pytest.raises(UnsupportedModelError, match=r"lm_head\.weight"):
        build(SHAPES, untied)
    build({**SHAPES, "lm_head.weight": (11, 8)}, untied)


def test_a_weight_that_nobody_takes_is_named() -> None:
    with pytest.raises(UnsupportedModelError, match="q_norm"):
        build({**SHAPES, f"{LAYER}.self_attn.q_norm.weight": (4,)})


def test_a_weight_of_another_shape_is_named_with_both_shapes() -> None:
    name = f"{LAYER}.self_attn.k_proj.weight"
    with pytest.raises(InvalidFileError, match=rf"{name}.*\[8, 8\].*\[4, 8\]"):
        build({**SHAPES, name: (8, 8)})


def test_an_unknown_architecture_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'mamba'.*llama.*gemma3_text"):
        build(SHAPES, replace(CONFIG, architecture="mamba"))


def test_the_runner_samples_from_the_rows_that_ask_for_it() -> None:
    runner = TorchRunner(build(SHAPES), CONFIG, num_kv_blocks=4, block_size=4)
    assert runner.vocab_size == 11
    result = runner.execute(decode_batch())
    assert len(result.sampled) == 1
    assert result.scored == []
    assert result.sampled[0].logprobs.rank == 1
    again = runner.execute(decode_batch())
    assert again == result
    runner.close()


def test_logits_are_made_a_few_rows_at_a_time_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_tokens = 40
    batch = Batch(
        token_ids=np.arange(num_tokens) % 11,
        positions=np.arange(num_tokens),
        slot_mapping=np.arange(num_tokens),
        query_start_loc=np.array([0, num_tokens]),
        context_lens=np.array([num_tokens]),
        block_tables=np.arange(10)[None],
        logits_indices=np.arange(num_tokens),
        sampling=[replace(decode_batch().sampling[0], logits_row=num_tokens - 1)],
        scoring=[ScoringTask(row, (row + 1) % 11, 2) for row in range(num_tokens - 1)],
    )
    model = build(SHAPES)
    compute_logits, num_rows = model.compute_logits, []

    def counted(hidden: torch.Tensor) -> torch.Tensor:
        num_rows.append(len(hidden))
        return compute_logits(hidden)

    monkeypatch.setattr(model, "compute_logits", counted)
    results = []
    for rows in (256, 16):
        monkeypatch.setattr("pagemill.runner.logits_pieces.LOGITS_ROWS", rows)
        runner = TorchRunner(model, CONFIG, num_kv_blocks=10, block_size=4)
        results.append(runner.execute(batch))
    assert num_rows == [40, 16, 16, 8]
    assert results[0] == results[1]
    assert (len(results[0].sampled), len(results[0].scored)) == (1, 39)


def test_a_step_that_needs_no_logits_samples_nothing() -> None:
    runner = TorchRunner(build(SHAPES), CONFIG, num_kv_blocks=4, block_size=4)
    batch = decode_batch()
    batch.logits_indices, batch.sampling = np.array([], dtype=np.int64), []
    result = runner.execute(batch)
    assert (result.sampled, result.scored) == ([], [])


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def fill_one_slot_of_a_large_pool() -> None:
    before = resident_bytes()
    pool = KVPool(CONFIG, 1_000_000, 16, torch.device("cpu"))
    assert pool.num_bytes == 1_000_000 * 16 * CONFIG.kv_bytes_per_token(4)
    pool.layer(0)[0][123_456] = 1.0
    assert resident_bytes() - before < pool.num_bytes / 10


def test_a_large_pool_takes_memory_only_where_it_is_written() -> None:
    """In a process of its own: where a heap has large holes, allocating fills them with zeros."""
    process = multiprocessing.get_context("spawn").Process(target=fill_one_slot_of_a_large_pool)
    process.start()
    process.join(timeout=120)
    assert process.exitcode == 0
