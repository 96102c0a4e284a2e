"""A rope dictionary with a mistake is refused, and the message lists what is valid."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill.errors import ConfigError
from pagemill.rope_config import ROPE_TYPES, RopeConfig, read_rope


def read(parameters: dict[str, Any], head_dim: int = 8, **settings: Any) -> RopeConfig:
    return read_rope(
        parameters,
        head_dim=head_dim,
        max_position_embeddings=1024,
        error=ConfigError,
        source="rope_scaling",
        **settings,
    )


def test_an_unknown_type_is_refused_with_the_valid_ones() -> None:
    for parameters in ({"rope_type": "magic"}, {"type": 3}, {"factor": 4.0}):
        with pytest.raises(ConfigError, match="rope_type") as caught:
            read(parameters)
        assert all(name in str(caught.value) for name in ROPE_TYPES)


def test_an_unknown_key_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"'fctor' \(got 4\).*factor") as caught:
        read({"rope_type": "ntk", "factor": 4, "fctor": 4})
    assert "beta_fast" not in str(caught.value), "that one belongs to yarn"


@pytest.mark.parametrize(
    ("parameters", "missing"),
    [
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "ntk", "factor": None}, "factor"),
        ({"rope_type": "yarn"}, "factor"),
        ({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1}, "high_freq_factor"),
        ({"rope_type": "longrope", "short_factor": [1] * 4}, "long_factor"),
    ],
)
def test_a_missing_key_is_refused_by_name(parameters: dict[str, Any], missing: str) -> None:
    with pytest.raises(ConfigError, match=f'needs "{missing}"'):
        read(parameters)


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"rope_type": "ntk", "factor": 0.5}, "factor"),
        ({"rope_type": "ntk", "factor": "4"}, "factor"),
        ({"rope_type": "ntk", "factor": float("inf")}, "factor"),
        ({"rope_type": "ntk", "factor": True}, "factor"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_type": "yarn", "factor": 2, "truncate": 1}, "truncate"),
        (
            {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 1.5},
            "original_max_position_embeddings",
        ),
        (
            {"rope_type": "longrope", "short_factor": [1] * 3, "long_factor": [1] * 4},
            "short_factor must be a list of 4 numbers",
        ),
        (
            {"rope_type": "longrope", "short_factor": [1] * 4, "long_factor": [1, 1, 0, 1]},
            "long_factor",
        ),
        ({"partial_rotary_factor": 0.4}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 2.0}, "partial_rotary_factor"),
    ],
)
def test_a_wrong_value_is_refused_by_name(parameters: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        read(parameters)


def test_frequency_factors_must_fit_the_pairs() -> None:
    with pytest.raises(ConfigError, match=r"rope_freq_factors: 4 values .* got 3"):
        read({}, freq_factors=(1.0, 1.0, 1.0))
    with pytest.raises(ConfigError, match="rope_freq_factors"):
        read({}, freq_factors=(1.0, 1.0, -1.0, 1.0))


def test_part_of_a_head_may_be_rotated() -> None:
    assert read({"partial_rotary_factor": 0.5}).rotary_dim == 4
    assert read({}, partial_rotary_factor=0.25).rotary_dim == 2


def test_the_oldest_name_of_longrope_is_understood() -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    rope = read({"type": "su", **factors}, original_max_position_embeddings=256)
    assert (rope.rope_type, rope.trained_len, rope.factor) == ("longrope", 256, 4.0)
