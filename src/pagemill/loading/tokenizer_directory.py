"""The tokenizer of a model directory in Hugging Face's layout.

``tokenizer.json`` is the tokenizer, down to whether a beginning-of-sequence token is added. The
files beside it, all optional, say what its tokens are for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from pagemill.errors import InvalidFileError, UnsupportedModelError
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
    config = _read_json(path / "tokenizer_config.json")
    named = _read_json(path / "special_tokens_map.json")
    named.update((key, value) for key, value in config.items() if value is not None)
    ends = [_token_text(named.get("eos_token")), *map(tokenizer.id_to_token, _eos_ids(path))]
    return TokenizerParts(
        tokenizer,
        bos_token=_token_text(named.get("bos_token")),
        eos_tokens=tuple(token for token in ends if token is not None),
        chat_template=_chat_template(path, config),
    )


def _read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file, or an empty one if there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidFileError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(content, dict):
        raise InvalidFileError(f"{path} must hold a JSON object, not a {type(content).__name__}")
    return content


def _token_text(value: object) -> str | None:
    """Return a token's text: files write it as a string or as an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _eos_ids(path: Path) -> list[int]:
    """Return the end-of-sequence ids that the model's configuration names."""
    for name in ("generation_config.json", "config.json"):
        value = _read_json(path / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        found = [i for i in ids if isinstance(i, int) and not isinstance(i, bool) and i >= 0]
        if found:
            return found
    return []


def _chat_template(path: Path, config: Mapping[str, Any]) -> str | None:
    """Return the chat template: its own file, or the config's (the default one, of several)."""
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None
