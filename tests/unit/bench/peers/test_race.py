from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pagemill.bench.environment import family_cpu_ticks
from pagemill.bench.peers import race as race_module
from pagemill.bench.peers.contenders import Contender
from pagemill.bench.peers.race import DriverPool, Race
from pagemill.bench.spinner import spinning_neighbour
from pagemill.bench.workload import SCENARIOS, Request, Scenario
from tests.unit.bench.peers.fakes import fake

QUICK = Scenario(
    "Q",
    "Q: two small requests",
    "many",
    "s",
    lambda tag: [Request([len(tag), i], 8) for i in range(2)],
    lambda run: run.total_s,
)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race_module, "SETTLE_S", 0.0)


def run_race(
    contenders: list[Contender], logs: Path, scenario: Scenario = QUICK, **arguments: Any
) -> list[dict[str, Any]]:
    with DriverPool(logs) as drivers:
        defaults: dict[str, Any] = {"repeats": 3, "limit_s": 60.0}
        return Race("Q", scenario, contenders).run(drivers, **(defaults | arguments))


def rounds_of(records: list[dict[str, Any]], name: str) -> list[int]:
    return [r["round"] for r in records if r["contender"] == name]


def test_each_round_runs_everybody_once_on_the_same_prompts(tmp_path: Path) -> None:
    diaries = {name: tmp_path / name for name in ("pagemill", "other")}
    contenders: list[Contender] = [
        fake(name, seconds=[1.0, 2.0, 3.0], diary=str(diary)) for name, diary in diaries.items()
    ]
    scenario = next(s for s in SCENARIOS if s.name == "S4")
    records = run_race(contenders, tmp_path, scenario)
    assert [(r["round"], r["contender"].strip()) for r in records] == [
        (0, "pagemill"),
        (0, "other"),
        (1, "other"),
        (1, "pagemill"),
        (2, "pagemill"),
        (2, "other"),
    ]
    assert [r["figure"] for r in records] == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    asked = [json.loads(line) for line in diaries["pagemill"].read_text().splitlines()]
    assert diaries["other"].read_text() == diaries["pagemill"].read_text()
    warm_up, *rounds = asked
    assert {max_tokens for _, max_tokens in warm_up} == {4}
    assert [[list(r) for r in scenario.requests(number)] for number in range(3)] == rounds
    assert all(r["cpu"]["foreign_share"] is not None for r in records)
    assert all(r["peak_bytes"] >= r["resident_bytes"] > 0 for r in records)


def test_only_settings_near_their_engines_best_run_again(tmp_path: Path) -> None:
    records = run_race(
        [
            fake("pagemill", seconds=[9.0] * 3),
            fake("a", "best", seconds=[1.0] * 3),
            fake("a", "near", seconds=[1.1] * 3),
            fake("a", "far", seconds=[1.15]),
            fake("b", "alone", seconds=[5.0] * 3),
        ],
        tmp_path,
    )
    assert rounds_of(records, "a best") == rounds_of(records, "a near") == [0, 1, 2]
    assert rounds_of(records, "a far") == [0]
    assert rounds_of(records, "b alone") == rounds_of(records, "pagemill ") == [0, 1, 2]


def test_whoever_fails_is_out_and_the_others_go_on(tmp_path: Path) -> None:
    told: list[str] = []
    records = run_race(
        [
            fake("pagemill", seconds=[1.0] * 3),
            fake("dies", seconds=[1.0] * 3, dies_in_run=2),
            fake("slow", seconds=[], hangs=True),
            fake("absent", seconds=[], fails_to_load=True),
        ],
        tmp_path,
        limit_s=2.0,
        report_failure=lambda name, error: told.append(f"{name}: {error}"),
    )
    assert rounds_of(records, "pagemill ") == [0, 1, 2]
    assert rounds_of(records, "dies ") == [0, 1]
    assert rounds_of(records, "slow ") == rounds_of(records, "absent ") == [0]
    failed = {r["contender"].strip(): r["failed"] for r in records if "failed" in r}
    assert failed["slow"] == "> 2 s"
    assert "exit code 7" in failed["dies"]
    assert "no such model" in failed["absent"]
    assert len(told) == 3
    assert all(line.startswith("Q: ") for line in told)


def test_an_engine_that_takes_too_long_to_load_is_no_figure_of_the_race(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race_module, "START_LIMIT_S", 0.0)
    (record,) = run_race([fake("a", seconds=[1.0])], tmp_path, repeats=1)
    assert record["failed"] == "a : loading took longer than 0 s and was ended"


def test_a_process_is_kept_for_the_next_race_that_needs_it(tmp_path: Path) -> None:
    same, other = fake("a", seconds=[1.0, 2.0]), fake("b", seconds=[1.0])
    with DriverPool(tmp_path) as drivers:
        kept, dropped = drivers.get(same), drivers.get(other)
        drivers.keep_only([fake("a", "named otherwise", seconds=[1.0, 2.0])])
        assert drivers.get(same) is kept
        assert drivers.get(other) is not dropped
    assert len(list(tmp_path.iterdir())) == 3


def test_in_s5_and_only_there_a_neighbour_spins_while_a_run_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spinning: list[int] = []

    @contextmanager
    def counted() -> Iterator[int]:
        with spinning_neighbour() as pid:
            spinning.append(pid)
            yield pid

    monkeypatch.setattr(race_module, "spinning_neighbour", counted)
    contenders: list[Contender] = [fake("pagemill", seconds=[1.0] * 3)]
    for name, expected in (("S3", 0), ("S5", 3)):
        scenario = next(s for s in SCENARIOS if s.name == name)
        assert len(run_race(contenders, tmp_path, scenario)) == 3
        assert len(spinning) == expected


def test_the_neighbour_takes_a_core_and_leaves() -> None:
    with spinning_neighbour() as pid:
        # Elsewhere processors may be busy: it gets some time before long.
        while family_cpu_ticks({pid}) < 20:
            pass
    assert not Path(f"/proc/{pid}").exists()


def test_the_meter_is_read_before_each_round(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    seen: list[int] = []

    def meter() -> None:
        seen.append(len(diary.read_text().splitlines()) if diary.exists() else 0)

    contenders: list[Contender] = [fake("a", seconds=[1.0] * 3, diary=str(diary))]
    run_race(contenders, tmp_path, before_round=meter)
    assert seen == [0, 2, 3]  # the warm-up is a run too
