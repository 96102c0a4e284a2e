"""The options of ``pagemill serve`` that are the server's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import typer

from pagemill.cli.options import FILE, FLAG, INT, NAME, TEXT
from pagemill.config import parse_bytes
from pagemill.server.settings import ServerSettings

SECONDS = "SECONDS"
_MIB = 2**20


def _server(*names: str, help: str, metavar: str) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel="Server")


def _limit(*names: str, help: str, metavar: str) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel="Limits")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Fields of `ServerSettings`."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "host": f"{ServerSettings.host}, this machine only",
        "port": ServerSettings.port,
        "api_key_file": "none, anybody may ask",
        "served_model_name": "the model's own",
        "shutdown_timeout": ServerSettings.shutdown_timeout_seconds,
        "health_timeout": ServerSettings.health_timeout_seconds,
        "request_timeout": ServerSettings.request_timeout_seconds,
        "body_timeout": ServerSettings.body_timeout_seconds,
        "max_body_size": f"{ServerSettings.max_body_bytes // _MIB}MiB",
        "max_connections": ServerSettings.max_connections,
        "max_queued_sequences": ServerSettings.max_queued_sequences,
        "max_prompts_per_request": ServerSettings.max_prompts_per_request,
        "max_sequences_per_request": ServerSettings.max_sequences_per_request,
        "max_logprobs": ServerSettings.max_logprobs,
    }

    host: Annotated[
        str | None, _server("--host", help="Address or name to listen at.", metavar=NAME)
    ] = None
    port: Annotated[
        int | None, _server("--port", help="Port to listen at; 0 takes any.", metavar=INT)
    ] = None
    api_key_file: Annotated[
        str | None,
        _server("--api-key-file", help="TOML file of the keys that are let in.", metavar=FILE),
    ] = None
    served_model_name: Annotated[
        str | None,
        _server("--served-model-name", help="The model's name for clients.", metavar=NAME),
    ] = None
    allowed_host: Annotated[
        list[str] | None,
        _server(
            "--allowed-host",
            help="A name that a Host header may have, besides --host, localhost and addresses: "
            "api.example.com, *.example.com or * for all; may be given again.",
            metavar=NAME,
        ),
    ] = None
    allowed_origin: Annotated[
        list[str] | None,
        _server(
            "--allowed-origin",
            help="Where web pages come from whose scripts may ask, such as "
            "https://app.example.com, or * for all; may be given again.",
            metavar=TEXT,
        ),
    ] = None
    log_requests: Annotated[
        bool | None,
        _server(
            "--log-requests/--no-log-requests",
            help="A line for each request on standard error, without its text; default on.",
            metavar=FLAG,
        ),
    ] = None
    shutdown_timeout: Annotated[
        float | None,
        _server(
            "--shutdown-timeout",
            help="After Ctrl-C or SIGTERM: how long requests may go on.",
            metavar=SECONDS,
        ),
    ] = None
    health_timeout: Annotated[
        float | None,
        _server(
            "--health-timeout",
            help="A step that takes longer than this is a fault.",
            metavar=SECONDS,
        ),
    ] = None
    request_timeout: Annotated[
        float | None,
        _limit("--request-timeout", help="Longest that a request may take.", metavar=SECONDS),
    ] = None
    body_timeout: Annotated[
        float | None,
        _limit("--body-timeout", help="Until a request has arrived as a whole.", metavar=SECONDS),
    ] = None
    max_body_size: Annotated[
        str | None,
        _limit("--max-body-size", help='Largest request, such as "16MiB".', metavar="SIZE"),
    ] = None
    max_connections: Annotated[
        int | None, _limit("--max-connections", help="Most open connections.", metavar=INT)
    ] = None
    max_queued_sequences: Annotated[
        int | None,
        _limit(
            "--max-queued-sequences",
            help="Most sequences that wait while --max-num-seqs run; more are told to come back.",
            metavar=INT,
        ),
    ] = None
    max_prompts_per_request: Annotated[
        int | None,
        _limit("--max-prompts-per-request", help="Most prompts of a request.", metavar=INT),
    ] = None
    max_sequences_per_request: Annotated[
        int | None,
        _limit(
            "--max-sequences-per-request",
            help="Most answers to a request: prompts times n.",
            metavar=INT,
        ),
    ] = None
    max_logprobs: Annotated[
        int | None,
        _limit("--max-logprobs", help="Most likely tokens shown at each position.", metavar=INT),
    ] = None

    def settings(self) -> ServerSettings:
        """The server's settings; `ConfigError` for what cannot work."""
        given: dict[str, Any] = {
            _FIELDS.get(name, name): tuple(value) if isinstance(value, list) else value
            for name, value in vars(self).items()
            if value is not None and value != []
        }
        if "max_body_bytes" in given:
            given["max_body_bytes"] = parse_bytes("--max-body-size", given["max_body_bytes"])
        return ServerSettings(**given)


_FIELDS = {
    "allowed_host": "allowed_hosts",
    "allowed_origin": "allowed_origins",
    "max_body_size": "max_body_bytes",
    **{f"{name}_timeout": f"{name}_timeout_seconds" for name in ("shutdown", "health")},
    **{f"{name}_timeout": f"{name}_timeout_seconds" for name in ("request", "body")},
}
