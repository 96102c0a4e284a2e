"""GET /v1/models, POST /tokenize, /detokenize and /v1/embeddings."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from pagemill.server.schemas.embeddings import EmbeddingAnswer
from pagemill.server.schemas.models import ModelCard, ModelList
from pagemill.server.schemas.tokenization import DetokenizeAnswer, TokenizeAnswer
from tests.core_helpers import embedding_alone
from tests.unit.server.http_helpers import IM_END, MODEL, TOKENIZER, error_of, run, served

HELLO = [{"role": "user", "content": "hello"}]


def test_the_one_model_is_listed_and_found_by_its_name_with_a_slash() -> None:
    async def test() -> None:
        async with served(max_model_len=64, settings={"served_model_name": "my/model"}) as server:
            response = await server.client.get("/v1/models")
            (card,) = ModelList.model_validate_json(response.text).data
            assert (card.id, card.root, card.max_model_len) == ("my/model", MODEL, 64)
            for path in ("/v1/models/my/model", "/v1/models/my%2Fmodel"):
                response = await server.client.get(path)
                assert ModelCard.model_validate_json(response.text) == card
            response = await server.client.get("/v1/models/other")
            assert response.status_code == 404
            assert error_of(response)["code"] == "model_not_found"
            error = await server.refusal("/v1/completions", 404, prompt="x")
            assert error["code"] == "model_not_found"  # by its own name it is not served

    run(test())


def test_tokenize_gives_the_tokens_that_a_completion_and_a_chat_would_have() -> None:
    async def test() -> None:
        async with served() as server:
            answer = server.body(
                await server.post("/tokenize", prompt="hé<|im_end|>", return_token_strs=True)
            )
            TokenizeAnswer.model_validate(answer)
            assert answer == {
                "count": 4,
                "max_model_len": 1024,
                "tokens": [104, 0xC3, 0xA9, IM_END],
                "token_strs": ["h", r"\xc3", r"\xa9", "<|im_end|>"],
            }
            answer = server.body(await server.post("/tokenize", messages=HELLO))
            assert answer["tokens"] == TOKENIZER.encode_chat(HELLO)
            assert answer["token_strs"] is None
            answer = server.body(
                await server.post("/tokenize", messages=HELLO, add_generation_prompt=False)
            )
            assert answer["tokens"] == TOKENIZER.encode_chat(HELLO, add_generation_prompt=False)
            assert server.body(await server.post("/tokenize", prompt=""))["tokens"] == []
            # The name of the model may be left out here.
            response = await server.client.post("/tokenize", json={"prompt": "he"})
            assert server.body(response)["count"] == 1

    run(test())


def test_detokenize_gives_the_text_back() -> None:
    async def test() -> None:
        async with served() as server:
            text = "hello né <|im_end|> 日本"
            ids = TOKENIZER.encode(text)
            answer = server.body(await server.post("/detokenize", tokens=ids))
            assert DetokenizeAnswer.model_validate(answer).prompt == text
            assert server.body(await server.post("/detokenize", tokens=[]))["prompt"] == ""

    run(test())


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "\ud800"}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": [65, 260]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [10**40]}, "tokens[0]"),
    ],
)
def test_malformed_requests_are_refused_by_name(
    path: str, fields: dict[str, Any], param: str
) -> None:
    async def test() -> None:
        async with served() as server:
            assert (await server.refusal(path, **fields))["param"] == param

    run(test())


def test_a_text_that_can_never_fit_is_refused_before_it_is_encoded() -> None:
    async def test() -> None:
        async with served(max_model_len=64) as server:
            text = "a" * 1000
            for path, fields in (
                ("/v1/completions", {"prompt": text}),
                ("/v1/completions", {"prompt": ["x", text]}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
                ("/v1/embeddings", {"input": text}),
                ("/tokenize", {"prompt": text}),
            ):
                error = await server.refusal(path, **fields)
                assert error["code"] == "context_length_exceeded"
                assert "at least" in error["message"]

    run(test())


def test_embeddings_are_those_of_the_engine_in_the_order_of_the_inputs() -> None:
    async def test() -> None:
        async with served() as server:
            fields: dict[str, Any] = {"input": ["hello", "there, you"]}
            answer = server.body(await server.post("/v1/embeddings", **fields))
            EmbeddingAnswer.model_validate(answer)
            assert answer["model"] == MODEL
            assert answer["object"] == "list"
            assert [item["index"] for item in answer["data"]] == [0, 1]
            ids = [TOKENIZER.encode(text) for text in fields["input"]]
            for item, token_ids in zip(answer["data"], ids, strict=True):
                assert item["embedding"] == embedding_alone(token_ids)
            num_tokens = sum(map(len, ids))
            assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
            by_ids = server.body(await server.post("/v1/embeddings", input=ids))
            assert by_ids["data"] == answer["data"]
            one = server.body(await server.post("/v1/embeddings", input=ids[1]))
            assert one["data"][0]["embedding"] == answer["data"][1]["embedding"]

    run(test())


def test_embeddings_in_base64_are_the_same_numbers() -> None:
    async def test() -> None:
        async with served() as server:
            plain = server.body(await server.post("/v1/embeddings", input="hello"))
            size = len(plain["data"][0]["embedding"])
            fields: dict[str, Any] = {"encoding_format": "base64", "dimensions": size}
            packed = server.body(await server.post("/v1/embeddings", input="hello", **fields))
            raw = base64.b64decode(packed["data"][0]["embedding"])
            assert np.frombuffer(raw, "<f4").tolist() == plain["data"][0]["embedding"]

    run(test())


def test_the_servers_own_description_has_every_field_and_the_one_form_of_errors() -> None:
    async def test() -> None:
        async with served() as server:
            document = (await server.client.get("/openapi.json")).json()
            for path, answers in (
                ("/v1/completions", {"application/json", "text/event-stream"}),
                ("/v1/chat/completions", {"application/json", "text/event-stream"}),
                ("/v1/embeddings", {"application/json"}),
                ("/tokenize", {"application/json"}),
            ):
                route = document["paths"][path]["post"]
                assert set(route["responses"]) == {"200", "4XX", "5XX"}
                assert set(route["responses"]["200"]["content"]) == answers
                error = route["responses"]["4XX"]["content"]["application/json"]["schema"]
                assert error["$ref"].endswith("/ErrorAnswer")
            chat = document["components"]["schemas"]["ChatRequest"]
            assert chat["additionalProperties"] is False
            assert chat["required"] == ["model", "messages"]
            assert chat["properties"]["tools"]["enum"] == [None, []]

    run(test())
