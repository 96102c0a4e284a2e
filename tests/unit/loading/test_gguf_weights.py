"""Reading back what a converter wrote: names from the gguf library's table, content from here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import MODEL_ARCH as ARCH
from gguf import GGMLQuantizationType as Type

from pagemill.errors import InvalidFileError, UnsupportedModelError
from pagemill.loading.gguf_file import GGUFFile
from pagemill.loading.gguf_names import Change
from pagemill.loading.gguf_weights import GGUFWeights
from pagemill.model_config import ModelConfig
from tests.unit.loading.gguf_builder import FloatArray, GGUFBuilder

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 2.0**-20,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass
class Case:
    """A tiny Hugging Face model and the metadata that a converter would write for it."""

    name: str
    arch: ARCH
    config: Callable[[], Any]
    extra: dict[str, Any]


CASES = [
    Case(
        "llama",
        ARCH.LLAMA,
        lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=False),
        {"rope.freq_base": 10000.0, "rope.dimension_count": 16},
    ),
    Case(
        "llama",
        ARCH.LLAMA,
        lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True, attention_bias=True),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
    ),
    Case(
        "llama",
        ARCH.LLAMA,
        lambda: transformers.MistralConfig(**SIZES, sliding_window=64),
        {"attention.sliding_window": 64},
    ),
    Case(
        "qwen2",
        ARCH.QWEN2,
        lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
        {"rope.freq_base": 500000.0},
    ),
    Case(
        "qwen3",
        ARCH.QWEN3,
        lambda: transformers.Qwen3Config(**SIZES, tie_word_embeddings=False),
        {"attention.value_length": 16},
    ),
    Case(
        "gemma3",
        ARCH.GEMMA3,
        lambda: transformers.Gemma3TextConfig(
            **(SIZES | {"num_hidden_layers": 7}), sliding_window=8, query_pre_attn_scalar=16
        ),
        {"attention.sliding_window": 8, "rope.freq_base": 1e6},
    ),
]


def converted(case: Case) -> tuple[GGUFBuilder, dict[str, torch.Tensor], Any]:
    """The file, the Hugging Face weights that went into it, and their configuration."""
    torch.manual_seed(0)
    config = case.config()
    for key, value in case.extra.items():
        if key == "rope.freq_base" and case.name != "gemma3":  # Gemma's default is this one
            config.rope_parameters["rope_theta"] = value
        if key == "rope.scaling.factor":
            config.rope_parameters |= {"rope_type": "linear", "factor": value}
    auto_model: Any = transformers.AutoModelForCausalLM
    model = auto_model.from_config(config)
    state = {name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    prefix = f"{case.name}."
    builder = GGUFBuilder().set(general__architecture=case.name)
    builder.update(
        {
            prefix + "embedding_length": config.hidden_size,
            prefix + "feed_forward_length": config.intermediate_size,
            prefix + "block_count": config.num_hidden_layers,
            prefix + "attention.head_count": config.num_attention_heads,
            prefix + "attention.head_count_kv": config.num_key_value_heads,
            prefix + "attention.key_length": config.head_dim,
            prefix + "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
            prefix + "context_length": config.max_position_embeddings,
            **{prefix + key: value for key, value in case.extra.items()},
        }
    )
    names = gguf.get_tensor_name_map(case.arch, config.num_hidden_layers)
    for name, tensor in state.items():
        gguf_name = in_gguf(names, name)
        content = as_converted(case, config, gguf_name, tensor.numpy())
        builder.tensor(gguf_name, content)
    return builder, state, config


def in_gguf(names: gguf.TensorNameMap, name: str) -> str:
    gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert gguf_name is not None, name
    return gguf_name


def as_converted(case: Case, config: Any, gguf_name: str, w: FloatArray) -> FloatArray:
    """What a converter does to the content (the inverse of what is under test)."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    module = gguf_name.split(".")[-2]
    if case.name == "llama" and module in heads:
        pairs = w.reshape(heads[module], 2, w.shape[0] // heads[module] // 2, *w.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(w.shape))
    if case.name == "gemma3" and gguf_name.endswith("norm.weight"):
        return w + np.float32(1)
    return w


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.config().model_type)
def test_converted_weights_and_configuration_come_back(case: Case, tmp_path: Path) -> None:
    builder, state, config = converted(case)
    weights = GGUFWeights(GGUFFile.open(builder.write(tmp_path / "m.gguf")))

    assert set(weights.names()) == set(state)
    for name, expected in state.items():
        assert weights.shape(name) == tuple(expected.shape)
        tolerance = 1e-6 if case.name == "gemma3" else 0.0  # (w + 1) - 1
        torch.testing.assert_close(weights.load(name), expected, rtol=0, atol=tolerance)
    expected_config = config.to_dict()
    if case.name == "gemma3":
        expected_config["architectures"] = ["Gemma3ForCausalLM"]
    assert ModelConfig.from_hf(weights.hf_config()) == ModelConfig.from_hf(expected_config)


