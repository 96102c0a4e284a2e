"""The real models, by the names that a user gives them: fetched once, then from the cache; and the
sampler's two implementations."""

from __future__ import annotations

from collections.abc import Iterator
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


@pytest.fixture(params=["numpy", "native"])
def vocabulary(request: pytest.FixtureRequest) -> Iterator[str]:
    """What `sample` and `score` of the sampling helpers compute with, one after the other."""
    from tests.unit.sampling.sampling_helpers import use_vocabulary

    with use_vocabulary(request.param):
        yield request.param
