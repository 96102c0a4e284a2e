from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pagemill.kernels.huge_pages import ALIGNMENT_BYTES, HUGE_PAGE_BYTES, SLAB_BYTES, Slabs


def test_pieces_lie_one_behind_another_aligned_and_apart() -> None:
    slabs = Slabs()
    sizes = [1, 63, 64, 65, 1000, 300_000, 5 << 20]
    pieces = [slabs.take(size) for size in sizes]
    starts = [piece.ctypes.data for piece in pieces]
    assert starts[0] % HUGE_PAGE_BYTES == 0
    assert all(start % ALIGNMENT_BYTES == 0 for start in starts)
    for i, piece in enumerate(pieces):
        assert len(piece) == sizes[i]
        assert not piece.any()
        piece[:] = i + 1
    assert all((piece == i + 1).all() for i, piece in enumerate(pieces))
    assert starts[-1] + sizes[-1] - starts[0] < SLAB_BYTES


def test_a_piece_larger_than_a_slab_gets_one_of_its_own_size() -> None:
    slabs = Slabs()
    piece = slabs.take(SLAB_BYTES + 1)
    assert piece.ctypes.data % HUGE_PAGE_BYTES == 0
    piece[-1] = 1


def test_a_slab_goes_with_its_last_piece() -> None:
    slabs = Slabs()
    first, second = slabs.take(100), slabs.take(100)
    assert first.base is second.base
    slab = weakref.ref(first.base)
    del first
    gc.collect()
    assert slab() is not None
    second[:] = 1
    del second
    gc.collect()
    assert slab() is None
    assert not slabs.take(100).any()


def test_threads_get_different_pieces() -> None:
    slabs = Slabs()
    with ThreadPoolExecutor(8) as threads:
        pieces = list(threads.map(slabs.take, [4096] * 2000))
    starts = np.sort([piece.ctypes.data for piece in pieces])
    assert (np.diff(starts) >= 4096).all()
