"""How far a benchmark has come, on standard error."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from tqdm import tqdm


class Progress:
    """A bar of steps, with what is being measured; nothing where standard error is no terminal.

    Args:
        total: number of steps.
    """

    def __init__(self, total: int) -> None:
        self._bar = tqdm(
            total=total, file=sys.stderr, disable=not sys.stderr.isatty(), leave=False, unit="step"
        )

    def doing(self, what: str) -> None:
        """Say what comes now."""
        self._bar.set_description(what)

    def done(self, steps: int = 1) -> None:
        """Count it."""
        self._bar.update(steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()
