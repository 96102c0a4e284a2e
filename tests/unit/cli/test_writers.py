from __future__ import annotations

import io
import json
from collections.abc import Sequence

import pytest

from pagemill.cli.streaming import Job
from pagemill.cli.writers import JsonWriter, ProgressBar, TextWriter, printable
from pagemill.interrupts import InterruptFlag
from pagemill.outputs import CompletionOutput, FinishReason, RequestOutput
from pagemill.request import RequestTimes
from pagemill.sampling_params import SamplingParams
from tests.unit.cli.conftest import Terminal
from tests.unit.cli.simulated import small_engine


def jobs(*prompts: str | list[int], n: int = 1) -> list[Job]:
    params = SamplingParams(n=n)
    return [Job(f"request-{i}", prompt, params) for i, prompt in enumerate(prompts)]


def output(job: Job, texts: Sequence[str], reason: FinishReason | None = None) -> RequestOutput:
    """A state of ``job``; a text that ends with a full stop is finished."""
    completions = [
        CompletionOutput(i, text, [], None, 0.0, reason or ("stop" if "." in text else None), None)
        for i, text in enumerate(texts)
    ]
    return RequestOutput(
        request_id=job.request_id,
        prompt=job.prompt if isinstance(job.prompt, str) else None,
        prompt_token_ids=[],
        prompt_logprobs=None,
        outputs=completions,
        finished=all(c.finish_reason for c in completions),
        num_cached_tokens=0,
        metrics=RequestTimes(0.0),
    )


def test_a_single_answer_comes_piece_by_piece_and_bare() -> None:
    (job,), out = jobs("Hello"), io.StringIO()
    writer = TextWriter([job], out)
    seen = []
    for text in ("", " wor", " world", " world."):
        writer.update(output(job, [text]))
        seen.append(out.getvalue())
    assert seen == ["", " wor", " world", " world.\n"]


def test_an_answer_that_ends_its_own_line_gets_no_empty_one() -> None:
    (job,), out = jobs("Hello"), io.StringIO()
    TextWriter([job], out).update(output(job, ["Done.\n"]))
    assert out.getvalue() == "Done.\n"


def test_echo_repeats_the_prompt_once() -> None:
    (job,), out = jobs("Hello"), io.StringIO()
    writer = TextWriter([job], out, echo=True)
    writer.update(output(job, [" a"]))
    writer.update(output(job, [" a b."]))
    assert out.getvalue() == "Hello a b.\n"


def test_several_answers_are_in_order_and_the_first_unfinished_one_is_live() -> None:
    both, out = jobs("one", "two"), io.StringIO()
    writer = TextWriter(both, out)
    writer.update(output(both[1], ["second"]))
    assert out.getvalue() == ""
    writer.update(output(both[0], ["fir"]))
    assert out.getvalue() == "[1/2] one\nfir"
    writer.update(output(both[1], ["second."]))
    assert out.getvalue() == "[1/2] one\nfir"
    writer.update(output(both[0], ["first."]))
    assert out.getvalue() == "[1/2] one\nfirst.\n\n[2/2] two\nsecond.\n"


def test_samples_of_one_prompt_have_a_header_each() -> None:
    (job,), out = jobs("one", n=2), io.StringIO()
    writer = TextWriter([job], out)
    writer.update(output(job, ["a", "b."]))
    writer.update(output(job, ["a.", "b."]))
    assert out.getvalue() == "[sample 1/2] one\na.\n\n[sample 2/2] one\nb.\n"


def test_a_header_is_one_short_line_whatever_the_prompt() -> None:
    several, out = jobs("x\n\x1b[2J" * 90, [5, 6, 7]), io.StringIO()
    writer = TextWriter(several, out)
    for job in several:
        writer.update(output(job, ["."]))
    first, _, _, second, _ = out.getvalue().split("\n")[:5]
    assert first.startswith("[1/2] x ")
    assert first.endswith("…")
    assert len(first) == len("[1/2] ") + 60
    assert "\x1b" not in first
    assert second == "[2/2] 3 token ids"


def test_whole_answers_only_when_not_live() -> None:
    (job,), out = jobs("one"), io.StringIO()
    writer = TextWriter([job], out, live=False)
    writer.update(output(job, ["a"]))
    assert out.getvalue() == ""
    writer.update(output(job, ["a."]))
    assert out.getvalue() == "a.\n"


