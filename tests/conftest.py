"""The real models, by the names that a user gives them: fetched once, then from the cache."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="draw 10,000 examples of each property")


@pytest.fixture
def long_run(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--long"))


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2 135M Instruct, a GGUF file of 4-bit and 8-bit weights."""
    from pagemill.loading.sources import resolve_model

    return resolve_model("smollm2-135m")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M (base), a GGUF file with 4-, 5-, 6- and 8-bit weights."""
    from pagemill.loading.sources import resolve_model

    return resolve_model("gemma3-270m")