def test_gpt2_comes_back_with_its_transposed_matrices(tmp_path: Path) -> None:
    config = transformers.GPT2Config(
        vocab_size=40, n_embd=32, n_head=4, n_layer=2, n_positions=64, n_inner=96
    )
    torch.manual_seed(0)
    state = {
        name: torch.randn_like(tensor)
        for name, tensor in transformers.GPT2LMHeadModel(config).state_dict().items()
        if name != "lm_head.weight"
    }
    builder = GGUFBuilder().set(general__architecture="gpt2", gpt2__context_length=64)
    builder.set(gpt2__embedding_length=32, gpt2__block_count=2, gpt2__feed_forward_length=96)
    builder.set(gpt2__attention__head_count=4, gpt2__attention__layer_norm_epsilon=1e-5)
    names = gguf.get_tensor_name_map(ARCH.GPT2, 2)
    for name, tensor in state.items():
        gguf_name = in_gguf(names, name)
        is_conv1d = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        builder.tensor(gguf_name, (tensor.T if is_conv1d else tensor).contiguous().numpy())
    weights = GGUFWeights(GGUFFile.open(builder.write(tmp_path / "gpt2.gguf")))

    assert set(weights.names()) == set(state)
    for name, expected in state.items():
        assert weights.shape(name) == tuple(expected.shape)
        assert torch.equal(weights.load(name), expected), name
    ours = ModelConfig.from_hf(weights.hf_config())
    theirs = ModelConfig.from_hf({**config.to_dict(), "architectures": ["GPT2LMHeadModel"]})
    assert ours.norm_eps == pytest.approx(theirs.norm_eps)  # stored as a 32-bit float
    assert {**vars(ours), "norm_eps": 0} == {**vars(theirs), "norm_eps": 0}


def llama_file(**changes: Any) -> GGUFBuilder:
    metadata = {
        "general.architecture": "llama",
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 48,
        "llama.block_count": 1,
        "llama.attention.head_count": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.context_length": 64,
    }
    builder = GGUFBuilder().update(metadata | changes)
    return builder.tensor("token_embd.weight", np.ones((8, 32), np.float32))


def opened(builder: GGUFBuilder, tmp_path: Path) -> GGUFWeights:
    return GGUFWeights(GGUFFile.open(builder.write(tmp_path / "m.gguf")))


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [
        (Type.F32, torch.float32),
        (Type.F16, torch.float16),
        (Type.BF16, torch.bfloat16),
        (Type.Q8_0, torch.float32),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_float_types_load_as_stored_and_quantized_ones_as_float32(
    tmp_path: Path, stored: Type, dtype: torch.dtype
) -> None:
    values = (np.arange(64).reshape(2, 32) / 4).astype(np.float32)
    weights = opened(llama_file().tensor("output.weight", values, stored), tmp_path)
    tensor = weights.load("lm_head.weight")
    assert tensor.dtype == dtype
    torch.testing.assert_close(tensor.float(), torch.from_numpy(values), rtol=0.01, atol=0.06)
    tensor.zero_()  # the caller's own: the next load is untouched
    assert weights.load("lm_head.weight").abs().sum() > 0


def test_gemmas_one_is_subtracted_in_float32_even_from_half_precision(tmp_path: Path) -> None:
    metadata = {"general.architecture": "gemma3"}
    builder = GGUFBuilder().update(metadata)
    builder.tensor("output_norm.weight", np.full(32, 1.0009765625, dtype=np.float32), Type.F16)
    tensor = opened(builder, tmp_path).load("model.norm.weight")
    assert tensor.dtype == torch.float32
    assert tensor[0].item() == 2.0**-10


def test_stored_bytes_stay_reachable_by_canonical_name(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    weights = opened(llama_file().tensor("blk.0.attn_q.weight", values, Type.Q4_0), tmp_path)
    name = "model.layers.0.self_attn.q_proj.weight"
    raw = weights.file.raw(weights.gguf_name(name))
    assert raw.tobytes() == gguf.quants.quantize(values, Type.Q4_0).tobytes()
    assert weights.change(name) is Change.PERMUTED_QUERY


def test_a_tensor_that_the_architecture_has_no_place_for_is_named(tmp_path: Path) -> None:
    builder = llama_file().tensor("blk.0.ffn_gate_inp.weight", np.ones((2, 32), np.float32))
    with pytest.raises(UnsupportedModelError, match=r"no place .*'?blk\.0\.ffn_gate_inp\.weight"):
        opened(builder, tmp_path)


@pytest.mark.parametrize("name", ["blk.00.attn_q.weight", "blk.٣.attn_q.weight", "blk.0.attn_q"])
def test_odd_spellings_of_a_layer_are_not_that_layer(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedModelError, match="no place"):
        opened(llama_file().tensor(name, np.ones((32, 32), np.float32)), tmp_path)


def test_an_unknown_architecture_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'mamba' is not supported.*llama, qwen2"):
        opened(GGUFBuilder().set(general__architecture="mamba"), tmp_path)


def test_a_file_without_an_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match=r"general\.architecture is None"):
        opened(GGUFBuilder(), tmp_path)


def test_query_rows_that_the_heads_cannot_share_are_refused(tmp_path: Path) -> None:
    builder = llama_file().tensor("blk.0.attn_q.weight", np.ones((34, 32), np.float32))
    weights = opened(builder, tmp_path)
    with pytest.raises(InvalidFileError, match="34 rows, which 2 heads cannot share"):
        weights.load("model.layers.0.self_attn.q_proj.weight")
