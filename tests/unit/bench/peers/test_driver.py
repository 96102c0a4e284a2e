from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from pagemill.bench.peers.driver import DriverDiedError, OverLimitError, resident_bytes
from pagemill.bench.workload import Request, Run
from tests.unit.bench.peers.fakes import fake, start, start_script

TWO = [Request([1, 2, 3], 8), Request([4], 9)]


def test_an_engine_answers_over_pipes_whatever_it_prints(tmp_path: Path) -> None:
    with start(fake("x", seconds=[2.5, 3.5], ttft_s=0.5), tmp_path) as driver:
        assert driver.about["version"] == "1.2.3"
        assert driver.about["load_s"] >= 0
        assert driver.run("single", TWO[:1], 60) == Run(0.5, 2.5, 8)
        assert driver.run("many", TWO, 60) == Run(None, 3.5, 17)
        resident = driver.resident_bytes()
        assert resident is not None
        assert 2**20 < resident[0] <= resident[1]
    assert (tmp_path / "log").read_text().splitlines()[:2] == [
        "an engine may print what it likes",
        "and so may its C++",
    ]


def test_a_driver_that_dies_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    driver = start(fake("engine", "q4", seconds=[1.0], dies_in_run=2), tmp_path)
    driver.run("many", TWO, 60)
    with pytest.raises(DriverDiedError) as caught:
        driver.run("many", TWO, 60)
    message = str(caught.value)
    assert message.startswith("engine q4: its process ended while running 2 requests (exit code 7)")
    assert message.endswith("line 98\nline 99")
    assert "line 80" not in message
    assert str(tmp_path / "log") in message


def test_an_engine_that_cannot_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(DriverDiedError, match=r"ended while loading[^$]*no such model"):
        start(fake("x", seconds=[], fails_to_load=True), tmp_path)


def test_what_takes_longer_than_the_limit_is_ended_with_all_it_started(tmp_path: Path) -> None:
    driver = start(fake("slow", seconds=[], hangs=True), tmp_path)
    began = time.monotonic()
    with pytest.raises(OverLimitError, match=r"slow .*running 2 requests took longer than 2 s"):
        driver.run("many", TWO, 2)
    assert time.monotonic() - began < 30
    found = re.search(r"child (\d+)", (tmp_path / "log").read_text())
    assert found is not None
    assert not is_running(driver.pid)
    while is_running(int(found[1])):  # killed, but nobody can wait for it
        assert time.monotonic() - began < 60
    driver.close()


def is_running(pid: int) -> bool:
    """A process that has ended but was not waited for counts as ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_an_answer_of_another_length_is_no_result(tmp_path: Path) -> None:
    driver = start(fake("x", seconds=[1.0], short_by=1), tmp_path)
    with pytest.raises(DriverDiedError, match=r"answered with \[7, 8\] tokens, not \[8, 9\]"):
        driver.run("many", TWO, 60)


@pytest.mark.parametrize("said", ["hello", "[1]", '{"ready": false}'])
def test_a_driver_that_does_not_speak_the_protocol_is_refused(tmp_path: Path, said: str) -> None:
    driver = start_script(f"print({said!r}, flush=True); input()", tmp_path)
    with pytest.raises(DriverDiedError, match="odd: its process said "):
        driver.wait_until_ready(60)
    assert not is_running(driver.pid)


def test_a_driver_that_takes_no_requests_is_an_error(tmp_path: Path) -> None:
    code = "import os; print('{\"ready\": true}', flush=True); os.close(0); os._exit(3)"
    with start_script(code, tmp_path) as driver:
        driver.wait_until_ready(60)
        os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(DriverDiedError, match="exit code 3"):
            driver.run("many", [Request([1] * 100_000, 1)], 60)


def test_a_process_that_is_gone_has_no_memory(tmp_path: Path) -> None:
    assert resident_bytes(1, tmp_path) is None
