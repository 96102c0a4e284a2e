"""The ``openai`` client, a real ``pagemill serve`` and a real model: what is served is exactly what
`LLM` computes, text and log-probabilities, streaming or not."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from pagemill import LLM, RequestOutput, SamplingParams
from pagemill.kernels import native
from tests.server.processes import REAL, ServerProcess

pytestmark = pytest.mark.skipif(
    native.load() is None, reason="PyTorch's sums differ in their last bits"
)

MODEL = "org/tiny"
OPTIONS = ("--num-kv-blocks", "64", "--num-threads", "1", "--check-invariants")
IDS = [72, 101, 108, 108, 111]
TALK: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Grüße?"}]},
]
PROMPTS: list[Any] = ["Hello", ["Hello", "größer 字"], IDS, [IDS, IDS[:2], [0]]]


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[str]:
    arguments = (str(tiny_model), *OPTIONS, "--served-model-name", MODEL)
    with ServerProcess(*arguments, module=REAL) as process, process.ready() as client:
        yield str(client.base_url).rstrip("/")
        assert "Traceback" not in process.said


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[OpenAI]:
    with OpenAI(api_key="none", base_url=f"{server}/v1", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_model), num_kv_blocks=64, num_threads=1) as llm:
        yield llm


@pytest.fixture(autouse=True)
def _everything_is_given_back(server: str) -> Iterator[None]:
    yield
    wait_until_idle(server)


def metric(server: str, name: str, **labels: str) -> float:
    """A figure of ``pagemill:`` at /metrics."""
    shown = httpx.get(f"{server}/metrics").text
    wanted = "".join(f'(?=[^}}]*{label}="{value}")' for label, value in labels.items())
    (value,) = re.findall(rf"^pagemill:{name}\{{{wanted}[^}}]*\}} (\S+)$", shown, re.M)
    return float(value)


def wait_until_idle(server: str) -> None:
    """Until no sequence runs or waits, no request is open, and no block is held."""
    end = time.monotonic() + 20
    while True:
        held = [
            metric(server, "num_requests_running"),
            metric(server, "num_requests_waiting"),
            metric(server, "num_requests_in_flight"),
            metric(server, "kv_blocks", state="referenced"),
        ]
        if not any(held):
            return
        assert time.monotonic() < end, held
        time.sleep(0.02)


def listed(prompt: Any) -> list[Any]:
    return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt


def direct(llm: LLM, prompt: Any, **params: Any) -> list[RequestOutput]:
    return llm.generate(listed(prompt), SamplingParams(**params), use_tqdm=False)


def chosen(output: RequestOutput, index: int = 0) -> list[float]:
    """The log-probabilities of a sample's tokens."""
    sample = output.outputs[index]
    assert sample.logprobs is not None
    return [
        known[token_id].logprob
        for token_id, known in zip(sample.token_ids, sample.logprobs, strict=True)
    ]


def merged(chunks: Sequence[Any]) -> list[dict[str, Any]]:
    """What the chunks of a completion's stream say of each choice."""
    found: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            whole = found.setdefault(choice.index, {"text": "", "logprobs": None})
            assert whole.get("finish_reason") is None, "nothing comes after the end"
            whole["text"] += choice.text
            whole["finish_reason"] = choice.finish_reason
            if choice.logprobs is not None:
                lists = choice.logprobs.model_dump()
                before = whole["logprobs"] or {name: [] for name in lists}
                whole["logprobs"] = {name: before[name] + lists[name] for name in lists}
    return [found[index] for index in sorted(found)]


def summary(choice: Any) -> dict[str, Any]:
    logprobs = None if choice.logprobs is None else choice.logprobs.model_dump()
    return {
        "text": choice.text,
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
    }


def complete(client: OpenAI, *, streams: bool = True, **fields: Any) -> Any:
    """A completion; by default also as a stream, which must say the same."""
    extra = fields.pop("extra_body", {})
    whole = client.completions.create(model=MODEL, extra_body=extra, **fields)
    if streams:
        options: Any = {"include_usage": True}
        chunks = list(
            client.completions.create(
                model=MODEL, stream=True, stream_options=options, extra_body=extra, **fields
            )
        )
        assert len({chunk.id for chunk in chunks}) == 1
        *rest, last = chunks
        assert last.choices == []
        assert all(chunk.usage is None for chunk in rest)
        assert last.usage is not None
        assert whole.usage is not None
        assert last.usage.completion_tokens == whole.usage.completion_tokens
        assert last.usage.prompt_tokens == whole.usage.prompt_tokens
        assert merged(rest) == [summary(choice) for choice in whole.choices]
    return whole


