"""The C++ tests and a library of their own, built once a session where there is a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def native_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build directory: the library and its objects, `pool_test` and `simd_test`."""
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        pytest.skip("no C++ compiler")
    build = tmp_path_factory.mktemp("native")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    options = ["-DPAGEMILL_BUILD_TESTS=ON", f"-DPAGEMILL_LIBRARY_DIRECTORY={build}"]
    for command in (
        ["cmake", "-S", str(ROOT), "-B", str(build), *generator, *options],
        ["cmake", "--build", str(build), "--parallel", "2"],
    ):
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
    return build


@pytest.fixture(scope="session")
def native_library_path(request: pytest.FixtureRequest) -> Path:
    """The library of `native_build`, or the one that ``scripts/sanitize`` names."""
    given = os.environ.get("PAGEMILL_NATIVE_LIBRARY")
    if given:
        return Path(given)
    build: Path = request.getfixturevalue("native_build")
    return build / "libpagemill_cpu.so"
