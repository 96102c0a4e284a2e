"""Everything that pagemill raises on purpose.

    PagemillError
    ├── ConfigError              an EngineConfig (or a command line) that cannot work
    ├── RequestError             one request is refused; the engine and all others go on
    │   ├── InvalidParameterError    a field of the request is outside its bounds
    │   └── RequestTooLargeError     the request can never fit the context or the KV pool
    ├── ModelError               the model cannot be used
    │   ├── ModelNotFoundError       the name leads nowhere
    │   ├── InvalidFileError         a model file is damaged or lies about itself
    │   └── UnsupportedModelError    a well-formed file that asks for what is not implemented
    ├── EngineError              the engine itself failed
    │   └── InvariantError           the audit found the block accounting broken
    └── BenchmarkError           something could not be measured

A message names the field, the limit, the value, and what to do about it.
"""

from __future__ import annotations


class PagemillError(Exception):
    """Base of the tree; catching it catches all that pagemill raises on purpose."""


class ConfigError(PagemillError, ValueError):
    """A configuration value is unknown, out of bounds, or not available yet."""


class RequestError(PagemillError, ValueError):
    """A request is refused at the door. Nothing was allocated for it."""


class InvalidParameterError(RequestError):
    """A request's field is outside its bounds.

    Attributes:
        field: the name of the field, as the caller wrote it.
        value: what was given.
        bound: the rule that the value breaks, in words (``"must be in (0, 1]"``).
    """

    def __init__(self, field: str, value: object, bound: str) -> None:
        self.field = field
        self.value = value
        self.bound = bound
        try:
            shown = repr(value)
        except ValueError:  # an integer of more digits than Python prints
            shown = f"a {type(value).__name__} too long to show"
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{field} {bound}, got {shown}")


class RequestTooLargeError(RequestError):
    """The request could never run to its end, however idle the engine."""


class ModelError(PagemillError):
    """A model cannot be found, read or run."""


class ModelNotFoundError(ModelError):
    """The model name is no alias, no path and no known hub id."""


class InvalidFileError(ModelError):
    """A model file is damaged, truncated, or declares what it does not hold."""


class UnsupportedModelError(ModelError):
    """The model is well formed but needs something that pagemill does not implement."""


class EngineError(PagemillError, RuntimeError):
    """The engine failed; this is our fault, not the caller's."""


class InvariantError(EngineError):
    """The audit of the block accounting failed (``EngineConfig.check_invariants``)."""


class BenchmarkError(PagemillError):
    """Something could not be measured: another engine failed, or took too long."""
