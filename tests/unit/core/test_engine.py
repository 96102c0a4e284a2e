from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from pagemill import (
    InvalidParameterError,
    RequestError,
    RequestTooLargeError,
    SamplingParams,
)
from tests.core_helpers import (
    ByteTokenizer,
    alone,
    assert_idle,
    generate_all,
    prompt_of,
    run_to_end,
    simulated_engine,
    tokens,
)

CORE = (
    "pagemill pagemill.engine pagemill.config pagemill.model_config pagemill.kvcache.sizing "
    "pagemill.scheduler pagemill.runner.simulated pagemill.text.detokenizer pagemill.metrics"
)


def test_the_core_runs_with_torch_blocked() -> None:
    program = f"""
import sys
sys.modules["torch"] = None
import {", ".join(CORE.split())}
from tests.core_helpers import *
engine = simulated_engine()
engine.add_request("r", [1, 2, 3], SamplingParams(max_tokens=4))
assert len(run_to_end(engine)["r"].outputs[0].token_ids) == 4
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_an_abort_frees_everything_at_once_and_is_reported_by_the_next_step() -> None:
    engine = simulated_engine()
    engine.add_request("gone", prompt_of(40), SamplingParams(max_tokens=50, n=2))
    engine.add_request("stays", prompt_of(40, 2), SamplingParams(max_tokens=5, seed=1))
    for _ in range(3):
        engine.step()
    held = engine.kv.num_blocks - engine.kv.num_free_blocks
    assert engine.abort("gone")
    assert engine.kv.num_blocks - engine.kv.num_free_blocks < held
    engine.audit()
    outputs = {output.request_id: output for output in engine.step()}
    assert outputs["gone"].finished
    assert [c.finish_reason for c in outputs["gone"].outputs] == ["abort", "abort"]
    assert len(outputs["gone"].outputs[0].token_ids) == 3
    assert not engine.abort("gone")
    expected = alone(prompt_of(40, 2), SamplingParams(max_tokens=5, seed=1))
    assert tokens(run_to_end(engine)["stays"]) == tokens(expected)


def test_aborting_a_waiting_request_before_any_step_is_reported() -> None:
    engine = simulated_engine()
    engine.add_request("r", [1], SamplingParams(max_tokens=5))
    engine.abort("r")
    assert engine.has_unfinished_requests()
    (output,) = engine.step()
    assert output.outputs[0].finish_reason == "abort"
    assert not engine.has_unfinished_requests()
    assert_idle(engine)


def test_a_request_id_is_unique_while_in_use_and_free_afterwards() -> None:
    engine = simulated_engine()
    params = SamplingParams(max_tokens=1)
    engine.add_request("r", [1], params)
    with pytest.raises(InvalidParameterError, match="'r'"):
        engine.add_request("r", [1], params)
    run_to_end(engine)
    engine.add_request("r", [1], params)
    run_to_end(engine)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "at least one token"),
        ("", "at least one token"),
        ([1, 258], r"prompt\[1\] must be a token id in \[0, 258\)"),
        ([-1], r"prompt\[0\]"),
        ([1.0], r"prompt\[0\]"),
        ([True], r"prompt\[0\]"),
        (b"bytes", "must be a text or a list of token ids"),
        (None, "must be a text or a list of token ids"),
        ({1: 2}, "must be a text or a list of token ids"),
    ],
)
def test_a_bad_prompt_is_refused_and_the_engine_lives_on(prompt: object, message: str) -> None:
    engine = simulated_engine(tokenizer=ByteTokenizer())
    with pytest.raises(RequestError, match=message):
        engine.add_request("bad", prompt, SamplingParams(max_tokens=1))  # type: ignore[arg-type]
    engine.add_request("good", "x", SamplingParams(max_tokens=1))
    assert set(run_to_end(engine)) == {"good"}


def test_a_token_that_the_model_has_no_vector_for_is_refused_in_a_text_too() -> None:
    class WiderTokenizer(ByteTokenizer):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [1, 258]

    engine = simulated_engine(tokenizer=WiderTokenizer())
    with pytest.raises(RequestError, match=r"token 258 .* vocabulary has 258 tokens"):
        engine.add_request("r", "x", SamplingParams(max_tokens=1))
    assert_idle(engine)


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, "greedy"])
def test_what_are_no_sampling_params_is_refused(params: object) -> None:
    with pytest.raises(InvalidParameterError, match="sampling_params must be a SamplingParams"):
        simulated_engine().add_request("r", [1], params)  # type: ignore[arg-type]


def test_samples_of_one_request_share_the_automaton_of_its_stop_strings() -> None:
    engine = simulated_engine(tokenizer=ByteTokenizer())
    engine.add_request("r", "x", SamplingParams(n=3, stop=["never seen"], max_tokens=1))
    detokenizers = [seq.detokenizer for seq in engine._requests["r"].sequences]
    assert len({id(one and one._matcher) for one in detokenizers}) == 1


def test_later_steps_do_not_change_an_output() -> None:
    engine = simulated_engine()
    engine.add_request("r", [1], SamplingParams(max_tokens=2))
    (first,) = engine.step()
    before = copy.deepcopy(first)
    (last,) = engine.step()
    assert first == before
    assert last.metrics.finished_seconds is not None


def test_token_ids_may_be_numpy_integers() -> None:
    engine = simulated_engine()
    engine.add_request("r", list(np.arange(3)), SamplingParams(max_tokens=1))
    assert run_to_end(engine)["r"].prompt_token_ids == [0, 1, 2]


def test_the_context_limit_is_named_with_all_numbers() -> None:
    engine = simulated_engine(max_model_len=50)
    with pytest.raises(RequestTooLargeError, match=r"40 tokens and max_tokens=11.*=50"):
        engine.add_request("r", prompt_of(40), SamplingParams(max_tokens=11))
    with pytest.raises(RequestTooLargeError, match=r"min_tokens=11 exceeds the 10"):
        engine.add_request("r", prompt_of(40), SamplingParams(min_tokens=11))
    engine.add_request("r", prompt_of(40), SamplingParams(max_tokens=10, ignore_eos=True))
    assert len(run_to_end(engine)["r"].outputs[0].token_ids) == 10


def test_ids_outside_the_vocabulary_are_refused_by_field() -> None:
    engine = simulated_engine(vocab_size=100)
    with pytest.raises(InvalidParameterError, match=r"logit_bias\[100\]"):
        engine.add_request("r", [1], SamplingParams(logit_bias={100: 1.0}))


def test_text_features_without_a_tokenizer_are_refused() -> None:
    engine = simulated_engine()
    for params in (SamplingParams(stop="x"), SamplingParams(bad_words=["x"])):
        with pytest.raises(InvalidParameterError, match="needs a tokenizer"):
            engine.add_request("r", [1], params)
    with pytest.raises(RequestError, match="no tokenizer"):
        engine.add_request("r", "text", SamplingParams())


def test_without_a_seed_two_engines_agree_and_two_requests_differ() -> None:
    runs = []
    for _ in range(2):
        requests = [(name, prompt_of(9), SamplingParams(max_tokens=8)) for name in "ab"]
        runs.append(generate_all(simulated_engine(seed=5), requests))
    assert tokens(runs[0]["a"]) == tokens(runs[1]["a"])
    assert tokens(runs[0]["a"]) != tokens(runs[0]["b"])
    other = generate_all(simulated_engine(seed=6), requests)
    assert tokens(other["a"]) != tokens(runs[0]["a"])


def test_prompt_logprobs_have_full_length_whatever_the_chunks() -> None:
    params = SamplingParams(max_tokens=2, prompt_logprobs=2, seed=1)
    whole = alone(prompt_of(50), params)
    assert whole.prompt_logprobs is not None
    assert whole.prompt_logprobs[0] is None
    assert len(whole.prompt_logprobs) == 50
    for budget in (1, 7, 16):
        engine = simulated_engine(max_num_batched_tokens=budget)
        engine.add_request("r", prompt_of(50), params)
        assert run_to_end(engine)["r"].prompt_logprobs == whole.prompt_logprobs


def test_max_tokens_0_scores_the_prompt_and_generates_nothing() -> None:
    output = alone(prompt_of(20), SamplingParams(max_tokens=0, prompt_logprobs=0))
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == 20
    assert output.outputs[0].token_ids == []
    assert output.outputs[0].finish_reason == "length"


def test_two_engines_in_one_process_do_not_meet() -> None:
    params = SamplingParams(max_tokens=10, seed=2)
    engines = [simulated_engine(num_kv_blocks=4), simulated_engine(num_kv_blocks=8)]
    for i, engine in enumerate(engines):
        engine.add_request("r", prompt_of(9, i), params)
    results: list[list[list[int]]] = [[], []]
    while any(engine.has_unfinished_requests() for engine in engines):
        for i, engine in enumerate(engines):
            for output in engine.step():
                results[i] = tokens(output)
    for i in range(2):
        assert results[i] == tokens(alone(prompt_of(9, i), params))


@pytest.mark.parametrize("included", [False, True])
def test_a_stop_token_is_in_the_ids_but_in_the_text_only_if_asked_for(included: bool) -> None:
    engine = simulated_engine(tokenizer=ByteTokenizer())
    params = SamplingParams(max_tokens=9, temperature=0, ignore_eos=True)
    engine.add_request("free", "x", params)
    free = run_to_end(engine)["free"].outputs[0].token_ids
    stop_id = free[4]
    first = free.index(stop_id)
    params = dataclasses.replace(
        params, stop_token_ids=[stop_id], include_stop_str_in_output=included
    )
    engine.add_request("r", "x", params)
    (completion,) = run_to_end(engine)["r"].outputs
    assert completion.token_ids == free[: first + 1]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop_id)
    shown = free[: first + included]
    assert completion.text == ByteTokenizer().decode(shown)


def test_logprobs_of_ids_beyond_the_tokenizer_are_shown_without_text() -> None:
    """Some models pad their vocabulary."""
    engine = simulated_engine(tokenizer=ByteTokenizer())
    engine.runner.vocab_size = 100_000
    engine.add_request("r", "x", SamplingParams(max_tokens=5, temperature=0, logprobs=0))
    (completion,) = run_to_end(engine)["r"].outputs
    assert max(completion.token_ids) >= 258
    assert completion.logprobs is not None
    for token_id, at_position in zip(completion.token_ids, completion.logprobs, strict=True):
        if token_id >= 258:
            assert at_position[token_id].decoded_token == ""


def test_without_stream_only_the_end_is_reported() -> None:
    engine = simulated_engine()
    params = SamplingParams(max_tokens=5, n=2)
    engine.add_request("whole", [1, 2], params, stream=False)
    engine.add_request("pieces", [1, 2], params)
    reports = [output.request_id for _ in range(5) for output in engine.step()]
    assert reports == ["pieces"] * 4 + ["whole", "pieces"]


def test_the_id_of_an_aborted_request_is_taken_until_its_end_is_reported() -> None:
    engine = simulated_engine()
    params = SamplingParams(max_tokens=2)
    engine.add_request("r", [1], params)
    engine.abort("r")
    with pytest.raises(InvalidParameterError, match="already in use"):
        engine.add_request("r", [1], params)
    assert [output.finished for output in engine.step()] == [True]
    engine.add_request("r", [1], params)
    assert run_to_end(engine)["r"].outputs[0].finish_reason == "length"
