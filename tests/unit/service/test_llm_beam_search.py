"""`LLM.beam_search` as a user calls it, on a tiny random model with a tokenizer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagemill import LLM, InvalidParameterError, RequestTooLargeError, SamplingParams
from tests.core_helpers import assert_idle


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_model), num_kv_blocks=32, num_threads=1, check_invariants=True) as llm:
        yield llm


def test_one_prompt_and_many_as_text_or_ids(llm: LLM) -> None:
    ids = list(b"Hello")
    (expected,) = llm.beam_search("Hello", 3, 6, use_tqdm=False)
    assert expected.prompt == "Hello"
    assert expected.prompt_token_ids == ids
    assert len(expected.beams) == 3
    forms: list[tuple[Any, int]] = [(ids, 1), ([ids], 1), (["Hello"] * 2, 2), ([ids, "Hello"], 2)]
    for prompts, count in forms:
        outputs = llm.beam_search(prompts, 3, 6, use_tqdm=False)
        assert [output.beams for output in outputs] == [expected.beams] * count
    assert llm.beam_search([], 3, 6, use_tqdm=False) == []
    assert_idle(llm.engine)


def test_one_beam_is_greedy_decoding(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=20)
    prompts = ["a", "bcd", "Hello you"]
    outputs = llm.beam_search(prompts, beam_width=1, max_tokens=20, use_tqdm=False)
    for output, plain in zip(outputs, llm.generate(prompts, params, use_tqdm=False), strict=True):
        (beam,), (completion,) = output.beams, plain.outputs
        assert beam.token_ids == completion.token_ids
        assert beam.text == completion.text
        assert beam.cumulative_logprob == completion.cumulative_logprob
        assert beam.finish_reason == completion.finish_reason


def test_the_text_leaves_out_the_token_that_ends_it(tiny_model: Path) -> None:
    with LLM(str(tiny_model), num_kv_blocks=32, num_threads=1) as llm:
        (plain,) = llm.beam_search("Hello", 4, 8, ignore_eos=True, use_tqdm=False)
        end_id = plain.beams[0].token_ids[3]
        llm.engine.eos_token_ids = frozenset({end_id})
        (output,) = llm.beam_search("Hello", 4, 8, early_stopping=True, use_tqdm=False)
        assert llm.tokenizer is not None
        stopped = [beam for beam in output.beams if beam.finish_reason == "stop"]
        assert stopped
        for beam in output.beams:
            shown = beam.token_ids[:-1] if beam in stopped else beam.token_ids
            assert beam.text == llm.tokenizer.decode(shown)
            assert (beam.token_ids[-1] == end_id) == (beam in stopped)
        (ignoring,) = llm.beam_search("Hello", 4, 8, ignore_eos=True, use_tqdm=False)
        assert ignoring.beams == plain.beams


def test_a_progress_bar_counts_prompts_only_when_wanted(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.beam_search(["a", "b"], 2, 4, use_tqdm=False)
    assert capsys.readouterr().err == ""
    llm.beam_search(["a", "b"], 2, 4)
    assert "2/2" in capsys.readouterr().err


def test_an_error_leaves_no_progress_bar_on_the_screen(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("a step failed")

    with pytest.raises(RequestTooLargeError):
        llm.beam_search(["fine", "x" * 125], 2, 4)
    assert capsys.readouterr().err.split("\r")[-1].strip() == ""
    monkeypatch.setattr(llm.engine, "step", fail)
    for call in (lambda: llm.beam_search("abc", 2, 4), lambda: llm.generate("abc")):
        with pytest.raises(RuntimeError):
            call()
        written = capsys.readouterr().err
        assert "0/1" in written
        assert "\n" not in written
        assert written.split("\r")[-1].strip() == ""


def test_what_cannot_be_searched_is_refused_and_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(RequestTooLargeError, match="max_model_len=128"):
        llm.beam_search(["fine", "x" * 125], 2, 4, use_tqdm=False)
    with pytest.raises(InvalidParameterError, match="beam_width must be at most 99: 100 less"):
        llm.beam_search(["fine"], 100, 4, use_tqdm=False)
    with pytest.raises(InvalidParameterError, match=r"n must be an integer in \[1, 2\]"):
        llm.beam_search(["fine"], 2, 4, n=3, use_tqdm=False)
    with pytest.raises(InvalidParameterError, match="deadline_seconds must be None under"):
        llm.beam_search(["fine"], 2, 4, deadline_seconds=1.0, use_tqdm=False)
    with pytest.raises(InvalidParameterError, match=r"priority .*one for each of the 1 prompts"):
        llm.beam_search(["fine"], 2, 4, priority=[1, 2], use_tqdm=False)
    with pytest.raises(InvalidParameterError, match="prompts must be a text"):
        llm.beam_search(5, 2, 4, use_tqdm=False)  # type: ignore[arg-type]
    assert not llm.engine.has_unfinished_requests()
    assert_idle(llm.engine)


def test_ctrl_c_is_taken_between_steps_and_the_model_can_be_used_again(llm: LLM) -> None:
    program = (
        "import os, signal, sys\n"
        "from pagemill import LLM\n"
        "llm = LLM(sys.argv[1], num_kv_blocks=32, num_threads=1, check_invariants=True)\n"
        "step = llm.engine.step\n"
        "def step_and_interrupt():\n"
        "    outputs = step()\n"
        "    if llm.engine.metrics.num_steps == 9:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return outputs\n"
        "llm.engine.step = step_and_interrupt\n"
        "options = {'ignore_eos': True, 'use_tqdm': False}\n"
        "try:\n"
        "    llm.beam_search('abc', 3, 50, **options)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted after', llm.engine.metrics.num_steps, 'steps')\n"
        "llm.engine.audit()\n"
        "print(llm.engine.has_unfinished_requests())\n"
        "print(len(llm.beam_search('abc', 3, 50, **options)[0].beams[0].token_ids))\n"
    )
    arguments = [sys.executable, "-c", program, llm.engine.config.model]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split("\n")[:3] == ["interrupted after 9 steps", "False", "50"]
