"""The server's own description of itself is true, and whoever plays with it breaks nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from pagemill.server.app import create_app
from tests.unit.server.http_helpers import MODEL, new_context
from tests.unit.server.server_thread import ServerThread

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
    negative_data_rejection,
    unsupported_method,
]
ANSWER_SECONDS = 20
NO_MODEL = {"TokenizeRequest": (None,), "DetokenizeRequest": (None,)}


def description() -> dict[str, Any]:
    return create_app(new_context()).openapi()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    thread = ServerThread()
    yield thread.url
    thread.end()


@pytest.fixture(scope="module")
def api(server: str) -> BaseSchema:
    described = description()
    for name, schema in described["components"]["schemas"].items():
        # Names of models that are not served would be refused before anything else is looked at.
        if "model" in schema.get("properties", {}):
            schema["properties"]["model"] = {"enum": [MODEL, *NO_MODEL.get(name, ())]}
    schema = schemathesis.openapi.from_dict(described)
    schema.config.update(base_url=server)
    return schema


OPERATIONS = [
    (path, method) for path, methods in description()["paths"].items() for method in methods
]
MODES = [
    (path, method, mode)
    for path, method in OPERATIONS
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or method == "post"
]


@pytest.mark.parametrize(("path", "method", "mode"), MODES)
def test_what_the_description_allows_or_forbids_is_answered_as_it_says(
    api: BaseSchema, path: str, method: str, mode: GenerationMode
) -> None:
    @given(case=api[path][method].as_strategy(mode))
    @settings(
        max_examples=60 if method == "post" else 5,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def holds(case: Case[Any]) -> None:
        case.call_and_validate(checks=CHECKS, timeout=ANSWER_SECONDS)

    holds()


def test_every_field_of_a_request_is_described() -> None:
    schemas = description()["components"]["schemas"]
    requests = [name for name in schemas if name.endswith("Request")]
    assert len(requests) == 5
    for name in requests:
        fields = schemas[name]["properties"]
        assert schemas[name]["additionalProperties"] is False
        bare = [field for field, about in fields.items() if not about.get("description")]
        assert (name, bare) == (name, [])


def test_every_route_describes_its_errors_and_each_stream_its_events() -> None:
    described = description()
    schemas = described["components"]["schemas"]
    num_streams = 0
    for path, method in OPERATIONS:
        responses = described["paths"][path][method]["responses"]
        assert {"200", "4XX", "5XX"} <= set(responses), path
        stream = responses["200"]["content"].get("text/event-stream")
        if stream is not None:
            num_streams += 1
            chunk = schemas[stream["x-event"]["$ref"].removeprefix("#/components/schemas/")]
            assert {"id", "choices", "created", "usage"} <= set(chunk["properties"])
    assert num_streams == 2


def test_every_reference_in_the_description_leads_somewhere() -> None:
    described = description()
    references = re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(described))
    assert len(references) > 20
    assert set(references) <= set(described["components"]["schemas"])
