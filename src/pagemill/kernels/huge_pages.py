"""Memory for weights, in huge pages where the system gives them.

A step of one row reads every weight once, in pieces of a few hundred kilobytes. In pages of 4 KB
the processor's prefetchers stop at each page's end and its table of pages does not hold them all;
in pages of 2 MB a stream runs on. No single matrix need be that large: they share slabs.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt

ByteArray = npt.NDArray[np.uint8]

HUGE_PAGE_BYTES: Final = 2 << 20
SLAB_BYTES: Final = 32 << 20
ALIGNMENT_BYTES: Final = 64


class Slabs:
    """Gives out pieces of slabs, one behind another. Safe to use from several threads.

    A piece lives as long as somebody holds it, and a slab as long as one of its pieces. Pages that
    were never written cost nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: weakref.ref[ByteArray] | None = None
        self._used_bytes = 0

    def take(self, num_bytes: int) -> ByteArray:
        """``num_bytes`` of memory, aligned to `ALIGNMENT_BYTES`; it reads as zeros."""
        with self._lock:
            slab = None if self._newest is None else self._newest()
            if slab is None or self._used_bytes + num_bytes > len(slab):
                slab = _new_slab(max(num_bytes, SLAB_BYTES))
                self._newest, self._used_bytes = weakref.ref(slab), _first_huge_page(slab)
            start = self._used_bytes
            self._used_bytes += -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            return slab[start : start + num_bytes]


def _new_slab(num_bytes: int) -> ByteArray:
    """A slab with room for ``num_bytes`` from its first huge page on."""
    huge_pages = -(-num_bytes // HUGE_PAGE_BYTES) + 1
    # Private: memory that is shared with child processes gets no huge pages.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, huge_pages * HUGE_PAGE_BYTES, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # without huge pages nothing is lost but time
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _first_huge_page(slab: ByteArray) -> int:
    return -slab.ctypes.data % HUGE_PAGE_BYTES


weights: Final = Slabs()
"""Where packed weights are, of all models of the process."""
