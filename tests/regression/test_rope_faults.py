"""Faults that engines have shipped in reading and applying rotary scaling."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pagemill.errors import ConfigError, UnsupportedModelError
from pagemill.layers.rope import rope_frequencies
from pagemill.model_config import ModelConfig
from pagemill.rope_config import RopeConfig

FIELDS: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 128,
    "intermediate_size": 100,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}


def rope_of(**changes: Any) -> RopeConfig:
    rope = ModelConfig.from_hf({**FIELDS, **changes}).rope
    assert rope is not None
    return rope


@pytest.mark.parametrize("key", ["rope_type", "type"])
@pytest.mark.parametrize("rope_type", ["linear", "ntk", "dynamic", "yarn"])
def test_the_scaling_is_read_from_rope_type_and_from_the_older_type(
    key: str, rope_type: str
) -> None:
    scaled = rope_of(rope_scaling={key: rope_type, "factor": 4.0})
    frequencies, _ = rope_frequencies(scaled, 16384)
    plain, _ = rope_frequencies(rope_of(), 4096)
    assert (plain[-1] / frequencies[-1]).item() > 3.9, "the slowest pair is stretched"
    if rope_type == "linear":
        torch.testing.assert_close(frequencies, plain / 4)


@pytest.mark.parametrize("served_len", [1, 16, 1000, 4095, 4096])
def test_a_served_length_below_the_trained_one_scales_nothing(served_len: int) -> None:
    """Dynamic NTK's base, theta * (factor * length / trained - (factor - 1)) ** (...), turns
    negative (then not a number) for a length below 3/4 of the trained one at factor 4."""
    plain, _ = rope_frequencies(rope_of(), 4096)
    dynamic = rope_of(rope_scaling={"rope_type": "dynamic", "factor": 4.0})
    frequencies, factor = rope_frequencies(dynamic, served_len)
    assert torch.equal(frequencies, plain)
    assert factor == 1.0


def test_longrope_takes_its_short_factors_up_to_the_trained_length() -> None:
    short, long = [1.0] * 32, [4.0] * 32
    rope = rope_of(
        rope_scaling={"rope_type": "longrope", "short_factor": short, "long_factor": long},
        original_max_position_embeddings=1024,
    )
    plain, _ = rope_frequencies(rope_of(), 4096)
    for served_len in (10, 1024):
        torch.testing.assert_close(rope_frequencies(rope, served_len)[0], plain)
    torch.testing.assert_close(rope_frequencies(rope, 1025)[0], plain / 4)


def test_a_files_rope_factors_are_used() -> None:
    """A converter writes llama3 scaling as a tensor of factors, unscaled over scaled frequency,
    and leaves the type out: the two spellings must give the same frequencies."""
    llama3 = rope_of(
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024,
        }
    )
    expected, _ = rope_frequencies(llama3, 4096)
    plain, _ = rope_frequencies(rope_of(), 4096)
    factors = (plain / expected).tolist()
    assert max(factors) > 7.9
    frequencies, _ = rope_frequencies(rope_of(rope_freq_factors=factors), 4096)
    torch.testing.assert_close(frequencies, expected)


@pytest.mark.parametrize("rope_type", ["linear", "ntk", "dynamic", "yarn"])
@pytest.mark.parametrize("factor", [1e300, 1.7e308])
def test_a_factor_that_overflows_is_refused_by_name(rope_type: str, factor: float) -> None:
    scaling = {"rope_type": rope_type, "factor": factor}
    with pytest.raises(ConfigError, match="factor must be between 1 and 1e"):
        ModelConfig.from_hf(FIELDS).with_overrides(rope_scaling=scaling)
    with pytest.raises(UnsupportedModelError, match="factor must be between 1 and 1e"):
        rope_of(rope_scaling=scaling)
