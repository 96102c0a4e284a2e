"""GGUF tokenizer metadata of vocabularies small enough to reason about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagemill.loading.byte_decoding import BYTE_LEVEL_ALPHABET

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level_metadata(
    *,
    merges: Sequence[str] = (),
    control: Sequence[str] = ("<|im_start|>", "<|im_end|>"),
    user_defined: Sequence[str] = (),
    template: str | None = None,
    **keys: Any,
) -> dict[str, Any]:
    """A vocabulary in which byte b is token b; then come merged, control and user-defined tokens.

    ``keys`` are further entries of ``tokenizer.ggml.``, such as ``bos_token_id=256``.
    """
    tokens = sorted(BYTE_LEVEL_ALPHABET, key=BYTE_LEVEL_ALPHABET.__getitem__)
    tokens += [merge.replace(" ", "") for merge in merges]
    types = [NORMAL] * len(tokens) + [CONTROL] * len(control) + [USER_DEFINED] * len(user_defined)
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*tokens, *control, *user_defined],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": list(merges),
    }
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def sentencepiece_metadata(
    pieces: Sequence[str] = ("▁", "a", "b", "c", "ab", "▁a"), **keys: Any
) -> dict[str, Any]:
    """``<unk>``, ``<s>``, ``</s>``, the 256 byte tokens, then ``pieces``, the best first."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(pieces))],
    }
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
