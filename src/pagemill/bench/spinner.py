"""A neighbour process that takes a core, as other programs on a shared machine do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# It looks now and then whether whoever started it is still there.
_SPIN = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def spinning_neighbour() -> Iterator[int]:
    """Let one other process spin; gives its id."""
    process = subprocess.Popen([sys.executable, "-c", _SPIN], stdin=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
