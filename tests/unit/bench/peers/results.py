"""Results as the command writes them, of figures that a test chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Figures = Mapping[str, Sequence[float | str]]
"""``"peer setting weights"`` to a figure for each round; a text is a failure."""


def race(name: str, unit: str, figures: Figures) -> dict[str, Any]:
    contenders: dict[str, Any] = {}
    runs: list[dict[str, Any]] = []
    for key, values in figures.items():
        peer, setting, weights = key.split()
        contender = f"{peer} {setting}"
        contenders[contender] = {"peer": peer, "setting": setting, "weights": weights}
        for number, value in enumerate(values):
            run: dict[str, Any] = {"round": number, "contender": contender}
            if isinstance(value, str):
                run["failed"] = value
            else:
                run |= {
                    "figure": value,
                    "resident_bytes": 500_000_000 + number,
                    "peak_bytes": 600_000_000 + number,
                    "cpu": {"seconds": 1.0, "foreign_share": 0.01 * number, "steal_share": 0.0},
                }
            runs.append(run)
    return {
        "name": name,
        "title": f"{name}: a title",
        "unit": unit,
        "contenders": contenders,
        "runs": runs,
    }


def result(*races: dict[str, Any], **parts: Any) -> dict[str, Any]:
    return {
        "benchmark": "peers",
        "environment": {
            "date": "2026-01-02T03:04:05+00:00",
            "pagemill": "0.1.0",
            "commit": "0123456789abcdef",
            "cpu": "A Processor",
            "isa": "avx512",
            "num_threads": 2,
            "torch": "2.13.0",
            "repeats": 5,
        },
        "options": {"neighbour_repeats": 3, "limit_s": 300.0, "contending": 0.8},
        "model": {"name": "smollm2-135m", "file_type": "Q4_1"},
        "peers": ["llama.cpp", "openvino", "transformers"],
        "missing": {},
        "versions": {"llama.cpp": "b1"},
        "races": {r["name"]: r for r in races},
        "bandwidth": None,
        "memory": None,
        "start": None,
        **parts,
    }
