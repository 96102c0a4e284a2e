"""The command line on a simulated engine: no model and no torch, so a test takes milliseconds.

As a program, ``python -m tests.unit.cli.simulated generate -p …`` is the whole command in a process
of its own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from pagemill.batch import Batch, StepResult
from pagemill.config import EngineConfig
from pagemill.engine import LLMEngine
from pagemill.errors import RequestError
from tests.core_helpers import ByteTokenizer, simulated_engine

MESSAGE_END = "|"


class ChatByteTokenizer(ByteTokenizer):
    """Writes a conversation as ``user:hi|assistant:``."""

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        written = [f"{m['role']}:{m['content']}{MESSAGE_END}" for m in messages]
        return self.encode("".join([*written, "assistant:"]))


class BaseModelTokenizer(ByteTokenizer):
    """Of a model without a chat template."""

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        raise RequestError("this is a base model without a chat template, so it cannot chat")


def small_engine(**config: Any) -> LLMEngine:
    """An engine whose tokens are bytes, audited after each step."""
    return simulated_engine(tokenizer=ChatByteTokenizer(), **config)


def slow_down(engine: LLMEngine, seconds: float) -> None:
    """Let each step take real time."""
    execute = engine.runner.execute

    def slowly(batch: Batch) -> StepResult:
        time.sleep(seconds)
        return execute(batch)

    engine.runner.execute = slowly  # type: ignore[method-assign]


def fake_assembly(make_engine: Callable[[], LLMEngine] = small_engine) -> ModuleType:
    """Stands in for `pagemill.assembly`."""

    def build_engine(config: EngineConfig, *, progress: bool) -> SimpleNamespace:
        built = make_engine()
        slow_down(built, float(os.environ.get("STEP_SECONDS", "0")))
        return SimpleNamespace(engine=built, tokenizer=built.tokenizer)

    module = ModuleType("pagemill.assembly")
    vars(module)["build_engine"] = build_engine
    return module


if __name__ == "__main__":
    from pagemill.cli import main

    sys.modules["pagemill.assembly"] = fake_assembly()
    sys.exit(main())
