"""Ways to keep a model's weights and its keys and values, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

from pagemill.config import QUANTIZATIONS
from pagemill.errors import ConfigError

WEIGHTS: Final = ("float32", "stored", "bfloat16", "float16", *QUANTIZATIONS)
KV_DTYPES: Final = ("float32", "bfloat16", "int8")
_KV_MARK: Final = "+kv-"


@dataclass(frozen=True, slots=True)
class Format:
    """How weights, keys and values are kept: ``stored``, ``int8+kv-bfloat16``."""

    weights: str
    """One of `WEIGHTS`. ``stored``: a GGUF file's blocks as they are; all others are made from
    the numbers that these blocks stand for."""
    kv_dtype: str = "float32"
    """One of `KV_DTYPES`."""

    @classmethod
    def named(cls, name: str) -> Self:
        """Raises `ConfigError` for a name that is none."""
        weights, mark, kv_dtype = name.partition(_KV_MARK)
        kv_dtype = kv_dtype if mark else "float32"
        if weights not in WEIGHTS or kv_dtype not in KV_DTYPES:
            raise ConfigError(
                f"--formats: {name!r} is none; a format is one of {', '.join(WEIGHTS)}, with "
                f"{_KV_MARK}bfloat16 or {_KV_MARK}int8 behind it for other keys and values than "
                f"float32"
            )
        return cls(weights, kv_dtype)

    def __str__(self) -> str:
        return self.weights + ("" if self.kv_dtype == "float32" else _KV_MARK + self.kv_dtype)

    def engine_options(self) -> dict[str, Any]:
        """The fields of `EngineConfig` that make it so."""
        quantized = self.weights in QUANTIZATIONS
        # Under dtype="auto" what a file has quantized stays so, whatever the quantization.
        dtype = "auto" if self.weights == "stored" else "float32" if quantized else self.weights
        return {
            "dtype": dtype,
            "quantization": self.weights if quantized else None,
            "kv_cache_dtype": self.kv_dtype,
        }


REFERENCE: Final = Format("float32")
DEFAULT_FORMATS: Final = (
    *(Format(weights) for weights in WEIGHTS),
    Format("float32", "bfloat16"),
    Format("float32", "int8"),
    Format("stored", "int8"),
)


def formats_named(names: str | None) -> tuple[Format, ...]:
    """From names between commas; None: all that are usual. Raises `ConfigError`."""
    if names is None:
        return DEFAULT_FORMATS
    return tuple(Format.named(name.strip()) for name in names.split(","))
