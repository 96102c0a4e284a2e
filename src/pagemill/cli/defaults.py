"""What a command takes where the user says nothing and it is not what `SamplingParams` takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

GENERATE: Final[Mapping[str, Any]] = {"max_tokens": 256, "temperature": 0.0}
"""Greedy: the first thing that a new user sees is the same every time. An answer is shorter where
the context leaves less."""
CHAT: Final[Mapping[str, Any]] = {"max_tokens": 512, "temperature": 0.2, "top_p": 0.9}
"""How to draw is what SmolLM2's model card advises."""
