from __future__ import annotations

import dataclasses
import re

import pytest

from pagemill.cli import defaults
from pagemill.cli.app import run
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


@pytest.mark.parametrize(
    ("options", "sets"), [(SamplingOptions, SamplingParams), (EngineOptions, EngineConfig)]
)
def test_a_default_that_the_help_shows_is_the_real_one(options: type, sets: type) -> None:
    real = {f.name: f.default for f in dataclasses.fields(sets)}
    shown = vars(options)["DEFAULTS"]
    assert shown.keys() <= names(options)
    for name in names(options) - {"max_tokens", "temperature", "seed", "stop"}:
        if real[name] is None:
            assert isinstance(shown[name], str)  # said in words
        elif real[name] is not False:
            assert shown[name] == real[name], name


@pytest.mark.parametrize("command", ["generate", "chat", "info"])
def test_the_help_shows_values_and_defaults_alike(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run([command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    kinds = {
        w for line in lines for w in re.findall(r"│ --[a-z-]+ +(?:-\w +)?([A-Z]{2,}\b|<\w+>)", line)
    }
    assert kinds <= {"INT", "FLOAT", "TEXT", "NAME", "FILE", "SIZE", "JSON", "MODEL", "<bool>"}
    assert sum("<bool>" in line for line in lines) == 1  # typer's own --help
    of_command = {"generate": defaults.GENERATE, "chat": defaults.CHAT, "info": {}}[command]
    for name, value in of_command.items():
        (line,) = [line for line in lines if f"--{name.replace('_', '-')} " in line]
        assert f"; default {value:g}." in line
    assert any("--block-size" in line and "; default 16." in line for line in lines)
