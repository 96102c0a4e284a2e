import subprocess
import sys

import numpy as np
import pytest

from pagemill.philox import derive_request_seed, derive_seed, philox4x32, uniforms


# The known-answer vectors published with Random123 (tests/kat_vectors), philox4x32 10.
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (
            "00000000 00000000 00000000 00000000",
            "00000000 00000000",
            "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        ),
        (
            "ffffffff ffffffff ffffffff ffffffff",
            "ffffffff ffffffff",
            "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_answers(counter: str, key: str, expected: str) -> None:
    def words(text: str) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
        return np.array([[int(word, 16)] for word in text.split()], dtype=np.uint64)

    assert np.array_equal(philox4x32(words(counter), words(key)), words(expected))


def test_a_number_depends_on_its_own_key_and_position_only() -> None:
    keys = np.array([0, 42, 2**64 - 1, 42, 2**32], dtype=np.uint64)
    positions = np.array([0, 7, 2**40, 8, 1], dtype=np.uint64)
    together = uniforms(keys, positions)
    alone = [uniforms(keys[i : i + 1], positions[i : i + 1])[0] for i in range(5)]
    assert together.tolist() == alone
    assert len(set(alone)) == 5


def test_every_bit_of_key_and_position_changes_the_number() -> None:
    bits = np.array([1 << bit for bit in range(64)], dtype=np.uint64)
    zeros = np.zeros(64, dtype=np.uint64)
    numbers = [*uniforms(bits, zeros), *uniforms(zeros, bits), uniforms(zeros, zeros)[0]]
    assert len(set(numbers)) == 129


def test_numbers_fill_the_unit_interval_evenly_with_53_bits() -> None:
    positions = np.arange(100_000, dtype=np.uint64)
    numbers = uniforms(np.full(100_000, 42, dtype=np.uint64), positions)
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts = np.bincount((numbers * 100).astype(int), minlength=100)
    chi_square = float((((counts - 1000.0) ** 2) / 1000.0).sum())
    assert 50 < chi_square < 160  # 99 degrees of freedom: mean 99, standard deviation 14
    scaled = numbers * 2.0**53
    assert (scaled == np.floor(scaled)).all()
    assert (scaled % 2 == 1).mean() == pytest.approx(0.5, abs=0.01)  # the last bit is in use


def test_neighbouring_keys_give_unrelated_streams() -> None:
    positions = np.arange(20_000, dtype=np.uint64)
    first, second = (uniforms(np.full(20_000, key, dtype=np.uint64), positions) for key in (42, 43))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.03


def test_samples_of_a_request_have_seeds_of_their_own_and_the_first_has_the_requests() -> None:
    seeds = [derive_seed(42, index) for index in range(1024)]
    assert seeds[0] == 42
    assert len(set(seeds)) == 1024
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert len({derive_seed(seed, 1) for seed in range(1000)}) == 1000


def test_requests_without_a_seed_get_one_from_the_engines_seed_and_their_number() -> None:
    seeds = {derive_request_seed(engine, number) for engine in range(32) for number in range(32)}
    assert len(seeds) == 1024
    assert derive_request_seed(7, 3) == derive_request_seed(7, 3)
    assert derive_request_seed(2**64 - 1, 2**40) < 2**64
    assert derive_request_seed(7, 3) != derive_seed(7, 3)


def test_the_core_can_derive_seeds_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pagemill.philox import derive_seed\n"
        "from pagemill.sampling_params import SamplingParams\n"
        "print(derive_seed(SamplingParams(seed=5).seed, 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "5"
