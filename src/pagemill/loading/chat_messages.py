"""A client's chat messages: checked, copied, and their texts visited."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

from pagemill.errors import InvalidParameterError

Message = dict[str, Any]

_MAX_NESTING: Final = 32


def check_messages(messages: object) -> list[Message]:
    """Return a deep copy of a client's messages in the form that templates expect.

    Each is a dict with a ``role`` and a ``content``: a text, or a list of parts ``{"type": "text",
    "text": ...}``, which are joined by newlines. The content may be missing only beside
    ``tool_calls``. Further keys are passed on to the template; their values must be JSON data.

    Raises:
        InvalidParameterError: naming the field, such as ``messages[2].content``.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise InvalidParameterError("messages", messages, "must be a list of at least one message")
    return [_check_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _check_message(message: object, field: str) -> Message:
    if not isinstance(message, Mapping):
        raise InvalidParameterError(field, message, "must be a dict with role and content")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidParameterError(f"{field}.role", role, "must be a text such as 'user'")
    checked: Message = _plain_data(message, field)
    content = message.get("content")
    if content is not None or not message.get("tool_calls"):
        checked["content"] = _content_text(content, f"{field}.content")
    return checked


def _content_text(content: object, field: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidParameterError(field, content, "must be a text or a list of text parts")
    texts = []
    for i, part in enumerate(content):
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case _:
                bound = 'must be {"type": "text", "text": "..."}: only text is supported'
                raise InvalidParameterError(f"{field}[{i}]", part, bound)
    return "\n".join(texts)


def _plain_data(value: object, field: str, depth: int = 0) -> Any:
    """Copy JSON data; refuse objects, whose attributes a template should never see."""
    if depth > _MAX_NESTING:
        raise InvalidParameterError(field, "...", f"must be nested at most {_MAX_NESTING} deep")
    if value is None or type(value) in (str, bool, int, float):
        return value
    if isinstance(value, Mapping):
        if not all(type(key) is str for key in value):
            raise InvalidParameterError(field, list(value), "must have texts as keys")
        return {k: _plain_data(v, f"{field}.{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_data(v, f"{field}[{i}]", depth + 1) for i, v in enumerate(value)]
    raise InvalidParameterError(field, value, "must be JSON data (text, number, list, dict)")


def map_texts(value: Any, transform: Callable[[str], str]) -> Any:
    """Return a copy of JSON data with every text in it transformed, keys too."""
    if isinstance(value, str):
        return transform(value)
    if isinstance(value, Mapping):
        return {transform(key): map_texts(item, transform) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(item, transform) for item in value]
    return value


def texts_in(value: Any) -> list[str]:
    """Return every text in JSON data, keys too."""
    texts: list[str] = []

    def note(text: str) -> str:
        texts.append(text)
        return text

    map_texts(value, note)
    return texts


def unused_characters(*texts: str) -> Iterator[str]:
    """Yield private-use characters of Unicode that are in none of ``texts``."""
    taken = set().union(*texts)
    code_points = chain(range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
    return (char for char in map(chr, code_points) if char not in taken)
