"""libpagemill_cpu, the native CPU kernels, loaded with ctypes.

The library is optional. It is built when pagemill is installed; where that fails, because there is
no C++ compiler, pagemill installs all the same and computes with PyTorch, and `unavailable_reason`
says why. In a source tree, ``cmake -S . -B build -G Ninja && cmake --build build`` puts it here.

Environment:
    PAGEMILL_ISA: ``amx``, ``avx512``, ``avx2`` or ``portable`` instead of the best that the machine
        can run.
    PAGEMILL_NATIVE_LIBRARY: path of a library to load instead, for sanitized builds.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping, Sequence
from ctypes import c_char_p, c_int32, c_void_p
from pathlib import Path

from pagemill.errors import ConfigError, EngineError

ABI_VERSION = 6  # kAbiVersion of cpu/api.hpp

# Every function of cpu/api.hpp: result, then arguments. Other modules declare what they call.
_PROTOTYPES: dict[str, tuple[type | None, list[type]]] = {
    "pagemill_isa_name": (c_char_p, []),
    "pagemill_supported_isas": (c_char_p, []),
    "pagemill_select_isa": (c_char_p, [c_char_p]),
    "pagemill_pool_create": (c_void_p, [c_int32, c_void_p, c_int32]),
    "pagemill_pool_destroy": (None, [c_void_p]),
}


def declare(
    library: ctypes.CDLL, signatures: Mapping[str, tuple[type | None, Sequence[object]]]
) -> ctypes.CDLL:
    """Tell ctypes the result and the arguments of functions of ``library``, which is returned."""
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, list(arguments)
    return library


class NativeLibrary:
    """The loaded library; `load` is how to get it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.functions = ctypes.CDLL(str(path))
        """The library's functions, with typed prototypes."""
        self._check_abi_version()
        declare(self.functions, _PROTOTYPES)

    def _check_abi_version(self) -> None:
        try:
            found = self.functions.pagemill_abi_version()
        except AttributeError:
            found = None
        if found != ABI_VERSION:
            has = "none, so it is another library" if found is None else str(found)
            raise EngineError(
                f"{self.path} does not belong to this version of pagemill: its ABI version is "
                f"{has}; needed is {ABI_VERSION}. Build it again: `pip install .`, or in a source "
                "tree `cmake -S . -B build -G Ninja && cmake --build build`"
            )

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return _text(self.functions.pagemill_isa_name())

    @property
    def supported_isas(self) -> tuple[str, ...]:
        """The instruction sets that this machine can run, best first."""
        return tuple(_text(self.functions.pagemill_supported_isas()).split(","))

    def select_isa(self, name: str) -> None:
        """Use this instruction set from now on, in the whole process; "" is the best one.

        Raises:
            ConfigError: there is none of that name, or this machine cannot run it.
        """
        message = self.functions.pagemill_select_isa(name.encode())
        if message is not None:
            raise ConfigError(f"PAGEMILL_ISA={name}: {_text(message)}")


def _text(value: bytes) -> str:
    return value.decode()


class ThreadPool:
    """Threads for the kernels, the calling one included.

    Args:
        num_threads: how many; by default `available_cpus`.
        cpus: worker i is pinned to ``cpus[i % len(cpus)]``; by default none is pinned. The calling
            thread, which does the work of worker 0, is never moved.

    Raises:
        ConfigError: there are not so many threads to be had, or a CPU is not this process's.
    """

    def __init__(
        self, library: NativeLibrary, num_threads: int | None = None, cpus: Sequence[int] = ()
    ) -> None:
        self.num_threads = available_cpus() if num_threads is None else num_threads
        if self.num_threads < 1:
            raise ConfigError(f"num_threads must be at least 1, got {self.num_threads}")
        check_cpus("cpus", cpus)
        self._library = library
        array = (c_int32 * len(cpus))(*cpus)
        self.handle: int | None = library.functions.pagemill_pool_create(
            self.num_threads, array, len(cpus)
        )
        """The C++ ``Pool*``; None once closed."""
        if self.handle is None:
            raise ConfigError(f"the system has no {self.num_threads} threads to give")

    def close(self) -> None:
        """End the threads. Not while a kernel runs on them."""
        if self.handle is not None:
            self._library.functions.pagemill_pool_destroy(self.handle)
            self.handle = None


def load() -> NativeLibrary | None:
    """The library, or None where there is none; `unavailable_reason` then says why.

    Raises:
        EngineError: there is a library, but of another version of pagemill.
        ConfigError: ``PAGEMILL_ISA`` names what does not exist or cannot run here.
    """
    return _load()[0]


def unavailable_reason() -> str | None:
    """Why `load` returns None, for ``pagemill info``; None if it does not."""
    return _load()[1]


@functools.cache
def _load() -> tuple[NativeLibrary | None, str | None]:
    given = os.environ.get("PAGEMILL_NATIVE_LIBRARY")
    path = Path(given) if given else Path(__file__).with_name("libpagemill_cpu.so")
    if not path.exists():
        if given:
            raise ConfigError(f"PAGEMILL_NATIVE_LIBRARY: there is no file {path}")
        return None, "native library not built: no working C++ compiler when pagemill was installed"
    try:
        library = NativeLibrary(path)
    except OSError as error:
        return None, f"native library not loaded: {error}"
    library.select_isa(os.environ.get("PAGEMILL_ISA", ""))
    return library, None


def library() -> ctypes.CDLL:
    """The functions of the library.

    Raises:
        EngineError: there is no library.
    """
    loaded = load()
    if loaded is None:
        raise EngineError(unavailable_reason())
    return loaded.functions


def available_cpus() -> int:
    """How many threads can run at once: the CPUs of this process, or less if its cgroup says so.

    A container's quota is in time, not CPUs: if more threads run than it pays for, all of them
    stand still together for the rest of each period.
    """
    cpus = len(usable_cpus())
    quota = cgroup_quota_cpus(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))
    return cpus if quota is None else max(1, min(cpus, int(quota + 0.5)))


def usable_cpus() -> list[int]:
    """The CPUs that this process may run on, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def check_cpus(name: str, cpus: Sequence[int]) -> None:
    """Raise `ConfigError`, which names ``name``, for a CPU that this process may not run on."""
    usable = usable_cpus()
    for cpu in cpus:
        if cpu not in usable:
            raise ConfigError(
                f"{name}: this process may not run on CPU {cpu}; its CPUs are "
                f"{', '.join(map(str, usable))}"
            )


def cgroup_quota_cpus(root: Path, membership: Path) -> float | None:
    """The smallest quota of the process's cgroup and those above it, in CPUs; None for none.

    Args:
        root: where the cgroup file systems are mounted, of version 1 (``cpu.cfs_quota_us``) or 2
            (``cpu.max``).
        membership: the file that names the process's cgroups.
    """
    quotas = []
    names: tuple[str, ...]
    for line in _read(membership).splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            base, names = root, ("cpu.max",)
        elif "cpu" in controllers.split(","):
            base = root / "cpu" if (root / "cpu").exists() else root / controllers
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        # In a container the path may be the host's, of which only the root is visible.
        inner = base / group.lstrip("/")
        for place in {inner, *inner.parents} if inner.is_dir() else {base}:
            if place == base or base in place.parents:
                quotas.append(_quota(" ".join(_read(place / name) for name in names)))
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(text: str) -> float | None:
    """``"150000 100000"`` is 1.5 CPUs; ``"max 100000"``, ``"-1 100000"`` and ``""`` are none."""
    try:
        quota, period = (int(word) for word in text.split())
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
