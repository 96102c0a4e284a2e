"""What the user asked for: prompts from the command line and from files, as jobs.

A prompts file holds one prompt a line, or JSON lines if its first line is a JSON object. A JSON
line has a ``prompt`` (a text or a list of token ids) or the ``messages`` of a conversation and,
beside it, any field of `SamplingParams` and of `REQUEST_FIELDS`; they win over the command line's
options.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pagemill.cli import defaults
from pagemill.cli.streaming import Job, Message
from pagemill.errors import RequestError
from pagemill.loading.chat_messages import check_messages
from pagemill.sampling_params import SamplingParams

REQUEST_FIELDS = ("priority", "deadline_seconds", "cache_salt")
"""Arguments of `LLMEngine.add_request` that may stand beside a prompt."""
ONLY_PROMPT = "the prompt"
"""The source of a ``-p`` that is the only one."""


@dataclass(frozen=True)
class Ask:
    """One prompt as the user wrote it."""

    prompt: str | list[int]
    source: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Sampling fields of this prompt alone."""
    request_fields: Mapping[str, Any] = field(default_factory=dict)
    """Of `REQUEST_FIELDS`, those that it has."""
    messages: Sequence[Message] | None = None
    """A conversation to answer, in place of ``prompt``."""


class ChatTokenizer(Protocol):
    """What a conversation needs of a tokenizer."""

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids up to where the assistant's answer begins."""
        ...


def from_options(texts: Sequence[str]) -> list[Ask]:
    """Prompts that were given with ``-p``."""
    sources = [ONLY_PROMPT] if len(texts) == 1 else [f"prompt {i + 1}" for i in range(len(texts))]
    return [
        Ask(checked_text(text, source), source) for text, source in zip(texts, sources, strict=True)
    ]


def from_file(name: str) -> list[Ask]:
    """Prompts of a file, ``-`` being standard input; empty lines are skipped.

    Raises:
        RequestError: the file cannot be read, or a line of it is not what it should be.
    """
    shown = "standard input" if name == "-" else name
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise RequestError(f"cannot read prompts from {shown}: {error.strerror}") from error
    lines = list(_numbered_lines(data, shown))
    if not lines:
        raise RequestError(f"{shown} holds no prompts; give one a line, or JSON lines")
    if not _is_object(lines[0][1]):
        return [Ask(line, source) for source, line in lines]
    return [_from_json(line, source) for source, line in lines]


def as_chats(asks: Sequence[Ask], system: str | None) -> list[Ask]:
    """Each text as a user's message; ``system`` opens what has no system message of its own.

    Raises:
        RequestError: a prompt is token ids.
    """
    return [replace(ask, prompt="", messages=_conversation(ask, system)) for ask in asks]


def _conversation(ask: Ask, system: str | None) -> list[Message]:
    if ask.messages is not None:
        messages = list(ask.messages)
    elif isinstance(ask.prompt, str):
        messages = [{"role": "user", "content": ask.prompt}]
    else:
        raise RequestError(f"{ask.source}: token ids are no message; give a text, or drop --chat")
    if system is None or messages[0]["role"] == "system":
        return messages
    return [{"role": "system", "content": system}, *messages]


def render_chats(jobs: Sequence[Job], tokenizer: ChatTokenizer | None) -> list[Job]:
    """Write each conversation as the model's chat template has it; other jobs stay as they are.

    Raises:
        RequestError: the model cannot chat, or its template refuses a conversation.
    """
    return [job if job.messages is None else _rendered(job, tokenizer) for job in jobs]


def _rendered(job: Job, tokenizer: ChatTokenizer | None) -> Job:
    if tokenizer is None:
        raise RequestError("this model has no tokenizer, so it cannot chat")
    try:
        return replace(job, prompt=tokenizer.encode_chat(job.messages or ()))
    except RequestError as error:
        if not job.source:
            raise
        raise RequestError(f"{job.source}: {error}") from error


def make_jobs(asks: Sequence[Ask], options: Mapping[str, Any]) -> list[Job]:
    """Jobs in the order of ``asks``; ``options`` are sampling fields that hold for all of them.

    Raises:
        RequestError: a sampling field is unknown or out of bounds.
    """
    jobs = []
    for number, ask in enumerate(asks):
        source = "" if ask.source == ONLY_PROMPT and len(asks) == 1 else ask.source
        try:
            params, is_default = sampling_params({**options, **ask.fields}, defaults.GENERATE)
        except RequestError as error:
            # A fault of the options is not the first prompt's.
            where = f"{ask.source}: " if ask.fields else ""
            raise RequestError(f"{where}{error}") from error
        name = f"request-{number}"
        given = (ask.request_fields, is_default, source, ask.messages)
        jobs.append(Job(name, ask.prompt, params, *given))
    return jobs


def sampling_params(
    fields: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[SamplingParams, bool]:
    """Check ``fields``; also tells whether ``max_tokens`` is the default, which may be lowered."""
    if fields.get("max_tokens") is not None:
        return SamplingParams.from_dict({**defaults, **fields}), False
    checked = SamplingParams.from_dict({**defaults, **fields, "max_tokens": None})
    return replace(checked, max_tokens=max(defaults["max_tokens"], checked.min_tokens)), True


def _numbered_lines(data: bytes, shown: str) -> Iterator[tuple[str, str]]:
    """Lines that are not blank, each with its name for error messages."""
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        source = f"{shown}, line {number}"
        try:
            line = raw.decode().removesuffix("\r")
        except UnicodeDecodeError as error:
            raise RequestError(f"{source}: is not UTF-8 ({error.reason})") from error
        if line.strip():
            yield source, line


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _from_json(line: str, source: str) -> Ask:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise RequestError(f"{source}: is not JSON, as the first line is: {error}") from error
    if not isinstance(fields, dict) or ("prompt" in fields) == ("messages" in fields):
        raise RequestError(
            f'{source}: must be a JSON object with either a "prompt" or "messages", got {line[:80]}'
        )
    request_fields = {name: fields.pop(name) for name in REQUEST_FIELDS if name in fields}
    if "messages" in fields:
        try:
            messages = check_messages(fields.pop("messages"))
        except RequestError as error:
            raise RequestError(f"{source}: {error}") from error
        return Ask("", source, fields, request_fields, messages)
    prompt = fields.pop("prompt")
    if not isinstance(prompt, str | list):
        raise RequestError(f"{source}: prompt must be a text or token ids, got {prompt!r}")
    if isinstance(prompt, str):
        prompt = checked_text(prompt, source)
    return Ask(prompt, source, fields, request_fields)


def checked_text(text: str, source: str) -> str:
    """Refuse an empty text, and what no tokenizer takes: bytes of another encoding, which Python
    keeps as halves of characters.
    """
    if not text:
        raise RequestError(f"{source} must be a text that is not empty, got ''")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise RequestError(f"{source} must be UTF-8 text, got {text[:80]!r}")
    return text