@pytest.mark.parametrize("live", [True, False])
def test_an_interrupt_shows_each_answer_as_far_as_it_came(live: bool) -> None:
    three, out = jobs("one", "two", "three"), io.StringIO()
    writer = TextWriter(three, out, live=live)
    writer.update(output(three[0], ["fir"]))
    for job, text in zip(three, ("firs", "", "thi"), strict=True):
        writer.update(output(job, [text], "abort"))
    assert out.getvalue() == "[1/3] one\nfirs\n\n[3/3] three\nthi\n"


def test_what_follows_ctrl_c_begins_on_a_fresh_line_of_the_terminal() -> None:
    (job,) = jobs("x")
    for rest, shown in ((" two", "one\n two\n"), ("", "one\n")):
        terminal, pressed = Terminal(), InterruptFlag()
        writer = TextWriter([job], terminal, interrupted=pressed)
        writer.update(output(job, ["one"]))
        pressed.requested = True
        writer.update(output(job, ["one" + rest], "abort"))
        writer.end_line()
        assert terminal.getvalue() == shown
    file = io.StringIO()
    writer = TextWriter([job], file, interrupted=lambda: True)
    writer.update(output(job, ["one"], "abort"))
    assert file.getvalue() == "one\n"


def test_a_conversation_is_headed_by_its_last_message_and_kept_in_its_json() -> None:
    params = SamplingParams()
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi\nyou"}]
    chat = Job("chat", [1, 2], params, messages=messages)
    text, lines = io.StringIO(), io.StringIO()
    for job in (two := [chat, *jobs("plain")]):
        TextWriter(two, text).update(output(job, ["a."]))
    writer = JsonWriter(two, lines)
    for job in two:
        writer.update(output(job, ["a."]))
    assert text.getvalue().startswith("[1/2] hi you\n")
    first, second = map(json.loads, lines.getvalue().splitlines())
    assert (first["prompt"], first["messages"]) == (None, messages)
    assert (second["prompt"], "messages" in second) == ("plain", False)


def test_end_line_closes_a_line_that_was_cut_and_only_that() -> None:
    (job,), out = jobs("one"), io.StringIO()
    writer = TextWriter([job], out)
    writer.end_line()
    assert out.getvalue() == ""
    writer.update(output(job, ["a"]))
    writer.end_line()
    writer.end_line()
    assert out.getvalue() == "a\n"


def test_a_model_cannot_steer_the_terminal_but_a_file_gets_every_byte() -> None:
    (job,) = jobs("one")
    text = "\x1b]0;owned\x07 a\tb\nc\x9b."
    terminal, file = Terminal(), io.StringIO()
    for out in (terminal, file):
        TextWriter([job], out).update(output(job, [text]))
    assert terminal.getvalue() == "\ufffd]0;owned\ufffd a\tb\nc\ufffd.\n"
    assert file.getvalue() == text + "\n"


def test_printable_keeps_every_language() -> None:
    assert printable("naïve 人工智能 🙂\n\t") == "naïve 人工智能 🙂\n\t"


def test_json_lines_are_in_the_order_of_the_jobs() -> None:
    three, out = jobs("one", "two", "three"), io.StringIO()
    writer = JsonWriter(three, out)
    writer.update(output(three[2], ["c."]))
    writer.update(output(three[0], ["a"]))
    assert out.getvalue() == ""
    writer.update(output(three[0], ["a."]))
    writer.update(output(three[1], ["b."]))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["prompt"] for line in lines] == ["one", "two", "three"]


def test_json_has_no_infinity() -> None:
    (job,), out = jobs("one"), io.StringIO()
    state = output(job, ["a."])
    state.outputs[0].cumulative_logprob = float("-inf")
    JsonWriter([job], out).update(state)
    assert json.loads(out.getvalue())["outputs"][0]["cumulative_logprob"] is None


def test_the_bar_counts_answers_and_not_what_was_aborted() -> None:
    both, bar_stream = jobs("one", "two"), io.StringIO()
    text = TextWriter(both, io.StringIO())
    bar = ProgressBar(text, len(both), small_engine().metrics, bar_stream)
    assert bar_stream.getvalue() == ""
    bar.open()
    bar.update(output(both[0], ["a."]))
    bar.update(output(both[1], ["b"], "abort"))
    bar.close()
    assert "1/2" in bar_stream.getvalue()
    assert "2/2" not in bar_stream.getvalue()
    assert "req/s" in bar_stream.getvalue()
