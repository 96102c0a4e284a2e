from __future__ import annotations

import dataclasses

import pytest

from pagemill import ConfigError, EngineConfig
from pagemill.config import parse_bytes, parse_cpus

FIELDS = (
    "model tokenizer dtype quantization device num_threads cpu_affinity max_model_len rope_scaling "
    "block_size num_kv_blocks kv_cache_memory kv_cache_dtype max_num_seqs max_num_batched_tokens "
    "scheduling_policy enable_prefix_caching prefix_cache_partial_hits preemption_mode swap_space "
    "swap_path speculative tensor_parallel_size gpu_memory_utilization enforce_eager deterministic "
    "seed check_invariants"
)


def test_the_field_names_are_the_published_ones() -> None:
    assert [f.name for f in dataclasses.fields(EngineConfig)] == FIELDS.split()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", "cuda"),
        ("speculative", {"method": "ngram"}),
        ("tensor_parallel_size", 2),
        ("gpu_memory_utilization", 0.9),
        ("enforce_eager", True),
    ],
)
def test_what_this_version_lacks_is_refused_by_name_and_value(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field) as error:
        EngineConfig.from_kwargs(**{field: value})
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_size", 0),
        ("block_size", 1025),
        ("block_size", True),
        ("block_size", 16.0),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", -1),
        ("num_kv_blocks", 0),
        ("num_kv_blocks", 2**31),
        ("max_model_len", "8k"),
        ("num_threads", 0),
        ("num_threads", 1025),
        ("cpu_affinity", ""),
        ("cpu_affinity", "0,"),
        ("cpu_affinity", "3-1"),
        ("cpu_affinity", "1,0-2"),
        ("cpu_affinity", "-1"),
        ("cpu_affinity", "automatic"),
        ("cpu_affinity", 1),
        ("seed", -1),
        ("seed", 2**64),
        ("dtype", "float8"),
        ("quantization", "int3"),
        ("kv_cache_dtype", "float8"),
        ("deterministic", False),
        ("model", ""),
        ("model", None),
        ("rope_scaling", "ntk"),
        ("kv_cache_memory", "lots"),
        ("kv_cache_memory", -5),
        ("kv_cache_memory", 0),
        ("check_invariants", "yes"),
        ("scheduling_policy", "fifo"),
        ("scheduling_policy", 3),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name_and_value(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field) as error:
        EngineConfig.from_kwargs(**{field: value})
    assert repr(value) in str(error.value)


def test_an_unknown_option_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_num_seqs'"):
        EngineConfig.from_kwargs(max_num_seq=4)


def test_two_ways_to_size_the_pool_are_refused_together() -> None:
    with pytest.raises(ConfigError, match="give one of them"):
        EngineConfig(num_kv_blocks=4, kv_cache_memory="1GiB")


def test_sizes_may_be_written_with_units() -> None:
    assert parse_bytes("x", 5) == 5
    assert parse_bytes("x", "1.5 KiB") == 1536
    assert parse_bytes("x", "2GB") == 2 * 10**9
    assert parse_bytes("x", "2gib") == 2**31
    assert EngineConfig(kv_cache_memory="1MiB").kv_cache_memory == 2**20


def test_cpus_are_written_as_numbers_and_ranges() -> None:
    assert parse_cpus("x", "3") == (3,)
    assert parse_cpus("x", "8, 0-2,5-5") == (8, 0, 1, 2, 5)
    with pytest.raises(ConfigError, match=r'x must be "auto" or CPU numbers.*"0-3,8", got \'0-\''):
        parse_cpus("x", "0-")


def test_a_configuration_cannot_be_changed_through_what_it_was_built_from() -> None:
    scaling = {"rope_type": "ntk", "factor": 4.0}
    config = EngineConfig(rope_scaling=scaling)
    scaling["factor"] = 8.0
    assert config.rope_scaling == {"rope_type": "ntk", "factor": 4.0}


@pytest.mark.parametrize("value", [False, True, 0.0, None, "", "lots", -1])
def test_a_swap_space_that_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="swap_space must be"):
        EngineConfig.from_kwargs(swap_space=value)


def test_a_swap_path_may_begin_with_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert EngineConfig(swap_space=1, swap_path="~/x").swap_path == "/home/somebody/x"


@pytest.mark.parametrize(
    "options", [{"swap_space": "1MiB"}, {"swap_path": "x"}, {"swap_space": 5, "swap_path": "x"}]
)
def test_a_swap_space_that_nothing_is_moved_to_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(
        ConfigError, match=r"preemption_mode='recompute' moves no .*swap_space="
    ) as e:
        EngineConfig.from_kwargs(preemption_mode="recompute", **options)
    for name, value in options.items():
        assert f"{name}={value!r}" in str(e.value)


@pytest.mark.parametrize("options", [{"swap_path": "x"}, {"preemption_mode": "swap"}])
def test_swapping_without_a_size_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="swap_space is 0"):
        EngineConfig.from_kwargs(**options)
