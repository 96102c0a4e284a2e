"""pagemill: an inference engine for large language models that is exact and can be watched.

from pagemill import LLM, SamplingParams

with LLM("smollm2-135m") as llm:
    print(llm.generate("The capital of France is", SamplingParams(max_tokens=8))[0].outputs[0].text)

Importing this package imports no torch; `LLM` does, when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pagemill.errors import (
    ConfigError,
    EngineError,
    InvalidFileError,
    InvalidParameterError,
    InvariantError,
    ModelError,
    ModelNotFoundError,
    PagemillError,
    RequestError,
    RequestTooLargeError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from pagemill.beam_search import BeamSearch
    from pagemill.beams import Beam, BeamSearchOutput, BeamSearchParams
    from pagemill.config import EngineConfig
    from pagemill.engine import LLMEngine
    from pagemill.kept_prefixes import PinnedPrefix
    from pagemill.kvcache.memory_report import MemoryReport
    from pagemill.kvcache.prefix_file import LoadedPrefixes
    from pagemill.llm import LLM
    from pagemill.outputs import CompletionOutput, EmbeddingOutput, Logprob, RequestOutput
    from pagemill.sampling_params import SamplingParams
    from pagemill.scheduler.policy import (
        DeadlinePolicy,
        FCFSPolicy,
        PriorityPolicy,
        SchedulingPolicy,
    )

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Beam",
    "BeamSearch",
    "BeamSearchOutput",
    "BeamSearchParams",
    "CompletionOutput",
    "ConfigError",
    "DeadlinePolicy",
    "EmbeddingOutput",
    "EngineConfig",
    "EngineError",
    "FCFSPolicy",
    "InvalidFileError",
    "InvalidParameterError",
    "InvariantError",
    "LLMEngine",
    "LoadedPrefixes",
    "Logprob",
    "MemoryReport",
    "ModelError",
    "ModelNotFoundError",
    "PagemillError",
    "PinnedPrefix",
    "PriorityPolicy",
    "RequestError",
    "RequestOutput",
    "RequestTooLargeError",
    "SamplingParams",
    "SchedulingPolicy",
    "UnsupportedModelError",
    "__version__",
]

# Imported when first asked for, so that ``import pagemill`` and a command's help take no time.
_HOMES = {
    "LLM": "llm",
    "LLMEngine": "engine",
    "EngineConfig": "config",
    "SamplingParams": "sampling_params",
    "Beam": "beams",
    "BeamSearch": "beam_search",
    "BeamSearchOutput": "beams",
    "BeamSearchParams": "beams",
    "CompletionOutput": "outputs",
    "EmbeddingOutput": "outputs",
    "Logprob": "outputs",
    "RequestOutput": "outputs",
    "MemoryReport": "kvcache.memory_report",
    "PinnedPrefix": "kept_prefixes",
    "LoadedPrefixes": "kvcache.prefix_file",
    "DeadlinePolicy": "scheduler.policy",
    "FCFSPolicy": "scheduler.policy",
    "PriorityPolicy": "scheduler.policy",
    "SchedulingPolicy": "scheduler.policy",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"pagemill.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'pagemill' has no attribute {name!r}")
