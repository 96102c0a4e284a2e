"""`ServerSettings`: every limit and option of a server, checked before anything is opened."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from urllib.parse import urlsplit

from pagemill.config import check_integer
from pagemill.errors import ConfigError

MAX_PORT = 65535
DAY_SECONDS = 86_400.0


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of one server. Immutable; a value out of bounds raises `ConfigError`.

    All limits are checked before a request is split into prompts and samples.
    """

    host: str = "127.0.0.1"
    """Address or name to listen at. The default is reached from this machine only."""
    port: int = 8000
    """0 takes any free port."""
    api_key_file: str | None = None
    """A TOML file of keys, see `pagemill.server.keys`; None: anybody may ask."""
    served_model_name: str | None = None
    """The ``model`` that clients name; None: the model's own name, as it was given."""

    allowed_hosts: tuple[str, ...] = ()
    """Names that a ``Host`` header may have besides IP addresses, ``localhost`` and ``host``:
    ``api.example.com``, ``*.example.com``, or ``*`` for all."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages whose scripts may use this server, as ``https://app.example.com``, or
    ``*`` for all. None: no CORS headers, and a request that a foreign page makes is refused."""

    max_body_bytes: int = 4 * 2**20
    """Of JSON that is read on the loop: 4 MiB take it tens of milliseconds."""
    max_header_bytes: int = 64 * 2**10
    """Request line and headers together."""
    max_connections: int = 4096
    """Open connections; more are answered with 503."""
    max_prompts_per_request: int = 256
    max_sequences_per_request: int = 256
    """Prompts of one request, times ``n`` (or ``best_of``)."""
    max_logprobs: int = 20
    """Most likely tokens that a request may ask for at each position."""
    max_stop: int = 16
    """Stop strings, and likewise stop token ids, of one request."""
    max_bias_entries: int = 1024
    max_queued_sequences: int = 1024
    """Sequences that may wait while ``max_num_seqs`` others run; more are answered with 429."""

    request_timeout_seconds: float = 600.0
    """From a request's arrival to the end of its answer."""
    header_timeout_seconds: float = 30.0
    """In which a connection must bring the whole head of a request, once it has begun."""
    body_timeout_seconds: float = 30.0
    """In which the whole body of a request must arrive."""
    write_timeout_seconds: float = 60.0
    """How long a client may take nothing of an answer that waits for it."""
    keep_alive_seconds: float = 75.0
    """How long an idle connection stays open."""
    shutdown_timeout_seconds: float = 30.0
    """How long requests may go on after the first signal to stop."""
    health_timeout_seconds: float = 60.0
    """The engine's loop is unhealthy if nothing was seen of it for so long."""

    log_requests: bool = True
    """One line a request on standard error, without prompts and keys."""

    def __post_init__(self) -> None:
        _text("host", self.host)
        for name in ("api_key_file", "served_model_name"):
            if getattr(self, name) is not None:
                _text(name, getattr(self, name))
        check_integer("port", self.port, 0, MAX_PORT)
        for name, low in _LOWEST.items():
            check_integer(name, getattr(self, name), low)
        for field in dataclasses.fields(self):
            if field.name.endswith("_seconds"):
                _seconds(field.name, getattr(self, field.name))
        if not isinstance(self.log_requests, bool):
            raise ConfigError(f"log_requests must be a bool, got {self.log_requests!r}")
        _texts("allowed_hosts", self.allowed_hosts)
        _texts("allowed_origins", self.allowed_origins)
        for host in self.allowed_hosts:
            _check_host(host)
        for origin in self.allowed_origins:
            _check_origin(origin)


_LOWEST = {
    "max_body_bytes": 1,
    "max_header_bytes": 1024,
    "max_connections": 1,
    "max_prompts_per_request": 1,
    "max_sequences_per_request": 1,
    "max_logprobs": 0,
    "max_stop": 0,
    "max_bias_entries": 0,
    "max_queued_sequences": 0,
}


def _text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} must be a non-empty text, got {value!r}")


def _texts(name: str, value: object) -> None:
    if not isinstance(value, tuple) or not all(isinstance(part, str) for part in value):
        raise ConfigError(f"{name} must be a tuple of texts, got {value!r}")


def _seconds(name: str, value: object) -> None:
    """A shutdown may take no time at all; what a client does may not."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{name} must be a number of seconds, got {value!r}")
    may_be_zero = name == "shutdown_timeout_seconds"
    if value > DAY_SECONDS or value < 0 or (value == 0 and not may_be_zero):
        low = "0 or more" if may_be_zero else "more than 0"
        raise ConfigError(f"{name} must be {low} and at most {DAY_SECONDS:g}, got {value}")


def _check_host(host: str) -> None:
    name = host.removeprefix("*.") if host != "*" else "any"
    if not name or any(c in name for c in "*/:@ \t") or not name.isascii():
        raise ConfigError(
            f"allowed_hosts has {host!r}, which is no host: give a name without port such as "
            f"api.example.com, *.example.com, or * for all"
        )


def _check_origin(origin: str) -> None:
    if origin == "*":
        return
    try:
        parts = urlsplit(origin)
        is_origin = parts.hostname is not None and f"{parts.scheme}://{parts.netloc}" == origin
        _ = parts.port
    except ValueError:
        is_origin = False
    if not is_origin or "@" in origin:
        raise ConfigError(
            f"allowed_origins has {origin!r}, which is no origin: give scheme, host and port "
            f"without a path, such as https://app.example.com, or * for all"
        )
