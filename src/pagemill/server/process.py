"""`run_process`: one server as a process, with its signals, its log and its exit code.

0 after a signal and a drain in which all requests were answered; 1 if some had to be aborted;
128 + the signal's number after a second signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable

from pagemill.async_engine import EngineState
from pagemill.config import EngineConfig
from pagemill.errors import ConfigError
from pagemill.server.context import LoadedEngine, ServerContext
from pagemill.server.run import Server
from pagemill.server.settings import ServerSettings

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SPARE_FILES = 256
"""Open files beside one for each connection."""


def run_process(
    config: EngineConfig, settings: ServerSettings, *, say: Callable[[str], None]
) -> int:
    """Serve until a signal; returns the exit code.

    Args:
        config: of the engine.
        settings: of the server.
        say: told, in a line, what an operator wants to know.

    Raises:
        ConfigError: the keys, or the engine, cannot be had as configured.
        PagemillError: the socket or the model cannot be had.
    """
    _log_to_stderr()
    _allow_open_files(settings.max_connections + SPARE_FILES)
    context = ServerContext(settings, lambda: _load(config), config.model)
    _check_priorities(context, config)
    return asyncio.run(_run(Server(context, say=say)))


async def _run(server: Server) -> int:
    received: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        received.append(number)
        server.stop()

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        # Who ignores Ctrl-C, as a shell lets what runs in the background, goes on to do so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, on_signal, number)
    all_answered = await server.run()
    code = 128 + received[1] if len(received) > 1 else 0 if all_answered else 1
    if server.context.engine.state is not EngineState.CLOSED:
        # Its thread loads a model, or is in a long step, and nobody waits for it any more.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(code)
    return code


def _load(config: EngineConfig) -> LoadedEngine:
    """On the engine's thread. Imports torch, which takes a second."""
    from pagemill.assembly import build_engine

    assembly = build_engine(config, progress=sys.stderr.isatty())
    # What is loaded stays until the end. A collector that looks through all of torch holds
    # everything up for 0.1 s.
    gc.collect()
    gc.freeze()
    return assembly


def _check_priorities(context: ServerContext, config: EngineConfig) -> None:
    """Refuse priorities that the scheduler would refuse with each request."""
    policy = config.scheduling_policy
    for caller in context.keyring.callers if context.keyring is not None else []:
        if caller.priority and policy in ("fcfs", "deadline"):
            raise ConfigError(
                f"{context.settings.api_key_file}: the key {caller.name!r} has priority "
                f"{caller.priority}, which has no use under scheduling_policy={policy!r}; choose "
                f"--scheduling-policy priority"
            )


def _log_to_stderr() -> None:
    """Everything of a server goes to standard error, one line each."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    for name, level in (("pagemill", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False


def _allow_open_files(wanted: int) -> None:
    """As many as connections may need, if the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
