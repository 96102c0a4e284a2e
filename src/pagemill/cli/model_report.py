"""The facts that ``pagemill info`` shows. Imports torch and reads headers, no weights."""

from __future__ import annotations

import math
import os
import platform
from collections import Counter
from typing import Any

import torch

from pagemill import __version__, kernels
from pagemill.assembly import configure_model, plan_pool, plan_threads
from pagemill.config import EngineConfig
from pagemill.kernels import native
from pagemill.kvcache.manager import blocks_for_tokens
from pagemill.kvcache.sizing import free_memory_bytes
from pagemill.loading.aliases import ALIASES
from pagemill.loading.loader import LoadedModel, load_model
from pagemill.loading.weights import stored_rows
from pagemill.model_config import ModelConfig
from pagemill.rope_config import RopeConfig

Section = dict[str, Any]

_QUANTIZED_BITS = {"int8": 8.5, "int4": 5.0}  # with the scales of groups of 32
_WEIGHT_BYTES = {"auto": 4, "float32": 4, "bfloat16": 2, "float16": 2}


def describe_environment(config: EngineConfig) -> Section:
    """What is the same for every model."""
    num_threads = plan_threads(config)[0]
    return {
        "pagemill": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "device": "cpu",
        "kernels": f"{kernels.description()}, {num_threads} threads",
        "num_threads": num_threads,
        "processors": os.cpu_count(),
        "free_memory_bytes": free_memory_bytes(),
        "model_aliases": sorted(ALIASES),
    }


def describe_model(config: EngineConfig) -> dict[str, Section]:
    """Sections ``model``, ``weights`` and ``kv_pool``.

    Raises:
        ModelError: there is no such model, or it cannot be run.
        ConfigError: the configuration does not fit it.
    """
    loaded = load_model(config.model, config.tokenizer)
    model_config = configure_model(config, loaded)
    weights = _weights(loaded, config)
    return {
        "model": _model(loaded, model_config),
        "weights": weights,
        "kv_pool": _pool(config, model_config, weights["memory_bytes"]),
    }


def _model(loaded: LoadedModel, config: ModelConfig) -> Section:
    tokenizer = loaded.tokenizer
    return {
        "name": loaded.name,
        "path": str(loaded.source_path),
        "architecture": config.architecture,
        "num_parameters": config.num_parameters,
        "num_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_model_len": config.max_model_len,
        "trained_len": config.max_position_embeddings,
        "sliding_window": min((w for w in config.sliding_windows if w is not None), default=None),
        "rope": _rope(config.rope),
        "local_rope": _rope(config.local_rope),
        "has_tokenizer": tokenizer is not None,
        "has_chat_template": tokenizer is not None and tokenizer.chat_template is not None,
    }


def _rope(rope: RopeConfig | None) -> Section | None:
    if rope is None:
        return None
    return {"rope_type": rope.rope_type, "theta": rope.theta, "factor": rope.factor}


def _weights(loaded: LoadedModel, config: EngineConfig) -> Section:
    weights = loaded.weights
    types = Counter(weights.stored_type(name) for name in weights.names())
    return {
        "stored_as": dict(types.most_common()),
        "stored_bytes": sum(path.stat().st_size for path in weights.files),
        **_in_memory(loaded, config),
    }


def _in_memory(loaded: LoadedModel, config: EngineConfig) -> Section:
    """What the weights are once loaded, and what they take."""
    weights = loaded.weights
    as_stored = config.dtype == "auto" and native.load() is not None
    forms: set[str] = set()
    num_bits = 0.0
    for name in weights.names():
        shape = weights.shape(name)
        rows = stored_rows(weights, name) if as_stored else None
        if rows is not None:
            forms.add("as stored")
            num_bits += 8 * len(rows.data)
        elif config.quantization is not None and len(shape) == 2:
            forms.add(config.quantization)
            num_bits += math.prod(shape) * _QUANTIZED_BITS[config.quantization]
        else:
            num_bits += 8 * math.prod(shape) * _WEIGHT_BYTES[config.dtype]
    dtype = "float32" if config.dtype == "auto" else config.dtype
    return {"dtype": ", ".join(sorted(forms)) or dtype, "memory_bytes": round(num_bits / 8)}


def _pool(config: EngineConfig, model_config: ModelConfig, weight_bytes: int) -> Section:
    """The KV pool as it would be once the weights are in memory."""
    free_bytes = max(free_memory_bytes() - weight_bytes, 0)
    pool = plan_pool(config, model_config, free_bytes=free_bytes)
    longest = blocks_for_tokens(model_config.max_model_len, config.block_size)
    return {
        "bytes_per_token": pool.block_bytes // config.block_size,
        "block_size_tokens": config.block_size,
        "block_bytes": pool.block_bytes,
        "num_blocks": pool.num_blocks,
        "num_tokens": pool.num_blocks * config.block_size,
        "total_bytes": pool.total_bytes,
        "decided_by": pool.reason,
        "longest_sequences_that_fit": pool.num_blocks / longest,
    }