def test_the_model_is_listed_and_found_by_a_name_with_a_slash(
    client: OpenAI, tiny_model: Path
) -> None:
    (listed_model,) = client.models.list()
    model = client.models.retrieve(MODEL)
    assert listed_model == model
    assert model.id == MODEL
    extra = model.model_extra
    assert extra is not None
    assert extra["max_model_len"] == 128
    assert extra["root"] == str(tiny_model)


@pytest.mark.parametrize("prompt", PROMPTS, ids=["text", "texts", "ids", "lists of ids"])
def test_every_form_of_a_prompt_is_continued_as_offline(
    client: OpenAI, llm: LLM, prompt: Any
) -> None:
    answer = complete(client, prompt=prompt, max_tokens=12, temperature=0, logprobs=3)
    expected = direct(llm, prompt, max_tokens=12, temperature=0, logprobs=3)
    assert [choice.index for choice in answer.choices] == list(range(len(expected)))
    for choice, output in zip(answer.choices, expected, strict=True):
        (sample,) = output.outputs
        assert choice.text == sample.text
        assert choice.finish_reason == sample.finish_reason
        assert choice.logprobs.token_logprobs == chosen(output)
        for top, known in zip(choice.logprobs.top_logprobs, sample.logprobs or (), strict=True):
            assert sorted(top.values()) == sorted(known_one.logprob for known_one in known.values())
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(len(o.prompt_token_ids) for o in expected)
    generated = sum(len(output.outputs[0].token_ids) for output in expected)
    assert answer.usage.completion_tokens == generated
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + generated


def test_a_prompt_that_fills_the_context_leaves_room_for_what_is_left(client: OpenAI) -> None:
    answer = complete(client, prompt=[65] * 120, temperature=0, extra_body={"ignore_eos": True})
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 7},
        {"seed": -7, "n": 3, "temperature": 0.8, "top_p": 0.9},
        {"seed": 1, "n": 2, "logit_bias": {"97": 5, "98": 4.5}},
        {"seed": 2, "frequency_penalty": 1.5, "presence_penalty": -0.5},
        {"temperature": 0, "logit_bias": {"120": 100}, "max_tokens": 4},
    ],
    ids=lambda fields: " ".join(fields),
)
def test_every_way_to_sample_gives_what_it_gives_offline(
    client: OpenAI, llm: LLM, fields: dict[str, Any]
) -> None:
    fields = {"max_tokens": 10} | fields
    answer = complete(client, prompt="Hello", logprobs=0, **fields)
    changed = dict(fields)
    if "seed" in fields:
        changed["seed"] = fields["seed"] % 2**64
    if "logit_bias" in fields:
        changed["logit_bias"] = {int(i): bias for i, bias in fields["logit_bias"].items()}
    (output,) = direct(llm, "Hello", logprobs=0, **changed)
    assert [choice.text for choice in answer.choices] == [s.text for s in output.outputs]
    for index, choice in enumerate(answer.choices):
        assert choice.logprobs.token_logprobs == chosen(output, index)
    if len(answer.choices) > 1:
        assert len({choice.text for choice in answer.choices}) > 1, "samples differ"


def test_the_extras_of_extra_body_are_honoured(client: OpenAI, llm: LLM) -> None:
    extras: dict[str, Any] = {
        "top_k": 20,
        "min_p": 0.01,
        "repetition_penalty": 1.3,
        "min_tokens": 6,
        "stop_token_ids": [101],
        "ignore_eos": True,
        "bad_words_token_ids": [[111]],
    }
    fields: dict[str, Any] = {"seed": 3, "max_tokens": 20}
    answer = complete(
        client, prompt="Hello", logprobs=0, **fields, extra_body=extras | {"cache_salt": "mine"}
    )
    (output,) = direct(llm, "Hello", logprobs=0, **fields, **extras)
    assert answer.choices[0].text == output.outputs[0].text
    assert answer.choices[0].logprobs.token_logprobs == chosen(output)


