"""What the files of a model say of its tokenizer, whatever their format."""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers


@dataclass(frozen=True)
class TokenizerParts:
    """Read by `tokenizer_directory` or `gguf_tokenizer`; made into a `tokenizer.FileTokenizer`."""

    tokenizer: tokenizers.Tokenizer
    """With a decoder, and a post-processor that adds what belongs around a text."""
    bos_token: str | None
    eos_tokens: tuple[str, ...]
    """All tokens that end a text; the end of sequence proper first."""
    chat_template: str | None
    vocab_size: int | None = None
    """The largest id plus one, if it is known without looking."""
