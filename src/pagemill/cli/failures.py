"""What went wrong, as a line on standard error and an exit code.

0    done
1    the model or the engine failed, or standard output takes no more
2    the command line, the configuration or a request cannot work
130  Ctrl-C
141  nobody reads standard output any more (``| head``)
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback

import typer

from pagemill.errors import ConfigError, PagemillError, RequestError

EXIT_FAILURE, EXIT_USAGE, EXIT_CLOSED_PIPE = 1, 2, 141
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""typer exports only this one subclass of the error for a wrong command line."""


def report_failure(error: Exception, debug: bool) -> int:
    """Say in one line what went wrong; returns the exit code."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, UsageError):
        message = getattr(error, "format_message", error.__str__)().rstrip(".")
        context = getattr(error, "ctx", None)
        command = "pagemill" if context is None else context.command_path
        return _fail(f"{message} (see {command} --help)", EXIT_USAGE)
    if isinstance(error, (ConfigError, RequestError)):
        return _fail(str(error), EXIT_USAGE)
    if isinstance(error, PagemillError):
        return _fail(str(error), EXIT_FAILURE)
    if isinstance(error, OSError):
        return _fail(_explain_os_error(error), EXIT_FAILURE)
    if isinstance(error, MemoryError):
        return _fail("out of memory; lower --kv-cache-memory or --max-model-len", EXIT_FAILURE)
    hint = "" if debug else "; this should not happen, --debug shows where it did"
    return _fail(f"unexpected {type(error).__name__}: {error}{hint}", EXIT_FAILURE)


def drop_stdout() -> None:
    """Point standard output at nothing, so that Python's own flush at exit finds no fault."""
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as devnull:
        os.dup2(devnull.fileno(), sys.stdout.fileno())


def _explain_os_error(error: OSError) -> str:
    if error.errno not in _CANNOT_WRITE or error.filename is not None:
        return str(error)
    # Commands write nowhere else themselves; a model that finds no room is a ModelError.
    drop_stdout()
    return f"cannot write to standard output: {error.strerror}"


def _fail(message: str, code: int) -> int:
    line = " ".join(message.split())
    print(f"pagemill: error: {line}", file=sys.stderr, flush=True)  # noqa: T201
    return code
