"""An engine for a command, with the user told what takes time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from pagemill.config import EngineConfig

if TYPE_CHECKING:
    from pagemill.assembly import Assembly


@contextmanager
def opened(config: EngineConfig) -> Iterator[Assembly]:
    """Build an engine, and close it in the end. Imports torch, which takes a second."""
    with announced(f"loading {config.model} …"):
        from pagemill.assembly import build_engine

        assembly = build_engine(config, progress=sys.stderr.isatty())
    # What is loaded stays until the end. A collector that looks through all of torch holds a step
    # up for 0.1 s.
    gc.freeze()
    try:
        with closing(assembly.engine):
            yield assembly
    finally:
        gc.unfreeze()


@contextmanager
def announced(doing: str) -> Iterator[None]:
    """Say on standard error what is being done, and wipe it in the end; terminals only."""
    if not sys.stderr.isatty():
        yield
        return
    sys.stderr.write(doing)
    sys.stderr.flush()
    try:
        yield
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def note(text: str) -> None:
    """Tell the user something that is no answer."""
    print(f"pagemill: {text}", file=sys.stderr, flush=True)  # noqa: T201
