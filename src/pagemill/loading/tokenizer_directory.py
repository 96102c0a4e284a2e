"""The tokenizer of a model directory in Hugging Face's layout.

``tokenizer.json`` is the tokenizer, down to whether a beginning-of-sequence token is added. The
files beside it, all optional, say what its tokens are for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from pagemill.errors import InvalidFileError, UnsupportedModelError
from pagemill.loading.hf_directory import read_optional_json_object
from pagemill.loading.tokenizer_parts import TokenizerParts


def read_directory(path: Path) -> TokenizerParts:
    """Read ``tokenizer.json`` and its companions.

    - ``tokenizer_config.json`` and ``special_tokens_map.json``: beginning and end of sequence;
    - ``generation_config.json``, else ``config.json``: all ends of sequence;
    - ``chat_template.jinja``, else an entry of ``tokenizer_config.json``.

    Raises:
        UnsupportedModelError: there is no ``tokenizer.json``.
        InvalidFileError: one of the files is damaged.
    """
    file = path / "tokenizer.json"
    if not file.is_file():
        raise UnsupportedModelError(
            f"{path} has no tokenizer.json; save the model's fast tokenizer there "
            "(AutoTokenizer.from_pretrained(...).save_pretrained(...) with transformers)"
        )
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise InvalidFileError(f"{file} is not a readable tokenizer: {error}") from error
    config = read_optional_json_object(path / "tokenizer_config.json")
    named = read_optional_json_object(path / "special_tokens_map.json")
    named.update((key, value) for key, value in config.items() if value is not None)
    ends = [_token_text(named.get("eos_token")), *map(tokenizer.id_to_token, _eos_ids(path))]
    return TokenizerParts(
        tokenizer,
        bos_token=_token_text(named.get("bos_token")),
        eos_tokens=tuple(token for token in ends if token is not None),
        chat_template=_chat_template(path, config),
    )


def _token_text(value: object) -> str | None:
    """Return a token's text: files write it as a string or as an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    if not isinstance(value, str):
        return None
    # JSON can escape half of a surrogate pair, which is part of no token.
    return None if any("\ud800" <= char <= "\udfff" for char in value) else value


def _eos_ids(path: Path) -> list[int]:
    """Return the end-of-sequence ids that the model's configuration names."""
    for name in ("generation_config.json", "config.json"):
        value = read_optional_json_object(path / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        # The library takes unsigned 32-bit integers only.
        found = [
            i for i in ids if isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 2**32
        ]
        if found:
            return found
    return []


def _chat_template(path: Path, config: Mapping[str, Any]) -> str | None:
    """Return the chat template: its own file, or the config's (the default one, of several)."""
    file = path / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except ValueError as error:
            raise InvalidFileError(f"{file}: not UTF-8: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list):
        entries = [entry for entry in template if isinstance(entry, dict)]
        defaults = [e.get("template") for e in entries if e.get("name") == "default"]
        template = defaults[-1] if defaults else None
    return template if isinstance(template, str) else None
