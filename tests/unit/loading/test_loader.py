from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import save_file

from pagemill.errors import InvalidFileError, ModelNotFoundError
from pagemill.loading.loader import load_model
from pagemill.model_config import ModelConfig
from tests.unit.loading.gguf_builder import GGUFBuilder

LETTERS = ["<s>", "</s>", "a", "b", "ab"]


def gguf_model(path: Path, *, with_tokenizer: bool = True) -> Path:
    builder = GGUFBuilder().update(
        {
            "general.architecture": "llama",
            "llama.embedding_length": 32,
            "llama.feed_forward_length": 48,
            "llama.block_count": 1,
            "llama.attention.head_count": 2,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.context_length": 64,
        }
    )
    if with_tokenizer:
        builder.update(
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": "gpt-2",
                "tokenizer.ggml.tokens": LETTERS,
                "tokenizer.ggml.token_type": [3, 3, 1, 1, 1],
                "tokenizer.ggml.merges": ["a b"],
                "tokenizer.ggml.bos_token_id": 0,
                "tokenizer.ggml.eos_token_id": 1,
            }
        )
    return builder.tensor("token_embd.weight", np.ones((5, 32), np.float32)).write(path)


def tokenizer_file(directory: Path, letters: str) -> Path:
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory / "tokenizer.json"


def directory_model(directory: Path, *, with_tokenizer: bool = True) -> Path:
    directory.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 3,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    save_file({"model.norm.weight": torch.ones(8)}, directory / "model.safetensors")
    if with_tokenizer:
        tokenizer_file(directory, "xyz")
    return directory


def test_a_gguf_file_brings_configuration_weights_and_tokenizer(tmp_path: Path) -> None:
    path = gguf_model(tmp_path / "m.gguf")
    loaded = load_model(str(path))
    assert loaded.name == str(path)
    assert loaded.source_path == path
    assert ModelConfig.from_hf(loaded.hf_config).architecture == "llama"
    assert set(loaded.weights.names()) == {"model.embed_tokens.weight"}
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.encode("ab", add_special_tokens=False) == [4]
    assert loaded.generation_config == {"bos_token_id": 0, "eos_token_id": 1}


def test_a_directory_brings_configuration_weights_and_tokenizer(tmp_path: Path) -> None:
    path = directory_model(tmp_path / "m")
    loaded = load_model(str(path))
    assert loaded.source_path == path
    assert ModelConfig.from_hf(loaded.hf_config).num_layers == 1
    assert set(loaded.weights.names()) == {"model.norm.weight"}
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.encode("zx") == [2, 0]
    assert loaded.generation_config == {"eos_token_id": [1, 2]}


def test_a_model_without_a_tokenizer_loads_without_one(tmp_path: Path) -> None:
    assert load_model(str(gguf_model(tmp_path / "m.gguf", with_tokenizer=False))).tokenizer is None
    assert load_model(str(directory_model(tmp_path / "m", with_tokenizer=False))).tokenizer is None


@pytest.mark.parametrize("kind", ["directory", "tokenizer.json", "gguf"])
def test_the_tokenizer_may_come_from_elsewhere(tmp_path: Path, kind: str) -> None:
    model = directory_model(tmp_path / "m")
    if kind == "gguf":
        other, text, expected = gguf_model(tmp_path / "other.gguf"), "ab", [4]
    else:
        (tmp_path / "other").mkdir()
        file = tokenizer_file(tmp_path / "other", "ba")
        other, text, expected = (file if kind == "tokenizer.json" else file.parent), "ab", [1, 0]
    tokenizer = load_model(str(model), str(other)).tokenizer
    assert tokenizer is not None
    assert tokenizer.encode(text, add_special_tokens=False) == expected


def test_a_broken_own_tokenizer_does_not_matter_if_another_is_given(tmp_path: Path) -> None:
    model = directory_model(tmp_path / "m")
    (model / "tokenizer.json").write_text("{")
    (tmp_path / "other").mkdir()
    other = tokenizer_file(tmp_path / "other", "ba")
    assert load_model(str(model), str(other)).tokenizer is not None


@pytest.mark.parametrize("where", ["nowhere", "empty"])
def test_a_tokenizer_that_is_not_there_is_refused(tmp_path: Path, where: str) -> None:
    (tmp_path / "empty").mkdir()
    model = directory_model(tmp_path / "m")
    with pytest.raises(ModelNotFoundError, match="tokenizer"):
        load_model(str(model), str(tmp_path / where))


def test_any_other_file_is_refused_as_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a model at all")
    with pytest.raises(InvalidFileError, match="not a GGUF file"):
        load_model(str(path))
