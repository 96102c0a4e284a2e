from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagemill.engine import LLMEngine
from tests.core_helpers import assert_idle
from tests.unit.cli.conftest import Pagemill

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


def test_a_prompts_file_is_answered_in_order_with_a_bar(pagemill: Pagemill, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("first\nsecond\nthird\n")
    result = pagemill("generate", "--prompts-file", str(file), "--max-tokens", "4", "--ignore-eos")
    places = [
        result.out.index(f"[{i}/3] {word}\n")
        for i, word in enumerate(("first", "second", "third"), 1)
    ]
    assert result.code == 0
    assert places == sorted(places)
    assert "3/3" in result.err
    assert "tok/s" in result.err


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


def test_stats_with_json_are_one_object_on_standard_error(pagemill: Pagemill) -> None:
    result = pagemill(
        "generate", "-p", "a", "--max-tokens", "5", "--ignore-eos", "--stats", "--json"
    )
    assert len(result.json) == 1
    stats = json.loads(result.err)
    assert stats["num_generation_tokens"] == 5
    assert stats["ttft_seconds"]["count"] == 1


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
        (("-p", ""), "prompt must hold at least one token"),
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
