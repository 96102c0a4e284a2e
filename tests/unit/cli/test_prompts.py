from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pagemill.cli import defaults
from pagemill.cli.prompts import (
    Ask,
    as_chats,
    from_file,
    from_options,
    make_jobs,
    render_chats,
)
from pagemill.errors import RequestError
from tests.unit.cli.simulated import BaseModelTokenizer, ChatByteTokenizer


def written(path: Path, content: str | bytes) -> str:
    file = path / "prompts.txt"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(file)


def test_a_text_file_holds_one_prompt_a_line_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    asks = from_file(written(tmp_path, "\ufefffirst \r\n\n  \n{not JSON\nžluť"))
    assert [ask.prompt for ask in asks] == ["first ", "{not JSON", "žluť"]
    assert asks[2].source.endswith("prompts.txt, line 5")


def test_json_lines_bring_their_own_sampling_fields_which_win(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"prompt": "a\nb", "max_tokens": 3, "stop": ["x"], "priority": -2},
        {"prompt": [1, 2]},
    ]
    asks = from_file(written(tmp_path, "\n".join(map(json.dumps, lines))))
    first, second = make_jobs(asks, {"max_tokens": 9, "seed": 5})
    assert (first.prompt, first.params.max_tokens, first.params.stop) == ("a\nb", 3, ("x",))
    assert (first.params.seed, second.params.seed) == (5, 5)
    assert (first.request_fields, second.request_fields) == ({"priority": -2}, {})
    assert (second.prompt, second.params.max_tokens) == ([1, 2], 9)


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert from_file("-") == [
        Ask("one", "standard input, line 1"),
        Ask("two", "standard input, line 2"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no prompts"),
        (b"\n\n", "holds no prompts"),
        (b"good\nbad \xff\n", r"line 2: is not UTF-8"),
        ('{"prompt": "a"}\nplain', "line 2: is not JSON"),
        ('{"prompt": "a"}\n[1]', 'line 2: must be a JSON object with either a "prompt" or'),
        ('{"text": "a"}', 'line 1: must be a JSON object with either a "prompt" or'),
        ('{"prompt": "a", "messages": []}', "line 1: must be a JSON object with either"),
        ('{"messages": []}', "line 1: messages must be a list of at least one message"),
        ('{"messages": [{"role": "user", "content": 7}]}', r"line 1: messages\[0\]\.content must"),
        ('{"prompt": ""}', "line 1 must be a text that is not empty"),
        ('{"prompt": 7}', "line 1: prompt must be a text or token ids, got 7"),
        ('{"prompt": "\\ud800"}', "line 1 must be UTF-8 text"),
    ],
)
def test_a_prompts_file_that_is_wrong_is_refused_with_the_line(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        from_file(written(tmp_path, content))


def test_a_missing_prompts_file_is_refused_with_the_reason() -> None:
    with pytest.raises(RequestError, match=r"/no/such/file: No such file or directory"):
        from_file("/no/such/file")


def test_a_wrong_field_of_a_json_line_is_refused_with_line_and_field(tmp_path: Path) -> None:
    asks = from_file(written(tmp_path, '{"prompt": "a"}\n{"prompt": "b", "top_q": 1}'))
    with pytest.raises(RequestError, match=r"line 2: top_q is no sampling parameter.*top_p"):
        make_jobs(asks, {})


def test_a_wrong_option_is_not_blamed_on_a_prompt() -> None:
    with pytest.raises(RequestError, match=r"^temperature must be"):
        make_jobs(from_options(["a", "b"]), {"temperature": -1.0})


def test_only_a_length_that_nobody_gave_may_shrink() -> None:
    (default,) = make_jobs(from_options(["a"]), {})
    (given,) = make_jobs(from_options(["a"]), {"max_tokens": 7})
    (long,) = make_jobs(from_options(["a"]), {"min_tokens": 500})
    assert (default.params.max_tokens, default.shrink_to_fit) == (
        defaults.GENERATE["max_tokens"],
        True,
    )
    assert (given.params.max_tokens, given.shrink_to_fit) == (7, False)
    assert (long.params.max_tokens, long.shrink_to_fit) == (500, True)


def test_a_prompt_that_is_no_text_is_refused() -> None:
    with pytest.raises(RequestError, match="prompt 2 must be UTF-8 text"):
        from_options(["fine", "\udcff"])


def test_a_text_is_a_users_message_and_a_conversation_keeps_its_own_system_message(
    tmp_path: Path,
) -> None:
    lines: list[dict[str, Any]] = [
        {"prompt": "one"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "two"}]}]},
        {"messages": [{"role": "system", "content": "own"}, {"role": "user", "content": "3"}]},
    ]
    asks = as_chats(from_file(written(tmp_path, "\n".join(map(json.dumps, lines)))), "be kind")
    jobs = render_chats(make_jobs(asks, {}), ChatByteTokenizer())
    assert [bytes(job.prompt).decode() for job in jobs if not isinstance(job.prompt, str)] == [
        "system:be kind|user:one|assistant:",
        "system:be kind|user:two|assistant:",
        "system:own|user:3|assistant:",
    ]


def test_messages_in_a_file_are_a_chat_without_being_told_and_prompts_are_not(
    tmp_path: Path,
) -> None:
    lines: list[dict[str, Any]] = [
        {"prompt": "one"},
        {"messages": [{"role": "user", "content": "two"}]},
    ]
    asks = from_file(written(tmp_path, "\n".join(map(json.dumps, lines))))
    plain, chat = render_chats(make_jobs(asks, {}), ChatByteTokenizer())
    assert (plain.prompt, plain.messages) == ("one", None)
    assert (chat.prompt, chat.messages) == (list(b"user:two|assistant:"), lines[1]["messages"])


def test_token_ids_are_no_message(tmp_path: Path) -> None:
    asks = from_file(written(tmp_path, '{"prompt": [1, 2]}'))
    with pytest.raises(RequestError, match="line 1: token ids are no message"):
        as_chats(asks, None)


def test_who_cannot_chat_is_refused_with_the_reason() -> None:
    jobs = make_jobs(as_chats(from_options(["a"]), None), {})
    with pytest.raises(RequestError, match=r"^this is a base model without a chat template"):
        render_chats(jobs, BaseModelTokenizer())
    with pytest.raises(RequestError, match="no tokenizer"):
        render_chats(jobs, None)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="prompt 2 must be a text that is not empty"):
        from_options(["a", ""])
