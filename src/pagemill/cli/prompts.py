"""What the user asked for: prompts from the command line and from files, as jobs.

A prompts file holds one prompt a line, or JSON lines if its first line is a JSON object. A JSON
line has a ``prompt`` (a text or a list of token ids) and, beside it, any field of
`SamplingParams` and ``priority``; they win over the command line's options.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pagemill.cli import defaults
from pagemill.cli.streaming import Job
from pagemill.errors import RequestError
from pagemill.sampling_params import SamplingParams


@dataclass(frozen=True)
class Ask:
    """One prompt as the user wrote it."""

    prompt: str | list[int]
    source: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Sampling fields of this prompt alone."""
    priority: int = 0


def from_options(texts: Sequence[str]) -> list[Ask]:
    """Prompts that were given with ``-p``."""
    name = "the prompt" if len(texts) == 1 else "prompt {}"
    return [Ask(_checked(text, name.format(i)), name.format(i)) for i, text in enumerate(texts, 1)]


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


def make_jobs(asks: Sequence[Ask], options: Mapping[str, Any]) -> list[Job]:
    """Jobs in the order of ``asks``; ``options`` are sampling fields that hold for all of them.

    Raises:
        RequestError: a sampling field is unknown or out of bounds; names the prompt if there are
            several.
    """
    jobs = []
    for number, ask in enumerate(asks):
        source = ask.source if len(asks) > 1 else ""
        try:
            params, is_default = sampling_params({**options, **ask.fields}, defaults.GENERATE)
        except RequestError as error:
            # A fault of the options is not the first prompt's.
            where = f"{ask.source}: " if ask.fields else ""
            raise RequestError(f"{where}{error}") from error
        name = f"request-{number}"
        jobs.append(Job(name, ask.prompt, params, ask.priority, is_default, source))
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
    if not isinstance(fields, dict) or "prompt" not in fields:
        raise RequestError(f'{source}: must be a JSON object with a "prompt", got {line[:80]}')
    prompt = fields.pop("prompt")
    if not isinstance(prompt, str | list):
        raise RequestError(f"{source}: prompt must be a text or token ids, got {prompt!r}")
    priority = fields.pop("priority", 0)
    if isinstance(prompt, str):
        prompt = _checked(prompt, source)
    return Ask(prompt, source, fields, priority)


def _checked(text: str, source: str) -> str:
    """Refuse what no tokenizer takes: bytes of another encoding, which Python keeps as halves of
    characters.
    """
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise RequestError(f"{source} must be UTF-8 text, got {text[:80]!r}")
    return text
