"""Giving memory back when a model has been loaded."""

from __future__ import annotations

import ctypes
import sys


def give_back_freed_memory() -> None:
    """Return what has been freed to the system, where it is the C library that keeps it.

    Tensors are read one after another into memory that is freed again, between others that stay.
    glibc keeps such gaps for allocations to come: of SmolLM2 in float32, 60 MB.
    """
    if not sys.platform.startswith("linux"):
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl does not
    if trim is not None:
        trim(ctypes.c_size_t(0))
