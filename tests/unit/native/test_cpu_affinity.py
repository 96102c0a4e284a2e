"""`EngineConfig.cpu_affinity`: the threads really are where it says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from pagemill import LLM, ConfigError, EngineConfig
from pagemill.assembly import native_library, plan_threads
from pagemill.kernels import native

CPUS = native.usable_cpus()
needs_library = pytest.mark.skipif(native.load() is None, reason="no native library")


def thread_cpus() -> dict[int, str]:
    """The CPUs that each thread of this process may run on, as the kernel lists them."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        match = re.search(r"Cpus_allowed_list:\s*(\S+)", (task / "status").read_text())
        assert match is not None
        found[int(task.name)] = match[1]
    return found


def new_threads(before: dict[int, str]) -> list[str]:
    """CPUs of the threads that are not in ``before``, oldest first."""
    return [cpus for thread, cpus in sorted(thread_cpus().items()) if thread not in before]


@needs_library
def test_each_worker_is_pinned_to_the_next_cpu_and_the_caller_to_none() -> None:
    library = native.load()
    assert library is not None
    before = thread_cpus()
    pool = native.ThreadPool(library, 4, cpus=CPUS)
    assert new_threads(before) == [str(CPUS[i % len(CPUS)]) for i in (1, 2, 3)]
    assert before.items() <= thread_cpus().items()
    pool.close()
    unpinned = native.ThreadPool(library, 2)
    assert new_threads(before) == [before[os.getpid()]]
    unpinned.close()


@needs_library
def test_an_engine_pins_its_threads_as_configured(smollm2_path: Path) -> None:
    cpus = CPUS[-1:] + CPUS[:-1]
    affinity = ",".join(map(str, cpus))
    with LLM(str(smollm2_path), num_kv_blocks=8, num_threads=1):  # starts whatever torch starts
        before = thread_cpus()
    with LLM(str(smollm2_path), num_kv_blocks=8, num_threads=3, cpu_affinity=affinity):
        assert new_threads(before) == [str(cpus[i % len(cpus)]) for i in (1, 2)]


def test_without_a_number_there_is_a_thread_for_each_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(native, "usable_cpus", lambda: [0, 1, 4, 5])
    monkeypatch.setattr(native, "available_cpus", lambda: 3)  # its quota
    assert plan_threads(EngineConfig()) == (3, ())
    assert plan_threads(EngineConfig(cpu_affinity="auto")) == (3, [0, 1, 4, 5])
    assert plan_threads(EngineConfig(cpu_affinity="4-5")) == (2, (4, 5))
    assert plan_threads(EngineConfig(cpu_affinity="5", num_threads=4)) == (4, (5,))


def test_a_cpu_of_others_is_refused_with_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "usable_cpus", lambda: [0, 2])
    with pytest.raises(ConfigError) as refusal:
        plan_threads(EngineConfig(cpu_affinity="0-2"))
    assert str(refusal.value) == (
        "cpu_affinity: this process may not run on CPU 1; its CPUs are 0, 2"
    )


def test_it_is_refused_where_there_are_no_native_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load", lambda: None)
    with pytest.raises(ConfigError, match="cpu_affinity='auto' needs the native kernels"):
        native_library(EngineConfig(cpu_affinity="auto"))
