"""From a checkpoint to packed weights, through `Weights.take_linear`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from pagemill.errors import InvalidFileError, UnsupportedModelError
from pagemill.kernels import native
from pagemill.loading.gguf_file import GGUFFile
from pagemill.loading.gguf_weights import GGUFWeights
from pagemill.loading.weights import Weights
from tests.unit.loading.gguf_builder import FloatArray, GGUFBuilder
from tests.unit.native.packing_helpers import assert_same_bits, needs_library

pytestmark = needs_library

ATTENTION = "model.layers.0.self_attn"
HIDDEN = 64
SIZES = {"q_proj": 48, "k_proj": 24, "v_proj": 24}  # 2 query heads, 1 key head of 24


def values(num_rows: int, num_cols: int = HIDDEN, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal((num_rows, num_cols)).astype(np.float32)


def llama(tmp_path: Path, **types: Type) -> GGUFWeights:
    """One layer's attention, whose Q and K rows the converter has reordered."""
    builder = GGUFBuilder().update(
        {
            "general.architecture": "llama",
            "llama.embedding_length": HIDDEN,
            "llama.attention.head_count": 2,
            "llama.attention.head_count_kv": 1,
        }
    )
    for seed, (name, size) in enumerate(SIZES.items()):
        stored = types.get(name[0], Type.Q4_1)
        builder.tensor(f"blk.0.attn_{name[0]}.weight", values(size, seed=seed), stored)
    builder.tensor("blk.0.attn_norm.weight", np.ones(HIDDEN, np.float32))
    return GGUFWeights(GGUFFile.open(builder.write(tmp_path / "m.gguf")))


def names() -> list[str]:
    return [f"{ATTENTION}.{name}.weight" for name in SIZES]


def joined(source: GGUFWeights, dtype: torch.dtype = torch.float32) -> FloatArray:
    weights = Weights(source, dtype)
    parts = [
        weights.take(name, (size, HIDDEN))
        for name, size in zip(names(), SIZES.values(), strict=True)
    ]
    result: FloatArray = torch.cat(parts).float().numpy()
    return result


def test_a_files_blocks_are_joined_as_stored_in_canonical_order(tmp_path: Path) -> None:
    source = llama(tmp_path)
    weights = Weights(source, torch.float32)
    linear = weights.take_linear(names(), HIDDEN, list(SIZES.values()))
    assert linear.format == "Q4_1"
    assert_same_bits(linear.dequantize(), joined(source))


def test_types_may_differ_between_the_parts(tmp_path: Path) -> None:
    source = llama(tmp_path, v=Type.Q8_0)
    linear = Weights(source, torch.float32).take_linear(names(), HIDDEN, list(SIZES.values()))
    assert linear.format == "Q4_1+Q8_0"
    assert linear.segments[1].first_row == 72
    assert_same_bits(linear.dequantize(), joined(source))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_floats_of_a_file_are_cast(tmp_path: Path, dtype: torch.dtype) -> None:
    source = llama(tmp_path, q=Type.F32, k=Type.F16, v=Type.BF16)
    linear = Weights(source, dtype).take_linear(names(), HIDDEN, list(SIZES.values()))
    assert len(linear.segments) == 1
    assert_same_bits(linear.dequantize(), joined(source, dtype))


def test_floats_are_quantized_from_what_is_stored_and_blocks_stay(tmp_path: Path) -> None:
    source = llama(tmp_path, q=Type.F32, k=Type.F32)
    weights = Weights(source, torch.bfloat16)
    linear = weights.take_linear(names(), HIDDEN, list(SIZES.values()), quantization="int8")
    group = "row" if native.library().pagemill_isa_name() == b"amx" else "32"
    assert linear.format == f"int8-{group}+Q4_1"
    wanted = joined(source)
    np.testing.assert_allclose(linear.dequantize(), wanted, atol=np.abs(wanted).max() / 250)


