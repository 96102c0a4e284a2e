"""`LLM` on an engine that its user drives too."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from pagemill import LLM, BeamSearch, BeamSearchParams, InvalidParameterError, SamplingParams
from pagemill.beam_search import search_all
from pagemill.engine import LLMEngine
from pagemill.loading.tokenizer import FileTokenizer
from tests.beam_helpers import VOCAB_SIZE, beam_engine
from tests.core_helpers import alone, assert_idle, prompt_of, run_to_end, simulated_engine, tokens
from tests.unit.loading_text.tiny_vocabularies import CHATML, byte_level_metadata

MakeLLM = Callable[[LLMEngine], LLM]


@pytest.fixture
def llm_on(monkeypatch: pytest.MonkeyPatch) -> MakeLLM:
    """An `LLM` on an engine that exists."""

    def make(engine: LLMEngine) -> LLM:
        assembly = SimpleNamespace(
            engine=engine,
            model_config=None,
            pool=None,
            tokenizer=FileTokenizer.from_gguf(byte_level_metadata(template=CHATML)),
        )
        monkeypatch.setattr("pagemill.llm.build_engine", lambda config: assembly)
        return LLM()

    return make


@pytest.fixture
def llm(llm_on: MakeLLM) -> LLM:
    return llm_on(simulated_engine())


def test_requests_of_others_that_end_meanwhile_are_not_taken_for_ones_own(llm: LLM) -> None:
    llm.engine.add_request("aborted", prompt_of(3), SamplingParams(max_tokens=9))
    llm.engine.abort("aborted")
    llm.engine.add_request("short", prompt_of(3), SamplingParams(max_tokens=1))
    params = SamplingParams(max_tokens=6)
    outputs = llm.generate([prompt_of(5), prompt_of(7)], params, use_tqdm=False)
    assert [len(output.prompt_token_ids) for output in outputs] == [5, 7]
    assert all(len(output.outputs[0].token_ids) == 6 for output in outputs)
    assert_idle(llm.engine)


def generate(llm: LLM) -> None:
    llm.generate(prompt_of(5), SamplingParams(max_tokens=6), use_tqdm=False)


def pin_prefix(llm: LLM) -> None:
    llm.unpin_prefix(llm.pin_prefix(prompt_of(40)))


def beam_search(llm: LLM) -> None:
    llm.beam_search(prompt_of(5), beam_width=2, max_tokens=6, use_tqdm=False)


@pytest.mark.parametrize("call", [generate, pin_prefix, beam_search])
def test_what_requests_of_others_did_meanwhile_is_said_by_the_next_step(
    llm: LLM, call: Callable[[LLM], None]
) -> None:
    engine, params = llm.engine, SamplingParams(max_tokens=30, seed=1)
    engine.add_request("aborted", prompt_of(3), params)
    engine.abort("aborted")
    engine.add_request("short", prompt_of(3), SamplingParams(max_tokens=1, seed=1))
    engine.add_request("long", prompt_of(4, 2), params)
    engine.add_request("quiet", prompt_of(4, 3), params, stream=False)
    call(llm)
    assert engine.has_unfinished_requests()
    with pytest.raises(InvalidParameterError, match="'short'"):
        engine.add_request("short", prompt_of(3), params)  # its end has not been reported
    outputs = engine.step()
    assert [output.request_id for output in outputs] == ["aborted", "short", "long"]
    assert [output.finished for output in outputs] == [True, True, False]
    (expected,) = tokens(alone(prompt_of(4, 2), params))
    assert tokens(outputs[2]) == [expected[: engine.metrics.num_steps]]
    rest = run_to_end(engine)
    assert set(rest) == {"long", "quiet"}
    assert tokens(rest["long"]) == [expected]
    assert tokens(rest["quiet"]) == tokens(alone(prompt_of(4, 3), params))


def test_an_abort_that_is_not_to_be_reported_takes_back_what_was_not_yet(llm: LLM) -> None:
    for name, max_tokens in (("ended", 2), ("unfinished", 30)):
        llm.engine.add_request(name, prompt_of(3), SamplingParams(max_tokens=max_tokens))
    generate(llm)
    for name in ("ended", "unfinished"):
        llm.engine.abort(name, report=False)
    assert not llm.engine.has_unfinished_requests()
    assert llm.engine.step() == []


def test_a_call_that_fails_keeps_what_requests_of_others_did(llm: LLM) -> None:
    llm.engine.add_request("short", prompt_of(3), SamplingParams(max_tokens=1, seed=1))
    step, num_steps = llm.engine.step, 0

    def interrupted() -> object:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 3:
            raise KeyboardInterrupt
        return step()

    llm.engine.step = interrupted  # type: ignore[assignment, method-assign]
    with pytest.raises(KeyboardInterrupt):
        generate(llm)
    (output,) = llm.engine.step()
    assert (output.request_id, output.finished) == ("short", True)
    assert_idle(llm.engine)


def test_a_search_of_ones_own_goes_on_behind_a_call(llm_on: MakeLLM) -> None:
    prompt = [token % VOCAB_SIZE for token in prompt_of(20)]
    params = BeamSearchParams(beam_width=4, max_tokens=30)
    expected = search_all(beam_engine(), "a", [prompt], params)
    engine = beam_engine()
    llm, search = llm_on(engine), BeamSearch(engine, "mine", prompt, params)
    num_steps = 0
    while not search.finished:
        search.advance({output.request_id: output for output in engine.step()})
        num_steps += 1
        if num_steps in (1, 4, 9):
            greedy = SamplingParams(temperature=0, max_tokens=3 * num_steps)
            llm.generate([prompt[:7]], greedy, use_tqdm=False)
    assert [search.output] == expected
    assert engine.step() == []
    assert_idle(engine)


@pytest.mark.parametrize("messages", [["user"], [[]], [["user", "Hi"]], [5], [{"role": "user"}]])
def test_messages_that_are_none_are_refused_by_name(llm: LLM, messages: object) -> None:
    with pytest.raises(InvalidParameterError, match=r"^messages"):
        llm.chat(messages, use_tqdm=False)  # type: ignore[arg-type]


CONVERSATIONS = [[{"role": "user", "content": text}] for text in ("Hi", "Hello", "Good day")]


@pytest.mark.parametrize(
    ("policy", "option", "values", "order"),
    [
        ("priority", "priority", [3, 1, 2], [1, 2, 0]),
        ("priority", "priority", 3, [0, 1, 2]),
        ("deadline", "deadline_seconds", [30.0, None, 2], [2, 0, 1]),
        ("deadline", "deadline_seconds", 5, [0, 1, 2]),
    ],
)
def test_a_call_says_who_is_urgent(
    llm_on: MakeLLM, policy: str, option: str, values: object, order: list[int]
) -> None:
    llm = llm_on(simulated_engine(max_num_seqs=1, scheduling_policy=policy))
    params = SamplingParams(max_tokens=3)
    options = {option: values, "use_tqdm": False}
    prompts = [prompt_of(9, start) for start in range(3)]
    for outputs in (
        llm.generate(prompts, params, **options),  # type: ignore[arg-type]
        llm.chat(CONVERSATIONS, params, **options),  # type: ignore[arg-type]
    ):
        ends = [output.metrics.finished_seconds or 0.0 for output in outputs]
        assert sorted(range(3), key=ends.__getitem__) == order
    if isinstance(values, list):
        with pytest.raises(InvalidParameterError, match=f"^{option} .*each of the 2 prompts"):
            llm.generate(prompts[:2], params, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": 1}, "priority must be 0 under scheduling_policy='fcfs'"),
        ({"deadline_seconds": 1.0}, "deadline_seconds must be None under"),
        ({"priority": "high"}, "priority must be an integer, got 'high'"),
        ({"priority": [None]}, "priority must be an integer, got None"),
        ({"deadline_seconds": "soon"}, "deadline_seconds must be a number"),
        ({"deadline_seconds": [0]}, "deadline_seconds must be a number"),
    ],
)
def test_what_an_engine_would_refuse_of_a_request_a_call_refuses(
    llm: LLM, options: dict[str, object], message: str
) -> None:
    calls: list[Callable[..., object]] = [
        lambda **options: llm.generate([prompt_of(3)], **options),
        lambda **options: llm.chat(CONVERSATIONS[:1], **options),
        lambda **options: llm.beam_search([prompt_of(3)], 2, 4, **options),
    ]
    for call in calls:
        with pytest.raises(InvalidParameterError, match=message):
            call(**options, use_tqdm=False)
    assert not llm.engine.has_unfinished_requests()
