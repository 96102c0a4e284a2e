"""Rotary frequencies by formula, and the table of angles."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from pagemill.layers.rope import RotaryTable, attention_factor, ntk_theta, rope_frequencies
from pagemill.rope_config import RopeConfig

PLAIN = RopeConfig(rotary_dim=128, trained_len=4096, max_len=4096)


def test_unscaled_frequencies_are_powers_of_the_base() -> None:
    frequencies, factor = rope_frequencies(PLAIN, 4096)
    assert factor == 1.0
    assert frequencies.shape == (64,)
    assert frequencies[0] == 1.0
    assert frequencies[32].item() == pytest.approx(10000 ** (-64 / 128))


def test_ntk_raises_the_base_so_that_the_slowest_pair_turns_factor_times_slower() -> None:
    ntk = replace(PLAIN, rope_type="ntk", factor=4.0)
    assert ntk_theta(ntk, 4.0) == pytest.approx(40889.9, abs=0.05)
    plain, _ = rope_frequencies(PLAIN, 4096)
    scaled, factor = rope_frequencies(ntk, 16384)
    assert factor == 1.0
    assert scaled[0] == plain[0] == 1.0
    assert (plain[-1] / scaled[-1]).item() == pytest.approx(4.0, rel=1e-5)
    assert scaled[10].item() == pytest.approx(40889.93 ** (-20 / 128), rel=1e-5)


def test_ntk_with_a_single_pair_has_no_base_to_raise() -> None:
    single = replace(PLAIN, rotary_dim=2, rope_type="ntk", factor=4.0)
    assert rope_frequencies(single, 4096)[0].tolist() == [1.0]


def test_ntk_does_not_depend_on_the_served_length() -> None:
    ntk = replace(PLAIN, rope_type="ntk", factor=4.0)
    assert torch.equal(rope_frequencies(ntk, 100)[0], rope_frequencies(ntk, 16384)[0])


def test_frequency_factors_divide_after_the_scaling() -> None:
    factors = tuple(1.0 + i for i in range(64))
    linear = replace(PLAIN, rope_type="linear", factor=2.0, freq_factors=factors)
    plain, _ = rope_frequencies(PLAIN, 4096)
    torch.testing.assert_close(
        rope_frequencies(linear, 4096)[0], plain / 2.0 / torch.tensor(factors)
    )


def test_yarn_keeps_the_fast_pairs_and_interpolates_the_slow_ones() -> None:
    yarn = replace(PLAIN, rope_type="yarn", factor=8.0)
    plain, _ = rope_frequencies(PLAIN, 4096)
    scaled, factor = rope_frequencies(yarn, 32768)
    ratio = plain / scaled
    turns = 4096 * plain / (2 * math.pi)
    torch.testing.assert_close(ratio[turns > 40], torch.ones(int((turns > 40).sum())))
    torch.testing.assert_close(ratio[turns < 0.8], torch.full((int((turns < 0.8).sum()),), 8.0))
    assert factor == pytest.approx(0.1 * math.log(8) + 1)


def test_the_attention_factor_of_a_scaling_by_one_is_one() -> None:
    for rope_type in ("yarn", "longrope"):
        assert attention_factor(replace(PLAIN, rope_type=rope_type, factor=1.0)) == 1.0


def test_only_the_rotated_part_of_a_head_has_frequencies() -> None:
    table = RotaryTable(replace(PLAIN, rotary_dim=32), 4096)
    cos, sin = table.up_to(0)
    assert cos.shape[1] == sin.shape[1] == 16


def test_the_table_holds_the_angle_of_every_position() -> None:
    longrope = replace(
        PLAIN, rotary_dim=4, rope_type="longrope", factor=4.0, long_factor=(1.0, 2.0)
    )
    cos, sin = RotaryTable(longrope, 16384).up_to(5000)
    scale = math.sqrt(1 + math.log(4) / math.log(4096))
    assert cos[4999, 1].item() == pytest.approx(scale * math.cos(4999 * 0.01 / 2), abs=1e-3)
    assert sin[3, 0].item() == pytest.approx(scale * math.sin(3), abs=1e-6)


def test_a_table_has_the_same_bits_however_it_grew() -> None:
    at_once = RotaryTable(PLAIN, 4096).up_to(4095)
    stepwise = RotaryTable(PLAIN, 4096)
    for position in (0, 1, 1023, 1024, 1025, 3000, 4095):
        grown = stepwise.up_to(position)
        assert grown[0].shape[0] > position
    for whole, part in zip(at_once, grown, strict=True):
        assert torch.equal(whole[:4096], part[:4096])
