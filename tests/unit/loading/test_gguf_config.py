from __future__ import annotations

import math
from typing import Any

import pytest

from pagemill.errors import InvalidFileError, UnsupportedModelError
from pagemill.loading.gguf_config import gguf_to_hf_config
from pagemill.model_config import ModelConfig

SHAPES = {"token_embd.weight": (100, 64), "output.weight": (100, 64)}


def metadata(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    values = {
        "embedding_length": 64,
        "feed_forward_length": 128,
        "block_count": 12,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "context_length": 4096,
    }
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    prefixed = {f"{architecture}.{key}": value for key, value in values.items()}
    return {"general.architecture": architecture, **prefixed}


def translated(*args: Any, **changes: Any) -> dict[str, Any]:
    config = gguf_to_hf_config(metadata(*args, **changes), SHAPES)
    ModelConfig.from_hf(config)  # the one reader of configurations accepts it
    return config


def test_without_an_output_projection_the_embeddings_are_tied() -> None:
    only_embedding = {"token_embd.weight": (100, 64)}
    assert gguf_to_hf_config(metadata(), only_embedding)["tie_word_embeddings"] is True
    assert gguf_to_hf_config(metadata(), SHAPES)["tie_word_embeddings"] is False


def test_the_vocabulary_is_as_large_as_the_embedding() -> None:
    tokens = {"tokenizer.ggml.tokens": ["x"] * 97}
    assert gguf_to_hf_config(metadata() | tokens, SHAPES)["vocab_size"] == 100


def test_more_tokens_than_embeddings_are_refused() -> None:
    tokens = {"tokenizer.ggml.tokens": ["x"] * 101}
    with pytest.raises(InvalidFileError, match=r"lists 101 tokens, but .* only 100 rows"):
        gguf_to_hf_config(metadata() | tokens, SHAPES)


def test_the_head_dimension_defaults_to_hidden_size_over_heads() -> None:
    assert translated()["head_dim"] == 16
    assert translated(attention__key_length=32, attention__value_length=32)["head_dim"] == 32


@pytest.mark.parametrize("key", ["attention__value_length", "rope__dimension_count"])
def test_a_partly_rotated_head_or_another_value_length_is_refused(key: str) -> None:
    with pytest.raises(UnsupportedModelError, match="differs from the head dimension 16"):
        translated(**{key: 8})


def test_key_heads_default_to_query_heads() -> None:
    fields = metadata()
    del fields["llama.attention.head_count_kv"]
    assert gguf_to_hf_config(fields, SHAPES)["num_key_value_heads"] == 4


def test_per_layer_lists_must_agree() -> None:
    assert translated(attention__head_count=[4, 4, 4])["num_attention_heads"] == 4
    with pytest.raises(UnsupportedModelError, match="differs between layers"):
        translated(attention__head_count=[4, 8])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0),
        ("block_count", "12"),
        ("block_count", 2**31),
        ("block_count", True),
        ("embedding_length", -1),
        ("embedding_length", 64.0),
        ("context_length", []),
        ("attention.head_count", None),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("attention.layer_norm_rms_epsilon", "small"),
        ("rope.freq_base", float("inf")),
    ],
)
def test_impossible_values_are_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(InvalidFileError, match=f"llama.{key} is"):
        gguf_to_hf_config(metadata() | {f"llama.{key}": value}, SHAPES)


def test_a_missing_embedding_is_refused() -> None:
    with pytest.raises(InvalidFileError, match=r"token_embd\.weight"):
        gguf_to_hf_config(metadata(), {})


def test_an_unknown_setting_of_the_architecture_is_refused_unless_it_is_off() -> None:
    with pytest.raises(UnsupportedModelError, match=r"llama\.expert_count = 8"):
        translated(expert_count=8)
    translated(expert_count=0, attention__clamp_kqv=0.0, vocab_size=100)


def test_rope_base_and_linear_scaling() -> None:
    config = translated(rope__freq_base=5e5)
    assert config["rope_theta"] == 5e5
    assert "rope_scaling" not in config
    assert translated()["rope_theta"] == 10000.0
    linear = {"rope_type": "linear", "factor": 4.0}
    scaled = translated(rope__scaling__type="linear", rope__scaling__factor=4.0)
    assert scaled["rope_scaling"] == linear
    assert translated(rope__scale_linear=4.0)["rope_scaling"] == linear  # the older key
    assert "rope_scaling" not in translated(rope__scaling__type="none", rope__scaling__factor=4.0)
    assert "rope_scaling" not in translated(rope__scaling__factor=1.0)


