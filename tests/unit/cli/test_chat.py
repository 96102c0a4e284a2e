from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pagemill.cli.chat import Conversation
from pagemill.engine import LLMEngine
from pagemill.errors import RequestError, RequestTooLargeError
from pagemill.sampling_params import SamplingParams
from tests.core_helpers import assert_idle
from tests.unit.cli.conftest import Pagemill, Terminal
from tests.unit.cli.simulated import BaseModelTokenizer, ChatByteTokenizer, small_engine

LETTERS = list(range(97, 123))
SAMPLING: dict[str, Any] = {"max_tokens": 8, "allowed_token_ids": LETTERS}


def never() -> bool:
    return False


def conversation(engine: LLMEngine, **options: str) -> Conversation:
    return Conversation(engine, ChatByteTokenizer(), SAMPLING, **options)


def test_each_answer_sees_all_that_was_said_before() -> None:
    engine, out = small_engine(), io.StringIO()
    talk = conversation(engine, system="be kind")
    first = talk.answer("hi", out, never)
    second = talk.answer("and?", out, never)
    said = first.outputs[0].text
    prompt = bytes(second.prompt_token_ids).decode()
    assert prompt == f"system:be kind|user:hi|assistant:{said}|user:and?|assistant:"
    assert out.getvalue() == f"{said}\n{second.outputs[0].text}\n"
    assert_idle(engine)


def test_a_stopped_answer_stays_in_the_history_as_far_as_it_came() -> None:
    engine = small_engine()
    talk = conversation(engine)
    calls = iter([False] * 4)
    output = talk.answer("hi", io.StringIO(), lambda: next(calls, True))
    assert output.outputs[0].finish_reason == "abort"
    assert [m["content"] for m in talk.messages] == ["hi", output.outputs[0].text]
    assert len(output.outputs[0].text) == 4
    assert_idle(engine)


def test_a_message_that_was_stopped_before_any_answer_is_forgotten() -> None:
    talk = conversation(small_engine())
    talk.answer("hi", io.StringIO(), lambda: True)
    assert talk.messages == []


def test_a_conversation_that_no_longer_fits_is_refused_and_goes_on_after_reset() -> None:
    engine = small_engine()
    talk = conversation(engine, system="be kind")
    talk.answer("hi", io.StringIO(), never)
    before = list(talk.messages)
    with pytest.raises(RequestTooLargeError, match="1024"):
        talk.answer("x" * 1100, io.StringIO(), never)
    assert talk.messages == before
    talk.reset()
    assert [m["role"] for m in talk.messages] == ["system"]
    assert talk.answer("hi", io.StringIO(), never).finished
    assert_idle(engine)


def test_a_base_model_is_refused_before_anything_is_said() -> None:
    with pytest.raises(RequestError, match="base model without a chat template"):
        Conversation(small_engine(), BaseModelTokenizer(), {})


def with_input(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_a_pipe_is_answered_line_by_line_and_blank_lines_are_not_messages(
    pagemill: Pagemill, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_input(monkeypatch, "hi\n\nagain\n/exit\nnever\n")
    result = pagemill("chat", "--max-tokens", "3", "--ignore-eos", "--top-k", "1")
    assert (result.code, result.err) == (0, "")
    first, blank, second = result.out.splitlines()
    assert first
    assert blank == ""
    assert second


def test_a_line_that_does_not_fit_is_told_with_the_numbers_and_the_next_one_is_answered(
    pagemill: Pagemill, engine: LLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_input(monkeypatch, "x" * 1100 + "\nhi\n")
    result = pagemill("chat", "--max-tokens", "3", "--ignore-eos")
    assert result.code == 2
    assert "no longer fits" in result.err
    assert "1024" in result.err
    assert "/reset" in result.err
    assert engine.metrics.num_requests_finished["length"] == 1


def test_commands_are_not_messages(
    pagemill: Pagemill, engine: LLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_input(monkeypatch, "/help\n/reset\n/what is this\n")
    result = pagemill("chat")
    assert (result.code, result.out) == (0, "")
    assert "/exit" in result.err
    assert "forgotten" in result.err
    assert "There is no /what" in result.err
    assert engine.metrics.num_steps == 0


def test_stats_are_of_the_last_answer(pagemill: Pagemill, monkeypatch: pytest.MonkeyPatch) -> None:
    with_input(monkeypatch, "/stats\n" + "x" * 20 + "\n/stats\n")
    result = pagemill("chat", "--max-tokens", "4", "--ignore-eos")
    nothing, answer = result.err.split("yet.\n")
    assert "no answer" in nothing
    # A step of the simulated engine takes about 10 ms; "user:x…x|assistant:" is 36 tokens.
    assert "36 tokens of prompt, 4 of answer" in answer
    assert re.search(r"first token after 0\.01 s, then 9\d\.\d tok/s", answer)
    assert "KV cache: 3 of 64 blocks (4.7%)" in answer


def test_once_with_nothing_to_say_is_refused(pagemill: Pagemill) -> None:
    result = pagemill("chat", "--once", "")
    assert (result.code, result.out) == (2, "")
    assert "the message must be a text that is not empty" in result.err


def test_once_answers_one_message(pagemill: Pagemill, engine: LLMEngine) -> None:
    result = pagemill("chat", "--once", "hi", "--system", "s", "--max-tokens", "3", "--ignore-eos")
    assert result.code == 0
    assert result.out
    assert engine.metrics.num_requests_finished["length"] == 1


@pytest.fixture
def typed(
    pagemill: Pagemill, monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[str | type[BaseException]]], tuple[int, str, str]]:
    def chat_with(lines: list[str | type[BaseException]]) -> tuple[int, str, str]:
        events = iter(lines)

        def read(prompt: str = "") -> str:
            event = next(events)
            if isinstance(event, str):
                return event
            raise event

        monkeypatch.setattr(sys, "stdin", Terminal())
        monkeypatch.setattr("builtins.input", read)
        result = pagemill("chat", "--max-tokens", "3", "--ignore-eos")
        return result.code, result.out, result.err

    return chat_with


Typed = Callable[[list[str | type[BaseException]]], tuple[int, str, str]]


def test_ctrl_d_and_exit_end_with_0_and_ctrl_c_with_130(typed: Typed) -> None:
    assert typed(["hi", EOFError])[0] == 0
    assert typed(["/exit"])[0] == 0
    assert typed([KeyboardInterrupt])[0] == 130


def test_an_answer_that_was_cut_says_so(typed: Typed) -> None:
    _, _, err = typed(["hi", EOFError])
    assert "cut after 3 tokens" in err


def test_chat_draws_as_the_model_card_says_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, seen = small_engine(), []
    add_request = engine.add_request

    def spy(name: str, prompt: list[int], params: SamplingParams) -> None:
        seen.append((params.temperature, params.top_p))
        add_request(name, prompt, params)

    monkeypatch.setattr(engine, "add_request", spy)
    for sampling in ({}, {"temperature": 0.7}):
        talk = Conversation(engine, ChatByteTokenizer(), SAMPLING | sampling)
        talk.answer("hi", io.StringIO(), never)
    assert seen == [(0.2, 0.9), (0.7, 0.9)]
