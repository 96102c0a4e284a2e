"""The exact bytes that a token stands for, from the description of a tokenizer's decoder.

A tokenizer's own ``decode`` works on whole sequences and returns text, which hides two things that
a stream needs: which bytes each token adds, and where a character ends. Both conventions in use map
a token to bytes on its own:

- byte-level (GPT-2): each character of the token stands for one byte, by a fixed table;
- SentencePiece: the token is text with ``▁`` for a space, or ``<0x0A>`` for one byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from pagemill.errors import UnsupportedModelError

SPACE_SYMBOL = "\u2581"  # "▁", SentencePiece's visible space
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    """Return GPT-2's table, character to byte.

    A byte that is a printable character of Latin-1 (other than a space) stands for itself; the
    others follow in order from U+0100 on. So a space is ``Ġ`` (U+0120), a newline ``Ċ`` (U+010A).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


BYTE_LEVEL_ALPHABET = _byte_level_alphabet()


@dataclass(frozen=True)
class ByteDecoder:
    """How the tokens of one vocabulary become bytes."""

    byte_level: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    """(what, by what) in the token's text, in order."""
    byte_fallback: bool = False
    """Whether ``<0x0A>`` is one byte."""
    num_leading_spaces_stripped: int = 0
    """Spaces that the encoder adds before a text, and that its decoded text therefore lacks."""

    def token_bytes(self, token: str) -> bytes:
        """Return the bytes of a token of the model's vocabulary, written as in the vocabulary."""
        if self.byte_level:
            try:
                return bytes([BYTE_LEVEL_ALPHABET[char] for char in token])
            except KeyError:  # not written in the alphabet: a token added as plain text
                return token.encode()
        for old, new in self.replacements:
            token = token.replace(old, new)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.encode()

    def added_token_bytes(self, content: str, *, special: bool) -> bytes:
        """Return the bytes of a token added beside the model's vocabulary (``<|im_end|>``).

        It is matched in plain text, so it stands for its own content; but in a SentencePiece
        vocabulary a token that is not special may be a run of spaces, written with their symbol.
        """
        if self.byte_level or special:
            return content.encode()
        return self.token_bytes(content)

    def strip_leading_spaces(self, text: str) -> str:
        """Remove what the encoder put before the text, if it is there."""
        for _ in range(self.num_leading_spaces_stripped):
            text = text.removeprefix(" ")
        return text

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ByteDecoder:
        """Read the tokenizer's decoder; see `from_spec`."""
        decoder = tokenizer.decoder
        return cls.from_spec(None if decoder is None else json.loads(decoder.__getstate__()))

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any] | None) -> ByteDecoder:
        """Read the ``decoder`` object of a ``tokenizer.json``.

        Raises:
            UnsupportedModelError: it names a decoder that does not map each token to bytes.
        """
        if spec is None:
            raise _unsupported("none at all")
        steps: Sequence[Mapping[str, Any]] = (
            spec["decoders"] if spec["type"] == "Sequence" else [spec]
        )
        byte_level = byte_fallback = False
        replacements: list[tuple[str, str]] = []
        num_stripped = 0
        for step in steps:
            match step:
                case {"type": "ByteLevel"}:
                    byte_level = True
                case {"type": "ByteFallback"}:
                    byte_fallback = True
                case {"type": "Fuse"}:
                    pass  # joins the tokens, as joining their bytes does
                case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                    replacements.append((old, new))
                case {"type": "Strip", "content": " ", "start": int(start), "stop": 0}:
                    num_stripped += start
                case {"type": "Metaspace", "replacement": str(symbol), **rest}:
                    replacements.append((symbol, " "))
                    num_stripped += rest.get("prepend_scheme") != "never"
                case _:
                    raise _unsupported(str(step.get("type")))
        if byte_level and (byte_fallback or replacements):
            raise _unsupported("a mixture of ByteLevel and " + ", ".join(s["type"] for s in steps))
        return cls(byte_level, tuple(replacements), byte_fallback, num_stripped)


def _unsupported(name: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the tokenizer's decoder is not supported: {name}; supported are ByteLevel, Metaspace, "
        "and sequences of Replace (of a string), ByteFallback, Fuse and Strip (of leading spaces)"
    )
