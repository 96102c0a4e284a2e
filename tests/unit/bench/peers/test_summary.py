from __future__ import annotations

import pytest

from pagemill.bench.peers.summary import RaceSummary, bandwidth_share, quiet_shares, summarize
from tests.unit.bench.peers.results import Figures, race


def summary(name: str, unit: str, figures: Figures) -> RaceSummary:
    return summarize(race(name, unit, figures))


def test_a_ratio_is_the_median_of_the_ratios_within_rounds() -> None:
    # The machine slowed down by half in rounds 1 and 2, for both alike.
    found = summary(
        "S3", "tok/s", {"pagemill q 4-bit": [200, 100, 104], "a x 8-bit": [100, 50, 40]}
    )
    best = found.best_peer()
    assert best is not None
    assert (best.name, best.median, best.ratio) == ("a x", 50, 2.0)
    assert found.ours is not None
    assert (found.ours.median, found.ours.ratio) == (104, None)
    assert found.met() is True


def test_ratios_are_those_of_our_best_setting() -> None:
    figures: Figures = {
        "pagemill q 4-bit": [100, 100, 100],
        "pagemill r 8-bit": [110, 130, 120],
        "pagemill s 8-bit": [150],  # ended after the first round
        "a x 8-bit": [50, 50, 50],
    }
    found = summary("S3", "tok/s", figures)
    best = found.best_peer()
    assert found.ours is not None
    assert found.ours.name == "pagemill r"
    assert best is not None
    assert best.ratio == 2.4


@pytest.mark.parametrize(
    ("name", "unit", "ours", "theirs", "met"),
    [
        ("S1", "tok/s", 200.0, 100.0, True),
        ("S1", "tok/s", 199.0, 100.0, False),
        ("S2", "s", 0.6, 1.0, True),
        ("S2", "s", 0.61, 1.0, False),
        ("S4", "s", 0.41, 1.0, False),
        ("S5", "tok/s", 200.0, 1.0, None),
    ],
)
def test_a_target_is_met_at_its_bound(
    name: str, unit: str, ours: float, theirs: float, met: bool | None
) -> None:
    found = summary(name, unit, {"pagemill q 4-bit": [ours], "a x 8-bit": [theirs]})
    assert found.met() is met


def test_the_best_is_the_fastest_whatever_the_unit() -> None:
    figures: Figures = {"pagemill q 4-bit": [1.0], "a x 8-bit": [3.0], "b y 8-bit": [2.0]}
    for unit, name in (("tok/s", "a x"), ("s", "b y")):
        best = summary("S4", unit, figures).best_peer()
        assert best is not None
        assert best.name == name


def test_only_those_that_a_target_names_are_held_against_it() -> None:
    figures: Figures = {
        "pagemill q 4-bit": [100.0],
        "vllm f float32": [90.0],
        "a x 8-bit": [40.0],
    }
    quantized = summary("S1", "tok/s", figures)
    assert quantized.best_peer() == quantized.best_of("a")
    assert quantized.met() is True
    everybody = summary("S3", "tok/s", figures)
    assert everybody.best_peer() == everybody.best_of("vllm")
    assert everybody.met() is False
    floats: Figures = {
        "pagemill f float32": [100.0],
        "vllm f float32": [90.0],
        "transformers f float32": [40.0],
    }
    against = summary("S1-float32", "tok/s", floats)
    assert against.best_peer() == against.best_of("transformers")
    assert against.met() is True


def test_a_setting_that_ran_in_the_first_round_only_is_not_the_best() -> None:
    found = summary(
        "S3",
        "tok/s",
        {"pagemill q 4-bit": [100, 100], "a lucky 8-bit": [60], "a steady 8-bit": [50, 50]},
    )
    best = found.best_of("a")
    assert best is not None
    assert best.setting == "steady"


def test_one_that_failed_in_any_round_has_no_median_and_is_shown_only_alone() -> None:
    figures: Figures = {
        "pagemill q 4-bit": [100, 100],
        "a x 8-bit": [70, "> 300 s"],
        "a y 8-bit": [50, 50],
    }
    found = summary("S3", "tok/s", figures)
    best = found.best_of("a")
    assert best is not None
    assert best.setting == "y"
    alone = summary("S3", "tok/s", {k: v for k, v in figures.items() if k != "a y 8-bit"})
    best = alone.best_of("a")
    assert best is not None
    assert (best.median, best.failed) == (None, "> 300 s")
    assert alone.met() is None


def test_without_figures_of_ours_the_target_is_missed_and_without_peers_it_is_open() -> None:
    missed = summary("S3", "tok/s", {"pagemill q 4-bit": ["died"], "a x 8-bit": [1.0]})
    assert missed.met() is False
    assert summary("S3", "tok/s", {"pagemill q 4-bit": [1.0]}).met() is None


def test_the_worst_disturbance_is_kept() -> None:
    found = summary("S3", "tok/s", {"pagemill q 4-bit": [1, 2, 3]})
    assert found.standings[0].foreign_share == 0.02


def test_a_figure_beside_a_neighbour_is_a_share_of_the_same_engines_quiet_one() -> None:
    quiet = summary("S3", "tok/s", {"pagemill q 4-bit": [90, 100, 110], "a x 8-bit": [50, 50]})
    noisy = summary("S5", "tok/s", {"pagemill q 4-bit": [45, 50], "a x 8-bit": ["> 300 s"]})
    assert quiet_shares(noisy, quiet) == {"pagemill q": 0.475}


def test_the_share_of_the_bandwidth_is_taken_within_rounds() -> None:
    found = summary("S1", "tok/s", {"pagemill q 4-bit": [100, 50, 90]})
    measured = {"bytes_per_token": 2.0, "read_bytes_per_second": [250.0, 125.0, 200.0]}
    assert bandwidth_share(found, measured) == pytest.approx(0.8)
    assert bandwidth_share(summary("S1", "tok/s", {"a x 8-bit": [1]}), measured) is None
