"""A model directory in Hugging Face's layout: ``config.json`` and its companions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pagemill.errors import InvalidFileError, ModelNotFoundError

_MAX_JSON_BYTES: Final = 1 << 26
"""Indexes of the largest checkpoints have a few megabytes."""

# What transformers' Gemma3TextConfig assumes; Google's multimodal checkpoints leave these out.
_GEMMA3_TEXT_DEFAULTS: Final = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
}


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that must hold an object.

    Raises `ModelNotFoundError` if it cannot be read and `InvalidFileError` if it is no such JSON.
    """
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise InvalidFileError(
                f"{path}: {path.stat().st_size} bytes, above the limit of {_MAX_JSON_BYTES}"
            )
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path}: no such file") from None
    except OSError as error:
        raise ModelNotFoundError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested too deep
        raise InvalidFileError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise InvalidFileError(f"{path}: holds a {type(content).__name__}, not a JSON object")
    return content


def read_optional_json_object(path: Path) -> dict[str, Any]:
    """As `read_json_object`, but empty if there is no such file."""
    return read_json_object(path) if path.is_file() else {}


def read_hf_config(directory: Path) -> dict[str, Any]:
    """Read ``config.json``; of a multimodal Gemma 3, the text model's part."""
    path = directory / "config.json"
    if not path.is_file():
        raise ModelNotFoundError(
            f"{directory}: no config.json in this directory; a model directory holds config.json, "
            "*.safetensors and tokenizer.json (a GGUF model is named by its file)"
        )
    config = read_json_object(path)
    if config.get("model_type") == "gemma3" and "text_config" in config:
        return _gemma3_text_part(path, config)
    return config


def read_generation_config(directory: Path) -> dict[str, Any]:
    """Read ``generation_config.json``; empty if there is none."""
    return read_optional_json_object(directory / "generation_config.json")


def _gemma3_text_part(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    text_config = config["text_config"]
    if not isinstance(text_config, dict):
        raise InvalidFileError(
            f"{path}: text_config is a {type(text_config).__name__}, not an object"
        )
    shared = {key: config[key] for key in ("bos_token_id", "eos_token_id") if key in config}
    return {
        **_GEMMA3_TEXT_DEFAULTS,
        **shared,
        **text_config,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
    }
