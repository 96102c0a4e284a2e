"""What Prometheus sees is what happened, whichever engine did it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from functools import partial
from importlib import resources
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagemill.batch import Batch, StepResult
from pagemill.engine import LLMEngine
from pagemill.server.context import ServerContext
from pagemill.server.histogram import Histogram
from tests.unit.server.serving import PROMPT, client_of, new_context, new_engine, until

FOR_DASHBOARDS = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "prompt_tokens": "counter",
    "generation_tokens": "counter",
    "request_success": "counter",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "num_preemptions": "counter",
    "spec_decode_num_drafts": "counter",
    "spec_decode_num_draft_tokens": "counter",
    "spec_decode_num_accepted_tokens": "counter",
}


class Scrape:
    """What one scrape has shown."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))
        self.types = {family.name: family.type for family in families}
        self.samples = {
            (s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset({"model_name": "tiny", **labels}.items())]


async def scrape(client: httpx.AsyncClient, **headers: str) -> Scrape:
    response = await client.get("/metrics", headers=headers)
    assert response.status_code == 200
    return Scrape(response.text)


def test_the_names_that_dashboards_ask_for_have_the_values_of_our_own() -> None:
    async def main() -> None:
        async with client_of(new_context()) as client:
            await client.post("/test/stream")
            shown = await scrape(client)
            for name, kind in FOR_DASHBOARDS.items():
                for prefix in ("pagemill:", "vllm:"):
                    assert shown.types[prefix + name] == kind
            ours = {k: v for k, v in shown.samples.items() if k[0].startswith("vllm:")}
            for (name, labels), value in ours.items():
                assert shown.samples[name.replace("vllm:", "pagemill:"), labels] == value
            assert all(("model_name", "tiny") in labels for _, labels in ours)

    asyncio.run(main())


def test_a_request_is_counted_as_it_happened() -> None:
    async def main() -> None:
        async with client_of(new_context()) as client:
            before = await scrape(client)
            assert before("pagemill:generation_tokens_total") == 0
            await client.post("/test/stream?n=7")
            shown = await scrape(client)
            assert shown("pagemill:prompt_tokens_total") == len(PROMPT)
            assert shown("pagemill:prefix_cache_queries_total") == len(PROMPT)
            assert shown("pagemill:generation_tokens_total") == 7
            assert shown("pagemill:request_success_total", finished_reason="length") == 1
            assert shown("pagemill:request_success_total", finished_reason="abort") == 0
            assert shown("pagemill:time_to_first_token_seconds_count") == 1
            assert shown("pagemill:inter_token_latency_seconds_count") == 6
            assert shown("pagemill:e2e_request_latency_seconds_count") == 1
            assert shown("pagemill:request_queue_time_seconds_count") == 1
            assert shown("pagemill:step_tokens_bucket", le="1.0") == 6
            assert shown("pagemill:step_tokens_count") == 7
            assert shown("pagemill:num_requests_running") == 0
            requests = partial(shown, "pagemill:http_requests_total", method="POST")
            assert requests(route="/test/stream", status="200") == 1

    asyncio.run(main())


def test_the_time_to_the_first_token_begins_at_the_front_door() -> None:
    async def main() -> None:
        async with client_of(new_context(partial(new_engine, step_seconds=0.02))) as client:

            async def slow_body() -> Any:
                await asyncio.sleep(0.3)
                yield b""

            await client.post("/test/stream?n=2", content=slow_body())
            shown = await scrape(client)
            assert shown("pagemill:time_to_first_token_seconds_sum") > 0.3
            assert shown("pagemill:e2e_request_latency_seconds_sum") > 0.32
            assert shown("pagemill:inter_token_latency_seconds_sum") < 0.3

    asyncio.run(main())


def failing_once(step: int) -> Callable[[], LLMEngine]:
    """Engines of which the first fails in a step."""
    engines = iter([True, False, False])

    def make() -> LLMEngine:
        engine = new_engine()
        if next(engines):
            execute, done = engine.runner.execute, [0]

            def fail(batch: Batch) -> StepResult:
                done[0] += 1
                if done[0] == step:
                    raise RuntimeError("a broken chip")
                return execute(batch)

            engine.runner.execute = fail  # type: ignore[method-assign]
        return engine

    return make


def test_counting_goes_on_when_the_engine_was_replaced() -> None:
    async def main() -> None:
        context = new_context(failing_once(step=6))
        async with client_of(context) as client:
            with pytest.raises(RuntimeError):
                await client.post("/test/stream")
            await until(lambda: context.engine.num_restarts == 1)
            shown = await scrape(client)
            assert shown("pagemill:engine_restarts_total") == 1
            assert shown("pagemill:generation_tokens_total") == 5
            await client.post("/test/stream?n=3")
            shown = await scrape(client)
            assert shown("pagemill:generation_tokens_total") == 8
            assert shown("pagemill:time_to_first_token_seconds_count") == 2
            assert shown("pagemill:request_success_total", finished_reason="length") == 1
            assert shown("pagemill:engine_ready") == 1

    asyncio.run(main())


def test_a_request_that_was_aborted_is_not_shown_as_running() -> None:
    async def main() -> None:
        context = new_context(partial(new_engine, step_seconds=0.01))
        async with client_of(context) as client:
            running = asyncio.create_task(client.post("/test/stream?n=500"))
            await until(lambda: context.metrics.engine.read()["num_requests_running"] == 1)
            shown = await scrape(client)
            assert shown("pagemill:num_requests_running") == 1
            assert shown("pagemill:num_open_sequences") == 1
            assert shown("pagemill:num_requests_in_flight") == 1
            assert shown("pagemill:kv_cache_usage_perc") > 0
            running.cancel()
            await until(lambda: context.metrics.engine.read()["num_requests_running"] == 0)
            shown = await scrape(client)
            assert shown("pagemill:num_open_sequences") == 0
            assert shown("pagemill:num_requests_in_flight") == 0
            assert shown("pagemill:kv_cache_usage_perc") == 0
            assert shown("pagemill:request_success_total", finished_reason="abort") == 1

    asyncio.run(main())


def test_two_servers_in_a_process_count_apart() -> None:
    async def main() -> None:
        async with client_of(new_context()) as one, client_of(new_context()) as other:
            await one.post("/test/stream?n=3")
            assert (await scrape(one))("pagemill:generation_tokens_total") == 3
            assert (await scrape(other))("pagemill:generation_tokens_total") == 0

    asyncio.run(main())


def test_what_clients_write_makes_no_labels() -> None:
    async def main() -> None:
        async with client_of(new_context()) as client:
            for i in range(20):
                await client.request(f"METHOD{i}", f"/nowhere/{i}?q={i}")
            shown = await scrape(client)
            none = {"method": "other", "route": "none"}
            assert shown("pagemill:http_requests_total", **none, status="404") == 20

    asyncio.run(main())


def test_open_metrics_are_spoken_too() -> None:
    async def main() -> None:
        async with client_of(new_context()) as client:
            accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
            response = await client.get("/metrics", headers=accept)
            assert response.headers["content-type"].startswith("application/openmetrics-text")
            assert response.text.endswith("# EOF\n")
            plain = await client.get("/metrics")
            assert plain.headers["content-type"].startswith("text/plain; version=")

    asyncio.run(main())


def test_a_bucket_holds_what_is_at_most_its_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2.0), ("2.0", 4.0), ("+Inf", 5.0)]
    assert histogram.total == 7.5


