from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pagemill.errors import InvalidFileError, ModelNotFoundError, UnsupportedModelError
from pagemill.loading.hf_directory import read_generation_config, read_hf_config
from pagemill.loading.safetensors_weights import (
    INDEX_FILE,
    SINGLE_FILE,
    SafetensorsWeights,
    canonical_name,
)


def some(*names: str) -> dict[str, torch.Tensor]:
    return {name: torch.full((2, 3), float(i)) for i, name in enumerate(names)}


def write_index(directory: Path, weight_map: Any) -> None:
    (directory / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))


def test_one_file_reads_back(tmp_path: Path) -> None:
    stored = {
        "model.norm.weight": torch.randn(4, dtype=torch.bfloat16),
        "lm_head.weight": torch.randn(3, 4, dtype=torch.float16),
    }
    save_file(stored, tmp_path / SINGLE_FILE)
    weights = SafetensorsWeights(tmp_path, "llama")
    assert set(weights.names()) == set(stored)
    for name, tensor in stored.items():
        assert weights.shape(name) == tuple(tensor.shape)
        assert weights.load(name).dtype == tensor.dtype
        assert torch.equal(weights.load(name), tensor)


def test_shards_read_back_through_their_index(tmp_path: Path) -> None:
    save_file(some("model.a", "model.b"), tmp_path / "model-1.safetensors")
    save_file(some("x", "lm_head.weight"), tmp_path / "model-2.safetensors")
    first, second = "model-1.safetensors", "model-2.safetensors"
    write_index(
        tmp_path, {"model.a": first, "model.b": first, "lm_head.weight": second, "x": second}
    )
    weights = SafetensorsWeights(tmp_path, "llama")
    assert set(weights.names()) == {"model.a", "model.b", "lm_head.weight", "x"}
    assert weights.load("lm_head.weight")[0, 0].item() == 1.0


def test_a_shard_may_be_a_link_to_elsewhere_as_in_the_hubs_cache(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    save_file(some("model.a"), tmp_path / "blobs" / "123")
    (tmp_path / "snapshot" / "part.safetensors").symlink_to("../blobs/123")
    write_index(tmp_path / "snapshot", {"model.a": "part.safetensors"})
    assert set(SafetensorsWeights(tmp_path / "snapshot", "llama").names()) == {"model.a"}


@pytest.mark.parametrize(
    "file_name",
    [
        "../outside.safetensors",
        "/etc/outside.safetensors",
        "sub/outside.safetensors",
        "..\\outside.safetensors",
        "c:outside.safetensors",
        "outside\0.safetensors",
        "model.bin",
        7,
        None,
    ],
)
def test_an_index_may_only_name_files_of_its_directory(tmp_path: Path, file_name: Any) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    save_file(some("model.a"), tmp_path / "outside.safetensors")
    write_index(directory, {"model.a": file_name})
    with pytest.raises(InvalidFileError, match=r"not the name of a \.safetensors file in this"):
        SafetensorsWeights(directory, "llama")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_index(tmp_path, {"model.a": "model-1.safetensors"})
    with pytest.raises(ModelNotFoundError, match=r"model-1\.safetensors: no such file"):
        SafetensorsWeights(tmp_path, "llama")


def test_an_index_that_disagrees_with_a_shard_is_refused(tmp_path: Path) -> None:
    save_file(some("model.a", "model.b"), tmp_path / "1.safetensors")
    write_index(tmp_path, {"model.a": "1.safetensors"})
    with pytest.raises(InvalidFileError, match=r"holds 'model\.b' too"):
        SafetensorsWeights(tmp_path, "llama")
    write_index(tmp_path, dict.fromkeys(["model.a", "model.b", "model.c"], "1.safetensors"))
    with pytest.raises(InvalidFileError, match=r"lacks tensor 'model\.c'"):
        SafetensorsWeights(tmp_path, "llama")


def test_the_same_tensor_under_two_spellings_is_refused(tmp_path: Path) -> None:
    save_file(some("layers.0.x", "model.layers.0.x"), tmp_path / SINGLE_FILE)
    with pytest.raises(InvalidFileError, match=r"is 'model\.layers\.0\.x' twice"):
        SafetensorsWeights(tmp_path, "llama")


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "[" * 100_000, "{}", '{"weight_map": []}'])
def test_a_broken_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX_FILE).write_text(text)
    with pytest.raises(InvalidFileError, match=INDEX_FILE):
        SafetensorsWeights(tmp_path, "llama")


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\xff" * 64, b"\x10" + b"\0" * 7 + b"{" * 16])
def test_a_damaged_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SINGLE_FILE).write_bytes(content)
    with pytest.raises(InvalidFileError, match="not a valid safetensors file"):
        SafetensorsWeights(tmp_path, "llama")


