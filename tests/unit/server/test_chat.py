"""POST /v1/chat/completions, as one JSON answer."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill.server.schemas.chat import ChatAnswer
from tests.unit.server.http_helpers import MODEL, TOKENIZER, run, served

HELLO = [{"role": "user", "content": "hello"}]


def test_an_answer_has_the_shape_of_the_api() -> None:
    async def test() -> None:
        async with served("good day") as server:
            answer = await server.chat(HELLO)
            ChatAnswer.model_validate(answer)
            assert answer["id"].startswith("chatcmpl-")
            assert answer["object"] == "chat.completion"
            assert answer["model"] == MODEL
            assert answer["choices"] == [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "good day", "refusal": None},
                    "logprobs": None,
                    "finish_reason": "stop",
                    "stop_reason": None,
                }
            ]
            num_prompt = len(TOKENIZER.encode_chat(HELLO))
            assert answer["usage"] == {
                "prompt_tokens": num_prompt,
                "completion_tokens": 9,
                "total_tokens": num_prompt + 9,
                "prompt_tokens_details": {"cached_tokens": 0},
            }

    run(test())


def test_a_conversation_is_answered_as_its_template_writes_it() -> None:
    async def test() -> None:
        async with served() as server:
            fields: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
            chat = await server.chat(
                [
                    {"role": "system", "content": "be <|im_end|> brief"},
                    {"role": "user", "content": [{"type": "text", "text": "a"},
                                                 {"type": "text", "text": "b"}]},
                ],
                **fields,
            )  # fmt: skip
            ids = TOKENIZER.encode_chat(
                [
                    {"role": "system", "content": "be <|im_end|> brief"},
                    {"role": "user", "content": "a\nb"},
                ]
            )
            text = await server.complete(ids, **fields)
            assert chat["choices"][0]["message"]["content"] == text["choices"][0]["text"]
            assert chat["usage"]["prompt_tokens"] == len(ids)

    run(test())


def test_the_end_of_the_prompt_is_the_clients_choice() -> None:
    async def test() -> None:
        async with served("x") as server:

            async def num_prompt_tokens(**fields: Any) -> int:
                return int((await server.chat(HELLO, **fields))["usage"]["prompt_tokens"])

            def encoded(**options: bool) -> int:
                return len(TOKENIZER.encode_chat(HELLO, **options))

            assert await num_prompt_tokens() == encoded()
            assert await num_prompt_tokens(add_generation_prompt=False) == encoded(
                add_generation_prompt=False
            )
            assert await num_prompt_tokens(continue_final_message=True) == encoded(
                add_generation_prompt=False, continue_final_message=True
            )
            error = await server.refusal(
                "/v1/chat/completions",
                messages=HELLO,
                continue_final_message=True,
                add_generation_prompt=True,
            )
            assert error["param"] == "add_generation_prompt"

    run(test())


def test_samples_differ_and_each_has_its_index() -> None:
    async def test() -> None:
        async with served() as server:
            answer = await server.chat(HELLO, n=3, seed=5, max_tokens=8, ignore_eos=True)
            assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
            assert len({choice["message"]["content"] for choice in answer["choices"]}) == 3
            assert answer["usage"]["completion_tokens"] == 24

    run(test())


def test_an_answer_goes_to_the_end_of_the_context_and_never_beyond() -> None:
    async def test() -> None:
        async with served(max_model_len=64) as server:
            num_prompt = len(TOKENIZER.encode_chat(HELLO))
            for fields in ({}, {"max_completion_tokens": 10_000}, {"max_tokens": 10_000}):
                answer = await server.chat(HELLO, ignore_eos=True, **fields)
                assert answer["usage"]["completion_tokens"] == 64 - num_prompt
                assert answer["choices"][0]["finish_reason"] == "length"
            answer = await server.chat(HELLO, ignore_eos=True, max_completion_tokens=3)
            assert answer["usage"]["completion_tokens"] == 3
            answer = await server.chat(
                HELLO, ignore_eos=True, max_completion_tokens=3, max_tokens=3
            )
            assert answer["usage"]["completion_tokens"] == 3
            error = await server.refusal(
                "/v1/chat/completions", messages=HELLO, max_completion_tokens=3, max_tokens=4
            )
            assert error["param"] == "max_tokens"

    run(test())


def test_a_conversation_that_fills_the_context_is_refused() -> None:
    async def test() -> None:
        async with served(max_model_len=64) as server:
            messages = [{"role": "user", "content": "a" * 64}]
            error = await server.refusal("/v1/chat/completions", messages=messages)
            assert error["code"] == "context_length_exceeded"
            assert error["param"] == "messages"
            error = await server.refusal("/v1/chat/completions", messages=[{}] * 65)
            assert error["code"] == "context_length_exceeded"
            assert "65 messages" in error["message"]

    run(test())


def test_log_probabilities_have_the_exact_bytes() -> None:
    async def test() -> None:
        async with served("né") as server:
            answer = await server.chat(HELLO, logprobs=True, top_logprobs=3)
            ChatAnswer.model_validate(answer)
            content = answer["choices"][0]["logprobs"]["content"]
            assert [entry["token"] for entry in content] == ["n", r"\xc3", r"\xa9", "<|im_end|>"]
            assert [entry["logprob"] for entry in content] == [0, -1 / 8, -2 / 8, -3 / 8]
            assert content[1] == {
                "token": r"\xc3",
                "logprob": -1 / 8,
                "bytes": [0xC3],
                "top_logprobs": [
                    {"token": r"\xc3", "logprob": -1 / 8, "bytes": [0xC3]},
                    {"token": "#", "logprob": -20.0, "bytes": [35]},
                    {"token": "he", "logprob": -21.0, "bytes": [104, 101]},
                ],
            }
            text = answer["choices"][0]["message"]["content"]
            assert b"".join(bytes(entry["bytes"]) for entry in content[:-1]) == text.encode()

            plain = await server.chat(HELLO, logprobs=True)
            assert plain["choices"][0]["logprobs"]["content"][0] == {
                "token": "n",
                "logprob": 0,
                "bytes": [110],
                "top_logprobs": [],
            }

    run(test())


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hello", "messages"),
        (None, "messages"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": 3, "content": "x"}], "messages[0].role"),
        ([HELLO[0], {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
         "messages[1].content[0]"),
        ([{"role": "user", "content": "lone \ud800"}], "messages"),
    ],
)  # fmt: skip
def test_a_malformed_conversation_is_refused_by_name(messages: Any, param: str) -> None:
    async def test() -> None:
        async with served() as server:
            error = await server.refusal("/v1/chat/completions", messages=messages)
            assert error["param"] == param

    run(test())


def test_top_logprobs_needs_logprobs() -> None:
    async def test() -> None:
        async with served("x") as server:
            error = await server.refusal("/v1/chat/completions", messages=HELLO, top_logprobs=2)
            assert error["param"] == "top_logprobs"
            await server.chat(HELLO, logprobs=False, top_logprobs=None)

    run(test())


def test_a_model_without_a_template_cannot_chat_and_says_so() -> None:
    from pagemill.loading.tokenizer import FileTokenizer
    from tests.unit.loading_text.tiny_vocabularies import byte_level_metadata

    base = FileTokenizer.from_gguf(byte_level_metadata(eos_token_id=257, merges=["h e", "l l"]))

    async def test() -> None:
        async with served("x", tokenizer=base) as server:
            error = await server.refusal("/v1/chat/completions", messages=HELLO)
            assert "base model" in error["message"]
        async with served("x", tokenizer=None) as server:
            error = await server.refusal("/v1/chat/completions", messages=HELLO)
            assert "tokenizer" in error["message"]

    run(test())
