"""What parsing a command line gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Parsed(NamedTuple):
    """A command whose options are known."""

    command: Callable[[], int]
    """Does the work; returns the exit code."""
    debug: bool
    """Whether an error shows its traceback."""
