from __future__ import annotations

import dataclasses

import pytest

from pagemill.cli.options import EngineOptions, SamplingOptions
from pagemill.config import EngineConfig
from pagemill.errors import ConfigError
from pagemill.sampling_params import SamplingParams


def names(cls: type) -> set[str]:
    return {f.name for f in dataclasses.fields(cls)}


def test_every_option_is_a_field_of_what_it_sets() -> None:
    assert names(SamplingOptions) <= names(SamplingParams)
    assert names(EngineOptions) <= names(EngineConfig)


def test_what_was_not_given_keeps_the_default() -> None:
    assert SamplingOptions().given() == {}
    assert EngineOptions().config("m") == EngineConfig(model="m")


def test_zero_is_a_value_and_not_an_absence() -> None:
    given = SamplingOptions(temperature=0.0, top_k=0, seed=0, min_p=0.0).given()
    assert given == {"temperature": 0.0, "top_k": 0, "seed": 0, "min_p": 0.0}


def test_engine_options_reach_the_configuration() -> None:
    options = EngineOptions(
        rope_scaling='{"rope_type": "ntk", "factor": 4.0}',
        kv_cache_memory="2MiB",
        block_size=8,
        check_invariants=True,
    )
    config = options.config("m")
    assert config.rope_scaling == {"rope_type": "ntk", "factor": 4.0}
    assert (config.kv_cache_memory, config.block_size) == (2 * 2**20, 8)
    assert config.check_invariants


@pytest.mark.parametrize("text", ["{", "[]", "ntk"])
def test_a_rope_scaling_that_is_no_json_object_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--rope-scaling must be a JSON object.*rope_type"):
        EngineOptions(rope_scaling=text).config("m")
