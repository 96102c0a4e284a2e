"""Chat templates: Jinja2 programs that come with a model and turn messages into one prompt text.

A template is part of a downloaded file and so is untrusted: it runs in Jinja2's immutable sandbox
(no attributes of Python's own, no changes to its inputs), and what it may write, multiply and count
to is bounded. It can still waste time within those bounds; it cannot reach anything else. The
messages come from a client and are data, never template source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pagemill.errors import InvalidParameterError, RequestError
from pagemill.loading.chat_messages import Message, texts_in, unused_characters

MAX_RENDERED_CHARS: Final = 16 << 20
MAX_LOOP_STEPS: Final = 1_000_000
"""The most that all ``range`` calls of one rendering may yield together."""


class ChatTemplate:
    """One chat template. Thread-safe; compiled when it is first used.

    Args:
        source: the template's text.
        special_tokens: variables such as ``bos_token`` and ``eos_token``.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens or {})

    @cached_property
    def _compiled(self) -> jinja2.Template:
        try:
            return _Environment().from_string(self.source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise RequestError(
                f"the model's chat template cannot be read: {error}; send a plain prompt instead"
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """Return the prompt text of ``messages``, which are not mutated.

        Args:
            messages: as `pagemill.loading.chat_messages.check_messages` returns them.
            add_generation_prompt: end with the beginning of the assistant's answer.
            continue_final_message: end inside the last message, for the model to continue it.

        Raises:
            InvalidParameterError: both options are set.
            RequestError: the template refuses the messages (with its own words), fails on them, or
                exceeds a bound.
        """
        if not continue_final_message:
            return self._render(messages, add_generation_prompt)
        if add_generation_prompt:
            bound = "must be False when continue_final_message is True"
            raise InvalidParameterError("add_generation_prompt", True, bound)
        return self._render_open_ended(messages)

    def _render_open_ended(self, messages: Sequence[Message]) -> str:
        """Render up to the end of the last message's content, without what closes a message."""
        *before, last = messages
        content = last.get("content")
        if not isinstance(content, str):
            bound = "must be a text, for continue_final_message to continue it"
            raise InvalidParameterError(f"messages[{len(before)}].content", content, bound)
        mark = next(unused_characters(self.source, *texts_in(messages)))
        # The space tells whether the template trims contents: then it is gone.
        marked = {**last, "content": f"{content}{mark} "}
        text, found, rest = self._render([*before, marked], False).rpartition(mark)
        if not found:
            raise RequestError(
                "the model's chat template leaves out the last message's content, so "
                "continue_final_message cannot continue it"
            )
        return text if rest.startswith(" ") else text.rstrip()

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        template = self._compiled
        steps = _Budget(MAX_LOOP_STEPS)
        try:
            pieces = template.generate(
                **self._special_tokens,
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                range=steps.range,
            )
            return _join_bounded(pieces)
        except _RefusedByTemplateError as error:
            raise RequestError(f"the model's chat template refuses the messages: {error}") from None
        except Exception as error:  # a template may fail in any way that Python code may
            reason = f"{type(error).__name__}: {error}"
            raise RequestError(
                f"the model's chat template fails on these messages: {reason}"
            ) from error


class _RefusedByTemplateError(Exception):
    """The template called ``raise_exception``."""


class _Budget:
    """Counts what a rendering may still do."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def range(self, *args: int) -> range:
        """Python's ``range``, as long as the budget lasts."""
        result = range(*args)
        self._steps -= len(result)
        if self._steps < 0:
            raise SecurityError(f"ranges add up to more than {MAX_LOOP_STEPS} steps")
        return result


def _join_bounded(pieces: Iterable[str]) -> str:
    kept: list[str] = []
    num_chars = 0
    for piece in pieces:
        num_chars += len(piece)
        if num_chars > MAX_RENDERED_CHARS:
            raise SecurityError(f"it writes more than {MAX_RENDERED_CHARS} characters")
        kept.append(piece)
    return "".join(kept)


class _GenerationExtension(Extension):
    """``{% generation %}`` marks the assistant's words for training; it changes no text."""

    tags = {"generation"}  # noqa: RUF012  (so declared by jinja2)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements up to ``{% endgeneration %}`` as they are."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """The environment that chat templates are written for."""

    intercepted_binops = frozenset(["*", "**"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _GenerationExtension],
        )
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Multiply or raise to a power, unless the result would be huge."""
        size = 0
        if operator == "**" and isinstance(right, int):
            size = right
        elif isinstance(left, str | list | tuple) and isinstance(right, int):
            size = len(left) * right
        elif isinstance(right, str | list | tuple) and isinstance(left, int):
            size = len(right) * left
        if size > MAX_RENDERED_CHARS:
            raise SecurityError(f"{operator} gives more than {MAX_RENDERED_CHARS} characters")
        return super().call_binop(context, operator, left, right)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON for a prompt: unlike Jinja2's own filter, without escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> NoReturn:
    raise _RefusedByTemplateError(str(message))


def _strftime_now(time_format: str) -> str:
    return datetime.now().strftime(time_format)