def test_a_truncated_safetensors_file_is_refused(tmp_path: Path) -> None:
    save_file(some("a", "b"), tmp_path / SINGLE_FILE)
    whole = (tmp_path / SINGLE_FILE).read_bytes()
    (tmp_path / SINGLE_FILE).write_bytes(whole[:-1])
    with pytest.raises(InvalidFileError, match="not a valid safetensors file"):
        SafetensorsWeights(tmp_path, "llama")


def test_pickles_are_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(UnsupportedModelError, match=r"pytorch_model\.bin.*runs code"):
        SafetensorsWeights(tmp_path, "llama")


def test_a_directory_without_weights_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "some.gguf").touch()
    with pytest.raises(ModelNotFoundError, match=r"no model\.safetensors .* holds some\.gguf"):
        SafetensorsWeights(tmp_path, "llama")


def test_integer_tensors_are_refused_when_a_model_wants_them(tmp_path: Path) -> None:
    save_file({"model.a": torch.ones(2, dtype=torch.int8)}, tmp_path / SINGLE_FILE)
    weights = SafetensorsWeights(tmp_path, "llama")  # a stray buffer does no harm
    with pytest.raises(UnsupportedModelError, match=r"'model\.a' has type I8"):
        weights.load("model.a")


@pytest.mark.parametrize(
    ("stored", "model_type", "expected"),
    [
        ("h.0.attn.c_attn.weight", "gpt2", "transformer.h.0.attn.c_attn.weight"),
        ("wte.weight", "gpt2", "transformer.wte.weight"),
        ("transformer.wte.weight", "gpt2", "transformer.wte.weight"),
        ("lm_head.weight", "gpt2", "lm_head.weight"),
        ("layers.1.mlp.up_proj.weight", "qwen3", "model.layers.1.mlp.up_proj.weight"),
        ("embed_tokens.weight", "llama", "model.embed_tokens.weight"),
        ("norm.weight", "llama", "model.norm.weight"),
        ("model.norm.weight", "llama", "model.norm.weight"),
        ("language_model.model.norm.weight", "gemma3_text", "model.norm.weight"),
        ("language_model.lm_head.weight", "gemma3_text", "lm_head.weight"),
        ("model.language_model.layers.0.x", "gemma3_text", "model.layers.0.x"),
        ("model.layers.0.x", "gemma3_text", "model.layers.0.x"),
        ("vision_tower.vision_model.x", "gemma3_text", None),
        ("model.multi_modal_projector.x", "gemma3_text", None),
        ("vision_tower.x", "llama", "vision_tower.x"),  # not known there: will be refused
    ],
)
def test_known_prefixes_lead_to_the_canonical_name(
    stored: str, model_type: str, expected: str | None
) -> None:
    assert canonical_name(stored, model_type) == expected


def test_vision_tensors_of_a_multimodal_gemma3_are_left_out(tmp_path: Path) -> None:
    save_file(some("vision_tower.x", "language_model.model.norm.weight"), tmp_path / SINGLE_FILE)
    weights = SafetensorsWeights(tmp_path, "gemma3_text")
    assert set(weights.names()) == {"model.norm.weight"}
    assert weights.load("model.norm.weight")[0, 0].item() == 1.0


def test_the_text_part_of_a_multimodal_gemma3_configuration_is_read(tmp_path: Path) -> None:
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "eos_token_id": [1, 106],
        "vision_config": {"hidden_size": 1152},
        "text_config": {"hidden_size": 2560, "model_type": "gemma3_text", "vocab_size": 99},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = read_hf_config(tmp_path)
    assert read["architectures"] == ["Gemma3ForCausalLM"]
    assert read["model_type"] == "gemma3_text"
    assert read["hidden_size"] == 2560
    assert read["vocab_size"] == 99
    assert read["num_attention_heads"] == 8  # left out by Google's own checkpoints
    assert read["eos_token_id"] == [1, 106]
    assert "vision_config" not in read


def test_the_defaults_of_gemma3_text_are_those_of_transformers(tmp_path: Path) -> None:
    import transformers

    defaults = transformers.Gemma3TextConfig()
    (tmp_path / "config.json").write_text('{"model_type": "gemma3", "text_config": {}}')
    read = read_hf_config(tmp_path)
    for key in read.keys() - {"architectures", "model_type"}:
        assert read[key] == getattr(defaults, key), key
    assert "vocab_size" in read


def test_a_directory_without_a_configuration_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        read_hf_config(tmp_path)


def test_a_configuration_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(InvalidFileError, match="holds a list"):
        read_hf_config(tmp_path)


def test_a_generation_configuration_is_optional(tmp_path: Path) -> None:
    assert read_generation_config(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert read_generation_config(tmp_path) == {"eos_token_id": [1, 2]}
