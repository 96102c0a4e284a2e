"""Faults of model loading that engines of this kind have shipped."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from pagemill.errors import InvalidFileError, UnsupportedModelError
from pagemill.loading.gguf_file import GGUFFile
from pagemill.loading.gguf_weights import GGUFWeights
from pagemill.loading.weights import Weights
from pagemill.model_config import ModelConfig

ROPE_FACTORS = np.array([1.0, 1.0, 2.5, 8.0], np.float32)


def write_model(path: Path, *, second_name: str = "", rope_freqs: bool = False) -> Path:
    """A valid file with one small matrix, written by the gguf library."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_context_length(128)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", np.arange(8 * 16, dtype=np.float32).reshape(8, 16))
    if second_name:
        writer.add_tensor(second_name, np.ones((8, 16), np.float32))
    if rope_freqs:
        writer.add_tensor("rope_freqs.weight", ROPE_FACTORS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def patched(path: Path, after: bytes, skip: int, value: int, num_bytes: int) -> Path:
    """Overwrite the little-endian integer ``skip`` bytes after the end of ``after``."""
    raw = bytearray(path.read_bytes())
    at = raw.index(after) + len(after) + skip
    raw[at : at + num_bytes] = value.to_bytes(num_bytes, "little")
    path.write_bytes(raw)
    return path


# A row of the tensor table: name, u32 number of dims, u64 dims (2 here), u32 type, u64 offset.
NAME = b"token_embd.weight"
FIRST_DIM, TYPE, OFFSET = 4, 4 + 16, 4 + 16 + 4


def test_tied_embeddings_without_an_output_tensor(tmp_path: Path) -> None:
    tied = GGUFWeights(GGUFFile.open(write_model(tmp_path / "tied.gguf")))
    untied = GGUFWeights(
        GGUFFile.open(write_model(tmp_path / "untied.gguf", second_name="output.weight"))
    )
    assert ModelConfig.from_hf(tied.hf_config()).tie_word_embeddings
    assert "lm_head.weight" not in tied.names()
    assert not ModelConfig.from_hf(untied.hf_config()).tie_word_embeddings
    assert "lm_head.weight" in untied.names()


def test_an_extra_rope_freqs_tensor_becomes_the_rope_factors(tmp_path: Path) -> None:
    source = GGUFWeights(GGUFFile.open(write_model(tmp_path / "m.gguf", rope_freqs=True)))
    assert source.hf_config()["rope_freq_factors"] == ROPE_FACTORS.tolist()
    rope = ModelConfig.from_hf(source.hf_config()).rope
    assert rope is not None
    assert rope.freq_factors == tuple(ROPE_FACTORS.tolist())
    # It is no weight: a model that takes all weights has not left it over.
    weights = Weights(source, torch.float32)
    weights.take("model.embed_tokens.weight", (8, 16))
    weights.finish()


@pytest.mark.parametrize(("number", "shown"), [(16, "IQ2_XXS"), (26, "I32"), (999, "number 999")])
def test_an_unknown_tensor_type_is_named_with_its_tensor(
    tmp_path: Path, number: int, shown: str
) -> None:
    path = patched(write_model(tmp_path / "m.gguf"), NAME, TYPE, number, 4)
    with pytest.raises(UnsupportedModelError, match=rf"'token_embd\.weight' has type {shown}"):
        GGUFFile.open(path)


@pytest.mark.parametrize("offset", [32, 2**40, 2**63, 2**64 - 32])
def test_a_tensor_whose_offset_runs_past_the_end_is_refused(tmp_path: Path, offset: int) -> None:
    path = patched(write_model(tmp_path / "m.gguf"), NAME, OFFSET, offset, 8)
    with pytest.raises(InvalidFileError, match=r"'token_embd\.weight' .* but the file ends at"):
        GGUFFile.open(path)


@pytest.mark.parametrize("dim", [17, 2**32, 2**62, 2**64 - 1])
def test_a_tensor_whose_size_runs_past_the_end_is_refused(tmp_path: Path, dim: int) -> None:
    path = patched(write_model(tmp_path / "m.gguf"), NAME, FIRST_DIM, dim, 8)
    with pytest.raises(InvalidFileError, match=r"'token_embd\.weight' .* but the file ends at"):
        GGUFFile.open(path)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**24 + 1, 2**23])
@pytest.mark.parametrize("what", ["key", "value", "name"])
def test_a_huge_string_length_is_refused_without_allocating(
    tmp_path: Path, length: int, what: str
) -> None:
    path = write_model(tmp_path / "m.gguf")
    before = {"key": b"general.architecture", "name": NAME, "value": b"llama"}[what]
    path = patched(path, before, -len(before) - 8, length, 8)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidFileError, match=rf"length of .* is {length}"):
            GGUFFile.open(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_duplicate_tensor_names_are_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", second_name="token_embd.weighT")
    path.write_bytes(path.read_bytes().replace(b"token_embd.weighT", NAME))
    with pytest.raises(InvalidFileError, match=r"tensor 'token_embd\.weight' appears twice"):
        GGUFFile.open(path)


def test_a_truncated_download_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InvalidFileError, match="truncated or damaged"):
        GGUFFile.open(path)
