from __future__ import annotations

import numpy as np
import pytest

from pagemill.pooling import PromptSum, SumArray, add_rows, scaled_to_length_1


def rows_of_many_sizes(count: int, width: int = 5) -> np.ndarray:
    """Their float64 sum depends on the order in which they are added."""
    rng = np.random.default_rng(3)
    sizes = 2.0 ** rng.integers(-40, 20, (count, width))
    return (rng.standard_normal((count, width)) * sizes).astype(np.float32)


def summed(rows: np.ndarray, cuts: list[int]) -> SumArray:
    total = None
    for piece in np.split(rows, cuts):
        total = add_rows(total, piece)
    assert total is not None
    return total


@pytest.mark.parametrize("width", [1, 5, 700])
def test_the_sum_has_the_same_bits_however_the_rows_are_cut(width: int) -> None:
    rows = rows_of_many_sizes(300, width)
    whole = summed(rows, [])
    assert whole.dtype == np.float64
    for cuts in ([1], [299], [7, 8, 100], list(range(1, 300))):
        assert summed(rows, cuts).tobytes() == whole.tobytes()
    one_by_one = [0.0] * width
    for row in rows.tolist():
        one_by_one = [a + b for a, b in zip(one_by_one, row, strict=True)]
    assert whole.tolist() == one_by_one


def test_another_order_would_show() -> None:
    rows = rows_of_many_sizes(300)
    assert summed(rows[::-1], []).tobytes() != summed(rows, []).tobytes()
    of_two_halves = add_rows(None, rows[:150]) + add_rows(None, rows[150:])
    assert of_two_halves.tobytes() != summed(rows, []).tobytes()


def test_a_sum_under_way_is_left_as_it_is() -> None:
    total = np.array([1.0, 2.0])
    rows = np.array([[1, 1]], np.float32)
    assert add_rows(total, rows).tolist() == [2.0, 3.0]
    assert total.tolist() == [1.0, 2.0]
    first = add_rows(None, rows)
    first += 1
    assert rows.tolist() == [[1.0, 1.0]]


def test_the_mean_is_that_of_float64_rounded_once() -> None:
    rows = np.full((3, 1), 0.1, np.float32)
    mean = PromptSum(3, add_rows(None, rows)).mean()
    assert mean is not None
    assert mean.dtype == np.float32
    assert mean[0] == np.float32(0.1)
    largest = np.full((1000, 1), np.finfo(np.float32).max, np.float32)
    mean = PromptSum(1000, add_rows(None, largest)).mean()
    assert mean is not None
    assert mean[0] == np.finfo(np.float32).max


@pytest.mark.parametrize("damage", [[np.nan], [np.inf], [np.inf, -np.inf]])
def test_of_damaged_rows_there_is_no_mean(damage: list[float]) -> None:
    rows = np.ones((6, 3), np.float32)
    rows[2 : 2 + len(damage), 1] = damage
    for cuts in ([], [3]):
        assert PromptSum(6, summed(rows, cuts)).mean() is None


def test_scaling_gives_length_1_and_leaves_zeros() -> None:
    embedding = np.array([3e30, 0, -4e30], np.float32)
    assert scaled_to_length_1(embedding).tolist() == pytest.approx([0.6, 0, -0.8])
    assert scaled_to_length_1(embedding).dtype == np.float32
    assert scaled_to_length_1(np.array([1e-40], np.float32)).tolist() == [1.0]
    assert scaled_to_length_1(np.zeros(2, np.float32)).tolist() == [0.0, 0.0]
