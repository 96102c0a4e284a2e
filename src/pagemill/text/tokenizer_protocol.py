"""The little that the engine needs to know of a tokenizer."""

from __future__ import annotations

from typing import Protocol


class Tokenizer(Protocol):
    """Text to token ids and each token id to its bytes.

    The real one is `pagemill.loading.tokenizer.FileTokenizer`; tests of the core use small fakes.
    """

    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: frozenset[int]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``; special tokens written in it are recognized."""
        ...

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        """Text of ``token_ids``; bytes that make no character become U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that this token adds to a text (special tokens: their written form)."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether ``skip_special_tokens`` leaves this token out of the text."""
        ...
