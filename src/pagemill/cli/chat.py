"""``pagemill chat``: a conversation in the terminal, or line by line through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from pagemill.cli import EXIT_INTERRUPTED, defaults
from pagemill.cli.opening import opened
from pagemill.cli.prompts import ChatTokenizer, checked_text, sampling_params
from pagemill.cli.streaming import Job, Message, run_jobs
from pagemill.cli.writers import TextWriter
from pagemill.config import EngineConfig
from pagemill.engine import LLMEngine
from pagemill.errors import RequestError, RequestTooLargeError
from pagemill.interrupts import InterruptFlag
from pagemill.outputs import RequestOutput

HELP = """\
/reset  forget the conversation
/stats  speed and memory of the last answer
/help   this list
/exit   leave (so does Ctrl-D)
Ctrl-C  stop an answer; at the prompt: leave"""


class Conversation:
    """The messages so far, and the engine that answers them.

    Args:
        engine: answers.
        tokenizer: writes the conversation as the model's chat template has it.
        sampling: fields of `SamplingParams`.
        system: the system message, if any.

    Raises:
        RequestError: the model cannot chat, or a sampling field is out of bounds.

    Attributes:
        messages: what was said.
        last: the last answer, even if it was cut or forgotten.
    """

    def __init__(
        self,
        engine: LLMEngine,
        tokenizer: ChatTokenizer,
        sampling: dict[str, Any],
        system: str | None = None,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._params, self._shrink_to_fit = sampling_params(sampling, defaults.CHAT)
        self._opening = [] if system is None else [_message("system", system)]
        self.messages: list[Message] = list(self._opening)
        self.last: RequestOutput | None = None
        tokenizer.encode_chat([*self.messages, _message("user", "?")])  # can it chat at all?

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = list(self._opening)

    def answer(
        self, text: str, out: TextIO, interrupted: Callable[[], bool], lead: str = ""
    ) -> RequestOutput:
        """Answer ``text``, streaming to ``out``, with ``lead`` before it.

        The message and as much of the answer as came are kept; a message without any answer is
        forgotten again.

        Raises:
            RequestTooLargeError: the conversation leaves no room for an answer.
            RequestError: the message cannot be part of a conversation.
        """
        asked = [*self.messages, _message("user", text)]
        prompt = self._tokenizer.encode_chat(asked)
        job = Job("chat", prompt, self._params, shrink_to_fit=self._shrink_to_fit)
        answer = _Answer(TextWriter([job], out, lead=lead, interrupted=interrupted))
        try:
            run_jobs(self._engine, [job], answer, interrupted)
        finally:
            answer.writer.end_line()
        assert answer.last is not None, "run_jobs reports every job that it accepts"
        self.last = answer.last
        completion = answer.last.outputs[0]
        if completion.text:
            self.messages = [*asked, _message("assistant", completion.text)]
        return answer.last

    def stats(self) -> str:
        """Speed and memory of the last answer, for people."""
        if self.last is None:
            return "There is no answer yet."
        from pagemill.cli.stats import describe_answer

        return describe_answer(self.last, self._engine)


class _Answer:
    """Passes an answer on to a writer and keeps its last state."""

    def __init__(self, writer: TextWriter) -> None:
        self.writer = writer
        self.last: RequestOutput | None = None

    def update(self, output: RequestOutput) -> None:
        self.last = output
        self.writer.update(output)


@dataclass(frozen=True, kw_only=True)
class ChatCommand:
    """A parsed ``pagemill chat``; call it to run it."""

    config: EngineConfig
    sampling: dict[str, Any]
    system: str | None = None
    once: str | None = None

    def __call__(self) -> int:
        """Converse until the user leaves; returns the exit code."""
        # Before the model is loaded:
        sampling_params(self.sampling, defaults.CHAT)
        if self.once is not None:
            checked_text(self.once, "the message")
        with opened(self.config) as assembly:
            if assembly.tokenizer is None:
                raise RequestError("this model has no tokenizer, so it cannot chat")
            return self.run(
                Conversation(assembly.engine, assembly.tokenizer, self.sampling, self.system)
            )

    def run(self, conversation: Conversation) -> int:
        """Converse on an engine that is there; returns the exit code."""
        if self.once is not None:
            return _answer_once(conversation, self.once)
        if sys.stdin.isatty():
            return _converse(conversation, self.config.model)
        return _answer_lines(conversation)


def _answer_once(conversation: Conversation, text: str, lead: str = "") -> int:
    with InterruptFlag() as interrupted:
        output = conversation.answer(text, sys.stdout, interrupted, lead)
    return EXIT_INTERRUPTED if output.outputs[0].finish_reason == "abort" else 0


def _answer_lines(conversation: Conversation) -> int:
    """One message a line from a pipe; a blank line between answers.

    A refused message does not end it, but shows in the code.
    """
    code, lead = 0, ""
    for line in sys.stdin:
        text = line.strip()
        if text == "/exit":
            break
        if _ran_command(conversation, text):
            continue
        try:
            if _answer_once(conversation, text, lead) == EXIT_INTERRUPTED:
                return EXIT_INTERRUPTED
            lead = "\n"
        except RequestError as error:
            _tell(_explain(error))
            code = 2
    return code


def _converse(conversation: Conversation, model: str) -> int:
    """A person at the keyboard."""
    import readline  # noqa: F401  # gives input() its line editing and history

    _tell(f"Chatting with {model}. /help lists commands, Ctrl-D leaves.")
    while True:
        try:
            text = _ask().strip()
        except EOFError:
            _tell("")
            return 0
        except KeyboardInterrupt:
            _tell("")
            return EXIT_INTERRUPTED
        if text == "/exit":
            return 0
        if _ran_command(conversation, text):
            continue
        try:
            with InterruptFlag() as interrupted:
                output = conversation.answer(text, sys.stdout, interrupted)
        except RequestError as error:
            _tell(_explain(error))
        else:
            _tell_how_it_ended(output)


def _ask() -> str:
    """Read a line; the prompt never goes into a file that takes the answers."""
    if sys.stdout.isatty():
        return input("> ")
    sys.stderr.write("> ")
    sys.stderr.flush()
    return input()


def _ran_command(conversation: Conversation, text: str) -> bool:
    """Whether ``text`` asked for something else than an answer, which has then been done."""
    if not text.startswith("/"):
        return not text
    if text == "/reset":
        conversation.reset()
        _tell("The conversation is forgotten.")
    elif text == "/stats":
        _tell(conversation.stats())
    elif text == "/help":
        _tell(HELP)
    else:
        _tell(f"There is no {text.split()[0]}.\n{HELP}")
    return True


def _tell_how_it_ended(output: RequestOutput) -> None:
    completion = output.outputs[0]
    if completion.finish_reason == "abort":
        _tell("(stopped)")
    elif completion.finish_reason == "length":
        _tell(f"(cut after {len(completion.token_ids)} tokens; see --max-tokens, or /reset)")


def _explain(error: RequestError) -> str:
    if isinstance(error, RequestTooLargeError):
        return f"The conversation no longer fits: {error}. /reset starts a new one."
    return f"That cannot be answered: {error}."


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
