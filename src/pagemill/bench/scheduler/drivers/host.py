"""Drives one engine's scheduler in this process. Stand-alone: the standard library only.

    python host.py DRIVER.py < traces.json

``DRIVER.py`` has ``about()``, which tells a version, and a class ``Driven``, made from one trace
(`pagemill.bench.scheduler.trace`), with two methods:

    add(number, prompt_token_ids, max_tokens)
        queue a request; it ends after ``max_tokens``, whatever they are
    step() -> (rows, drawn, ended, parts)
        plan a step, draw a token wherever one is due, and tell the scheduler: how many token-rows
        that were, how many tokens were drawn, the numbers of the requests that ended, and the
        seconds of each part of the scheduler's work

Writes one JSON object to standard output. What the engine itself prints goes to standard error.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import time
from typing import Any

MODULUS = 50_021
"""A prime, so that no two of as many requests begin with the same token."""
MAX_STEPS = 100_000


def prompt_of(number: int, length: int) -> list[int]:
    """Token ids of a request."""
    return [(number * 7919 + i * 31) % MODULUS for i in range(length)]


def drive(driven: Any, trace: dict[str, Any]) -> dict[str, Any]:
    """Warm up, then measure; returns rows and seconds of each step."""
    num_running, lengths = trace["num_running"], trace["lengths"]
    in_flight = num_added = 0
    warming_up = trace["num_warm_up_steps"]
    are_under_way = False
    steps: list[dict[str, Any]] = []
    for _ in range(MAX_STEPS):
        if are_under_way and warming_up == 0 and len(steps) == trace["num_steps"]:
            break
        arrivals = []
        while in_flight < num_running:
            prompt_len, max_tokens = lengths[num_added % len(lengths)]
            arrivals.append((num_added, prompt_of(num_added, prompt_len), max_tokens))
            num_added += 1
            in_flight += 1
        began = time.perf_counter()
        for arrival in arrivals:
            driven.add(*arrival)
        seconds_to_add = time.perf_counter() - began
        rows, drawn, ended, parts = driven.step()
        in_flight -= len(ended)
        if not are_under_way:
            # A step that gives nearly everybody a token has no more of the first prompts.
            are_under_way = drawn >= 0.9 * num_running
        elif warming_up:
            warming_up -= 1
        else:
            steps.append({"rows": rows, "drawn": drawn, "add": seconds_to_add, **parts})
    return {
        "kind": trace["kind"],
        "num_running": num_running,
        "num_requests": num_added,
        "steps": steps,
    }


def main() -> None:
    """Drive every trace of standard input."""
    sys.path.pop(0)  # this file's directory: it must hide no module of the engine's
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spec = importlib.util.spec_from_file_location("driver", sys.argv[1])
    assert spec is not None
    assert spec.loader is not None
    driver = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(driver)
    traces = json.load(sys.stdin)
    results = []
    for trace in traces:
        # The collector need not go through what was imported, as a server's need not (vLLM's engine
        # sees to that itself), and one trace's garbage is not collected in the middle of the next.
        gc.collect()
        gc.freeze()
        results.append(drive(driver.Driven(trace), trace))
    json.dump({"about": driver.about(), "results": results}, answer)
    answer.close()


if __name__ == "__main__":
    main()