def test_best_of_returns_the_likeliest_of_the_same_samples(client: OpenAI, llm: LLM) -> None:
    fields: dict[str, Any] = {"seed": 5, "max_tokens": 8}
    answer = complete(client, prompt="Hello", n=2, best_of=6, logprobs=0, streams=False, **fields)
    (output,) = direct(llm, "Hello", n=6, logprobs=0, **fields)
    ranked = sorted(
        output.outputs, key=lambda s: s.cumulative_logprob / len(s.token_ids), reverse=True
    )
    assert [choice.text for choice in answer.choices] == [sample.text for sample in ranked[:2]]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == sum(len(s.token_ids) for s in output.outputs)
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="a", n=1, best_of=2, stream=True)
    assert refused.value.param == "best_of"


@pytest.mark.parametrize("max_tokens", [0, 5])
def test_echo_scores_the_prompt_as_offline(client: OpenAI, llm: LLM, max_tokens: int) -> None:
    texts = ["Hello, world", "größer 字"]
    fields: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0}
    answer = complete(client, prompt=texts, echo=True, logprobs=2, **fields)
    expected = direct(llm, texts, logprobs=2, prompt_logprobs=2, **fields)
    for text, choice, output in zip(texts, answer.choices, expected, strict=True):
        assert choice.text == text + output.outputs[0].text
        assert choice.finish_reason == "length"
        assert output.prompt_logprobs is not None
        scored = [
            None if known is None else known[token_id].logprob
            for token_id, known in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
        ]
        assert choice.logprobs.token_logprobs == scored + chosen(output)
        assert choice.logprobs.token_logprobs[0] is None
        assert choice.logprobs.text_offset[0] == 0
        assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs)
    if max_tokens == 0:
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 0


def test_a_stop_string_ends_the_text_before_it(client: OpenAI, llm: LLM) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 30}
    (free,) = direct(llm, "Hello", ignore_eos=True, **fields)
    text = free.outputs[0].text
    stop = text[7:9]
    answer = complete(
        client, prompt="Hello", stop=["never", stop], extra_body={"ignore_eos": True}, **fields
    )
    (choice,) = answer.choices
    assert choice.text == text[: text.index(stop)]
    assert choice.finish_reason == "stop"
    assert choice.model_extra is not None
    assert choice.model_extra["stop_reason"] == stop


def chat(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=TALK, **fields)


def test_a_chat_is_answered_as_offline_with_the_exact_bytes_of_each_token(
    client: OpenAI, llm: LLM
) -> None:
    fields: dict[str, Any] = {"seed": 11, "n": 2}
    answer = chat(client, logprobs=True, top_logprobs=2, max_completion_tokens=14, **fields)
    params = SamplingParams(logprobs=2, max_tokens=14, **fields)
    (output,) = llm.chat([dict(message) for message in TALK], params, use_tqdm=False)
    assert len(answer.choices) == 2
    tokenizer: Any = llm.engine.tokenizer
    for choice, sample in zip(answer.choices, output.outputs, strict=True):
        assert choice.message.role == "assistant"
        assert choice.message.content == sample.text
        assert choice.finish_reason == sample.finish_reason
        shown = choice.logprobs.content
        assert [entry.logprob for entry in shown] == chosen(output, sample.index)
        raw = [bytes(entry.bytes) for entry in shown]
        assert raw == [tokenizer.token_bytes(token_id) for token_id in sample.token_ids]
        plain = [
            piece
            for piece, token_id in zip(raw, sample.token_ids, strict=True)
            if not tokenizer.is_special(token_id)
        ]
        assert b"".join(plain).decode("utf-8", "replace") == sample.text
        assert all(len(entry.top_logprobs) == 2 for entry in shown)
    assert answer.usage.prompt_tokens == len(output.prompt_token_ids)
    assert answer.usage.completion_tokens == sum(len(s.token_ids) for s in output.outputs)


