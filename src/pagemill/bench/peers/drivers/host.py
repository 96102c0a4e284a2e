"""Runs one engine in this process and answers on pipes. Stand-alone: the standard library only.

    python host.py DRIVER.py '{"threads": 2, ...}'

``DRIVER.py`` has a class ``Engine``, made with the JSON object's fields, and these methods:

    about() -> dict                          versions and the like, for the result
    single(prompt_token_ids, max_tokens)     -> (seconds to first token, seconds in all, tokens)
    many([(prompt_token_ids, max_tokens)])   -> (seconds in all, [tokens of each request])

Says ``{"ready": true, ...}``, then answers each line of standard input with one of standard output:

    {"op": "run", "mode": "single" | "many",
     "requests": [{"prompt_token_ids": [...], "max_tokens": 8}]}
    {"ttft_s": 0.1, "total_s": 0.2, "output_tokens": [8]}

What the engine itself prints goes to standard error. The end of standard input ends the process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Serve until standard input ends."""
    sys.path.pop(0)  # this file's directory: it must hide no module of the engine's
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    began = time.perf_counter()
    engine = load_driver(sys.argv[1]).Engine(**json.loads(sys.argv[2]))
    about = {"load_s": time.perf_counter() - began, "memory_pid": os.getpid(), **engine.about()}
    say({"ready": True, **about})
    for line in sys.stdin:
        say(answer_to(engine, json.loads(line)))


def load_driver(path: str) -> Any:
    """The module in a file, whatever its name."""
    spec = importlib.util.spec_from_file_location("driver", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer_to(engine: Any, ask: dict[str, Any]) -> dict[str, Any]:
    """Run what one line asks for."""
    if ask["op"] != "run":
        raise SystemExit(f"unknown op {ask['op']!r}")
    requests = [(r["prompt_token_ids"], r["max_tokens"]) for r in ask["requests"]]
    if ask["mode"] == "single":
        (request,) = requests
        ttft_s, total_s, num_tokens = engine.single(*request)
        return {"ttft_s": ttft_s, "total_s": total_s, "output_tokens": [num_tokens]}
    total_s, output_tokens = engine.many(requests)
    return {"ttft_s": None, "total_s": total_s, "output_tokens": output_tokens}


if __name__ == "__main__":
    main()
