"""Reading a configuration: what is implemented is read, everything else is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill.errors import ConfigError, InvalidFileError, UnsupportedModelError
from pagemill.model_config import ARCHITECTURES, ModelConfig

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    # what else the SmolLM2 file says
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.04,
    "is_llama_config": True,
    "pretraining_tp": 1,
    "rope_interleaved": False,
    "rope_scaling": None,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
    "use_cache": True,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 50257,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "n_ctx": 1024,
    "task_specific_params": {"text-generation": {"max_length": 50}},
}
GEMMA3: dict[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": 262144,
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "sliding_window": 512,
}


def read(base: dict[str, Any], **changes: Any) -> ModelConfig:
    return ModelConfig.from_hf({**base, **changes})


def test_smollm2_is_read_whole() -> None:
    config = read(LLAMA)
    assert config.num_parameters == 134_515_008
    assert config.head_dim == 64
    assert config.max_model_len == 8192
    assert config.kv_bytes_per_token(4) == 2 * 30 * 3 * 64 * 4
    assert config.rope is not None
    assert (config.rope.theta, config.rope.rotary_dim) == (100000.0, 64)


def test_gemma3_defaults_to_one_global_layer_in_six() -> None:
    config = read(GEMMA3)
    assert config.sliding_windows == ((512,) * 5 + (None,)) * 3
    layer_bases = [config.layer_rope(layer) for layer in (0, 5)]
    assert [rope.theta for rope in layer_bases if rope] == [10_000.0, 1_000_000.0]
    assert config.num_parameters == 268_098_176
    assert read(GEMMA3, sliding_window_pattern=2).sliding_windows == (512, None) * 9


def test_mistrals_window_is_4096_if_absent_and_none_if_null() -> None:
    mistral = {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    assert read(mistral).sliding_windows == (4096,) * 30
    assert read(mistral, sliding_window=None).sliding_windows == (None,) * 30
    assert read(mistral, sliding_window=100).sliding_windows == (100,) * 30


def test_qwens_window_applies_only_when_switched_on_and_from_its_layer_on() -> None:
    qwen = {**LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    window = {"sliding_window": 100, "max_window_layers": 28}
    assert read(qwen, **window).sliding_windows == (None,) * 30
    on = read(qwen, use_sliding_window=True, **window)
    assert on.sliding_windows == (None,) * 28 + (100,) * 2


def test_an_unknown_architecture_is_refused_with_the_valid_ones() -> None:
    for fields in ({"model_type": "mamba"}, {**LLAMA, "architectures": ["MixtralForCausalLM"]}, {}):
        with pytest.raises(UnsupportedModelError, match="supported") as caught:
            ModelConfig.from_hf(fields)
        for name in ARCHITECTURES:
            assert name in str(caught.value)


@pytest.mark.parametrize(
    ("base", "field", "value"),
    [
        (LLAMA, "num_local_experts", 8),
        (LLAMA, "quantization_config", {"quant_method": "gptq"}),
        (LLAMA, "sliding_window", 4096),
        (LLAMA, "layer_types", ["full_attention"] * 30),
        (LLAMA, "rope_local_base_freq", 10000.0),
        (LLAMA, "logit_scale", 0),
        (LLAMA, "rope_interleaved", True),
        (LLAMA, "hidden_act", "relu2"),
        (LLAMA, "rope_scaling", {"rope_type": "mrope", "mrope_section": [16, 24, 24]}),
        (GPT2, "scale_attn_weights", False),
        (GPT2, "scale_attn_by_inverse_layer_idx", True),
        (GPT2, "add_cross_attention", True),
        (GPT2, "activation_function", "relu"),
        (GEMMA3, "use_bidirectional_attention", True),
        (GEMMA3, "layer_types", ["chunked_attention"] * 18),
        (GEMMA3, "attn_temperature", 2),
        ({**LLAMA, "model_type": "qwen2", "architectures": None}, "mlp_bias", True),
        ({**LLAMA, "model_type": "mistral", "architectures": None}, "attention_bias", True),
    ],
)
def test_a_field_that_is_not_implemented_is_refused_by_name(
    base: dict[str, Any], field: str, value: object
) -> None:
    read(base)
    with pytest.raises(UnsupportedModelError, match=field) as caught:
        read(base, **{field: value})
    if not isinstance(value, (list, dict)):
        assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", None),
        ("hidden_size", "576"),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", True),
        ("num_key_value_heads", 2),
        ("rms_norm_eps", -1e-5),
        ("rms_norm_eps", float("nan")),
        ("tie_word_embeddings", "yes"),
        ("max_position_embeddings", 1.5),
        ("rope_scaling", [1]),
    ],
)
def test_a_wrong_value_is_refused_with_field_and_value(field: str, value: object) -> None:
    with pytest.raises(InvalidFileError, match=field):
        read(LLAMA, **{field: value})


def test_a_window_without_a_length_is_refused() -> None:
    qwen = {**LLAMA, "model_type": "qwen3", "architectures": None}
    layer_types = ["sliding_attention"] * 30
    with pytest.raises(InvalidFileError, match="sliding_window"):
        read(qwen, layer_types=layer_types)


def test_a_length_beyond_the_positions_is_refused_with_the_remedy() -> None:
    config = read(LLAMA)
    assert config.with_overrides(max_model_len=8192).max_model_len == 8192
    assert config.with_overrides(max_model_len=100).max_model_len == 100
    with pytest.raises(ConfigError, match=r"at most 8192 .* got 20000; .*rope_scaling.*3\.0"):
        config.with_overrides(max_model_len=20000)
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        config.with_overrides(max_model_len=0)


def test_the_users_scaling_raises_the_length_by_its_factor() -> None:
    config = read(LLAMA)
    for rope_type in ("linear", "ntk", "dynamic", "yarn"):
        scaling = {"rope_type": rope_type, "factor": 4.0}
        scaled = config.with_overrides(rope_scaling=scaling)
        assert scaled.max_model_len == 32768
        assert scaled.rope is not None
        assert (scaled.rope.theta, scaled.rope.trained_len) == (100000.0, 8192)
        assert config.with_overrides(9000, scaling).max_model_len == 9000
        with pytest.raises(ConfigError, match="at most 32768"):
            config.with_overrides(32769, scaling)


def test_the_users_scaling_replaces_the_checkpoints() -> None:
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    }
    config = read(LLAMA, rope_scaling=llama3)
    assert config.max_model_len == 8192
    scaled = config.with_overrides(rope_scaling={"rope_type": "ntk", "factor": 2.0})
    assert scaled.max_model_len == 2048, "from what the unscaled frequencies were made for"
    assert scaled.rope is not None
    assert scaled.rope.rope_type == "ntk"


def test_a_checkpoints_own_scaling_sets_how_far_it_reaches() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
    assert read(LLAMA, rope_scaling=yarn).max_model_len == 32768
    dynamic = {"type": "dynamic", "factor": 2.0}
    assert read(LLAMA, rope_scaling=dynamic).max_model_len == 16384
    linear = {"type": "linear", "factor": 2.0}
    assert read(LLAMA, rope_scaling=linear).max_model_len == 8192


def test_gemmas_local_layers_keep_their_frequencies_under_the_users_scaling() -> None:
    config = read(GEMMA3)
    scaled = config.with_overrides(rope_scaling={"rope_type": "linear", "factor": 2.0})
    assert scaled.local_rope == config.local_rope
    assert scaled.layer_rope(5) != config.layer_rope(5)


def test_learned_positions_are_a_hard_limit() -> None:
    config = read(GPT2)
    assert config.num_parameters == 124_439_808
    with pytest.raises(ConfigError, match=r"at most 1024 .* got 1025; its positions are learned"):
        config.with_overrides(max_model_len=1025)
    with pytest.raises(ConfigError, match=r"rope_scaling: .*gpt2.*1024"):
        config.with_overrides(rope_scaling={"rope_type": "linear", "factor": 2.0})