def test_a_streamed_chat_says_the_role_first_and_the_same_in_the_end(client: OpenAI) -> None:
    fields: dict[str, Any] = {
        "seed": 11, "n": 3, "logprobs": True, "top_logprobs": 1, "max_completion_tokens": 20,
    }  # fmt: skip
    whole = chat(client, **fields)
    *chunks, last = chat(client, stream=True, stream_options={"include_usage": True}, **fields)
    assert len({chunk.id for chunk in (*chunks, last)}) == 1
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    for choice in whole.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert parts[0].delta.role == "assistant"
        assert all(part.delta.role is None for part in parts[1:])
        assert all(part.finish_reason is None for part in parts[:-1])
        assert parts[-1].finish_reason == choice.finish_reason
        assert "".join(part.delta.content or "" for part in parts) == choice.message.content
        entries = [entry for part in parts if part.logprobs for entry in part.logprobs.content]
        assert entries == choice.logprobs.content
    # The client's own helper puts the chunks together too; it takes only answers that ended.
    params: dict[str, Any] = {"seed": 11, "logit_bias": {"258": 4}}
    whole = chat(client, **params)
    assert whole.choices[0].finish_reason == "stop"
    with client.chat.completions.stream(model=MODEL, messages=TALK, **params) as events:
        final = events.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content


def test_an_answer_is_clamped_to_the_context_and_a_message_can_be_continued(
    client: OpenAI, llm: LLM
) -> None:
    extras: dict[str, Any] = {"ignore_eos": True}
    answer = chat(client, seed=1, max_completion_tokens=100_000, extra_body=extras)
    assert answer.usage.total_tokens == 128
    assert answer.choices[0].finish_reason == "length"
    begun: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "I would"},
    ]
    continued = client.chat.completions.create(
        model=MODEL,
        messages=begun,
        temperature=0,
        max_tokens=9,
        extra_body={"continue_final_message": True, "add_generation_prompt": False},
    )
    (output,) = llm.chat(
        [dict(message) for message in begun],
        SamplingParams(temperature=0, max_tokens=9),
        use_tqdm=False,
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert continued.choices[0].message.content == output.outputs[0].text


def test_embeddings_are_those_of_the_engine_in_every_form(client: OpenAI, llm: LLM) -> None:
    for given in PROMPTS:
        expected = [output.embedding for output in llm.embed(listed(given), use_tqdm=False)]
        floats = client.embeddings.create(model=MODEL, input=given, encoding_format="float")
        packed = client.embeddings.create(model=MODEL, input=given)  # the client asks for base64
        assert [item.index for item in floats.data] == list(range(len(expected)))
        for vector, one, other in zip(expected, floats.data, packed.data, strict=True):
            assert np.array_equal(np.asarray(one.embedding, np.float32), vector)
            assert np.array_equal(np.asarray(other.embedding, np.float32), vector)
    raw = client.embeddings.with_raw_response.create(
        model=MODEL, input="Hello", encoding_format="base64"
    )
    text = json.loads(raw.text)["data"][0]["embedding"]
    (hello,) = llm.embed("Hello", use_tqdm=False)
    assert base64.b64decode(text) == np.asarray(hello.embedding, "<f4").tobytes()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"logprobs": 99}, "logprobs"),
        ({"suffix": "end"}, "suffix"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logit_bias": {"many": 1}}, "logit_bias"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [0, 10**6]}, "prompt[1]"),
        ({"prompt": [1] * 500}, "prompt"),
        ({"extra_body": {"tempereture": 1}}, "tempereture"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_bad_request_names_the_field(client: OpenAI, fields: dict[str, Any], param: str) -> None:
    create: Any = client.completions.create
    for streams in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            create(**{"model": MODEL, "prompt": "Hello", "stream": streams} | fields)
        assert refused.value.param == param
        assert refused.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"top_logprobs": 2},
        {"extra_body": {"functions": [{"name": "f"}]}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_chat_refuses_what_is_not_there_yet_by_name(
    client: OpenAI, fields: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, **fields)
    named = fields.get("extra_body", fields)
    assert refused.value.param in named


def test_what_changes_nothing_is_accepted(client: OpenAI) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 5}
    plain = chat(client, **fields)
    answer = chat(
        client, user="me", metadata={"a": "b"}, store=True, service_tier="auto", tools=[], **fields
    )
    assert answer.choices == plain.choices


def test_another_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt", prompt="Hello")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt")


