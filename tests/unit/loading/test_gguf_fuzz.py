"""Whatever the bytes are, a GGUF file is read or refused; no other error, no hang, no huge list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagemill.errors import ModelError
from pagemill.loading.gguf_file import GGUFFile
from pagemill.loading.gguf_weights import GGUFWeights
from pagemill.model_config import ModelConfig
from tests.unit.loading.gguf_builder import GGUFBuilder


def _valid(architecture: str) -> bytes:
    """A small model file; every code path of reading one runs on it."""
    metadata: dict[str, Any] = {
        "embedding_length": 32,
        "feed_forward_length": 32,
        "block_count": 2,
        "attention.head_count": [2, 2],
        "context_length": 64,
    }
    if architecture == "gpt2":
        metadata["attention.layer_norm_epsilon"] = 1e-5
    else:
        metadata["attention.layer_norm_rms_epsilon"] = 1e-5
        metadata |= {"rope.freq_base": 10000.0, "attention.sliding_window": 8}
        metadata |= {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}
        metadata |= {"rope.scaling.attn_factor": 2.0}
    builder = GGUFBuilder().set(general__architecture=architecture, general__alignment=32)
    builder.update({f"{architecture}.{key}": value for key, value in metadata.items()})
    builder.set(tokenizer__ggml__tokens=["a", "bc", "語"], tokenizer__ggml__eos_token_id=1)
    builder.tensor("token_embd.weight", np.ones((4, 32), np.float32), Type.Q8_0)
    builder.tensor("output_norm.weight", np.ones(32, np.float32))
    if architecture != "gpt2":
        builder.tensor("rope_freqs.weight", np.ones(8, np.float32))
        builder.tensor("blk.0.attn_q.weight", np.ones((32, 32), np.float32), Type.Q4_1)
    return builder.tensor("blk.1.ffn_up.weight", np.ones((32, 32), np.float32), Type.F16).build()


_FILES = {architecture: _valid(architecture) for architecture in ("llama", "gemma3", "gpt2")}
_FUZZ = settings(
    max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _accepted(path: Path, raw: bytes | bytearray) -> bool:
    """Read all of it; any error but pagemill's own about models escapes and fails the test."""
    path.write_bytes(raw)
    try:
        weights = GGUFWeights(GGUFFile.open(path))
        ModelConfig.from_hf(weights.hf_config())
        for name in weights.names():
            assert tuple(weights.load(name).shape) == weights.shape(name)
    except ModelError:
        return False
    return True


@pytest.mark.parametrize("architecture", _FILES)
def test_the_files_are_valid_before_they_are_damaged(tmp_path: Path, architecture: str) -> None:
    assert _accepted(tmp_path / "fuzz.gguf", _FILES[architecture])


@_FUZZ
@given(data=st.data(), architecture=st.sampled_from(list(_FILES)))
def test_flipped_bytes_never_do_more_than_refuse_the_file(
    tmp_path: Path, data: st.DataObject, architecture: str
) -> None:
    raw = bytearray(_FILES[architecture])
    positions = st.integers(0, len(raw) - 1)
    for position in data.draw(st.lists(positions, min_size=1, max_size=8)):
        raw[position] ^= data.draw(st.integers(1, 255))
    _accepted(tmp_path / "fuzz.gguf", raw)


@_FUZZ
@given(
    data=st.data(),
    architecture=st.sampled_from(list(_FILES)),
    word=st.sampled_from([0, 1, 2**31 - 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]),
    num_bytes=st.sampled_from([4, 8]),
)
def test_extreme_words_anywhere_never_do_more_than_refuse_the_file(
    tmp_path: Path, data: st.DataObject, architecture: str, word: int, num_bytes: int
) -> None:
    raw = bytearray(_FILES[architecture])
    position = data.draw(st.integers(0, len(raw) - 8))
    raw[position : position + num_bytes] = word.to_bytes(8, "little")[:num_bytes]
    _accepted(tmp_path / "fuzz.gguf", raw)


def test_truncations_are_refused(tmp_path: Path) -> None:
    whole = _FILES["llama"]
    for length in [*range(0, len(whole), 13), len(whole) - 1]:
        accepted = _accepted(tmp_path / "fuzz.gguf", whole[:length])
        assert not accepted, f"{length} of {len(whole)} bytes were accepted"
