"""`ServerMetrics`: what a server counts, for Prometheus. `docs/metrics.md` says what each means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from pagemill.engine import LLMEngine
from pagemill.server.engine_counts import EngineCounts
from pagemill.server.metric_names import FIGURES, HISTOGRAMS, Figure, Kind


class ServerMetrics(Collector):
    """Counts of one server, in a registry of its own.

    Args:
        model_name: the value of the label that all of them have.

    Attributes:
        registry: what is shown.
        engine: the counts of the engine.
    """

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.registry = CollectorRegistry()
        self.engine = EngineCounts()
        self._watched: list[tuple[Figure, Callable[[], float]]] = []
        self._http: Counter[tuple[str, str, str]] = Counter()
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def follow(self, engine: LLMEngine) -> None:
        """Count what ``engine`` does from now on, added to what earlier ones did."""
        self.engine.follow(engine)

    def watch(self, name: str, description: str, kind: Kind, read: Callable[[], float]) -> None:
        """Show another figure, ``pagemill:name``, which ``read`` gives."""
        self._watched.append((Figure(name, description, kind, {(): ""}), read))

    def on_response(self, method: str, route: str, status: str) -> None:
        """Count an answer; ``route`` is one of the server's own, so that there are not many."""
        self._http[method, route, status] += 1

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """The text that Prometheus reads, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def describe(self) -> list[Metric]:
        """Nothing: the names are known when they are collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Everything, as it is now."""
        counts = self.engine.read()
        for figure in FIGURES:
            values = [(labels, float(counts[source])) for labels, source in figure.sources.items()]
            yield from self._families(figure, values)
        for figure, read in self._watched:
            yield from self._families(figure, [((), read())])
        for figure, histogram_of in HISTOGRAMS:
            histogram = histogram_of(self.engine)
            for prefix in figure.prefixes:
                family = HistogramMetricFamily(
                    prefix + figure.name, figure.description, labels=("model_name",)
                )
                family.add_metric((self.model_name,), histogram.buckets(), histogram.total)
                yield family
        yield self._http_requests()

    def _families(
        self, figure: Figure, values: list[tuple[tuple[str, ...], float]]
    ) -> Iterator[Metric]:
        make = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
        for prefix in figure.prefixes:
            family = make(
                prefix + figure.name, figure.description, labels=("model_name", *figure.labels)
            )
            for labels, value in values:
                family.add_metric((self.model_name, *labels), value)
            yield family

    def _http_requests(self) -> Metric:
        family = CounterMetricFamily(
            "pagemill:http_requests",
            "Answers to requests, by method, route and status.",
            labels=("model_name", "method", "route", "status"),
        )
        for labels, count in self._http.items():
            family.add_metric((self.model_name, *labels), count)
        return family
