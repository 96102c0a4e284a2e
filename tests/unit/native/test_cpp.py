"""The C++ tests, and what must be true of the library as built."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pagemill.kernels.native import NativeLibrary

TESTS_OF_THE_POOL = re.findall(
    r"^void (\w+)\(\) \{", (Path(__file__).parent / "pool_test.cpp").read_text(), re.M
)


def run(*command: str | Path) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("name", [name for name in TESTS_OF_THE_POOL if name != "cost"])
def test_pool(native_build: Path, name: str) -> None:
    run(native_build / "tests" / "unit" / "native" / "pool_test", name)


def test_every_instruction_set_gives_the_bits_of_plain_arithmetic(native_build: Path) -> None:
    compared = run(native_build / "tests" / "unit" / "native" / "simd_test").split()
    library = NativeLibrary(native_build / "libpagemill_cpu.so")
    # AMX has no vectors of its own.
    assert compared == [isa for isa in reversed(library.supported_isas) if isa != "amx"]


def test_no_code_outside_the_kernels_of_an_instruction_set_needs_it(native_build: Path) -> None:
    """An inline function that the linker took from an AVX-512 object would be found here."""
    if shutil.which("objdump") is None:
        pytest.skip("no objdump")
    library = native_build / "libpagemill_cpu.so"
    listing = run("objdump", "--disassemble", "--demangle", "--no-show-raw-insn", library)
    if "file format elf64-x86-64" not in listing:
        pytest.skip("only x86-64 has several instruction sets")
    with_avx: set[str] = set()
    instructions = 0
    for function in re.split(r"\n\n(?=[0-9a-f]+ <)", listing)[1:]:
        name = function.partition("<")[2].partition(">:\n")[0]
        codes = re.findall(r"^ +[0-9a-f]+:\t(\w+)", function, re.M)
        instructions += len(codes)
        # All VEX and EVEX instructions, and no others, begin with v; but for verr and verw.
        if any(code.startswith("v") and code not in ("verr", "verw") for code in codes):
            with_avx.add(name)
    assert instructions > 1000
    assert {name for name in with_avx if not re.search(r"\b(avx2|avx512|amx)::", name)} == set()
