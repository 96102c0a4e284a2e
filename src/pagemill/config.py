"""`EngineConfig`: everything that can be set about an engine, checked before anything is built."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pagemill.errors import ConfigError

if TYPE_CHECKING:
    from pagemill.scheduler.policy import SchedulingPolicy

DEFAULT_MODEL = "smollm2-135m"
DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = ("auto", "float32", "bfloat16", "int8")
QUANTIZATIONS = ("int8", "int4")
POLICIES = ("fcfs", "priority", "deadline")
PREEMPTION_MODES = ("auto", "swap", "recompute")
MAX_THREADS = 1024
"""With far more the OpenMP runtime ends the process instead of raising an error."""
MAX_KV_BLOCKS = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Configuration of one engine. Immutable; a value out of bounds raises `ConfigError`.

    Fields whose feature this version lacks are refused when set to anything but their default:
    nothing is accepted and ignored.
    """

    model: str = DEFAULT_MODEL
    """An alias, a ``.gguf`` file, a directory (config.json + safetensors), or a hub id."""
    tokenizer: str | None = None
    """A directory, a ``tokenizer.json`` or a ``.gguf`` file; None takes the model's own."""
    dtype: str = "auto"
    """How weights are stored: ``float32``, ``bfloat16`` or ``float16``, computed with in float32.
    ``auto``: the 4- to 8-bit weights of a GGUF file as they are stored there, multiplied with
    activations in 8 bits (native kernels only; PyTorch's dequantize them); others float32."""
    quantization: str | None = None
    """``int8`` or ``int4``: what float matrices become when they are loaded, with a scale for
    each group of 32 columns (``int8`` on a machine with AMX: for each row). What a GGUF file has
    quantized stays so under ``dtype="auto"``. Needs the native kernels."""
    device: str = "auto"
    """``cpu`` (which is what ``auto`` means today)."""
    num_threads: int | None = None
    """Threads that compute; None: the processors that this process may use, or those of
    ``cpu_affinity``."""
    cpu_affinity: str | None = None
    """Pins the native kernels' threads, one to each CPU in turn: ``"auto"``, the CPUs that this
    process may use, or a list such as ``"0-3,8"``. The first is left for the thread that calls the
    engine, which is not moved. None: the system moves all of them."""
    max_model_len: int | None = None
    """Longest prompt + output in tokens; None: what the model was trained for (or what
    ``rope_scaling`` stretches it to)."""
    rope_scaling: Mapping[str, Any] | None = None
    """For example ``{"rope_type": "ntk", "factor": 4.0}``; overrides the checkpoint's own."""
    block_size: int = 16
    """Token slots in one block of KV cache."""
    num_kv_blocks: int | None = None
    """Blocks in the KV pool; None: as many as ``kv_cache_memory`` holds."""
    kv_cache_memory: int | str | None = None
    """Bytes for the KV pool, or a text such as ``"2GiB"``; None: a share of the free memory, see
    `pagemill.kvcache.sizing`."""
    kv_cache_dtype: str = "auto"
    """How keys and values are kept: ``float32`` (``auto``), or with the native kernels ``bfloat16``
    or ``int8`` (a scale for each token and head)."""
    max_num_seqs: int = 256
    """Most sequences that hold KV blocks at once."""
    max_num_batched_tokens: int = 1024
    """The budget of one step: prompt chunks and decodes together. Also bounds the number of
    running sequences, so that a step can always give each of them a token."""
    scheduling_policy: str | SchedulingPolicy = "fcfs"
    """``fcfs``, ``priority``, ``deadline``, or an object that follows `SchedulingPolicy`."""
    enable_prefix_caching: bool = True
    """Keep computed blocks after their sequence has ended, and share them with whatever begins with
    the same tokens."""
    prefix_cache_partial_hits: bool = True
    """Also copy the head of a block that agrees in its first tokens only."""
    preemption_mode: str = "auto"
    """What becomes of the blocks of a preempted sequence. ``recompute``: they are given up and
    computed again later. ``swap``: they are moved to the swap space while it has room. ``auto``:
    whichever costs less, by what this engine has measured."""
    swap_space: int | str = 0
    """Room for the blocks of preempted sequences, in bytes or as a text such as ``"2GiB"``; 0 with
    ``preemption_mode="recompute"``, which moves none."""
    swap_path: str | None = None
    """A file for the swap space, which is then on disk and not in memory; ``~`` is the home
    directory. One that exists already is refused. It is created with its whole size and loses its
    name at once, so that the system frees it when the process ends, however it does."""
    speculative: Mapping[str, Any] | None = None
    """Not available yet."""
    tensor_parallel_size: int = 1
    """Not available yet."""
    gpu_memory_utilization: float | None = None
    """Not available yet: there is no GPU backend."""
    enforce_eager: bool | None = None
    """Not available yet: there is no captured graph to turn off."""
    deterministic: bool | None = None
    """True: refuse to run where the same bits cannot be promised, that is without the native
    kernels. They are deterministic in any case."""
    seed: int = 0
    """Key of the random streams of requests that bring no seed of their own."""
    check_invariants: bool = False
    """Audit the block accounting after every step (for tests; costs time linear in the pool)."""

    def __post_init__(self) -> None:
        self._refuse_what_is_not_there_yet()
        _choice("dtype", self.dtype, DTYPES)
        _choice("device", self.device, ("auto", "cpu"))
        _choice("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        if self.quantization is not None:
            _choice("quantization", self.quantization, QUANTIZATIONS)
        if self.deterministic not in (None, True):
            raise ConfigError(
                f"deterministic must be True or None, got {self.deterministic!r}; there is no "
                f"faster mode that gives it up"
            )
        _choice("preemption_mode", self.preemption_mode, PREEMPTION_MODES)
        self._check_swap()
        if isinstance(self.scheduling_policy, str):
            _choice("scheduling_policy", self.scheduling_policy, POLICIES)
        elif isinstance(self.scheduling_policy, type) or not all(
            hasattr(self.scheduling_policy, member) for member in ("name", "rank", "check")
        ):
            raise ConfigError(
                f"scheduling_policy must be one of {', '.join(POLICIES)}, or an object with name, "
                f"rank and check (an instance, not its class), got {self.scheduling_policy!r}"
            )
        for name, value in (("model", self.model), ("tokenizer", self.tokenizer or "its own")):
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{name} must be a non-empty text, got {value!r}")
        for name, high in (
            ("num_threads", MAX_THREADS),
            ("max_model_len", None),
            ("num_kv_blocks", MAX_KV_BLOCKS),
        ):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, high)
        check_integer("block_size", self.block_size, 1, 1024)
        check_integer("max_num_seqs", self.max_num_seqs, 1)
        check_integer("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        check_integer("seed", self.seed, 0, 2**64 - 1)
        for name in ("enable_prefix_caching", "prefix_cache_partial_hits", "check_invariants"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be a bool, got {getattr(self, name)!r}")
        if self.cpu_affinity not in (None, "auto"):
            parse_cpus("cpu_affinity", self.cpu_affinity)
        if self.kv_cache_memory is not None:
            if self.num_kv_blocks is not None:
                raise ConfigError(
                    f"kv_cache_memory={self.kv_cache_memory!r} and num_kv_blocks="
                    f"{self.num_kv_blocks} both size the KV pool; give one of them"
                )
            size_bytes = parse_bytes("kv_cache_memory", self.kv_cache_memory)
            object.__setattr__(self, "kv_cache_memory", size_bytes)
        if self.rope_scaling is not None:
            if not isinstance(self.rope_scaling, Mapping):
                raise ConfigError(
                    "rope_scaling must be a mapping such as "
                    f'{{"rope_type": "ntk", "factor": 4.0}}, got {self.rope_scaling!r}'
                )
            object.__setattr__(self, "rope_scaling", MappingProxyType(dict(self.rope_scaling)))

    def _check_swap(self) -> None:
        if self.swap_path is not None and (
            not isinstance(self.swap_path, str) or not self.swap_path
        ):
            raise ConfigError(f"swap_path must be the name of a file, got {self.swap_path!r}")
        if self.swap_path is not None:
            object.__setattr__(self, "swap_path", os.path.expanduser(self.swap_path))
        asks_for_space = type(self.swap_space) is not int or self.swap_space != 0
        if self.preemption_mode == "recompute" and (asks_for_space or self.swap_path is not None):
            raise ConfigError(
                f"preemption_mode='recompute' moves no block to a swap space, but swap_space="
                f"{self.swap_space!r} and swap_path={self.swap_path!r}; leave these out, or choose "
                f"preemption_mode='auto' or 'swap'"
            )
        if asks_for_space:
            object.__setattr__(self, "swap_space", parse_bytes("swap_space", self.swap_space))
        elif self.swap_path is not None or self.preemption_mode == "swap":
            raise ConfigError(
                f"swap_space is 0, but preemption_mode={self.preemption_mode!r} and swap_path="
                f'{self.swap_path!r}; give it a size such as swap_space="2GiB"'
            )

    def _refuse_what_is_not_there_yet(self) -> None:
        """Fields of features to come must keep their default (or a value that means the same)."""
        same_as_default = {
            "speculative": (None,),
            "tensor_parallel_size": (1,),
            "gpu_memory_utilization": (None,),
            "enforce_eager": (None,),
        }
        for name, accepted in same_as_default.items():
            value = getattr(self, name)
            if value not in accepted:
                raise ConfigError(
                    f"{name}={value!r} is not available in this version; "
                    f"leave it at {accepted[0]!r}"
                )

    @classmethod
    def from_kwargs(cls, **kwargs: Any) -> EngineConfig:
        """Build from keyword arguments; an unknown one is an error that suggests the nearest."""
        names = [f.name for f in dataclasses.fields(cls)]
        for key in kwargs:
            if key not in names:
                near = difflib.get_close_matches(key, names, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}"
                raise ConfigError(f"unknown engine option {key!r}{hint}")
        return cls(**kwargs)


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(name: str, value: int | str) -> int:
    """Bytes from a number or a text such as ``"512MiB"`` or ``"2GB"``; errors name ``name``."""
    if isinstance(value, int) and not isinstance(value, bool):
        size_bytes: float = value
    elif isinstance(value, str) and (
        match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", value, re.IGNORECASE)
    ):
        unit = (match[2] or "").lower()
        size_bytes = float(match[1]) * (_UNITS | _BINARY_UNITS)[unit]
    else:
        raise ConfigError(f'{name} must be bytes or a text such as "2GiB", got {value!r}')
    if size_bytes < 1 or not math.isfinite(size_bytes) or size_bytes > 2**62:
        raise ConfigError(f"{name} must be between 1 and 2**62 bytes, got {value!r}")
    return int(size_bytes)


def parse_cpus(name: str, value: object) -> tuple[int, ...]:
    """CPU numbers of a text such as ``"0-3,8"``, in its order; errors name ``name``."""
    cpus: list[int] = []
    for part in value.split(",") if isinstance(value, str) else [""]:
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        found = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not found:
            raise ConfigError(f'{name} must be "auto" or CPU numbers as "0-3,8", got {value!r}')
        cpus += found
    if len(set(cpus)) < len(cpus):
        raise ConfigError(f"{name} must name each CPU once, got {value!r}")
    return tuple(cpus)


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        near = difflib.get_close_matches(str(value), allowed, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, got {value!r}{hint}")


def check_integer(name: str, value: object, low: int, high: int | None = None) -> None:
    """Raise `ConfigError` unless ``value`` is an integer in ``[low, high]``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be an integer, got {value!r}")
    if value < low or (high is not None and value > high):
        bound = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ConfigError(f"{name} must be {bound}, got {value}")
