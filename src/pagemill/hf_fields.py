"""Typed reading of a Hugging Face ``config.json``, where nothing is silently ignored.

Every key must be read by the architecture that the file names, or be known to have no effect on
inference, or be null, false or empty. Anything else asks for something that is not implemented.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from pagemill.errors import InvalidFileError, UnsupportedModelError

T = TypeVar("T")

MAX_INTEGER = 2**31 - 1
"""No size of a model is larger; a file that says so would only exhaust memory."""

# fmt: off
_NO_EFFECT = frozenset({
    "architectures", "model_type", "dtype", "torch_dtype", "transformers_version",
    "name_or_path", "auto_map", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id",
    "sep_token_id", "cls_token_id", "attention_dropout", "hidden_dropout", "resid_pdrop",
    "embd_pdrop", "attn_pdrop", "dropout", "initializer_range", "initializer_factor",
    "use_cache", "pretraining_tp", "gradient_checkpointing", "summary_type", "summary_use_proj",
    "summary_activation", "summary_proj_to_labels", "summary_first_dropout", "problem_type",
    "id2label", "label2id", "num_labels", "return_dict", "chunk_size_feed_forward",
    "task_specific_params", "finetuning_task", "is_llama_config", "unsloth_fixed",
    "unsloth_version", "transformers.js_config", "cache_implementation", "max_length",
    "min_length", "num_beams", "num_beam_groups", "temperature", "top_k", "top_p", "typical_p",
    "repetition_penalty", "length_penalty", "diversity_penalty", "num_return_sequences",
    "early_stopping", "do_sample", "encoder_no_repeat_ngram_size", "no_repeat_ngram_size",
    "prefix", "decoder_start_token_id", "reorder_and_upcast_attn", "n_ctx",
})
# fmt: on
"""Training, generation defaults (requests state their own), bookkeeping;
``reorder_and_upcast_attn`` asks for the float32 attention that is always computed here; ``n_ctx``
repeats ``n_positions``."""


def is_positive(value: object, above: float = 0.0) -> bool:
    """Whether ``value`` is a number above ``above`` that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return above < value <= sys.float_info.max  # NaN fails every comparison


class FieldReader:
    """Reads fields once, with their type and bound, and refuses what nobody read."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self._read: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the file states ``name``, be it as null."""
        return name in self._fields

    def raw(self, name: str) -> Any:
        """The value of ``name`` as it stands, None if absent."""
        self._read.add(name)
        return self._fields.get(name)

    def integer(self, name: str, default: int | None = None, most: int = MAX_INTEGER) -> int:
        """A whole number from 1 to ``most``; required if ``default`` is None."""
        value = self._required(name, self.raw(name), default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise InvalidFileError(
                f"config.json: {name} must be a whole number from 1 to {most}, got {value!r}"
            )
        return value

    def optional_integer(self, name: str) -> int | None:
        """As `integer`, but null and absent give None."""
        return None if self.raw(name) is None else self.integer(name)

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0; required if ``default`` is None."""
        value = self._required(name, self.raw(name), default)
        if not is_positive(value):
            raise InvalidFileError(f"config.json: {name} must be a number above 0, got {value!r}")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """As `number`, but null and absent give None."""
        return None if self.raw(name) is None else self.number(name)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._required(name, self.raw(name), default)
        if not isinstance(value, bool):
            raise InvalidFileError(f"config.json: {name} must be true or false, got {value!r}")
        return value

    def choice(self, name: str, default: str, choices: Mapping[str, T]) -> T:
        """What ``choices`` maps the text to; another text is not implemented."""
        value = self._required(name, self.raw(name), default)
        if not isinstance(value, str) or value not in choices:
            raise UnsupportedModelError(
                f"config.json: {name} {value!r} is not implemented; "
                f"supported: {', '.join(sorted(choices))}"
            )
        return choices[value]

    def texts(self, name: str, count: int, choices: frozenset[str]) -> list[str] | None:
        """A list of ``count`` texts out of ``choices``, or None if absent."""
        values = self.raw(name)
        if values is None:
            return None
        if not isinstance(values, list) or len(values) != count:
            raise InvalidFileError(f"config.json: {name} must list {count} entries, got {values!r}")
        for value in values:
            if not isinstance(value, str) or value not in choices:
                raise UnsupportedModelError(
                    f"config.json: {name} holds {value!r}, which is not implemented; "
                    f"supported: {', '.join(sorted(choices))}"
                )
        return values

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of finite numbers above 0; empty if absent."""
        values = self.raw(name)
        if values is None:
            return ()
        if not isinstance(values, (list, tuple)) or not all(map(is_positive, values)):
            raise InvalidFileError(f"config.json: {name} must be a list of numbers above 0")
        return tuple(map(float, values))

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        """A dictionary, or None if absent."""
        value = self.raw(name)
        if value is not None and not isinstance(value, Mapping):
            raise InvalidFileError(f"config.json: {name} must be a dictionary, got {value!r}")
        return value

    def fixed(self, name: str, only: object) -> None:
        """Accept ``name`` only with the one value that is implemented (or absent)."""
        value = self.raw(name)
        if value is not None and value != only:
            raise UnsupportedModelError(
                f"config.json: {name} = {value!r} is not implemented; only {only!r} is"
            )

    def finish(self, architecture: str) -> None:
        """Refuse every field with a value that has not been read and may have an effect."""
        for name, value in self._fields.items():
            known = name in self._read or name in _NO_EFFECT or name.startswith("_")
            # False, null and empty ask for nothing; 0 and 1 may well be a setting.
            if known or value is None or value is False or value in ("", [], {}):
                continue
            shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
            raise UnsupportedModelError(
                f"config.json: {name} = {shown} is not implemented "
                f"for architecture {architecture!r}"
            )

    @staticmethod
    def _required(name: str, value: Any, default: Any) -> Any:
        if value is None and default is None:
            raise InvalidFileError(f"config.json: {name} is missing")
        return default if value is None else value
