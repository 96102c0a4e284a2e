from __future__ import annotations

from typing import Any

import pytest

from pagemill.bench.peers.tables import all_tables
from tests.unit.bench.peers.results import race, result

S3 = race(
    "S3",
    "tok/s",
    {
        "pagemill Q4_1 4-bit": [400, 410, 420],
        "llama.cpp slots=8 4-bit": [70],
        "llama.cpp slots=32 4-bit": [100, 101, 102],
        "openvino IR 8-bit": ["> 300 s"],
    },
)


def rows(name: str, *found: dict[str, Any]) -> dict[str, list[str]]:
    """First cell to the others."""
    return {row[0]: list(row[1:]) for row in all_tables(found)[name].rows}


def test_each_scenario_shows_everybodys_best_the_ratio_and_the_target() -> None:
    found = result(S3, missing={"transformers": "there is no file x"})
    table = all_tables([found])["peers"]
    assert list(table.columns)[:5] == [
        "scenario",
        "pagemill",
        "llama.cpp",
        "openvino",
        "transformers",
    ]
    assert rows("peers", found)["S3: a title"] == [
        "410 tok/s (Q4_1)",
        "101 tok/s (slots=32)",
        "> 300 s (IR)",
        "not installed",
        "4.06 x llama.cpp",
        ">= 2 x",
        "met",
    ]
    (note,) = table.notes
    for part in ("A Processor", "2 threads", "avx512", "0123456789ab", "llama.cpp b1", "2%"):
        assert part in note


def test_a_peer_that_does_not_run_a_scenario_is_not_said_to_be_missing() -> None:
    assert rows("peers", result(S3))["S3: a title"][3] == "-"


def test_a_missed_target_says_so() -> None:
    s2 = race("S2", "s", {"pagemill Q4_1 4-bit": [0.7], "llama.cpp a 4-bit": [1.0]})
    shown = rows("peers", result(s2))
    assert shown["S2: a title"][-3:] == ["0.70 x llama.cpp", "<= 0.6 x at 4 or 8 bits", "missed"]


@pytest.mark.parametrize(
    ("figure", "share", "met"), [(205.0, "50%", "met"), (164, "40%", "missed")]
)
def test_s5_is_shown_as_shares_of_quiet_figures(figure: float, share: str, met: str) -> None:
    s5 = race(
        "S5",
        "tok/s",
        {"pagemill Q4_1 4-bit": [figure], "llama.cpp slots=32 4-bit": [10.1]},
    )
    cells = rows("peers", result(S3, s5))["S5: a title"]
    assert cells[0] == f"{share} of its quiet figure ({figure:.0f} tok/s)"
    assert cells[1] == "10% of its quiet figure (10.1 tok/s)"
    assert cells[-2:] == [">= 45% of our quiet figure", met]


def test_s1_is_held_against_the_bandwidth_that_was_measured() -> None:
    s1 = race("S1", "tok/s", {"pagemill Q4_1 4-bit": [150.0], "llama.cpp a 4-bit": [50.0]})
    bandwidth = {"bytes_per_token": 100e6, "read_bytes_per_second": [18e9]}
    shown = rows("peers", result(s1, bandwidth=bandwidth))
    name = "S1 as a share of the read bandwidth: 100 MB a token, 18.0 GB/s"
    assert [shown[name][0], *shown[name][-2:]] == ["83%", ">= 80%", "met"]


def test_every_setting_is_shown_those_that_lost_too() -> None:
    table = all_tables([result(S3)])["peers-settings"]
    assert [list(row) for row in table.rows] == [
        ["S3", "pagemill", "Q4_1", "410 tok/s", "400 to 420", "3", "-", "2%"],
        ["S3", "llama.cpp", "slots=8", "70 tok/s", "70 to 70", "1", "5.71", "0%"],
        ["S3", "llama.cpp", "slots=32", "101 tok/s", "100 to 102", "3", "4.06", "2%"],
        ["S3", "openvino", "IR", "> 300 s", "-", "0", "-", "unknown"],
    ]


def test_memory_shows_all_numbers_beside_what_is_allowed() -> None:
    memory = {
        "resident_bytes": 900e6,
        "peak_bytes": 1000e6,
        "weight_bytes": 97e6,
        "kv_pool_bytes": 353e6,
    }
    shown = rows("peers-memory", result(S3, memory=memory))
    assert shown["pagemill"] == [
        "900 MB",
        "1,000 MB",
        "<= 900 MB: weights as stored 97 MB, KV pool 353 MB, and 450 MB",
        "met",
    ]
    assert shown["llama.cpp slots=32"][:2] == ["500 MB", "600 MB"]
    assert "openvino IR" not in shown
    over = rows("peers-memory", result(memory=memory | {"resident_bytes": 901e6}))
    assert over["pagemill"][-1] == "missed"


START = {
    "first_token_s": 2.5,
    "import_torch_s": 1.25,
    "beyond_torch_s": 1.25,
    "runs": [{"cpu": {"foreign_share": 0.04}}],
}


def test_start_has_two_targets() -> None:
    table = all_tables([result(start=START)])["peers-start"]
    assert [row[-1] for row in table.rows] == ["met", "", "missed"]
    (note,) = table.notes
    assert "Medians of 1 start; other processes had at most 4% of the machine." in note


def test_what_was_not_measured_has_no_table() -> None:
    assert all_tables([result()]) == {}
    assert all_tables([result(S3)]).keys() == {"peers", "peers-settings"}


def test_a_failure_is_a_word_in_the_table_and_not_a_log() -> None:
    s4 = race("S4", "s", {"pagemill Q4_1 4-bit": [0.7], "llama.cpp a 4-bit": ["line 1\nline 2"]})
    assert rows("peers", result(s4))["S4: a title"][1] == "failed (a)"


def test_results_of_several_runs_make_one_table_and_the_later_wins() -> None:
    s4 = race("S4", "s", {"pagemill Q4_1 4-bit": [0.7], "llama.cpp a 4-bit": [1.0]})
    again = race("S3", "tok/s", {"pagemill Q4_1 4-bit": [300.0], "openvino b 8-bit": [100.0]})
    first, second = result(S3, s4), result(again, start=START)
    table = all_tables([first, second])["peers"]
    assert [row[0] for row in table.rows] == ["S4: a title", "S3: a title"]
    assert rows("peers", first, second)["S3: a title"][0] == "300 tok/s (Q4_1)"
    assert [note.partition(":")[0] for note in table.notes] == ["S3, S4", "S3"]
    assert all_tables([first, second]).keys() == {"peers", "peers-settings", "peers-start"}


def test_the_note_says_what_else_decides_a_figure() -> None:
    s5 = race("S5", "tok/s", {"pagemill Q4_1 4-bit": [200.0]})
    found = result(S3, s5)
    (note,) = all_tables([found])["peers"].notes
    assert note == (
        "S3, S5: 2026-01-02, smollm2-135m (Q4_1), A Processor, 2 threads, avx512, pagemill 0.1.0 "
        "at 0123456789ab, torch 2.13.0, llama.cpp b1. Medians of 5 rounds (3 of S5); other "
        "processes had at most 2% of the machine during a run."
    )
    found["environment"] |= {"commit": "0123456789abcdef-dirty", "isa": None, "num_threads": 1}
    (note,) = all_tables([found])["peers"].notes
    assert "1 thread, no native kernels, pagemill 0.1.0 at 0123456789ab with changes," in note
    found["environment"]["commit"] = None
    (note,) = all_tables([found])["peers"].notes
    assert "pagemill 0.1.0, torch" in note
