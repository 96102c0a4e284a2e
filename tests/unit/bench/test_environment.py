from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pagemill.bench.environment import (
    CpuWatch,
    cpu_model,
    describe_environment,
    family_cpu_ticks,
    source_commit,
)


def test_the_environment_says_what_a_figure_depends_on() -> None:
    found = describe_environment(num_threads=2, repeats=5, seed=7)
    assert found["num_threads"] == 2
    assert (found["repeats"], found["seed"]) == (5, 7)
    for name in ("date", "pagemill", "cpu", "python", "torch", "numpy", "system"):
        assert isinstance(found[name], str), name
        assert found[name], name
    assert found["usable_processors"] >= 1
    assert found["memory_bytes"] > 2**20


def test_an_installed_package_has_no_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("pagemill.__file__", str(tmp_path / "lib" / "pagemill" / "__init__.py"))
    assert source_commit() is None


def test_a_checkout_that_was_changed_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    file = tmp_path / "file"
    file.write_text("a")
    git("add", "file")
    git("commit", "-m", "first")
    monkeypatch.setattr("pagemill.__file__", str(tmp_path / "src" / "pagemill" / "__init__.py"))
    commit = git("rev-parse", "HEAD")
    assert source_commit() == commit
    file.write_text("b")
    assert source_commit() == f"{commit}-dirty"


def test_the_processor_has_a_name_or_an_architecture(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    assert cpu_model(file)
    file.write_text("processor\t: 0\nmodel name\t: Fast: 9000\n")
    assert cpu_model(file) == "Fast: 9000"


def write_process(proc: Path, pid: int, parent: int, ticks: int) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    fields = ["S", parent, *[0] * 9, ticks - 3, 1, 1, 1, 0, 0]
    (proc / str(pid) / "stat").write_text(f"{pid} (odd) name) {' '.join(map(str, fields))}\n")


def test_a_family_is_a_process_and_all_that_come_from_it(tmp_path: Path) -> None:
    for pid, parent, ticks in ((10, 1, 100), (11, 10, 20), (12, 11, 5), (13, 1, 1000)):
        write_process(tmp_path, pid, parent, ticks)
    (tmp_path / "version").write_text("")
    assert family_cpu_ticks({10}, tmp_path) == 125
    assert family_cpu_ticks({11, 13}, tmp_path) == 1025


def test_what_others_use_is_told_from_what_we_use(tmp_path: Path) -> None:
    def at(user_ticks: int, steal_ticks: int, own_ticks: int) -> None:
        (tmp_path / "stat").write_text(f"cpu {user_ticks} 0 0 0 0 0 0 {steal_ticks} 0 0\n")
        write_process(tmp_path, os.getpid(), 1, own_ticks)

    at(1000, 0, 500)
    with CpuWatch(proc=tmp_path) as watch:
        time.sleep(0.2)
        at(1000 + 30, 4, 500 + 10)
    available = watch.seconds * (os.cpu_count() or 1)
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert watch.foreign_share == pytest.approx(20 * tick / available, abs=1e-3)
    assert watch.steal_share == pytest.approx(4 * tick / available, abs=1e-3)
    assert watch.to_json()["seconds"] == pytest.approx(watch.seconds, abs=1e-3)


def test_without_a_proc_there_is_no_share(tmp_path: Path) -> None:
    with CpuWatch(proc=tmp_path / "none") as watch:
        pass
    assert watch.foreign_share is None


def test_the_work_of_a_child_is_ours() -> None:
    before = family_cpu_ticks({os.getpid()})
    code = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert family_cpu_ticks({os.getpid()}) - before >= 0.19 * os.sysconf("SC_CLK_TCK")
