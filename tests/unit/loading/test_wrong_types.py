"""Whatever type a value in a model's files has, they are read or refused with a clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from pagemill.errors import ConfigError, ModelError, RequestError
from pagemill.layers.rope import rope_frequencies
from pagemill.loading.byte_decoding import BYTE_LEVEL_ALPHABET
from pagemill.loading.tokenizer import FileTokenizer
from pagemill.model_config import ModelConfig
from pagemill.rope_config import ROPE_TYPES
from tests.unit.loading_text.tiny_vocabularies import (
    CHATML,
    byte_level_metadata,
    sentencepiece_metadata,
)

WINDOWS = ["full_attention", "sliding_attention"]
ODD: list[Any] = [
    *(True, False, 0, 1, -1, 2**31, 2**63, 10**400, 1.5, -1.0, float("inf"), float("nan")),
    *("", "x", [], ["a"], [1], [[1], [1]], [None], {}, {"a": 1}, {"content": 5}),
    *(
        [{"name": "default", "template": 5}],
        {"rope_type": [1]},
        {"rope_type": "yarn", "factor": ""},
    ),
    *({window: value} for window in WINDOWS for value in ([1], "x", {"rope_theta": [1]})),
]
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_theta": 1e4,
    "rope_scaling": None,
    "rope_parameters": None,
    "rms_norm_eps": 1e-5,
    "architectures": None,
    "head_dim": 8,
    "tie_word_embeddings": True,
}
CONFIGS: list[dict[str, Any]] = [
    {**SHAPE, "model_type": "llama", "mlp_bias": False, "rope_freq_factors": [1.0] * 4},
    {**SHAPE, "model_type": "mistral", "sliding_window": 8},
    {**SHAPE, "model_type": "qwen2", "sliding_window": 8, "max_window_layers": 1}
    | {"use_sliding_window": True, "layer_types": WINDOWS},
    {**SHAPE, "model_type": "gemma3_text", "layer_types": WINDOWS, "rope_local_base_freq": 1e4}
    | {"query_pre_attn_scalar": 8, "final_logit_softcapping": 5.0, "sliding_window_pattern": 2},
    {"model_type": "gpt2", "architectures": None, "vocab_size": 64, "n_embd": 32, "n_head": 4}
    | {"n_layer": 2, "n_positions": 64, "n_inner": None, "activation_function": "gelu_new"},
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config["model_type"]))
def test_of_a_configuration(config: dict[str, Any]) -> None:
    ModelConfig.from_hf(config)
    for key in config:
        for odd in ODD:
            try:
                ModelConfig.from_hf({**config, key: odd})
            except ModelError:
                continue


@pytest.mark.parametrize("rope_type", ROPE_TYPES)
def test_of_a_users_rope_scaling(rope_type: str) -> None:
    model = ModelConfig.from_hf(CONFIGS[0])
    valid: dict[str, Any] = {"rope_type": rope_type, "factor": 2.0}
    valid |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if rope_type == "llama3" else {}
    if rope_type == "longrope":
        valid |= {"short_factor": [1.0] * 4, "long_factor": [1.0] * 4}
    optional = {"original_max_position_embeddings", "attention_factor", "beta_fast", "mscale"}
    for key in valid.keys() | optional | {"rope_theta", "partial_rotary_factor", "truncate"}:
        for odd in ODD:
            try:
                scaled = model.with_overrides(rope_scaling={**valid, key: odd})
            except ConfigError:
                continue
            assert scaled.rope is not None
            rope_frequencies(scaled.rope, scaled.max_model_len)


@pytest.mark.parametrize(
    "metadata",
    [
        byte_level_metadata(template=CHATML, bos_token_id=1, eos_token_id=2, eot_token_id=3),
        sentencepiece_metadata(bos_token_id=1, eos_token_id=2, unknown_token_id=0),
    ],
    ids=["byte-level", "sentencepiece"],
)
def test_of_tokenizer_metadata(metadata: dict[str, Any]) -> None:
    others = ("add_bos_token", "add_space_prefix", "precompiled_charsmap", "merges", "scores")
    in_gguf = [odd for odd in ODD if not isinstance(odd, dict)] + [["a"] * 258, [1.5] * 258]
    for key in metadata.keys() | {f"tokenizer.ggml.{name}" for name in others}:
        for odd in in_gguf:
            try:
                tokenizer = FileTokenizer.from_gguf({**metadata, key: odd})
                tokenizer.encode("ab c")
                tokenizer.encode_chat([{"role": "user", "content": "<|im_end|>"}])
            except (ModelError, RequestError):
                continue


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("tokenizer_config.json", "bos_token"),
        ("tokenizer_config.json", "chat_template"),
        ("special_tokens_map.json", "eos_token"),
        ("generation_config.json", "eos_token_id"),
    ],
)
def test_of_what_lies_beside_a_tokenizer(tmp_path: Path, file: str, key: str) -> None:
    tokenizer = Tokenizer(models.BPE(vocab=dict(BYTE_LEVEL_ALPHABET), merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for odd in ODD:
        (tmp_path / file).write_text(json.dumps({key: odd}))
        try:
            FileTokenizer.from_directory(tmp_path)
        except ModelError:
            continue
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelError, match="not UTF-8"):
        FileTokenizer.from_directory(tmp_path)
