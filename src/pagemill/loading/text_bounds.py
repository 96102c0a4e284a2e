"""How few tokens a text can become, from its length alone.

A server must not spend seconds on encoding a text that could never fit the context. Each token
stands for at most as many bytes as the longest one has, so a text of so many bytes is at least so
many tokens; provided that no step of the tokenizer can leave text out or run together what it does
not know. Where one can, there is no bound, and nothing is said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import tokenizers

from pagemill.loading.byte_decoding import BYTE_LEVEL_ALPHABET

NFC_SHRINKS: Final = 9
"""Bytes that one byte of a text in normal form C can have had before, at most: a character is up to
three times as long as its decomposition (the Kelvin sign), and that up to three times as long as
its composition (U+0390)."""


NEVER_IN_UTF8: Final = bytes([0xC0, 0xC1, *range(0xF5, 0x100)])


@dataclass(frozen=True, slots=True)
class TextBound:
    """The bound of one tokenizer."""

    bytes_per_token: int
    counts_spaces: bool = True
    """Whether every space is part of a token; some special tokens swallow those beside them."""
    not_counted: bytes = NEVER_IN_UTF8
    """Bytes that the vocabulary has no token for, so that a text loses them."""

    def min_tokens(self, text: str) -> int:
        """Encoding ``text`` gives at least this many tokens."""
        counted = text if self.counts_spaces else "".join(text.split())
        raw = counted.encode("utf-8", "surrogatepass").translate(None, self.not_counted)
        return -(-len(raw) // self.bytes_per_token)

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer) -> TextBound | None:
        """None: the tokenizer has none that is known here."""
        normalizer, pre_tokenizer = _spec(tokenizer.normalizer), _spec(tokenizer.pre_tokenizer)
        shrinks = _normalizer_shrinks(normalizer)
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        unknown = _unknown_bytes(tokenizer.model, [normalizer, pre_tokenizer], vocabulary)
        if shrinks is None or unknown is None or not _keeps_all(pre_tokenizer):
            return None
        if normalizer is not None and set(unknown) - set(NEVER_IN_UTF8):
            return None  # it might turn what is counted into what is lost
        added = tokenizer.get_added_tokens_decoder().values()
        return cls(
            bytes_per_token=shrinks * max(len(token.encode()) for token in vocabulary),
            counts_spaces=not any(token.lstrip or token.rstrip for token in added),
            not_counted=unknown,
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


def _unknown_bytes(
    model: Any, steps: Sequence[dict[str, Any] | None], vocabulary: Mapping[str, int]
) -> bytes | None:
    """Those without a token of their own; None: text can be unknown in other ways.

    What is unknown is lost, or run together into one token however long it is.
    """
    if not isinstance(model, tokenizers.models.BPE):
        return None
    if model.byte_fallback:
        spelled = {byte: f"<0x{byte:02X}>" for byte in range(256)}
    elif '"ByteLevel"' in json.dumps(steps):
        spelled = {byte: char for char, byte in BYTE_LEVEL_ALPHABET.items()}
    else:
        return None
    return bytes(sorted(byte for byte, token in spelled.items() if token not in vocabulary))