class FloatSource:
    """Two matrices in memory, without a method for blocks."""

    def __init__(self) -> None:
        self.tensors = {
            "a": torch.from_numpy(values(5, 40)).to(torch.bfloat16),
            "b": torch.from_numpy(values(40, 30)).to(torch.bfloat16).T,
        }

    def names(self) -> Collection[str]:
        return self.tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def load(self, name: str) -> torch.Tensor:
        return self.tensors[name]


def test_any_source_of_floats_will_do() -> None:
    source = FloatSource()
    weights = Weights(source, torch.bfloat16)
    linear = weights.take_linear(["a", "b"], 40, [5, 30], group_size=None, num_threads=2)
    weights.finish()
    assert linear.format == "BF16"
    wanted = torch.cat([source.tensors["a"], source.tensors["b"]]).float().numpy()
    assert_same_bits(linear.dequantize(), wanted)


def test_missing_and_misshapen_tensors_are_refused_by_name(tmp_path: Path) -> None:
    weights = Weights(llama(tmp_path), torch.float32)
    with pytest.raises(UnsupportedModelError, match=r"no tensor 'c' \(expected shape \[3, 64\]\)"):
        weights.take_linear(["c"], HIDDEN, [3])
    with pytest.raises(InvalidFileError, match=r"q_proj\.weight' has shape \[48, 64\].*\[50, 64\]"):
        weights.take_linear(names()[:1], HIDDEN, [50])
    with pytest.raises(UnsupportedModelError, match=r"holds 4 tensor\(s\)"):
        weights.finish()


def test_weights_that_cannot_be_quantized_are_named() -> None:
    source = FloatSource()
    source.tensors["a"][2, 3] = float("nan")
    weights = Weights(source, torch.float32)
    with pytest.raises(InvalidFileError, match="tensor 'a' or 'b': a weight is infinite or not"):
        weights.take_linear(["a", "b"], 40, [5, 30], quantization="int4")


def test_query_rows_that_the_heads_cannot_share_are_refused(tmp_path: Path) -> None:
    builder = GGUFBuilder().update(
        {"general.architecture": "llama", "llama.attention.head_count": 2}
    )
    builder.tensor("blk.0.attn_q.weight", values(34), Type.Q4_0)
    source = GGUFWeights(GGUFFile.open(builder.write(tmp_path / "m.gguf")))
    with pytest.raises(InvalidFileError, match="34 rows, which 2 heads cannot share"):
        Weights(source, torch.float32).take_linear(names()[:1], HIDDEN, [34])


def test_only_matrices_of_blocks_have_rows_to_pack(tmp_path: Path) -> None:
    source = llama(tmp_path, q=Type.F16)
    assert source.quantized_rows(names()[0]) is None
    assert source.quantized_rows("model.layers.0.input_layernorm.weight") is None
    rows = source.quantized_rows(names()[1])
    assert rows is not None
    assert rows.data.tobytes() == source.file.raw("blk.0.attn_k.weight").tobytes()


def test_gpt2s_transposed_weights_have_no_rows_to_pack(tmp_path: Path) -> None:
    builder = GGUFBuilder().update({"general.architecture": "gpt2"})
    builder.tensor("blk.0.attn_qkv.weight", values(96, 32), Type.Q8_0)
    source = GGUFWeights(GGUFFile.open(builder.write(tmp_path / "m.gguf")))
    assert source.quantized_rows("transformer.h.0.attn.c_attn.weight") is None


def test_a_real_model_packs_as_stored(smollm2_path: Path) -> None:
    file = GGUFFile.open(smollm2_path)
    source = GGUFWeights(file)
    weights = Weights(source, torch.float32)
    sizes = [source.shape(name)[0] for name in names()]
    hidden = source.shape(names()[0])[1]
    linear = weights.take_linear(names(), hidden, sizes)
    parts = [weights.take(name, (size, hidden)) for name, size in zip(names(), sizes, strict=True)]
    assert_same_bits(linear.dequantize(), torch.cat(parts).numpy())
    stored = sum(file.tensors[source.gguf_name(name)].size_bytes for name in names())
    assert linear.num_bytes <= 1.01 * stored
