"""What a server is told is checked before anything is opened."""

from __future__ import annotations

import dataclasses

import pytest

from pagemill.errors import ConfigError
from pagemill.server.settings import ServerSettings


def test_the_defaults_are_for_this_machine_only() -> None:
    settings = ServerSettings()
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.allowed_hosts == settings.allowed_origins == ()


@pytest.mark.parametrize(
    "name", [f.name for f in dataclasses.fields(ServerSettings) if f.name.startswith("max_")]
)
@pytest.mark.parametrize("value", [-1, True, "5", None, 1.5])
def test_a_limit_that_is_no_number_in_bounds_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be .*{value!r}"):
        ServerSettings(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", [f.name for f in dataclasses.fields(ServerSettings) if f.name.endswith("_seconds")]
)
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 1e9, "5", True])
def test_a_time_that_is_none_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be"):
        ServerSettings(**{name: value})  # type: ignore[arg-type]


def test_only_the_end_may_take_no_time() -> None:
    assert ServerSettings(shutdown_timeout_seconds=0).shutdown_timeout_seconds == 0
    with pytest.raises(ConfigError, match="body_timeout_seconds must be more than 0"):
        ServerSettings(body_timeout_seconds=0)


@pytest.mark.parametrize("host", ["", "*.", "http://a", "a:80", "a b", "a*", "ä.de", "a/b"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="allowed_hosts has"):
        ServerSettings(allowed_hosts=(host,))


@pytest.mark.parametrize(
    "origin", ["", "example.com", "https://", "https://a/", "https://a/b", "https://u@a", "null"]
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="allowed_origins has"):
        ServerSettings(allowed_origins=(origin,))


def test_hosts_and_origins_are_taken() -> None:
    hosts = ("a.example", "*.example.com", "*")
    origins = ("https://app.example.com", "http://localhost:3000", "*")
    settings = ServerSettings(allowed_hosts=hosts, allowed_origins=origins)
    assert (settings.allowed_hosts, settings.allowed_origins) == (hosts, origins)


@pytest.mark.parametrize("port", [-1, 65536, "80", None])
def test_what_is_no_port_is_refused(port: object) -> None:
    with pytest.raises(ConfigError, match="port must be"):
        ServerSettings(port=port)  # type: ignore[arg-type]
