"""How few tokens a text can become, from its length alone.

A server must not spend seconds on encoding a text that could never fit the context. Each token
stands for at most as many bytes as the longest one has, so a text of so many bytes is at least so
many tokens; provided that no step of the tokenizer can leave text out or run together what it does
not know. Where one can, there is no bound, and nothing is said.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import tokenizers

from pagemill.loading.byte_decoding import BYTE_LEVEL_ALPHABET

NFC_SHRINKS: Final = 9
"""Bytes that one byte of a text in normal form C can have had before, at most: a character is up to
three times as long as its decomposition (the Kelvin sign), and that up to three times as long as
its composition (U+0390)."""


@dataclass(frozen=True, slots=True)
class TextBound:
    """The bound of one tokenizer."""

    bytes_per_token: int
    counts_spaces: bool
    """Whether every space is part of a token; some special tokens swallow those beside them."""

    def min_tokens(self, text: str) -> int:
        """Encoding ``text`` gives at least this many tokens."""
        counted = text if self.counts_spaces else "".join(text.split())
        num_bytes = len(counted.encode("utf-8", "surrogatepass"))
        return -(-num_bytes // self.bytes_per_token)

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer) -> TextBound | None:
        """None: the tokenizer has none that is known here."""
        shrinks = _normalizer_shrinks(_spec(tokenizer.normalizer))
        if shrinks is None or not _keeps_all(_spec(tokenizer.pre_tokenizer)):
            return None
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        if not _knows_every_byte(tokenizer, vocabulary):
            return None
        added = tokenizer.get_added_tokens_decoder().values()
        longest = max(len(token.encode()) for token in vocabulary)
        return cls(
            bytes_per_token=longest * shrinks,
            counts_spaces=not any(token.lstrip or token.rstrip for token in added),
        )


def _spec(component: Any) -> dict[str, Any] | None:
    return None if component is None else json.loads(component.__getstate__())


def _normalizer_shrinks(spec: dict[str, Any] | None) -> int | None:
    """By what factor a text can become shorter, in bytes; None: there is no saying."""
    match spec:
        case None | {"type": "Prepend" | "ByteLevel"}:
            return 1
        case {"type": "NFC"}:
            return NFC_SHRINKS
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return 1 if len(new.encode()) >= len(old.encode()) else None
        case {"type": "Sequence", "normalizers": list(steps)}:
            product = 1
            for factor in map(_normalizer_shrinks, steps):
                if factor is None:
                    return None
                product *= factor
            return product
    return None


def _keeps_all(spec: dict[str, Any] | None) -> bool:
    """Whether a pre-tokenizer leaves nothing out."""
    match spec:
        case None | {"type": "ByteLevel" | "Metaspace" | "Digits" | "UnicodeScripts"}:
            return True
        case {"type": "Split" | "Punctuation", "behavior": behavior}:
            return bool(behavior != "Removed")
        case {"type": "Sequence", "pretokenizers": list(steps)}:
            return all(map(_keeps_all, steps))
    return False


def _knows_every_byte(tokenizer: tokenizers.Tokenizer, vocabulary: dict[str, int]) -> bool:
    """Whether there is no text that would become one token for what is unknown."""
    if not isinstance(tokenizer.model, tokenizers.models.BPE):
        return False
    if tokenizer.model.byte_fallback:
        return all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    steps = [_spec(tokenizer.normalizer), _spec(tokenizer.pre_tokenizer)]
    is_byte_level = any('"ByteLevel"' in json.dumps(step) for step in steps)
    return is_byte_level and all(char in vocabulary for char in BYTE_LEVEL_ALPHABET)
