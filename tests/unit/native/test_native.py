"""Loading the native library, and how many threads it should have."""

from __future__ import annotations

import ctypes.util
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pagemill.errors import ConfigError, EngineError
from pagemill.kernels import native

ROOT = Path(__file__).parents[3]


Load = Callable[..., tuple[native.NativeLibrary | None, str | None]]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads afresh, with these environment variables."""

    def load(
        isa: str = "", path: Path | str = ""
    ) -> tuple[native.NativeLibrary | None, str | None]:
        monkeypatch.setenv("PAGEMILL_ISA", isa)
        monkeypatch.setenv("PAGEMILL_NATIVE_LIBRARY", str(path))
        native._load.cache_clear()
        return native.load(), native.unavailable_reason()

    return load


@pytest.fixture
def library(native_library_path: Path) -> Iterator[native.NativeLibrary]:
    library = native.NativeLibrary(native_library_path)
    isa = library.isa
    yield library
    native._load.cache_clear()
    library.select_isa(isa)


def test_both_sides_have_the_same_abi_version_and_functions() -> None:
    header = (ROOT / "src/pagemill/kernels/cpu/api.hpp").read_text()
    found = re.search(r"kAbiVersion = (\d+);", header)
    assert found is not None
    assert int(found[1]) == native.ABI_VERSION
    names = set(re.findall(r"\b(pagemill_\w+)\(", header)) - {"pagemill_abi_version"}
    assert names == set(native._PROTOTYPES)


def test_a_library_of_another_version_is_refused_with_both_numbers(
    library: native.NativeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = native.ABI_VERSION
    monkeypatch.setattr(native, "ABI_VERSION", 99)
    with pytest.raises(EngineError, match=rf"version is {found}; needed is 99.*cmake --build"):
        native.NativeLibrary(library.path)


def test_a_library_that_is_not_ours_is_refused() -> None:
    with pytest.raises(EngineError, match="another library"):
        native.NativeLibrary(Path(ctypes.util.find_library("c") or "libc.so.6"))


def test_without_a_library_the_reason_is_told(
    load: Load, library: native.NativeLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(b"no library")
    found, reason = load(path=damaged)
    assert found is None
    assert str(reason).startswith("native library not loaded: ")
    with pytest.raises(EngineError, match="native library not loaded"):
        native.library()
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    assert load() == (
        None,
        "native library not built: no working C++ compiler when pagemill was installed",
    )
    with pytest.raises(ConfigError, match="PAGEMILL_NATIVE_LIBRARY: there is no file"):
        load(path=tmp_path / "none.so")


def test_the_environment_chooses_the_instruction_set(
    load: Load, library: native.NativeLibrary
) -> None:
    supported = library.supported_isas
    for isa in (*supported, ""):
        found, reason = load(isa, library.path)
        assert found is not None
        assert found.isa == (isa or supported[0])
        assert reason is None
        assert native.library() is found.functions
    with pytest.raises(ConfigError) as refusal:
        load("avx1024", library.path)
    assert str(refusal.value) == (
        'PAGEMILL_ISA=avx1024: "avx1024" is no instruction set (amx, avx512, avx2, portable); '
        f"this machine can run {', '.join(supported)}"
    )


def test_an_instruction_set_can_be_selected_while_running(library: native.NativeLibrary) -> None:
    assert library.supported_isas[-1] == "portable"
    library.select_isa("portable")
    assert library.isa == "portable"
    with pytest.raises(ConfigError, match="is no instruction set"):
        library.select_isa("neon")
    assert library.isa == "portable"
    library.select_isa("")
    assert library.isa == library.supported_isas[0]


def test_a_pool_has_the_threads_asked_for(library: native.NativeLibrary) -> None:
    def count_threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = count_threads()
    pool = native.ThreadPool(library, 3, cpus=sorted(os.sched_getaffinity(0)))
    assert count_threads() == before + 2
    pool.close()
    pool.close()
    assert count_threads() == before
    default = native.ThreadPool(library)
    assert default.num_threads == native.available_cpus()
    default.close()


def test_impossible_pools_are_refused(library: native.NativeLibrary) -> None:
    with pytest.raises(ConfigError, match="num_threads must be at least 1, got 0"):
        native.ThreadPool(library, 0)
    with pytest.raises(ConfigError, match=r"cpus: .* may not run on CPU 100000; its CPUs are 0"):
        native.ThreadPool(library, 2, cpus=[0, 100000])


def write_quota(group: Path, text: str) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "cpu.max").write_text(text)


def test_the_smallest_quota_above_the_process_counts(tmp_path: Path) -> None:
    root, membership = tmp_path / "cgroup", tmp_path / "membership"
    membership.write_text("0::/pod/container\n")
    assert native.cgroup_quota_cpus(root, membership) is None
    write_quota(root / "pod" / "container", "max 100000\n")
    assert native.cgroup_quota_cpus(root, membership) is None
    write_quota(root / "pod", "150000 100000\n")
    write_quota(root / "other", "10000 100000\n")
    assert native.cgroup_quota_cpus(root, membership) == 1.5
    write_quota(root / "pod" / "container", "50000 100000\n")
    assert native.cgroup_quota_cpus(root, membership) == 0.5


def test_in_a_container_the_root_holds_the_quota(tmp_path: Path) -> None:
    root, membership = tmp_path / "cgroup", tmp_path / "membership"
    membership.write_text("0::/kubepods/seen/from/the/host\n")
    write_quota(root, "300000 100000\n")
    assert native.cgroup_quota_cpus(root, membership) == 3


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_quotas_of_cgroup_version_1_count(tmp_path: Path, mount: str) -> None:
    root, membership = tmp_path / "cgroup", tmp_path / "membership"
    membership.write_text("5:memory:/a\n4:cpu,cpuacct:/a\n1:name=systemd:/a\n")
    group = root / mount / "a"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert native.cgroup_quota_cpus(root, membership) is None
    (group / "cpu.cfs_quota_us").write_text("200000\n")
    assert native.cgroup_quota_cpus(root, membership) == 2


@pytest.mark.parametrize(("quota", "cpus"), [(None, 8), (0.2, 1), (1.5, 2), (2.4, 2), (64.0, 8)])
def test_threads_fit_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cpus: int
) -> None:
    monkeypatch.setattr(native, "cgroup_quota_cpus", lambda *_: quota)
    monkeypatch.setattr(native, "usable_cpus", lambda: list(range(8)))
    assert native.available_cpus() == cpus
