"""The settings in which each engine takes part in each race.

Each runs in every setting that could be its best; which one is, the race finds out.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pagemill
from pagemill.bench.peers.installed import Installed

OURS = "pagemill"
DRIVERS = Path(__file__).parent / "drivers"
KV_CACHE_GIB = 2
"""What peers whose cache has a fixed size get: more than any scenario fills."""
_OUR_CACHE = {"kv_cache_memory": "768MiB", "write_whole_cache": True}
"""Ours: room for more than any scenario fills, all of it in use once before."""
_SLOTS = {
    "S1": ((1, 4096),),
    "S2": ((1, 4096),),
    "S3": ((16, 512), (32, 512), (64, 512)),
    "S4": ((1, 4096), (8, 1024), (32, 1024)),
}
"""Of llama.cpp: how many, and tokens of context for each."""
_BATCH_SIZES = (16, 32, 64)
"""Of engines with static batches."""
_CLEARED = ("PYTHON", "VIRTUAL_ENV", "LD_PRELOAD", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_")
"""How variables begin that would reach into another environment, or change its threads."""


@dataclass(frozen=True)
class Contender:
    """An engine in one setting."""

    peer: str
    setting: str
    weights: str
    """``4-bit``, ``8-bit``, ``float32`` or ``bfloat16``."""
    program: Path
    """Interpreter that the driver runs in."""
    options: Mapping[str, Any]
    """Of the driver's ``Engine``."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For people, unique within a race."""
        return f"{self.peer} {self.setting}"

    @property
    def driver(self) -> Path:
        """The file with the driver."""
        return DRIVERS / f"driver_{self.peer.replace('.', '_')}.py"

    @property
    def launch(self) -> str:
        """What two contenders have in common that can share a process."""
        return json.dumps([self.peer, str(self.program), dict(self.options)], sort_keys=True)

    def command(self) -> list[str]:
        """Starts the driver."""
        host = [str(self.program), str(DRIVERS / "host.py")]
        return [*host, str(self.driver), json.dumps(dict(self.options))]

    def process_environment(self) -> dict[str, str]:
        """This process's, without what is about Python and threads, and with the setting's own."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_CLEARED)}
        return kept | dict(self.environment)


@dataclass(frozen=True)
class Setup:
    """What all contenders of a benchmark share."""

    installed: Installed
    model: Path
    """The model that is measured: a GGUF file or a directory."""
    file_type: str
    """What most of its matrices are stored as: ``Q4_1``."""
    num_threads: int

    def contenders(self, race: str) -> list[Contender]:
        """Who takes part in a race, ours first."""
        scenario, _, dtype = race.partition("-")
        if dtype:
            return [*self._our_floats(dtype), *self._float_peers(scenario, dtype)]
        return [
            *self._ours(scenario),
            *self._llama_cpp(scenario),
            *self._openvino(scenario),
            *self._vllm("float32"),
            *self._vllm("bfloat16"),
            *self._ctranslate2(scenario),
        ]

    def ours_with(self, **settings: Any) -> Contender:
        """This engine on the model itself, with fields of `EngineConfig`."""
        return self._pagemill(self.file_type, _bits(self.file_type), self.model, settings)

    def _ours(self, scenario: str) -> Iterator[Contender]:
        yield self.ours_with(**_OUR_CACHE)
        if scenario == "S1":  # its share of the bandwidth counts the bytes of the file itself
            return
        settings = {**_OUR_CACHE, "kv_cache_dtype": "bfloat16"}
        name, weights = f"{self.file_type}, KV bfloat16", _bits(self.file_type)
        yield self._pagemill(name, weights, self.model, settings)
        if (model := self.installed.models.get("hf")) is not None:
            settings = {**settings, "quantization": "int8"}
            yield self._pagemill("8-bit, KV bfloat16", "8-bit", model, settings)

    def _our_floats(self, dtype: str) -> Iterator[Contender]:
        if (model := self.installed.models.get("hf")) is not None:
            settings = {**_OUR_CACHE, "dtype": dtype}
            yield self._pagemill(dtype, dtype, model, settings)

    def _pagemill(
        self, setting: str, weights: str, model: Path, settings: Mapping[str, Any]
    ) -> Contender:
        options = {
            "model": str(model),
            "threads": self.num_threads,
            "max_num_seqs": 64,
            "max_num_batched_tokens": 1024,
            **settings,
        }
        # The driver is to find the package that runs now, wherever it lies.
        path = {"PYTHONPATH": str(Path(pagemill.__file__).parent.parent)}
        if "PAGEMILL_ISA" in os.environ:
            path["PAGEMILL_ISA"] = os.environ["PAGEMILL_ISA"]
        return Contender(OURS, setting, weights, Path(sys.executable), options, path)

    def _float_peers(self, scenario: str, dtype: str) -> Iterator[Contender]:
        yield from self._vllm(dtype)
        program, model = self._peer("transformers", "hf")
        if program is None or model is None:
            return
        for batch_size in (1,) if scenario == "S1" else _BATCH_SIZES:
            setting = dtype if scenario == "S1" else f"{dtype}, batches of {batch_size}"
            options = {"model": str(model), "dtype": dtype, "batch_size": batch_size}
            yield self._contender("transformers", setting, dtype, program, options)

    def _llama_cpp(self, scenario: str) -> Iterator[Contender]:
        program = self.installed.programs.get("llama.cpp")
        files = {"Q4_0": self.installed.models.get("q4_0")}
        if self.model.suffix == ".gguf":
            files[self.file_type] = self.model
        for file_type, model in files.items():
            if program is None or model is None:
                continue
            for slots, context in _SLOTS.get(scenario, _SLOTS["S3"]):
                options = {
                    "server": str(program),
                    "model": str(model),
                    "slots": slots,
                    "context": context,
                    "cache_prompt": scenario == "S4",
                }
                setting = f"{file_type}, {slots} slot{'s' if slots > 1 else ''}"
                # The driver needs no more than Python.
                python = Path(sys.executable)
                yield self._contender("llama.cpp", setting, _bits(file_type), python, options)

    def _openvino(self, scenario: str) -> Iterator[Contender]:
        program = self.installed.programs.get("openvino")
        models = {"8-bit": self.installed.models.get("ov-int8")}
        if self.model.suffix == ".gguf":
            models[self.file_type] = self.model
        for name, model in models.items():
            if program is None or model is None:
                continue
            for primes in (False, True) if scenario == "S4" else (False,):
                options = {
                    "model": str(model),
                    "batched_tokens": 2048,
                    "prefix_caching": scenario == "S4",
                    "cache_gib": KV_CACHE_GIB,
                    "first_alone": primes,
                }
                setting = f"{name}, first request alone" if primes else name
                weights = name if name == "8-bit" else _bits(name)
                yield self._contender("openvino", setting, weights, program, options)

    def _vllm(self, dtype: str) -> Iterator[Contender]:
        program, model = self._peer("vllm", "hf")
        if program is None or model is None:
            return
        home = program.parent.parent
        libraries = [*home.glob("lib/libiomp5.so")]
        libraries += sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))
        processors = sorted(os.sched_getaffinity(0))[: self.num_threads]
        environment = {
            "LD_PRELOAD": ":".join(map(str, libraries)),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, processors)),
            "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
            # It compiles with what is in its environment.
            "PATH": f"{program.parent}:{os.environ.get('PATH', os.defpath)}",
        }
        options = {"model": str(model), "dtype": dtype, "batched_tokens": 2048}
        yield self._contender("vllm", dtype, dtype, program, options, environment)

    def _ctranslate2(self, scenario: str) -> Iterator[Contender]:
        program, model = self._peer("ctranslate2", "ct2-int8")
        if program is None or model is None:
            return
        is_single = scenario in ("S1", "S2")
        for batch_size in (1,) if is_single else _BATCH_SIZES:
            setting = "8-bit" if is_single else f"8-bit, batches of {batch_size}"
            options = {"model": str(model), "compute_type": "int8", "batch_size": batch_size}
            yield self._contender("ctranslate2", setting, "8-bit", program, options)

    def _peer(self, peer: str, model_format: str) -> tuple[Path | None, Path | None]:
        return self.installed.programs.get(peer), self.installed.models.get(model_format)

    def _contender(
        self,
        peer: str,
        setting: str,
        weights: str,
        program: Path,
        options: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
    ) -> Contender:
        own = {"OMP_NUM_THREADS": str(self.num_threads), "HF_HUB_OFFLINE": "1"}
        if peer != "vllm":  # binds its threads itself
            options = {"threads": self.num_threads, **options}
        return Contender(peer, setting, weights, program, options, own | dict(environment or {}))


def _bits(file_type: str) -> str:
    """``4-bit`` for ``Q4_1``; a type that is no quantized one is its own name."""
    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    return f"{file_type[1]}-bit" if file_type[:1] == "Q" else names.get(file_type, file_type)
