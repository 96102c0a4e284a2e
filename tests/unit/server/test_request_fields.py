"""Every field of the published API is honoured, or refused by name; none is ignored.

The fields are those of the ``openai`` package, which is generated from the API's description. One
that a newer package adds is refused like any unknown one, until somebody decides otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai.types.chat.chat_completion_stream_options_param import (
    ChatCompletionStreamOptionsParam,
)
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsStreaming as TextParams
from openai.types.embedding_create_params import EmbeddingCreateParams

from tests.unit.server.http_helpers import MODEL, Served, error_of, run, served

HELLO = [{"role": "user", "content": "hello"}]
CHAT, TEXT, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
NEEDED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 4},
    TEXT: {"prompt": "hello", "max_tokens": 4},
    EMBEDDINGS: {"input": "hello"},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [65]},
}

HONOURED: dict[str, Any] = {
    "model": MODEL,
    "frequency_penalty": 0.5,
    "logit_bias": {"65": -100},
    "max_tokens": 3,
    "metadata": {"a": "b"},
    "n": 2,
    "presence_penalty": -0.5,
    "seed": 3,
    "service_tier": "flex",
    "stop": ["a", "b"],
    "store": True,
    "stream": True,
    "stream_options": {"include_usage": True, "include_obfuscation": False},
    "temperature": 0.5,
    "top_p": 0.5,
    "user": "me",
}
HONOURED_IN: dict[str, dict[str, Any]] = {
    CHAT: HONOURED
    | {
        "messages": HELLO,
        "logprobs": True,
        "top_logprobs": 3,
        "max_completion_tokens": 4,
        "parallel_tool_calls": False,  # there are no tools to call
        "prompt_cache_key": "k",
        "safety_identifier": "me",
    },
    TEXT: HONOURED | {"prompt": [65, 66], "logprobs": 2, "best_of": 3, "echo": True},
    EMBEDDINGS: {
        "model": MODEL,
        "input": ["a", "b"],
        "encoding_format": "base64",
        "user": "me",
    },
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
REFUSED_IN: dict[str, dict[str, Any]] = {
    CHAT: {
        "audio": {"voice": "alloy", "format": "wav"},
        "function_call": "auto",
        "functions": [{"name": "f"}],
        "modalities": ["text", "audio"],
        "moderation": {"model": "omni-moderation-latest"},
        "prediction": {"type": "content", "content": "x"},
        "prompt_cache_options": {"mode": "explicit"},
        "prompt_cache_retention": "24h",
        "reasoning_effort": "high",
        "response_format": {"type": "json_object"},
        "tool_choice": "required",
        "tools": [TOOL],
        "verbosity": "low",
        "web_search_options": {},
    },
    TEXT: {"suffix": "the end"},
    EMBEDDINGS: {"dimensions": 7},
}
THE_DEFAULT_IN: dict[str, dict[str, Any]] = {
    CHAT: {
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "tools": [],
        "functions": [],
        "tool_choice": "none",
        "function_call": "none",
        "reasoning_effort": "none",
        "verbosity": "medium",
        "prompt_cache_retention": "in_memory",
        "prompt_cache_options": {"mode": "implicit"},
    },
    TEXT: {"suffix": ""},
    EMBEDDINGS: {"encoding_format": "float"},
}
EXTRAS: dict[str, Any] = {
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.2,
    "stop_token_ids": [65],
    "ignore_eos": True,
    "min_tokens": 2,
    "cache_salt": "mine",
    "priority": 0,
    "skip_special_tokens": False,
    "include_stop_str_in_output": True,
    "bad_words": ["bad"],
    "bad_words_token_ids": [[65, 66]],
    "allowed_token_ids": [65, 66],
}


def fields_of(params: type) -> set[str]:
    return {name for base in params.__mro__ for name in getattr(base, "__annotations__", {})}


PUBLISHED = {
    CHAT: fields_of(ChatParams),
    TEXT: fields_of(TextParams),
    EMBEDDINGS: fields_of(EmbeddingCreateParams),
}


@pytest.mark.parametrize("path", PUBLISHED)
def test_no_published_field_is_ignored(path: str) -> None:
    assert not set(HONOURED_IN[path]) & set(REFUSED_IN[path])
    assert len(PUBLISHED[path]) >= 5
    others = PUBLISHED[path] - set(HONOURED_IN[path]) - set(REFUSED_IN[path])

    async def test() -> None:
        async with served("x") as server:
            for name in others:
                fields: dict[str, Any] = {**NEEDED[path], name: "x"}
                assert (await server.refusal(path, **fields))["param"] == name

    run(test())


def test_no_option_of_a_stream_is_ignored() -> None:
    others = fields_of(ChatCompletionStreamOptionsParam) - {"include_usage"}
    assert "include_obfuscation" in others

    async def test() -> None:
        async with served("x") as server:
            for path in (CHAT, TEXT):
                for name in others:
                    error = await server.refusal(
                        path, **NEEDED[path], stream=True, stream_options={name: True}
                    )
                    assert error["param"] == f"stream_options.{name}"
                error = await server.refusal(
                    path, **NEEDED[path], stream_options={"include_usage": True}
                )
                assert error["param"] == "stream_options"

    run(test())


async def status_with(server: Served, path: str, **fields: Any) -> int:
    if "top_logprobs" in fields:
        fields["logprobs"] = True
    if fields.get("stream_options"):
        fields["stream"] = True
    if "max_completion_tokens" in fields:
        fields["max_tokens"] = None
    response = await server.post(path, **{**NEEDED[path], **fields})
    return response.status_code


@pytest.mark.parametrize("path", PUBLISHED)
def test_what_is_honoured_is_accepted(path: str) -> None:
    async def test() -> None:
        async with served("x") as server:
            for name, value in HONOURED_IN[path].items():
                assert await status_with(server, path, **{name: value}) == 200, name
            if path != EMBEDDINGS:
                for name, value in EXTRAS.items():
                    assert await status_with(server, path, **{name: value}) == 200, name

    run(test())


@pytest.mark.parametrize("path", PUBLISHED)
def test_what_is_not_supported_is_refused_by_name(path: str) -> None:
    async def test() -> None:
        async with served("x") as server:
            for name, value in REFUSED_IN[path].items():
                error = await server.refusal(path, **NEEDED[path], **{name: value})
                assert error["param"] == name
                assert name in error["message"]
                assert error["type"] == "invalid_request_error"

    run(test())


@pytest.mark.parametrize("path", PUBLISHED)
def test_null_and_what_means_the_default_is_accepted(path: str) -> None:
    required = {"model", "messages", "prompt", "input"}

    async def test() -> None:
        async with served("x") as server:
            for name in PUBLISHED[path] - required:
                assert await status_with(server, path, **{name: None}) == 200, name
            for name, value in THE_DEFAULT_IN[path].items():
                assert await status_with(server, path, **{name: value}) == 200, name
            if path != EMBEDDINGS:
                for name in EXTRAS:
                    assert await status_with(server, path, **{name: None}) == 200, name

    run(test())


@pytest.mark.parametrize("path", PUBLISHED)
def test_a_required_field_that_is_missing_or_null_is_named(path: str) -> None:
    async def test() -> None:
        async with served("x") as server:
            for name in {"model", "messages", "prompt", "input"} & PUBLISHED[path]:
                rest = {k: v for k, v in {"model": MODEL, **NEEDED[path]}.items() if k != name}
                response = await server.client.post(path, json=rest)
                assert response.status_code == 400
                assert error_of(response)["param"] == name
                response = await server.client.post(path, json={**rest, name: None})
                assert response.status_code == 400
                assert error_of(response)["param"] == name

    run(test())


@pytest.mark.parametrize("path", [*PUBLISHED, "/tokenize", "/detokenize"])
def test_an_unknown_field_is_refused_by_name(path: str) -> None:
    async def test() -> None:
        async with served("x") as server:
            for name in ("temprature", "logits_processors", "guided_json"):
                error = await server.refusal(path, **NEEDED[path], **{name: 1})
                assert error["param"] == name
                assert name in error["message"]
            # A field of the other endpoint is unknown here.
            wrong = {CHAT: "echo", TEXT: "messages", EMBEDDINGS: "temperature"}.get(path)
            if wrong is not None:
                error = await server.refusal(path, **NEEDED[path], **{wrong: True})
                assert error["param"] == wrong

    run(test())


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.5),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 1.5),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("n", 0),
        ("n", 2.5),
        ("n", "2"),
        ("max_tokens", -1),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("stop", 3),
        ("stop", [""]),
        ("stop", ["a", 3]),
        ("stop", ["\ud800"]),
        ("stop", ["a"] * 17),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", "a"),
        ("stop_token_ids", [True]),
        ("stop_token_ids", [10**6]),
        ("logit_bias", [1]),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": "1"}),
        ("logit_bias", {"5": 1, "05": 1}),
        ("logit_bias", {str(10**6): 1}),
        ("logit_bias", {str(i): 1 for i in range(1025)}),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [0] * 1025),
        ("bad_words", [""]),
        ("bad_words", {"a": 1}),
        ("bad_words_token_ids", [[]]),
        ("top_k", -2),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("min_tokens", -1),
        ("priority", 3),  # not under this scheduling policy
        ("priority", "high"),
        ("cache_salt", 5),
        ("stream", "yes"),
        ("stream_options", []),
        ("ignore_eos", 1),
        ("user", 5),
        ("store", "no"),
        ("metadata", [1]),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(path: str, name: str, value: Any) -> None:
    async def test() -> None:
        async with served() as server:
            error = await server.refusal(path, **{**NEEDED[path], name: value})
            assert (error["param"] or "").partition("[")[0] == name
            assert len(error["message"]) < 400

    run(test())


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_more_log_probabilities_than_the_server_gives_are_refused(path: str) -> None:
    async def test() -> None:
        async with served(settings={"max_logprobs": 3}) as server:
            fields: dict[str, Any] = {"logprobs": 4}
            if path == CHAT:
                fields = {"logprobs": True, "top_logprobs": 4}
            error = await server.refusal(path, **NEEDED[path], **fields)
            assert error["param"] == ("top_logprobs" if path == CHAT else "logprobs")

    run(test())


def test_limits_hold_before_a_request_is_split() -> None:
    async def test() -> None:
        limits = {"max_prompts_per_request": 3, "max_sequences_per_request": 4}
        async with served(settings=limits) as server:
            error = await server.refusal(TEXT, prompt=["a"] * 4)
            assert error["param"] == "prompt"
            error = await server.refusal(TEXT, prompt=[[65]] * 4)
            assert error["param"] == "prompt"
            error = await server.refusal(EMBEDDINGS, input=["a"] * 4)
            assert error["param"] == "input"
            error = await server.refusal(TEXT, prompt=["a"] * 3, n=2)
            assert error["param"] == "n"
            error = await server.refusal(TEXT, prompt=["a"] * 3, best_of=2)
            assert error["param"] == "best_of"
            error = await server.refusal(CHAT, messages=HELLO, n=5)
            assert error["param"] == "n"

    run(test())


@pytest.mark.parametrize(
    "prompt",
    [5, {}, [], [[]], [None], ["a", 5], [5, "a"], [[5], "a"], [True], [[1.5]], [5.0], [-1],
     [10**6], [[65], [10**30]], "", "lone \ud800", ["a", "\udfff"], [[65], []], False],
)  # fmt: skip
def test_a_malformed_prompt_is_refused_by_name(prompt: Any) -> None:
    async def test() -> None:
        async with served() as server:
            for path, name in ((TEXT, "prompt"), (EMBEDDINGS, "input")):
                error = await server.refusal(path, **{name: prompt})
                assert (error["param"] or "").partition("[")[0] == name, error

    run(test())


@pytest.mark.parametrize("path", PUBLISHED)
def test_the_document_says_what_becomes_of_each_field(path: str) -> None:
    document = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    known = {*HONOURED_IN[path], *REFUSED_IN[path], *(EXTRAS if path != EMBEDDINGS else ())}
    assert {name for name in known if f"`{name}`" not in document} == set()
