"""Progress bars on stderr, for what may take long."""

from __future__ import annotations

import sys
from typing import Final

from tqdm import tqdm

_DELAY_SECONDS: Final = 0.7
"""What is done sooner shows no bar."""


def is_shown(show: bool | None) -> bool:
    """Whether to show bars: as asked for, else if stderr is a terminal."""
    return sys.stderr.isatty() if show is None else show


class Progress:
    """A bar that appears on stderr once the work has taken a moment.

    Args:
        what: the text in front of the bar.
        total: how many units there are.
        unit: the unit's name; ``"B"`` counts bytes, shown as kB and MB.
        show: False: never; True: even if stderr is no terminal; None: if it is one.
    """

    def __init__(self, what: str, *, total: int, unit: str = "B", show: bool | None = None) -> None:
        self._total = total
        self._bar = tqdm(
            desc=what,
            total=total,
            unit=unit,
            unit_scale=unit == "B",
            delay=_DELAY_SECONDS,
            leave=False,
            file=sys.stderr,
            disable=not is_shown(show),
        )

    def advance(self, count: int) -> None:
        """Count ``count`` more units as done."""
        self._bar.update(count)

    def move_to(self, count: int) -> None:
        """Set the units done; never moves back, nor past the end."""
        self._bar.update(max(0, min(count, self._total) - int(self._bar.n)))

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
