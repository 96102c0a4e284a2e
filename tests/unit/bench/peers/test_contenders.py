from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pagemill.bench.peers.command import RACES
from pagemill.bench.peers.contenders import OURS, Setup
from pagemill.bench.peers.installed import MODEL_FORMATS, PEERS, Installed
from pagemill.bench.peers.summary import QUANTIZED, TARGETS

EVERYTHING = Installed(
    programs={peer: Path("/p") / peer / "bin" / "python" for peer in PEERS},
    models={name: Path("/m") / name for name in MODEL_FORMATS},
)


def setup(installed: Installed = EVERYTHING, model: str = "/m/file.gguf") -> Setup:
    return Setup(installed, Path(model), "Q4_1", num_threads=2)


@pytest.mark.parametrize("race", RACES)
def test_ours_comes_first_and_names_are_unique_and_drivers_exist(race: str) -> None:
    contenders = setup().contenders(race)
    assert contenders[0].peer == OURS
    assert len({c.name for c in contenders}) == len(contenders)
    for contender in contenders:
        assert contender.driver.is_file(), contender.driver
        host, driver, options = contender.command()[1:]
        assert Path(host).name == "host.py"
        assert Path(driver) == contender.driver
        assert json.loads(options) == dict(contender.options)


def test_every_target_has_somebody_to_be_held_against() -> None:
    for race, target in TARGETS.items():
        found = {(c.peer, c.weights) for c in setup().contenders(race) if c.peer != OURS}
        peers, weights = target.peers or PEERS, target.weights
        assert any(p in peers and (weights is None or w in weights) for p, w in found), race


def test_float_races_compare_equal_weights() -> None:
    for race in ("S1-float32", "S3-float32", "S1-bfloat16", "S3-bfloat16"):
        dtype = race.partition("-")[2]
        assert {c.weights for c in setup().contenders(race)} == {dtype}
        assert all(c.options["dtype"] == dtype for c in setup().contenders(race))


def test_a_file_of_four_bits_counts_as_that() -> None:
    weights = {c.name: c.weights for c in setup().contenders("S1")}
    assert weights["pagemill Q4_1"] == weights["llama.cpp Q4_0, 1 slot"] == "4-bit"
    assert weights["openvino 8-bit"] == "8-bit"
    assert {w for w in weights.values() if w not in QUANTIZED} == {"float32", "bfloat16"}


def test_who_is_not_installed_takes_no_part() -> None:
    assert [c.peer for c in setup(Installed()).contenders("S1")] == [OURS]
    assert setup(Installed()).contenders("S1-float32") == []
    no_gguf = {c.name for c in setup(model="/m/directory").contenders("S1")}
    assert "llama.cpp Q4_1, 1 slot" not in no_gguf
    assert "openvino Q4_1" not in no_gguf


def test_ours_runs_the_file_as_it_is_and_other_settings_where_a_peer_may() -> None:
    def ours(race: str, installed: Installed = EVERYTHING) -> list[str]:
        return [c.setting for c in setup(installed).contenders(race) if c.peer == OURS]

    assert ours("S1") == ["Q4_1"]
    for race in ("S2", "S3", "S4", "S5"):
        assert ours(race) == ["Q4_1", "Q4_1, KV bfloat16", "8-bit, KV bfloat16"]
    assert ours("S3", Installed()) == ["Q4_1", "Q4_1, KV bfloat16"]


def test_races_share_processes_where_the_engine_is_set_alike() -> None:
    def launches(race: str) -> set[str]:
        return {c.launch for c in setup().contenders(race)}

    assert launches("S1") < launches("S2")
    assert launches("S3") == launches("S5")
    assert any("vllm" in launch for launch in launches("S3") & launches("S4"))


def test_threads_are_asked_of_everybody() -> None:
    for race in RACES:
        for contender in setup().contenders(race):
            if contender.peer == "vllm":
                bound = contender.environment["VLLM_CPU_OMP_THREADS_BIND"].split(",")
                assert 1 <= len(bound) <= 2
            else:
                assert contender.options["threads"] == 2


def test_what_concerns_python_and_threads_here_does_not_reach_the_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("PYTHONPATH", "/here")
    monkeypatch.setenv("KMP_BLOCKTIME", "0")
    monkeypatch.setenv("SOME_PROXY", "x")
    ours, *others = setup().contenders("S1")
    for contender in others:
        found = contender.process_environment()
        assert found["OMP_NUM_THREADS"] == "2"
        assert found["SOME_PROXY"] == "x"
        assert "PYTHONPATH" not in found
        assert "KMP_BLOCKTIME" not in found
    found = ours.process_environment()
    assert "OMP_NUM_THREADS" not in found
    assert Path(found["PYTHONPATH"], "pagemill", "__init__.py").exists()
    assert ours.program == Path(sys.executable)