def test_yarn_scaling_multiplies_the_files_attention_factor_with_its_own() -> None:
    yarn = {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 4.0,
        "rope__scaling__original_context_length": 1024,
    }
    assert translated(**yarn)["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
    }
    more = {"rope__scaling__attn_factor": 0.5, "rope__scaling__yarn_beta_fast": 16.0}
    scaling = translated(**yarn, **more)["rope_scaling"]
    assert scaling["attention_factor"] == pytest.approx(0.5 * (1 + 0.1 * math.log(4)))
    assert scaling["beta_fast"] == 16.0
    with pytest.raises(UnsupportedModelError, match="yarn_ext_factor"):
        translated(**yarn, rope__scaling__yarn_ext_factor=0.5)
    with pytest.raises(InvalidFileError, match=r"factor is 0\.0, below 1"):
        translated(**yarn | {"rope__scaling__factor": 0.0})


def test_longrope_takes_its_factors_from_their_tensors() -> None:
    fields = metadata(
        rope__scaling__type="longrope",
        rope__scaling__original_context_length=1024,
        rope__scaling__attn_factor=1.25,
    )
    factors = {"rope_factors_short.weight": [1.0] * 8, "rope_factors_long.weight": [2.0] * 8}
    config = gguf_to_hf_config(fields, SHAPES, rope_factors=factors)
    assert config["rope_scaling"] == {
        "rope_type": "longrope",
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
        "original_max_position_embeddings": 1024,
        "attention_factor": 1.25,
    }
    ModelConfig.from_hf(config)
    with pytest.raises(InvalidFileError, match=r"no tensor 'rope_factors_short\.weight'"):
        gguf_to_hf_config(fields, SHAPES)


def test_an_unknown_rope_scaling_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="'spiral' is not supported"):
        translated(rope__scaling__type="spiral")


def test_a_llama_file_with_a_sliding_window_is_a_mistral() -> None:
    config = translated(attention__sliding_window=1024)
    assert config["architectures"] == ["MistralForCausalLM"]
    assert ModelConfig.from_hf(config).sliding_windows == (1024,) * 12


def test_every_sixth_gemma3_layer_is_global_and_the_local_base_is_ten_thousand() -> None:
    config = translated("gemma3", attention__sliding_window=512, rope__freq_base=1e6)
    is_global = [kind == "full_attention" for kind in config["layer_types"]]
    assert is_global == [False] * 5 + [True] + [False] * 5 + [True]
    assert config["rope_theta"] == 1e6
    assert config["rope_local_base_freq"] == 10000.0
    assert config["sliding_window"] == 512


def test_gemma3_patterns_and_local_base_that_the_file_states_win() -> None:
    stated = {"attention__sliding_window": 512, "rope__freq_base_swa": 20000.0}
    every_third = translated("gemma3", **stated, attention__sliding_window_pattern=3)
    assert [kind[0] for kind in every_third["layer_types"]] == ["s", "s", "f"] * 4
    assert every_third["rope_local_base_freq"] == 20000.0
    listed = [True, False] * 6
    config = translated("gemma3", **stated, attention__sliding_window_pattern=listed)
    assert [kind[0] for kind in config["layer_types"]] == ["s", "f"] * 6
    assert set(translated("gemma3")["layer_types"]) == {"full_attention"}


def test_only_the_largest_gemma3_scales_queries_by_hidden_size_over_heads() -> None:
    small = translated("gemma3", attention__key_length=32, attention__value_length=32)
    assert small["query_pre_attn_scalar"] == 32
    large = translated("gemma3", block_count=62, attention__key_length=32)
    assert large["query_pre_attn_scalar"] == 64 // 4


def test_gemma3_soft_caps_are_passed_on() -> None:
    config = translated("gemma3", final_logit_softcapping=30.0, attn_logit_softcapping=50.0)
    read = ModelConfig.from_hf(config)
    assert (read.logits_soft_cap, read.attention_soft_cap) == (30.0, 50.0)


def test_gpt2_with_grouped_heads_is_refused() -> None:
    fields = metadata("gpt2", attention__layer_norm_epsilon=1e-5)
    with pytest.raises(UnsupportedModelError, match="4 query heads and 2 key heads"):
        gguf_to_hf_config(fields, SHAPES)
