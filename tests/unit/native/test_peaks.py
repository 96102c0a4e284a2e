"""The loops that find the machine's limits: they compute what they are timed for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pagemill.kernels import native, peaks_library
from pagemill.kernels.native import NativeLibrary, ThreadPool

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def library() -> NativeLibrary:
    loaded = native.load()
    assert loaded is not None, native.unavailable_reason()
    return loaded


@pytest.fixture(params=["amx", "avx512", "avx2", "portable"])
def isa(request: pytest.FixtureRequest, library: NativeLibrary) -> Iterator[str]:
    if request.param not in library.supported_isas:
        pytest.skip(f"this machine cannot run {request.param}")
    library.select_isa(request.param)
    yield request.param
    library.select_isa("")


@pytest.fixture(params=[1, 3])
def pool(request: pytest.FixtureRequest, library: NativeLibrary) -> Iterator[ThreadPool]:
    pool = ThreadPool(library, request.param)
    yield pool
    pool.close()


# A chunk is 1 MiB: less than one, whole ones, and a rest.
@pytest.mark.parametrize("num_bytes", [0, 256, 2 << 20, (3 << 20) + 768])
def test_reading_reads_every_word(isa: str, pool: ThreadPool, num_bytes: int) -> None:
    data = np.random.default_rng(1).integers(0, 2**32, num_bytes // 4, dtype=np.uint32)
    expected = int(data.sum(dtype=np.uint64)) % 2**32
    assert peaks_library.read_words(pool, data) == expected
    if num_bytes:
        data[-1] ^= 1
        assert peaks_library.read_words(pool, data) != expected


def test_what_the_loop_would_leave_out_is_refused(library: NativeLibrary) -> None:
    header = (ROOT / "src/pagemill/kernels/cpu/peaks.hpp").read_text()
    assert f"kPeakReadBytes = {peaks_library.READ_MULTIPLE_BYTES};" in header
    pool = ThreadPool(library, 1)
    with pytest.raises(ValueError, match="in multiples of 256 bytes; got 260 bytes"):
        peaks_library.read_words(pool, np.zeros(65, np.uint32))
    with pytest.raises(ValueError, match="contiguous"):
        peaks_library.read_words(pool, np.zeros(128, np.uint32)[::2])
    pool.close()


@pytest.mark.parametrize(("weight", "activation"), [(0, 1), (3, 5), (127, -128), (127, 127)])
def test_multiplying_bytes_multiplies_all_of_them(
    isa: str, pool: ThreadPool, weight: int, activation: int
) -> None:
    one = peaks_library.multiply_bytes(pool, 1, 1, weight, activation)
    assert one.num_macs >= 64
    for chunks, rounds in ((1, 1), (5, 1), (7, 1000)):
        done = peaks_library.multiply_bytes(pool, chunks, rounds, weight, activation)
        assert done.num_macs == chunks * rounds * one.num_macs
        assert done.checksum == done.num_macs * weight * activation % 2**32


@pytest.mark.parametrize(("weight", "activation"), [(0.0, 1.0), (3.0, 0.5), (-2.0, 7.0)])
def test_multiplying_floats_multiplies_all_of_them(
    isa: str, pool: ThreadPool, weight: float, activation: float
) -> None:
    one = peaks_library.multiply_floats(pool, 1, 1, weight, activation)
    assert one.num_macs >= 16
    for chunks, rounds in ((1, 1), (5, 1), (7, 1000)):
        done = peaks_library.multiply_floats(pool, chunks, rounds, weight, activation)
        assert done.num_macs == chunks * rounds * one.num_macs
        assert done.checksum == done.num_macs * weight * activation


def loops_of(library: Path) -> dict[str, str]:
    """The assembly of each loop of avx512 and avx2, by ``isa::name``."""
    command = ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", str(library)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pattern = r"^[0-9a-f]+ <(avx\w+)::\(anonymous namespace\)::(peak_\w+)\(.*\n((?:.+\n)*)"
    return {f"{isa}::{name}": body for isa, name, body in re.findall(pattern, listing, re.M)}


@pytest.mark.parametrize(
    ("loop", "instruction", "count"),
    [
        ("avx512::peak_multiply_bytes", "vpdpbusd", 48),
        ("avx512::peak_multiply_floats", r"vfmadd\d+ps", 48),
        ("avx2::peak_multiply_bytes", "vpmaddwd", 80),
        ("avx2::peak_multiply_floats", r"vfmadd\d+ps", 40),
    ],
)
def test_the_loops_are_the_instructions_that_they_are_named_for(
    library: NativeLibrary, loop: str, instruction: str, count: int
) -> None:
    """4 rounds unrolled: of 6 x 2 registers with AVX-512, of 5 pairs with AVX2."""
    if shutil.which("objdump") is None or "avx512" not in library.supported_isas:
        pytest.skip("needs objdump and a library with AVX-512 kernels")
    if "PAGEMILL_NATIVE_LIBRARY" in os.environ:
        pytest.skip("sanitizers add instructions of their own")
    body = loops_of(library.path)[loop]
    assert len(re.findall(rf"\t{instruction} ", body)) >= count
    if loop != "avx2::peak_multiply_bytes":  # whose products need registers of their own
        # Sums in memory would cost a store each.
        stores = re.findall(r"\tvmov\w+ +%[xyz]mm\d+,-?0x\w+\(%rsp\)", body)
        assert len(stores) <= 6
