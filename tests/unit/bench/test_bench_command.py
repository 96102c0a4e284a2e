"""What benchmarks of the KV memory have in common: rounds, medians, paired ratios, notes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagemill.bench.command import measured_on, rounds
from pagemill.bench.figures import duration, median_of, model_name, number, of, percent, ratio_of
from pagemill.bench.shared_model import random_prompt, random_prompts_sharing
from pagemill.cli.app import run
from pagemill.errors import ConfigError
from tests.unit.bench.conftest import result_of


def test_every_contender_runs_once_a_round_and_each_goes_first_in_turn() -> None:
    assert list(rounds("abc", 4)) == [
        (0, ["a", "b", "c"]),
        (1, ["b", "c", "a"]),
        (2, ["c", "a", "b"]),
        (3, ["a", "b", "c"]),
    ]


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # The second round was disturbed, for both.
    runs = [
        {"repeat": repeat, "who": who, "seconds": seconds}
        for who, all_seconds in (("a", [2.0, 20.0, 2.0]), ("b", [1.0, 10.0, 4.0]))
        for repeat, seconds in enumerate(all_seconds)
    ]
    a, b = of(reversed(runs), who="a"), of(runs, who="b")
    assert [run["repeat"] for run in a] == [0, 1, 2]
    assert ratio_of(a, b, "seconds") == 2.0
    assert median_of(a, "seconds") == 2.0
    assert median_of([{"seconds": None}], "seconds") is None


def test_figures_that_there_are_not_leave_a_cell_empty() -> None:
    assert [percent(0.1234), number(1.25, 2), duration(0.5e-3)] == ["12.3%", "1.25", "500 µs"]
    assert [percent(None), number(None), duration(None)] == ["", "", ""]


@pytest.mark.parametrize("model", ["a-model", "some/where/a-model", "/abs/a-model/", "org/a-model"])
def test_a_model_is_named_without_where_it_lies(model: str) -> None:
    assert model_name(result_of("memory", model=model)) == "a-model"


def test_notes_say_what_was_measured_on_what_and_what_was_no_measurement() -> None:
    first, disturbed = measured_on(result_of("memory"))
    assert first == (
        "Medians of 3 repeats. a processor, avx512, 2 threads; 2026-01-02, commit 0123456789ab."
    )
    assert disturbed == "Meanwhile other processes had 25% of the processors, the hypervisor 0%."
    watch = {"seconds": 1.0, "foreign_share": None, "steal_share": None}
    short = measured_on(result_of("memory", fast=True, watch=watch))
    assert short[1:] == ["A short run (--fast), to see that the command works: no measurement."]


@pytest.mark.parametrize("name", ["memory", "prefix", "swap", "scheduler"])
def test_what_cannot_be_reported_is_refused_before_measuring(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "doc.md"
    document.write_text("no markers")
    assert run(["bench", name, "--docs", str(document)]) == 2
    assert f"the marker <!-- generated: {name} --> 0 times" in capsys.readouterr().err
    assert run(["bench", name, "--from-json", "a", "--json", "b"]) == 2
    assert "--from-json measures nothing that --json could write" in capsys.readouterr().err


def test_prompts_agree_in_exactly_what_they_share() -> None:
    prompts = random_prompts_sharing("x", 20, 5, 3, vocab_size=20)
    assert {tuple(prompt[:5]) for prompt in prompts} == {tuple(prompts[0][:5])}
    assert len({prompt[5] for prompt in prompts}) == 20
    assert {len(prompt) for prompt in prompts} == {8}
    assert prompts == random_prompts_sharing("x", 20, 5, 3, vocab_size=20)
    assert prompts != random_prompts_sharing("y", 20, 5, 3, vocab_size=20)
    assert max(random_prompt("z", 1000, 7)) == 6
    with pytest.raises(ConfigError, match="21 prompts that differ in a token need as many, not 20"):
        random_prompts_sharing("x", 21, 5, 3, vocab_size=20)