def dashboard() -> dict[str, Any]:
    file = resources.files("pagemill.server") / "dashboards" / "grafana.json"
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def queries() -> list[str]:
    """Every PromQL expression of the dashboard."""
    document = dashboard()
    targets = [t["expr"] for panel in document["panels"] for t in panel.get("targets", [])]
    variables = [v["query"] for v in document["templating"]["list"] if v["type"] == "query"]
    return targets + [v["query"] if isinstance(v, dict) else v for v in variables]


def test_every_figure_of_the_dashboard_exists() -> None:
    async def main(context: ServerContext) -> set[str]:
        async with client_of(context) as client:
            await client.post("/test/stream")
            return {name for name, _ in (await scrape(client)).samples}

    shown = asyncio.run(main(new_context()))
    asked_for = {name for q in queries() for name in re.findall(r"\b(?:pagemill|vllm):\w+", q)}
    assert len(asked_for) > 15
    assert asked_for <= shown
    assert all(name.startswith("pagemill:") for name in asked_for)
    processes = {name for q in queries() for name in re.findall(r"\bprocess_\w+", q)}
    assert processes <= shown


def test_the_panels_of_the_dashboard_do_not_overlap_and_have_their_queries() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["targets"], panel["title"]
            assert all(
                'model_name=~"$model_name"' in t["expr"] or "process_" in t["expr"]
                for t in panel["targets"]
            )
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)
