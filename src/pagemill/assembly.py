"""From an `EngineConfig` to a running `LLMEngine` on the real model."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from pagemill import __version__
from pagemill.batch import ModelRunner
from pagemill.config import EngineConfig, parse_cpus
from pagemill.engine import LLMEngine
from pagemill.errors import ConfigError
from pagemill.kernels import description, native
from pagemill.kernels.native import NativeLibrary
from pagemill.kernels.packing import Quantization
from pagemill.kvcache.sizing import PoolSize, check_swap_fits, size_pool
from pagemill.loading.fingerprint import ModelFingerprint
from pagemill.loading.loader import LoadedModel, load_model
from pagemill.loading.tokenizer import FileTokenizer
from pagemill.loading.weights import Packing, WeightFiles, Weights, stored_rows
from pagemill.model_config import ModelConfig
from pagemill.models import build_model
from pagemill.runner.native_runner import NativeRunner, native_block_bytes
from pagemill.runner.swap_memory import SwapMemory
from pagemill.runner.torch_runner import TorchRunner

_DTYPES = {
    "auto": torch.float32,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Assembly:
    """An engine and what it was built from."""

    engine: LLMEngine
    model_config: ModelConfig
    tokenizer: FileTokenizer | None
    pool: PoolSize


def build_engine(config: EngineConfig, *, progress: bool | None = None) -> Assembly:
    """Find and load the model, size the KV pool, and wire up an engine.

    Args:
        config: what to build.
        progress: show bars, on standard error, for what takes time; None: if it is a terminal.

    Raises:
        ConfigError: the configuration does not fit the model or the machine.
        ModelError: the model cannot be found, read or run.
    """
    num_threads, cpus = plan_threads(config)
    torch.set_num_threads(num_threads)
    library = native_library(config)
    loaded = load_model(config.model, config.tokenizer, progress=progress)
    model_config = configure_model(config, loaded)
    packing = None if library is None else _packing(config, num_threads)
    weights = Weights(loaded.weights, _DTYPES[config.dtype], packing=packing, progress=progress)
    model = build_model(model_config, weights)
    pool = plan_pool(config, model_config)
    swap = _swap_memory(config, pool)
    runner: ModelRunner
    if library is None:
        runner = TorchRunner(
            model,
            model_config,
            num_kv_blocks=pool.num_blocks,
            block_size=config.block_size,
            swap=swap,
        )
    else:
        runner = NativeRunner(
            model,
            model_config,
            library,
            num_kv_blocks=pool.num_blocks,
            block_size=config.block_size,
            kv_dtype=_kv_dtype(config),
            swap=swap,
            max_num_batched_tokens=config.max_num_batched_tokens,
            num_threads=num_threads,
            cpus=cpus,
        )
    engine = LLMEngine(
        config,
        runner,
        loaded.tokenizer,
        num_kv_blocks=pool.num_blocks,
        max_model_len=model_config.max_model_len,
        num_swap_slots=len(swap.slots),
        block_bytes=pool.block_bytes,
        fingerprint=_fingerprint(config, model_config, ModelFingerprint(loaded.source_path)),
        eos_token_ids=_eos_token_ids(loaded),
    )
    return Assembly(engine, model_config, loaded.tokenizer, pool)


def _fingerprint(
    config: EngineConfig, model_config: ModelConfig, files: ModelFingerprint
) -> Callable[[], str]:
    """All that the bits of keys and values depend on, but for the tokens.

    `pagemill.kvcache.prefix_file` tells users what that is.
    """

    def describe() -> str:
        parts = (
            __version__,
            description(),
            config.dtype,
            config.quantization,
            _kv_dtype(config),
            model_config,
            files.hexdigest,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    return describe


def _eos_token_ids(loaded: LoadedModel) -> frozenset[int]:
    """What ends a sequence: the ids of the tokenizer and those of the model's own settings.

    With a tokenizer from elsewhere, the model's own end still is one.
    """
    ids = set() if loaded.tokenizer is None else set(loaded.tokenizer.eos_token_ids)
    eos = loaded.generation_config.get("eos_token_id", loaded.hf_config.get("eos_token_id"))
    ids.update(i for i in (eos if isinstance(eos, list) else [eos]) if isinstance(i, int))
    return frozenset(ids)


def configure_model(config: EngineConfig, loaded: LoadedModel) -> ModelConfig:
    """The checkpoint's own configuration with the user's overrides.

    Raises:
        ConfigError: an override is wrong for this checkpoint.
        ModelError: it has no architecture that is known here.
    """
    _check_quantization(config, loaded.weights)
    return ModelConfig.from_hf(loaded.hf_config).with_overrides(
        max_model_len=config.max_model_len,
        rope_scaling=None if config.rope_scaling is None else dict(config.rope_scaling),
    )


def _check_quantization(config: EngineConfig, weights: WeightFiles) -> None:
    """Refuse a quantization that would change nothing."""
    if config.quantization is None or config.dtype != "auto":
        return
    matrices = [name for name in weights.names() if len(weights.shape(name)) == 2]
    if all(stored_rows(weights, name) is not None for name in matrices):
        types = ", ".join(sorted({weights.stored_type(name) for name in matrices}))
        raise ConfigError(
            f"quantization={config.quantization!r} is for float weights, and {config.model} has "
            f"none: it stores {types}. With dtype='float32' these become floats first"
        )


def native_library(config: EngineConfig) -> NativeLibrary | None:
    """The native kernels, or None if there are none and ``config`` can do without.

    Raises:
        ConfigError: it cannot.
    """
    library = native.load()
    if library is None:
        for name, value, without in (
            ("quantization", config.quantization, None),
            ("kv_cache_dtype", _kv_dtype(config), "float32"),
            ("deterministic", config.deterministic, None),
            ("cpu_affinity", config.cpu_affinity, None),
        ):
            if value != without:
                raise ConfigError(
                    f"{name}={value!r} needs the native kernels, and there are none: "
                    f"{native.unavailable_reason()}"
                )
    return library


def plan_pool(
    config: EngineConfig, model_config: ModelConfig, *, free_bytes: int | None = None
) -> PoolSize:
    """The size of the KV pool on this machine; ``free_bytes`` None: as it is now."""
    if native.load() is None:
        block_bytes = model_config.kv_bytes_per_token(_FLOAT32_BYTES) * config.block_size
    else:
        block_bytes = native_block_bytes(model_config, config.block_size, _kv_dtype(config))
    return size_pool(
        config,
        block_bytes=block_bytes,
        max_model_len=model_config.max_model_len,
        free_bytes=free_bytes,
    )


def num_swap_slots(config: EngineConfig, pool: PoolSize) -> int:
    """Blocks that ``swap_space`` holds; `ConfigError` if that is asked for and not even one."""
    assert isinstance(config.swap_space, int), "EngineConfig has parsed it"
    num_slots = config.swap_space // pool.block_bytes
    if config.swap_space and not num_slots:
        raise ConfigError(
            f"swap_space={config.swap_space} holds not even one block of {config.block_size} "
            f"tokens, which takes {pool.block_bytes} bytes"
        )
    return num_slots


def _swap_memory(config: EngineConfig, pool: PoolSize) -> SwapMemory:
    num_slots = num_swap_slots(config, pool)
    if num_slots and config.swap_path is None:
        check_swap_fits(num_slots * pool.block_bytes, pool)
    return SwapMemory(num_slots, pool.block_bytes, config.swap_path)


def _packing(config: EngineConfig, num_threads: int) -> Packing:
    quantization = cast("Quantization | None", config.quantization)
    return Packing(config.dtype == "auto", quantization, num_threads)


def _kv_dtype(config: EngineConfig) -> str:
    return "float32" if config.kv_cache_dtype == "auto" else config.kv_cache_dtype


def plan_threads(config: EngineConfig) -> tuple[int, Sequence[int]]:
    """How many threads compute, and the CPUs that they are pinned to, if any.

    Raises:
        ConfigError: this process may not use one of the CPUs.
    """
    cpus: Sequence[int] = ()
    if config.cpu_affinity == "auto":
        cpus = native.usable_cpus()
    elif config.cpu_affinity is not None:
        cpus = parse_cpus("cpu_affinity", config.cpu_affinity)
        native.check_cpus("cpu_affinity", cpus)
    num_threads = config.num_threads or usable_processors()
    if cpus and config.num_threads is None:
        num_threads = min(num_threads, len(cpus))
    return num_threads, cpus


def usable_processors() -> int:
    """Processors that this process may use, quotas counted; or OMP_NUM_THREADS if it is set."""
    asked_for = os.environ.get("OMP_NUM_THREADS", "")
    if asked_for.isdecimal() and int(asked_for) > 0:
        return int(asked_for)
    return native.available_cpus()