def test_keys_and_their_limits_are_the_clients_exceptions(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    keys = {"alice": "sk-0123456789abcdef", "bob": "sk-fedcba9876543210"}
    file.write_text(
        f'[[keys]]\nname = "alice"\nkey = "{keys["alice"]}"\nrequests_per_minute = 2\n'
        f'[[keys]]\nname = "bob"\nkey = "{keys["bob"]}"\ntokens_per_minute = 60\n'
    )
    file.chmod(0o600)
    arguments = (*OPTIONS, "--served-model-name", MODEL, "--api-key-file", str(file))
    with (
        ServerProcess(str(tiny_model), *arguments, module=REAL) as process,
        process.ready() as http,
    ):
        base = f"{http.base_url}/v1"

        def client_of(key: str) -> OpenAI:
            return OpenAI(api_key=key, base_url=base, max_retries=0)

        with client_of("sk-wrong-wrong-wrong") as nobody:
            with pytest.raises(openai.AuthenticationError) as unknown:
                nobody.models.list()
            assert unknown.value.type == "authentication_error"
        with client_of(keys["alice"]) as alice:
            for _ in range(2):
                alice.completions.create(model=MODEL, prompt="a", max_tokens=1)
            with pytest.raises(openai.RateLimitError) as limited:
                alice.completions.create(model=MODEL, prompt="a", max_tokens=1)
            assert 1 <= int(limited.value.response.headers["retry-after"]) <= 60
        with client_of(keys["bob"]) as bob:
            bob.completions.create(
                model=MODEL, prompt="a", max_tokens=50, extra_body={"ignore_eos": True}
            )
            with pytest.raises(openai.RateLimitError):
                bob.completions.create(model=MODEL, prompt="a", max_tokens=50)


@pytest.mark.parametrize("kind", ["completions", "chat"])
def test_a_client_that_leaves_a_stream_frees_everything(smollm2_path: Path, kind: str) -> None:
    arguments = (str(smollm2_path), "--served-model-name", MODEL, "--num-kv-blocks", "512")
    with ServerProcess(*arguments, module=REAL) as process, process.ready() as http:
        server = str(http.base_url).rstrip("/")
        with OpenAI(api_key="none", base_url=f"{server}/v1", max_retries=0) as client:
            fields: dict[str, Any] = {"model": MODEL, "n": 4, "stream": True, "max_tokens": 1800}
            fields |= {"extra_body": {"ignore_eos": True}}
            create: Any = client.completions.create
            if kind == "chat":
                create = client.chat.completions.create
                fields["messages"] = TALK
            else:
                fields["prompt"] = "Once upon a time"
            stream = create(**fields)
            for _, chunk in zip(range(8), stream, strict=False):
                assert chunk.choices[0].finish_reason is None
            assert metric(server, "num_requests_running") == 4
            assert metric(server, "kv_blocks", state="referenced") > 0
            stream.close()
            wait_until_idle(server)
            generated = metric(server, "generation_tokens_total")
            assert generated < 4 * 1800
            assert metric(server, "request_success_total", finished_reason="abort") == 1
            states = ("free", "cached", "referenced", "swapped")
            held = {state: metric(server, "kv_blocks", state=state) for state in states}
            assert held["free"] + held["cached"] == 512
            assert held["referenced"] == held["swapped"] == 0


def test_a_client_that_waits_no_longer_frees_everything(smollm2_path: Path) -> None:
    arguments = (str(smollm2_path), "--served-model-name", MODEL, "--num-kv-blocks", "512")
    with ServerProcess(*arguments, module=REAL) as process, process.ready() as http:
        base = f"{http.base_url}/v1"
        client = OpenAI(api_key="none", base_url=base, max_retries=0, timeout=1.5)
        with client, pytest.raises(openai.APITimeoutError):
            client.completions.create(
                model=MODEL,
                prompt=["Once upon a time"] * 3,
                max_tokens=1800,
                extra_body={"ignore_eos": True},
            )
        server = str(http.base_url).rstrip("/")
        wait_until_idle(server)
        assert metric(server, "request_success_total", finished_reason="abort") == 3
        free, cached = (metric(server, "kv_blocks", state=state) for state in ("free", "cached"))
        assert free + cached == 512
