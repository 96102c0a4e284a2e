"""``pagemill serve``: the engine behind HTTP."""

from __future__ import annotations

from dataclasses import dataclass

from pagemill.cli.opening import note
from pagemill.config import EngineConfig
from pagemill.server.settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class ServeCommand:
    """A parsed ``pagemill serve``; call it to run it."""

    config: EngineConfig
    settings: ServerSettings

    def __call__(self) -> int:
        """Serve until a signal; returns the exit code, see `pagemill.server.process`."""
        from pagemill.server.process import run_process

        return run_process(self.config, self.settings, say=note)
