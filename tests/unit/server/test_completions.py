"""POST /v1/completions, as one JSON answer."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill import SamplingParams
from pagemill.server.schemas.completions import CompletionAnswer
from tests.core_helpers import alone
from tests.unit.server.http_helpers import IM_END, MODEL, TOKENIZER, run, served

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 5, "ignore_eos": True}


def texts(answer: dict[str, Any]) -> list[str]:
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["text"] for choice in answer["choices"]]


def text_alone(prompt: str, **params: Any) -> str:
    """What the engine says to a prompt when nothing else is going on."""
    output = alone(
        list(prompt.encode()),
        SamplingParams(**params),
        tokenizer=TOKENIZER,
    )
    return output.outputs[0].text


def test_an_answer_has_the_shape_of_the_api_and_the_text_of_the_engine() -> None:
    async def test() -> None:
        async with served() as server:
            answer = await server.complete("abc", **GREEDY)
            CompletionAnswer.model_validate(answer)
            assert answer["id"].startswith("cmpl-")
            assert answer["object"] == "text_completion"
            assert answer["model"] == MODEL
            (choice,) = answer["choices"]
            assert choice == {
                "index": 0,
                "text": text_alone("abc", **GREEDY),
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
            }
            assert answer["usage"] == {
                "prompt_tokens": 3,
                "completion_tokens": 5,
                "total_tokens": 8,
                "prompt_tokens_details": {"cached_tokens": 0},
            }

    run(test())


@pytest.mark.parametrize(
    "prompt",
    ["abc", [97, 98, 99], ["abc"], [[97, 98, 99]]],
    ids=["text", "ids", "texts", "lists of ids"],
)
def test_a_prompt_is_the_same_in_all_four_forms(prompt: Any) -> None:
    async def test() -> None:
        async with served() as server:
            assert texts(await server.complete(prompt, **GREEDY)) == [text_alone("abc", **GREEDY)]

    run(test())


def test_sample_j_of_prompt_i_has_the_index_i_n_plus_j() -> None:
    async def test() -> None:
        async with served() as server:
            fields: dict[str, Any] = {"max_tokens": 6, "seed": 4, "ignore_eos": True}
            answer = await server.complete(["abc", "xyz"], n=3, **fields)
            one = await server.complete("abc", n=3, **fields)
            other = await server.complete("xyz", n=3, **fields)
            assert texts(answer) == texts(one) + texts(other)
            assert len(set(texts(answer))) == 6
            assert answer["usage"]["prompt_tokens"] == 6
            assert answer["usage"]["completion_tokens"] == 36

    run(test())


def test_best_of_returns_the_likeliest_per_token_best_first() -> None:
    async def test() -> None:
        async with served() as server:
            fields: dict[str, Any] = {
                "max_tokens": 6,
                "seed": 4,
                "ignore_eos": True,
                "logprobs": 0,
            }
            every = await server.complete("abc", n=5, **fields)

            def mean(choice: dict[str, Any]) -> float:
                values = choice["logprobs"]["token_logprobs"]
                return float(sum(values) / len(values))

            best = sorted(every["choices"], key=mean, reverse=True)[:2]
            answer = await server.complete("abc", n=2, best_of=5, **fields)
            assert texts(answer) == [choice["text"] for choice in best]
            assert answer["usage"]["completion_tokens"] == 30  # those not returned were made, too

    run(test())


def test_the_best_is_found_per_token_not_in_sum() -> None:
    """A sample that ends early has a larger sum of log-probabilities merely for being short."""
    from pagemill.outputs import CompletionOutput
    from pagemill.server.completion_writer import best_samples

    def sample(index: int, length: int, logprob: float) -> CompletionOutput:
        return CompletionOutput(index, "", [0] * length, None, logprob, "stop", None)

    short, long, empty = sample(0, 1, -2.0), sample(1, 10, -5.0), sample(2, 0, 0.0)
    assert best_samples([short, long], 1) == [long]
    assert best_samples([short, long, empty], 3) == [short, long, empty]
    assert best_samples([short, long, empty], 2) == [empty, long]


def test_sixteen_tokens_unless_more_are_asked_for_and_fewer_at_the_end_of_the_context() -> None:
    async def test() -> None:
        async with served(max_model_len=64) as server:
            answer = await server.complete("abc", ignore_eos=True)
            assert answer["usage"]["completion_tokens"] == 16
            answer = await server.complete("a" * 60, ignore_eos=True)
            assert answer["usage"]["completion_tokens"] == 4

    run(test())


def test_a_seed_may_be_negative_and_decides_the_answer() -> None:
    async def test() -> None:
        async with served() as server:
            fields: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True}
            first = texts(await server.complete("abc", seed=-7, **fields))
            assert texts(await server.complete("abc", seed=-7, **fields)) == first
            assert texts(await server.complete("abc", seed=2**64 - 7, **fields)) == first
            assert texts(await server.complete("abc", seed=7, **fields)) != first

    run(test())


def test_what_ends_an_answer_is_said() -> None:
    async def test() -> None:
        async with served("hello, world") as server:
            (ended,) = (await server.complete("x", max_tokens=50))["choices"]
            assert (ended["text"], ended["finish_reason"]) == ("hello, world", "stop")
            (stopped,) = (await server.complete("x", max_tokens=50, stop=[", w", "zzz"]))["choices"]
            assert (stopped["text"], stopped["stop_reason"]) == ("hello", ", w")
            (kept,) = (
                await server.complete("x", max_tokens=50, stop=",", include_stop_str_in_output=True)
            )["choices"]
            assert kept["text"] == "hello,"
            (token,) = (await server.complete("x", max_tokens=50, stop_token_ids=[ord("w")]))[
                "choices"
            ]
            assert (token["text"], token["stop_reason"]) == ("hello, ", ord("w"))
            (cut,) = (await server.complete("x", max_tokens=4))["choices"]
            assert (cut["text"], cut["finish_reason"]) == ("hell", "length")

    run(test())


def test_the_echoed_prompt_comes_first() -> None:
    async def test() -> None:
        async with served("yes") as server:
            answer = await server.complete(["a<|im_end|>b", "zwei"], echo=True, max_tokens=9)
            assert texts(answer) == ["a<|im_end|>byes", "zweiyes"]
            ids = [97, IM_END, 98]
            assert texts(await server.complete(ids, echo=True, max_tokens=9)) == ["abyes"]
            shown = await server.complete(ids, echo=True, max_tokens=9, skip_special_tokens=False)
            assert texts(shown)[0].startswith("a<|im_end|>byes")

    run(test())


def test_a_prompt_is_scored_without_generating_anything() -> None:
    async def test() -> None:
        async with served("yes") as server:
            answer = await server.complete("größe", echo=True, max_tokens=0, logprobs=2)
            CompletionAnswer.model_validate(answer)
            (choice,) = answer["choices"]
            assert choice["text"] == "größe"
            assert choice["finish_reason"] == "length"
            logprobs = choice["logprobs"]
            assert logprobs["tokens"] == ["g", "r", r"bytes:\xc3", r"bytes:\xb6", r"bytes:\xc3",
                                          r"bytes:\x9f", "e"]  # fmt: skip
            assert logprobs["text_offset"] == [0, 1, 2, 2, 3, 3, 4]
            assert logprobs["token_logprobs"][0] is None
            assert logprobs["top_logprobs"][0] is None
            assert all(value < 0 for value in logprobs["token_logprobs"][1:])
            assert answer["usage"]["completion_tokens"] == 0

            several = await server.complete("ab", echo=True, max_tokens=0, n=3)
            assert texts(several) == ["ab"] * 3
            assert [choice["logprobs"] for choice in several["choices"]] == [None] * 3

    run(test())


def test_log_probabilities_of_prompt_and_answer_are_side_by_side() -> None:
    async def test() -> None:
        async with served("né!") as server:
            answer = await server.complete("ab", echo=True, max_tokens=9, logprobs=2)
            CompletionAnswer.model_validate(answer)
            (choice,) = answer["choices"]
            logprobs = choice["logprobs"]
            assert choice["text"] == "abné!"
            assert logprobs["tokens"] == ["a", "b", "n", r"bytes:\xc3", r"bytes:\xa9", "!",
                                          "<|im_end|>"]  # fmt: skip
            assert logprobs["text_offset"] == [0, 1, 2, 3, 3, 4, 5]
            assert logprobs["token_logprobs"][2:] == [0, -1 / 8, -2 / 8, -3 / 8, -4 / 8]
            assert logprobs["top_logprobs"][3] == {r"bytes:\xc3": -1 / 8, "#": -20.0}

            without = await server.complete("ab", max_tokens=9, logprobs=0)
            logprobs = without["choices"][0]["logprobs"]
            assert logprobs["text_offset"] == [0, 1, 1, 2, 3]
            assert logprobs["top_logprobs"][1] == {r"bytes:\xc3": -1 / 8}

    run(test())


def test_a_prompt_that_was_computed_before_is_counted_as_cached() -> None:
    async def test() -> None:
        async with served() as server:
            prompt = "a long enough prompt for some whole blocks of sixteen tokens"
            await server.complete(prompt, **GREEDY)
            usage = (await server.complete(prompt, **GREEDY))["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] >= 48

    run(test())


def test_a_cache_salt_keeps_prefixes_apart() -> None:
    async def test() -> None:
        async with served() as server:
            prompt = "a long enough prompt for some whole blocks of sixteen tokens"

            async def cached_tokens(salt: str | None) -> int:
                answer = await server.complete(prompt, cache_salt=salt, **GREEDY)
                return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

            assert await cached_tokens(None) == 0
            assert await cached_tokens("mine") == 0
            assert await cached_tokens("mine") > 0
            assert await cached_tokens("yours") == 0

    run(test())


def test_without_a_prompt_a_text_begins_where_the_model_begins_one() -> None:
    async def test() -> None:
        async with served() as server:
            error = await server.refusal("/v1/completions", prompt=None)
            assert error["param"] == "prompt"

    run(test())


def test_constraints_reach_the_sampler() -> None:
    async def test() -> None:
        async with served() as server:
            answer = await server.complete(
                "abc", max_tokens=8, allowed_token_ids=[65, 66], ignore_eos=True
            )
            assert set(texts(answer)[0]) <= {"A", "B"}
            answer = await server.complete(
                "abc", max_tokens=40, min_tokens=30, allowed_token_ids=[65, IM_END]
            )
            assert answer["usage"]["completion_tokens"] >= 30

    run(test())
