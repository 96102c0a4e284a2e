"""The command as a user has it: its own process, the real model."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from tests.unit.cli.conftest import Outcome, start


def pagemill(*arguments: str, typed: str = "") -> Outcome:
    process = start("pagemill.cli", *arguments)
    out, err = process.communicate(typed, timeout=300)
    return Outcome(process.returncode, out, err)


def test_generate_answers_the_readmes_question(smollm2_path: Path) -> None:
    question = ("-p", "The capital of France is", "--max-tokens", "8")
    result = pagemill("generate", "-m", str(smollm2_path), *question)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(" Paris.")
    result = pagemill("generate", "-m", str(smollm2_path), *question, "--dtype", "float32")
    assert result.out == " Paris.\n\nThe answer is:\n"


def test_prompts_and_samples_are_answered_together(smollm2_path: Path) -> None:
    result = pagemill(
        *("generate", "-m", str(smollm2_path), "--json", "--check-invariants"),
        *("-p", "The capital of France is", "-p", "1, 2, 3, 4,", "--n", "2", "--max-tokens", "6"),
        *("--temperature", "0.9", "--seed", "3", "--logprobs", "2"),
    )
    assert (result.code, result.err) == (0, "")
    first, second = result.json
    assert first["prompt_token_ids"] == [504, 3575, 282, 4649, 314]
    assert [len(answer["outputs"]) for answer in (first, second)] == [2, 2]
    completion = second["outputs"][0]
    assert len(completion["logprobs"]) == len(completion["token_ids"]) <= 6
    chosen = [
        next(entry["logprob"] for entry in position if entry["token_id"] == token_id)
        for token_id, position in zip(completion["token_ids"], completion["logprobs"], strict=True)
    ]
    assert abs(sum(chosen) - completion["cumulative_logprob"]) < 1e-6


def test_a_prompts_file_is_answered(smollm2_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "The capital of France is", "max_tokens": 2}, {"prompt": "1, 2, 3, 4,"}]
    file.write_text("\n".join(map(json.dumps, lines)))
    result = pagemill(
        *("generate", "-m", str(smollm2_path), "--prompts-file", str(file), "--max-tokens", "5")
    )
    assert (result.code, result.err) == (0, "")
    assert result.out == ("[1/2] The capital of France is\n Paris.\n\n[2/2] 1, 2, 3, 4,\n 5, 6\n")


def test_chat_answers_through_a_pipe_and_remembers(smollm2_path: Path) -> None:
    result = pagemill(
        *("chat", "-m", str(smollm2_path), "--temperature", "0", "--max-tokens", "12"),
        typed="What is the capital of Japan?\n/reset\nWhat is the capital of Japan?\n",
    )
    assert result.code == 0
    assert result.out == "The capital of Japan is Tokyo.\n\nThe capital of Japan is Tokyo.\n"
    assert "forgotten" in result.err


def test_chat_refuses_a_base_model_with_the_reason(gemma3_path: Path) -> None:
    result = pagemill("chat", "-m", str(gemma3_path), "--once", "hi")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("pagemill: error: ")
    assert "base model" in result.err


def test_ctrl_c_ends_a_real_generation_promptly(smollm2_path: Path) -> None:
    process = start(
        "pagemill.cli",
        *("generate", "-m", str(smollm2_path), "-p", "Once upon a time", "--ignore-eos"),
        *("--max-tokens", "2000"),
    )
    assert process.stdout is not None
    assert process.stdout.read(1)
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert out.endswith("\n")
    assert (
        time.monotonic() - asked < 10
    )  # one step, and the process's end; processors may be shared


def test_a_model_that_leads_nowhere_is_one_line_and_exit_code_1() -> None:
    result = pagemill("generate", "-m", "smollm2", "-p", "hi")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("pagemill: error: ")
    assert "smollm2-135m" in result.err
    assert result.err.count("\n") == 1
