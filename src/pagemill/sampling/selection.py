"""The k largest of many values, without sorting them; equal values by lower index."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GROUP_SIZE = 64
_MIN_GROUPS_PER_K = 4
"""With fewer groups than this for each wanted value, grouping leaves too many candidates."""


def largest(values: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.intp]:
    """Indices of the k largest values, ascending; all of them if k exceeds their number.

    ``values`` [V] must hold no NaN. Ties are broken by lower index.
    """
    candidates = np.flatnonzero(values >= _lower_bound(values, k))
    return candidates[keep_largest(values[candidates], k)]


def keep_largest(
    values: npt.NDArray[np.float32] | npt.NDArray[np.float64], k: int
) -> npt.NDArray[np.bool_]:
    """Mark the k largest of ``values`` [C]; ties are broken by lower index."""
    excess = len(values) - k
    if excess <= 0:
        return np.ones(len(values), dtype=np.bool_)
    smallest_kept = np.partition(values, excess)[excess]
    keep: npt.NDArray[np.bool_] = values > smallest_kept
    ties = np.flatnonzero(values == smallest_kept)
    keep[ties[: k - np.count_nonzero(keep)]] = True
    return keep


def _lower_bound(values: npt.NDArray[np.float32], k: int) -> np.float32:
    """Find a value that at least k values reach (-infinity if there are fewer).

    The k-th largest of the maxima of disjoint groups is one, since k groups reach it, and few
    other values do: an exact selection at the price of one pass and a small partition.
    """
    group_size = min(_GROUP_SIZE, len(values) // (_MIN_GROUPS_PER_K * k))
    if group_size < 2:
        return np.float32(-np.inf)
    num_groups = len(values) // group_size
    grouped = values[: num_groups * group_size].reshape(group_size, num_groups)
    maxima = grouped.max(axis=0)
    return np.float32(np.partition(maxima, num_groups - k)[num_groups - k])
