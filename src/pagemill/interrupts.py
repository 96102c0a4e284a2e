"""Ctrl-C, taken between two steps of the engine instead of in the middle of one."""

from __future__ import annotations

import signal
import threading
from typing import Self


class InterruptFlag:
    """While entered, the first Ctrl-C sets `requested` and the second raises `KeyboardInterrupt`.

    A step that is interrupted half way leaves an engine that cannot go on; one that is allowed to
    end leaves one that can. Whoever will not wait presses again. Outside the main thread, which is
    the only one that Python tells of a signal, entering it changes nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: object = None
        self._entered = False

    def __call__(self) -> bool:
        """Whether the user has asked to stop."""
        return self.requested

    def __enter__(self) -> Self:
        self.requested = False
        self._previous = signal.getsignal(signal.SIGINT)
        in_background = self._previous is signal.SIG_IGN  # then Ctrl-C is not ours to take
        self._entered = threading.current_thread() is threading.main_thread() and not in_background
        if self._entered:
            signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._entered:
            signal.signal(signal.SIGINT, self._previous)  # type: ignore[arg-type]

    def _on_interrupt(self, *signal_and_frame: object) -> None:  # noqa: ARG002
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
