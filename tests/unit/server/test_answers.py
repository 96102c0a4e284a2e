"""Tokens as clients see them, and where they begin in a text."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from pagemill.loading.tokenizer import FileTokenizer
from pagemill.outputs import Logprob
from pagemill.server.answers import (
    LEAST_LOGPROB,
    TextOffsets,
    TokenTexts,
    chat_logprobs,
    completion_logprobs,
    prompt_offsets,
)
from pagemill.server.chunks import ChunkFrame
from pagemill.server.errors import ApiError
from tests.unit.loading_text.tiny_vocabularies import sentencepiece_metadata
from tests.unit.server.http_helpers import HE, IM_END, IM_START, TOKENIZER

TEXTS = TokenTexts(TOKENIZER)


def offsets_by_prefix(token_ids: list[int], text: str) -> list[int]:
    """The slow way, for vocabularies whose tokens are the text's bytes."""
    offsets, done = [], b""
    for token_id in token_ids:
        offsets.append(len(done.decode(errors="ignore")))
        done += TOKENIZER.token_bytes(token_id)
    assert done.decode() == text
    return offsets


@pytest.mark.parametrize("text", ["", "hello", "né 日本 😀!", "he<|im_end|>he", "\x00\n"])
def test_each_token_begins_where_the_characters_before_it_end(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert prompt_offsets(ids, text, TEXTS) == offsets_by_prefix(ids, text)
    shown = TextOffsets(TEXTS, skip_special_tokens=False, start=7)
    half = len(ids) // 2
    taken = shown.take(ids[:half]) + shown.take(ids[half:])
    assert taken == [offset + 7 for offset in offsets_by_prefix(ids, text)]


def test_a_token_that_the_text_does_not_show_has_no_length() -> None:
    assert prompt_offsets([IM_START, HE, IM_END, 33], "he!", TEXTS) == [0, 0, 2, 2]
    assert TextOffsets(TEXTS, skip_special_tokens=True).take([HE, IM_END, 33]) == [0, 2, 2]


def test_a_space_before_the_first_word_is_not_counted() -> None:
    tokenizer = FileTokenizer.from_gguf(sentencepiece_metadata(bos_token_id=1, eos_token_id=2))
    texts = TokenTexts(tokenizer)
    ids = tokenizer.encode("ab a")
    assert [texts.text_of(i) for i in ids] == ["<s>", " ", "ab", " a"]
    assert prompt_offsets(ids, "ab a", texts) == [0, 0, 0, 2]


def test_no_two_tokens_look_the_same() -> None:
    seen = {TEXTS.text_of(i, prefix="bytes:") for i in range(TOKENIZER.vocab_size)}
    assert len(seen) == TOKENIZER.vocab_size
    assert TEXTS.text_of(0xC3, prefix="bytes:") == r"bytes:\xc3"
    assert TEXTS.text_of(0xC3) == r"\xc3"


def test_an_id_beyond_the_vocabulary_adds_nothing_and_without_tokenizer_ids_are_shown() -> None:
    assert TEXTS.bytes_of(10**6) == b""
    assert TEXTS.text_of(10**6) == ""
    without = TokenTexts(None)
    assert without.text_of(5) == "token_id:5"
    shown = chat_logprobs([5], [{5: Logprob(-1.0, 1, "")}], 0, without)
    assert shown["content"][0]["bytes"] is None


def test_the_chosen_token_is_shown_with_the_likeliest_and_not_among_them() -> None:
    at_position = {65: Logprob(-0.1, 1, ""), 66: Logprob(-0.2, 2, ""), 90: Logprob(-9.0, 40, "")}
    (entry,) = chat_logprobs([90], [at_position], 2, TEXTS)["content"]
    assert entry["token"] == "Z"
    assert [other["token"] for other in entry["top_logprobs"]] == ["A", "B"]
    shown = completion_logprobs([90], [at_position], [0], TEXTS)
    assert shown["top_logprobs"] == [{"A": -0.1, "B": -0.2, "Z": -9.0}]


def test_of_tokens_with_one_text_the_likelier_is_shown() -> None:
    at_position = {10**6: Logprob(-0.1, 1, ""), 10**7: Logprob(-3.0, 2, "")}
    shown = completion_logprobs([10**7], [at_position], [0], TEXTS)
    assert shown["top_logprobs"] == [{"": -0.1}]
    assert shown["token_logprobs"] == [-3.0]


def test_what_json_has_no_word_for_is_never_written() -> None:
    for value in (-math.inf, -1e30):
        shown = chat_logprobs([65], [{65: Logprob(value, 1, "")}], 1, TEXTS)
        assert shown["content"][0]["logprob"] == LEAST_LOGPROB
    with pytest.raises(ApiError, match="NaN"):
        chat_logprobs([65], [{65: Logprob(math.nan, 1, "")}], 1, TEXTS)


def test_a_chunk_is_one_json_object_in_one_event() -> None:
    envelope: dict[str, Any] = {"id": 'a"b', "object": "o", "created": 1, "model": "m\n"}
    frame = ChunkFrame(envelope, has_usage=False)
    event = frame.chunk(3, '"text": "x\\n"')
    assert event.startswith("data: ")
    assert event.endswith("\n\n")
    assert event.count("\n") == 2
    assert json.loads(event[6:]) == {
        **envelope,
        "choices": [{"index": 3, "text": "x\n", "logprobs": None, "finish_reason": None}],
    }
    event = frame.chunk(3, '"text": ""', finish_reason="stop", stop_reason='"')
    assert json.loads(event[6:])["choices"][0] == {
        "index": 3,
        "text": "",
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": '"',
    }
    frame = ChunkFrame(envelope, has_usage=True)
    assert json.loads(frame.chunk(0, '"text": ""')[6:])["usage"] is None
    assert json.loads(frame.chunk(0, '"text": ""', usage={"a": 1})[6:])["usage"] == {"a": 1}
    assert json.loads(frame.usage({"a": 1})[6:]) == {**envelope, "choices": [], "usage": {"a": 1}}
