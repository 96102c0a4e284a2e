from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pagemill.cli.options import JSON_LINE_HELP
from pagemill.cli.stats import print_stats
from pagemill.engine import LLMEngine
from pagemill.sampling_params import SamplingParams
from tests.core_helpers import assert_idle
from tests.unit.cli.conftest import Outcome, Pagemill
from tests.unit.cli.simulated import BaseModelTokenizer, small_engine

HELLO = ("generate", "-p", "hello", "--max-tokens", "12", "--ignore-eos")


def test_the_answer_alone_goes_to_standard_output(pagemill: Pagemill, engine: LLMEngine) -> None:
    shown = pagemill(*HELLO)
    assert_idle(engine)
    assert (shown.code, shown.err) == (0, "")
    (answer,) = pagemill(*HELLO, "--json").json
    assert shown.out.rstrip("\n") == answer["outputs"][0]["text"].rstrip("\n")


def test_json_holds_all_of_an_output(pagemill: Pagemill) -> None:
    result = pagemill(
        *("generate", "-p", "hello", "--max-tokens", "3", "--ignore-eos"),
        *("--n", "2", "--temperature", "1", "--seed", "7", "--logprobs", "1", "--json"),
    )
    (line,) = result.json
    assert line["request_id"]
    assert (line["prompt"], line["prompt_token_ids"]) == ("hello", list(b"hello"))
    assert line["num_cached_tokens"] == 0
    assert line["metrics"]["ttft_seconds"] > 0
    assert [completion["index"] for completion in line["outputs"]] == [0, 1]
    first, second = line["outputs"]
    assert first["token_ids"] != second["token_ids"]
    assert len(first["logprobs"]) == 3
    assert first["token_ids"][0] in [entry["token_id"] for entry in first["logprobs"][0]]
    assert (first["finish_reason"], first["stop_reason"]) == ("length", None)
    assert first["cumulative_logprob"] < 0


def test_greedy_is_the_default_and_a_temperature_is_not(pagemill: Pagemill) -> None:
    arguments = ("generate", "-p", "hello", "--max-tokens", "8", "--ignore-eos", "--json")
    texts = [pagemill(*arguments).json[0]["outputs"][0]["token_ids"] for _ in range(2)]
    sampled = pagemill(*arguments, "--temperature", "1").json[0]["outputs"][0]["token_ids"]
    assert texts[0] == texts[1] != sampled


def test_without_a_length_an_answer_has_256_tokens_or_what_fits(pagemill: Pagemill) -> None:
    for length, expected in ((5, 256), (1000, 24)):
        result = pagemill("generate", "-p", "x" * length, "--ignore-eos", "--json")
        assert len(result.json[0]["outputs"][0]["token_ids"]) == expected


def test_samples_that_must_be_equal_are_pointed_out(pagemill: Pagemill) -> None:
    result = pagemill("generate", "-p", "a", "--n", "2", "--max-tokens", "2")
    assert result.code == 0
    assert "the same answer" in result.err


