"""The names under which Prometheus sees an engine's counters, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pagemill.server.engine_counts import FINISH_REASONS, EngineCounts
from pagemill.server.histogram import Histogram

Kind = Literal["counter", "gauge"]
OWN = ("pagemill:",)
SHARED = ("pagemill:", "vllm:")
"""Of figures that dashboards made for vLLM ask for, too."""
NOT_YET = ""
"""A source that is always 0: there is no speculation yet."""


@dataclass(frozen=True)
class Figure:
    """A metric: one value, or one for each value of its labels."""

    name: str
    """Without prefix, and of a counter without ``_total``."""
    description: str
    kind: Kind | Literal["histogram"]
    sources: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    """Values of the labels to the name in `EngineCounts.read`."""
    labels: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = OWN


def _shared(name: str, description: str, kind: Kind, source: str) -> Figure:
    return Figure(name, description, kind, {(): source}, prefixes=SHARED)


def _own(name: str, description: str, kind: Kind, source: str) -> Figure:
    return Figure(name, description, kind, {(): source})


FIGURES = (
    _shared(
        "num_requests_running",
        "Sequences that are being computed.",
        "gauge",
        "num_requests_running",
    ),
    _shared("num_requests_waiting", "Sequences that wait.", "gauge", "num_requests_waiting"),
    _shared(
        "kv_cache_usage_perc",
        "Share of the KV pool's blocks that are in use, 0 to 1.",
        "gauge",
        "kv_usage",
    ),
    _shared(
        "prefix_cache_queries",
        "Prompt tokens that were looked up in the prefix cache.",
        "counter",
        "prefix_cache_query_tokens",
    ),
    _shared(
        "prefix_cache_hits",
        "Prompt tokens that the prefix cache had.",
        "counter",
        "prefix_cache_hit_tokens",
    ),
    _shared(
        "prompt_tokens",
        "Prompt tokens of requests that have their first token.",
        "counter",
        "num_prompt_tokens",
    ),
    _shared("generation_tokens", "Tokens drawn.", "counter", "num_generation_tokens"),
    Figure(
        "request_success",
        "Requests that have ended, by the reason.",
        "counter",
        {(reason,): f"num_requests_finished_{reason}" for reason in FINISH_REASONS},
        labels=("finished_reason",),
        prefixes=SHARED,
    ),
    _shared(
        "num_preemptions",
        "Times that a running sequence lost its blocks.",
        "counter",
        "num_preemptions",
    ),
    _shared("spec_decode_num_drafts", "Drafts verified.", "counter", NOT_YET),
    _shared("spec_decode_num_draft_tokens", "Tokens in drafts.", "counter", NOT_YET),
    _shared("spec_decode_num_accepted_tokens", "Draft tokens accepted.", "counter", NOT_YET),
    Figure(
        "preemptions",
        "Times that a running sequence lost its blocks, by what became of them.",
        "counter",
        {(mode,): f"num_preemptions_{mode}" for mode in ("recompute", "swap")},
        labels=("mode",),
    ),
    Figure(
        "kv_blocks",
        "Blocks by their state; those swapped are outside the pool.",
        "gauge",
        {(s,): f"kv_blocks_{s}" for s in ("free", "cached", "referenced", "swapped")},
        labels=("state",),
    ),
    _own("cow_copies", "Shared blocks copied to be written to.", "counter", "cow_copies"),
    _own("steps", "Steps of the engine.", "counter", "num_steps"),
    _own("computed_tokens", "Rows computed, also again.", "counter", "num_computed_tokens"),
    _own("busy_seconds", "Seconds spent in steps.", "counter", "busy_seconds"),
)


def _latency(
    name: str, description: str, histogram_of: Callable[[EngineCounts], Histogram]
) -> tuple[Figure, Callable[[EngineCounts], Histogram]]:
    return Figure(name, description, "histogram", prefixes=SHARED), histogram_of


HISTOGRAMS = (
    _latency(
        "time_to_first_token_seconds",
        "From a request's arrival at the server to its first token.",
        lambda counts: counts.ttft_seconds,
    ),
    _latency(
        "inter_token_latency_seconds",
        "Between two tokens of a sequence.",
        lambda counts: counts.itl_seconds,
    ),
    _latency(
        "request_time_per_output_token_seconds",
        "Of a sequence: from first to last token, divided by the tokens after the first.",
        lambda counts: counts.tpot_seconds,
    ),
    _latency(
        "e2e_request_latency_seconds",
        "From a request's arrival to its end.",
        lambda counts: counts.e2e_seconds,
    ),
    _latency(
        "request_queue_time_seconds",
        "From a request's arrival to the first step that computed a token of it.",
        lambda counts: counts.queue_seconds,
    ),
    (
        Figure("step_tokens", "Rows computed in a step.", "histogram"),
        lambda counts: counts.batch_tokens,
    ),
)
