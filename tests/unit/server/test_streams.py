"""Server-sent events of both endpoints, as clients read them."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill.server.schemas.chat import ChatChunk
from pagemill.server.schemas.completions import CompletionAnswer
from tests.unit.server.http_helpers import IM_END, MODEL, Served, run, served

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


async def chunks_of(server: Served, path: str, **fields: Any) -> list[dict[str, Any]]:
    prompt = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    chunks = await server.stream(path, **{**prompt, **fields})
    model = ChatChunk if path == CHAT else CompletionAnswer
    for chunk in chunks:
        model.model_validate(chunk)
    return chunks


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(
        choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        for choice in choices
        if choice["index"] == index
    )


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_all_chunks_have_one_id_one_time_and_one_model(path: str) -> None:
    async def test() -> None:
        async with served("good day", step_seconds=0.002) as server:
            chunks = await chunks_of(server, path, max_tokens=50)
            assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
            kind = "chat.completion.chunk" if path == CHAT else "text_completion"
            assert (chunks[0]["object"], chunks[0]["model"]) == (kind, MODEL)
            assert text_of(chunks) == "good day"
            assert len(chunks) > 3
            assert all("usage" not in chunk for chunk in chunks)

    run(test())


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_the_finish_reason_is_null_until_the_last_chunk(path: str) -> None:
    async def test() -> None:
        async with served("good day") as server:
            for fields, reason in (({}, "stop"), ({"max_tokens": 3}, "length")):
                chunks = await chunks_of(server, path, **fields)
                reasons = [choice["finish_reason"] for c in chunks for choice in c["choices"]]
                assert reasons == [None] * (len(chunks) - 1) + [reason]
                # A client that looks at the reason first must not lose text.
                last = chunks[-1]["choices"][0]
                assert last.get("delta") == {} if path == CHAT else last["text"] == ""

    run(test())


def test_a_chat_begins_with_the_role_and_says_it_once() -> None:
    async def test() -> None:
        async with served("good day", step_seconds=0.005) as server:
            chunks = await chunks_of(server, CHAT)
            deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
            assert deltas[0] == {"role": "assistant", "content": ""}
            assert len(deltas) > 3
            assert all("role" not in delta for delta in deltas[1:])
            assert all(delta["content"] for delta in deltas[1:-1])

    run(test())


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_the_usage_comes_last_with_no_choices_and_only_when_asked_for(path: str) -> None:
    async def test() -> None:
        async with served("good day") as server:
            chunks = await chunks_of(server, path, stream_options={"include_usage": True})
            assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
            assert chunks[-1]["choices"] == []
            usage = chunks[-1]["usage"]
            assert usage["completion_tokens"] == 9
            assert usage["total_tokens"] == usage["prompt_tokens"] + 9
            for options in (None, {}, {"include_usage": False}, {"include_usage": None}):
                chunks = await chunks_of(server, path, stream_options=options)
                assert all("usage" not in chunk for chunk in chunks)

    run(test())


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_the_usage_so_far_is_in_every_chunk_when_that_is_asked_for(path: str) -> None:
    async def test() -> None:
        async with served("good day", step_seconds=0.002) as server:
            options = {"include_usage": True, "continuous_usage_stats": True}
            chunks = await chunks_of(server, path, stream_options=options)
            counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
            assert counts == sorted(counts)
            assert counts[0] < counts[-1] == 9
            assert chunks[-1]["choices"] == []

    run(test())


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_stream_says_what_the_whole_answer_says(path: str) -> None:
    async def test() -> None:
        async with served() as server:
            fields: dict[str, Any] = {
                "seed": 3, "n": 3, "max_tokens": 20, "ignore_eos": True, "stop": ["\x05"],
            }  # fmt: skip
            chunks = await chunks_of(server, path, **fields)
            if path == CHAT:
                whole = await server.chat(HELLO, **fields)
                expected = [choice["message"]["content"] for choice in whole["choices"]]
            else:
                whole = await server.complete("hello", **fields)
                expected = [choice["text"] for choice in whole["choices"]]
            assert [text_of(chunks, index) for index in range(3)] == expected

    run(test())


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_character_is_never_split_and_a_stop_string_never_shown(path: str) -> None:
    async def test() -> None:
        async with served("né 日本 😀 end. more", step_seconds=0.001) as server:
            chunks = await chunks_of(server, path, max_tokens=50, stop=["end."])
            assert text_of(chunks) == "né 日本 😀 "
            for chunk in chunks:
                assert "\ufffd" not in text_of([chunk])

    run(test())


@pytest.mark.parametrize("max_tokens", [9, 4, 3])  # ended by a token without text, with one, cut
def test_log_probabilities_come_with_their_tokens(max_tokens: int) -> None:
    async def test() -> None:
        async with served("né!", step_seconds=0.002) as server:
            fields: dict[str, Any] = {
                "logprobs": True, "top_logprobs": 2, "max_tokens": max_tokens,
            }  # fmt: skip
            chunks = await chunks_of(server, CHAT, **fields)
            whole = await server.chat(HELLO, **fields)
            streamed = [
                entry
                for chunk in chunks
                for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
            ]
            assert streamed == whole["choices"][0]["logprobs"]["content"]

            chunks = await chunks_of(server, TEXT, logprobs=2, echo=True, max_tokens=max_tokens)
            whole = await server.complete("hello", logprobs=2, echo=True, max_tokens=max_tokens)
            expected = whole["choices"][0]["logprobs"]
            for name, values in expected.items():
                shown = [chunk["choices"][0]["logprobs"] for chunk in chunks]
                assert [v for part in shown if part for v in part[name]] == values

    run(test())


def test_an_echoed_prompt_is_the_first_chunk_of_each_choice() -> None:
    async def test() -> None:
        async with served("yes", step_seconds=0.002) as server:
            chunks = await server.stream(TEXT, prompt=["ab", "cd"], n=2, echo=True, max_tokens=9)
            assert [text_of(chunks, i) for i in range(4)] == ["abyes"] * 2 + ["cdyes"] * 2
            chunks = await server.stream(TEXT, prompt="ab", echo=True, max_tokens=0)
            assert text_of(chunks) == "ab"
            assert chunks[-1]["choices"][0]["finish_reason"] == "length"

    run(test())


def test_a_prompt_without_text_is_scored_although_the_answer_begins_with_half_a_character() -> None:
    async def test() -> None:
        async with served("é!", step_seconds=0.01) as server:
            chunks = await server.stream(
                TEXT, prompt=[IM_END, IM_END], echo=True, logprobs=1, max_tokens=9
            )
            tokens = [
                t for c in chunks for t in (c["choices"][0]["logprobs"] or {"tokens": []})["tokens"]
            ]
            assert tokens == ["<|im_end|>"] * 2 + [r"bytes:\xc3", r"bytes:\xa9", "!", "<|im_end|>"]

    run(test())


def test_choices_of_several_prompts_are_told_apart_by_their_index() -> None:
    async def test() -> None:
        async with served() as server:
            fields: dict[str, Any] = {"max_tokens": 6, "seed": 4, "ignore_eos": True, "n": 2}
            prompts = ["abc", "xyz", "a much longer one than the others are"]
            chunks = await server.stream(TEXT, prompt=prompts, **fields)
            whole = await server.complete(prompts, **fields)
            for choice in whole["choices"]:
                assert text_of(chunks, choice["index"]) == choice["text"]

    run(test())


def test_proxies_are_told_not_to_hold_it_back() -> None:
    async def test() -> None:
        async with served("x") as server:
            response = await server.post(CHAT, messages=HELLO, stream=True)
            assert response.headers["cache-control"] == "no-cache"
            assert response.headers["x-accel-buffering"] == "no"

    run(test())


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_what_is_refused_before_it_begins_has_a_status_of_its_own(path: str) -> None:
    async def test() -> None:
        async with served() as server:
            prompt = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
            error = await server.refusal(path, stream=True, temperature=-1, **prompt)
            assert error["param"] == "temperature"
            if path == TEXT:
                error = await server.refusal(path, stream=True, max_tokens=10**6, **prompt)
                assert error["code"] == "context_length_exceeded"
                error = await server.refusal(path, stream=True, best_of=2, **prompt)
                assert error["param"] == "best_of"
                await chunks_of(server, path, best_of=1, max_tokens=2)

    run(test())