@pytest.fixture
def on_terminal(pagemill: Pagemill, monkeypatch: pytest.MonkeyPatch) -> Pagemill:
    """Runs a command line whose standard error is a terminal."""

    def call(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        return pagemill(*arguments)

    return call


def test_a_prompts_file_is_answered_in_order(pagemill: Pagemill, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("first\nsecond\nthird\n")
    result = pagemill("generate", "--prompts-file", str(file), "--max-tokens", "4", "--ignore-eos")
    places = [
        result.out.index(f"[{i}/3] {word}\n")
        for i, word in enumerate(("first", "second", "third"), 1)
    ]
    assert (result.code, result.err) == (0, "")
    assert places == sorted(places)


def test_a_prompts_file_has_a_bar_on_a_terminal(on_terminal: Pagemill, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("first\nsecond\nthird\n")
    arguments = ("generate", "--prompts-file", str(file), "--max-tokens", "4", "--ignore-eos")
    result = on_terminal(*arguments)
    assert result.code == 0
    assert "3/3" in result.err
    assert "tok/s" in result.err


def test_a_refused_prompt_is_told_by_its_line_and_without_a_bar(
    on_terminal: Pagemill, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("first\n\n" + "x" * 1100 + "\n")
    result = on_terminal("generate", "--prompts-file", str(file))
    assert (result.code, result.out) == (2, "")
    assert "requests:" not in result.err
    assert "prompts.txt, line 3: a prompt of 1100 tokens" in result.err


def test_a_refused_prompt_of_several_is_told_by_its_number(pagemill: Pagemill) -> None:
    result = pagemill("generate", "-p", "a", "-p", "x" * 1100)
    assert result.err.startswith("pagemill: error: prompt 2: a prompt of 1100 tokens")


def test_chat_takes_each_prompt_as_a_users_message(pagemill: Pagemill) -> None:
    result = pagemill(
        *("generate", "--chat", "--system", "be kind", "-p", "hi", "-p", "you"),
        *("--max-tokens", "2", "--ignore-eos", "--json"),
    )
    prompts = [bytes(answer["prompt_token_ids"]).decode() for answer in result.json]
    assert prompts == ["system:be kind|user:hi|assistant:", "system:be kind|user:you|assistant:"]
    assert result.json[0]["messages"][-1] == {"role": "user", "content": "hi"}


def test_a_base_model_is_refused_a_chat_with_the_reason(
    pagemill: Pagemill, engine: LLMEngine
) -> None:
    engine.tokenizer = BaseModelTokenizer()
    result = pagemill("generate", "--chat", "-p", "hi")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("pagemill: error: this is a base model without a chat template")


@pytest.mark.parametrize(
    ("line", "option", "message"),
    [
        ({"prompt": "a", "logprobs": 1}, [], "logprobs is shown with --json only"),
        ({"prompt": "a", "prompt_logprobs": 0}, [], "prompt_logprobs is shown with --json only"),
        ({"prompt": [1, 2]}, ["--echo"], "--echo repeats a text, but this is token ids"),
        (
            {"messages": [{"role": "user", "content": "a"}]},
            ["--echo"],
            "--echo repeats a text, but this is a conversation",
        ),
    ],
)
def test_what_a_line_asks_for_and_nobody_would_see_is_refused(
    pagemill: Pagemill, tmp_path: Path, line: dict[str, Any], option: list[str], message: str
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "fine"}\n' + json.dumps(line))
    result = pagemill("generate", "--prompts-file", str(file), *option)
    assert (result.code, result.out) == (2, "")
    assert f"prompts.jsonl, line 2: {message}" in result.err


def test_json_of_a_prompts_file_is_one_line_a_prompt_and_nothing_else(
    pagemill: Pagemill, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"p{i}", "max_tokens": 9 - i, "ignore_eos": True} for i in range(5)]
    file.write_text("\n".join(map(json.dumps, lines)))
    answers = pagemill("generate", "--prompts-file", str(file), "--json").json
    assert [answer["prompt"] for answer in answers] == ["p0", "p1", "p2", "p3", "p4"]
    assert [len(answer["outputs"][0]["token_ids"]) for answer in answers] == [9, 8, 7, 6, 5]


def test_stats_are_a_table_on_standard_error(pagemill: Pagemill) -> None:
    result = pagemill("generate", "-p", "a", "--max-tokens", "5", "--ignore-eos", "--stats")
    assert "time to first token" not in result.out
    for shown in ("1 length", "5 generated", "tok/s", "time to first token", "p99", "KV pool"):
        assert shown in result.err


def test_stats_with_json_are_one_object_on_standard_error_and_nothing_else(
    on_terminal: Pagemill, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("a\n")
    result = on_terminal(
        *("generate", "--prompts-file", str(file), "--n", "2", "--max-tokens", "5"),
        *("--ignore-eos", "--stats", "--json"),
    )
    assert len(result.json) == 1
    _, stats_line = result.err.split("\r\x1b[K")  # after "loading …" was wiped
    stats = json.loads(stats_line)
    assert stats["num_generation_tokens"] == 10
    assert stats["ttft_seconds"]["count"] == 1


def test_stats_fit_80_columns() -> None:
    engine = small_engine()
    metrics = engine.metrics
    metrics.num_prompt_tokens = metrics.num_generation_tokens = 12_345_678
    metrics.num_computed_tokens, metrics.num_steps = 123_456_789, 1_234_567
    metrics.num_requests_finished = {"stop": 12_345, "length": 12_345, "abort": 12_345}
    for distribution in (metrics.ttft_seconds, metrics.e2e_seconds, metrics.batch_tokens):
        distribution.observe(1_234.5)
    shown = {}
    for width in (80, 200):
        out = io.StringIO()
        print_stats(metrics.stats(), Console(file=out, width=width))
        shown[width] = [line.rstrip() for line in out.getvalue().splitlines()]
    assert shown[80] == shown[200]


def test_the_help_names_every_field_of_a_json_line() -> None:
    for field in dataclasses.fields(SamplingParams):
        assert re.search(rf"\b{field.name}\b", JSON_LINE_HELP), field.name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no prompt; give one with -p TEXT"),
        (("-p", "a", "--temperature", "-1"), "temperature must be a number in [0, 100], got -1"),
        (("-p", "a", "--max-tokens", "2000"), "max_tokens=2000"),
        (("-p", "x" * 1024), "a prompt of 1024 tokens"),
        (("-p", "a", "--block-size", "0"), "block_size must be between 1 and 1024, got 0"),
        (("-p", "a", "--dtype", "float23"), "did you mean 'float32'"),
        (("-p", "a", "--logprobs", "2"), "add --json"),
        (("-p", "a", "--echo", "--json"), "--echo is for text"),
        (("-p", ""), "the prompt must be a text that is not empty"),
        (("--chat", "-p", ""), "the prompt must be a text that is not empty"),
        (("-p", "a", "--system", "s"), "add --chat"),
        (("--chat", "--echo", "-p", "a"), "--echo repeats a text"),
        (("-p", "a", "--max-tokns", "3"), "--max-tokens"),
        (("-p", "a", "--top-k", "many"), "--top-k"),
        (("--prompts-file", "/no/such/file"), "/no/such/file"),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_2(
    pagemill: Pagemill, arguments: tuple[str, ...], message: str
) -> None:
    result = pagemill("generate", *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("pagemill: error: ")
    assert result.err.count("\n") == 1
    assert message in result.err


def test_a_failure_of_the_engine_is_one_line_and_exit_code_1(
    pagemill: Pagemill, engine: LLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(batch: object) -> None:
        raise RuntimeError("the fans\nstopped")

    monkeypatch.setattr(engine.runner, "execute", fail)
    result = pagemill("generate", "-p", "a")
    assert result.code == 1
    assert result.err == (
        "pagemill: error: the model runner failed: RuntimeError: the fans stopped\n"
    )


@pytest.mark.parametrize("how", ["option", "environment"])
def test_an_error_shows_its_traceback_only_when_asked(
    pagemill: Pagemill, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def fail(self: LLMEngine) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(LLMEngine, "step", fail)
    quiet = pagemill("generate", "-p", "a")
    assert quiet.code == 1
    assert quiet.err.startswith("pagemill: error: unexpected ZeroDivisionError: oops; ")
    assert "--debug" in quiet.err
    if how == "environment":
        monkeypatch.setenv("PAGEMILL_DEBUG", "1")
    loud = pagemill("generate", "-p", "a", *(["--debug"] if how == "option" else []))
    assert loud.code == 1
    assert "Traceback" in loud.err
