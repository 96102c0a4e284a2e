r"""Log-probabilities in the two shapes of the API.

    completions   four lists side by side: tokens, token_logprobs, top_logprobs, text_offset
    chats         one object for each token, with the exact bytes

The texts of tokens are made of their bytes. Bytes that are no text on their own, half a character
say, are written as ``\xe2\x80``, so that no two tokens look the same.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Sequence
from typing import Any

from pagemill.loading.tokenizer import FileTokenizer
from pagemill.outputs import Logprob, LogprobsAtPosition
from pagemill.server.errors import ApiError
from pagemill.token_processor import DAMAGED_LOGITS

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON has no word for."""


class TokenTexts:
    """Tokens as a client sees them.

    Args:
        tokenizer: None shows a token as its number.
    """

    def __init__(self, tokenizer: FileTokenizer | None) -> None:
        self._tokenizer = tokenizer

    def bytes_of(self, token_id: int) -> bytes | None:
        """What it adds to a text; None without a tokenizer."""
        if self._tokenizer is None:
            return None
        if token_id >= self._tokenizer.vocab_size:  # a row that pads the model's vocabulary
            return b""
        return self._tokenizer.token_bytes(token_id)

    def text_of(self, token_id: int, *, prefix: str = "") -> str:
        """Its text, or its bytes after ``prefix`` where they are none."""
        raw = self.bytes_of(token_id)
        if raw is None:
            return f"token_id:{token_id}"
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return prefix + "".join(f"\\x{byte:02x}" for byte in raw)

    def shown_bytes(self, token_id: int, skip_special_tokens: bool) -> bytes:
        """What of it is in the answer's text."""
        tokenizer = self._tokenizer
        if tokenizer is None or (skip_special_tokens and tokenizer.is_special(token_id)):
            return b""
        return self.bytes_of(token_id) or b""


def chat_logprobs(
    token_ids: Sequence[int], positions: Sequence[LogprobsAtPosition], top: int, texts: TokenTexts
) -> dict[str, Any]:
    """The shape of chats.

    Args:
        token_ids: the tokens of the answer, or of a part of it.
        positions: what is known of each.
        top: how many of the likeliest to show.
        texts: of tokens.
    """

    def entry(token_id: int, logprob: Logprob) -> dict[str, Any]:
        raw = texts.bytes_of(token_id)
        return {
            "token": texts.text_of(token_id),
            "logprob": _finite(logprob.logprob),
            "bytes": None if raw is None else list(raw),
        }

    content = []
    for token_id, at_position in zip(token_ids, positions, strict=True):
        likeliest = [entry(i, known) for i, known in at_position.items() if known.rank <= top]
        content.append(entry(token_id, at_position[token_id]) | {"top_logprobs": likeliest})
    return {"content": content, "refusal": None}


def completion_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[LogprobsAtPosition | None],
    offsets: Iterable[int],
    texts: TokenTexts,
) -> dict[str, Any]:
    """The shape of completions.

    Args:
        token_ids: tokens, of the prompt perhaps first.
        positions: what is known of each; None of the first token of a prompt.
        offsets: where in the answer's text each begins.
        texts: of tokens.
    """
    chosen: list[float | None] = []
    likeliest: list[dict[str, float] | None] = []
    for token_id, at_position in zip(token_ids, positions, strict=True):
        if at_position is None:
            chosen.append(None)
            likeliest.append(None)
            continue
        chosen.append(_finite(at_position[token_id].logprob))
        shown: dict[str, float] = {}
        for other_id, known in at_position.items():  # the likeliest first
            text = texts.text_of(other_id, prefix="bytes:")
            shown.setdefault(text, _finite(known.logprob))
        likeliest.append(shown)
    return {
        "tokens": [texts.text_of(token_id, prefix="bytes:") for token_id in token_ids],
        "token_logprobs": chosen,
        "top_logprobs": likeliest,
        "text_offset": list(offsets),
    }


class TextOffsets:
    """Where in a text each of its tokens begins, in characters; token by token.

    A token that begins inside a character begins where that character does.

    Args:
        texts: of tokens.
        skip_special_tokens: whether special tokens are left out of the text.
        start: where the first token begins.
    """

    def __init__(self, texts: TokenTexts, skip_special_tokens: bool, start: int = 0) -> None:
        self._texts = texts
        self._skip = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = start

    def take(self, token_ids: Iterable[int]) -> list[int]:
        """The offsets of the next tokens."""
        offsets = []
        for token_id in token_ids:
            offsets.append(self._offset)
            self._offset += len(self._utf8.decode(self._texts.shown_bytes(token_id, self._skip)))
        return offsets


def prompt_offsets(token_ids: Sequence[int], text: str, texts: TokenTexts) -> list[int]:
    """Where in an echoed prompt each of its tokens begins, in characters.

    Tokens that the text does not show, such as one that begins every sequence, have no length; nor
    has a space that the tokenizer puts before the first word.
    """
    raw = text.encode()
    num_begun = [0]  # characters of the first n bytes, counted by the bytes that begin one
    for byte in raw:
        num_begun.append(num_begun[-1] + (byte & 0xC0 != 0x80))
    offsets = []
    at = 0
    for token_id in token_ids:
        inside = at < len(raw) and raw[at] & 0xC0 == 0x80
        offsets.append(num_begun[at] - inside)
        at += _length_at(raw, at, texts.bytes_of(token_id) or b"", texts, token_id)
    return offsets


def _length_at(raw: bytes, at: int, token: bytes, texts: TokenTexts, token_id: int) -> int:
    for written in (token, token.lstrip(b" ")):
        if raw.startswith(written, at):
            return len(written)
    if not texts.shown_bytes(token_id, skip_special_tokens=True):
        return 0
    return min(len(token), len(raw) - at)  # the tokenizer normalizes texts


def _finite(logprob: float) -> float:
    if math.isnan(logprob):
        raise ApiError(500, "the model computed NaN for this prompt", code=DAMAGED_LOGITS)
    return max(logprob, LEAST_LOGPROB)
