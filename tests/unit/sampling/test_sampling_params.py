import copy
import dataclasses
import json
import pickle
from typing import Any

import numpy as np
import pytest

from pagemill.errors import InvalidParameterError, RequestError
from pagemill.sampling_params import SamplingParams, parse_logit_bias

FULL: dict[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.5,
    "logit_bias": {7: 1.5, 3: -100},
    "allowed_token_ids": [9, 3, 3, 7],
    "bad_words": ["bad", "worse luck"],
    "bad_words_token_ids": [[1, 2], [3]],
    "seed": 2**64 - 1,
    "n": 3,
    "stop": ["END", "\n\n"],
    "stop_token_ids": {5, 2},
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "min_tokens": 2,
    "max_tokens": 10,
    "logprobs": 5,
    "prompt_logprobs": 0,
    "skip_special_tokens": False,
}


def test_the_full_example_sets_every_field() -> None:
    assert set(FULL) == {f.name for f in dataclasses.fields(SamplingParams)}
    default = SamplingParams()
    params = SamplingParams(**FULL)
    assert all(getattr(params, name) != getattr(default, name) for name in FULL)


def test_collections_are_copied_into_immutable_forms() -> None:
    bias, allowed, stop = {3: 1.0}, [2, 1], ["a"]
    params: Any = SamplingParams(logit_bias=bias, allowed_token_ids=allowed, stop=stop)
    bias[4] = 2.0
    allowed.append(5)
    stop.append("b")
    assert dict(params.logit_bias) == {3: 1.0}
    assert params.allowed_token_ids == (1, 2)
    assert params.stop == ("a",)
    with pytest.raises(TypeError):
        params.logit_bias[4] = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.top_k = 3


def test_equal_parameters_are_equal_hash_alike_and_survive_pickle_and_copy() -> None:
    params = SamplingParams(**FULL)
    reordered = SamplingParams(**{**FULL, "logit_bias": {3: -100, 7: 1.5}})
    assert params == reordered
    assert hash(params) == hash(reordered)
    assert pickle.loads(pickle.dumps(params)) == params
    assert copy.deepcopy(params) == params
    assert params != SamplingParams(**{**FULL, "logit_bias": {3: -100, 7: 1.25}})


def test_a_round_trip_through_json_keeps_everything() -> None:
    params = SamplingParams(**FULL)
    assert SamplingParams.from_dict(json.loads(json.dumps(params.to_dict()))) == params
    assert SamplingParams.from_dict(SamplingParams().to_dict()) == SamplingParams()


def test_one_stop_string_is_a_list_of_one_and_none_is_no_stop_string() -> None:
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams.from_dict({"stop": None, "logit_bias": None}) == SamplingParams()


def test_numpy_scalars_become_python_numbers() -> None:
    fields: dict[str, Any] = {
        "temperature": np.float32(0.5),
        "top_k": np.int64(3),
        "ignore_eos": np.bool_(True),
        "allowed_token_ids": np.array([4, 2]),
    }
    params = SamplingParams(**fields)
    assert (type(params.temperature), type(params.top_k)) == (float, int)
    assert params.ignore_eos is True
    assert params.allowed_token_ids == (2, 4)
    assert json.loads(json.dumps(params.to_dict()))["top_k"] == 3


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(
        InvalidParameterError, match=r"temprature is no .*did you mean temperature\?"
    ):
        SamplingParams.from_dict({"temprature": 0.5})
    with pytest.raises(InvalidParameterError, match=r"zzz is no .*\(there are temperature, top_p"):
        SamplingParams.from_dict({"zzz": 1})
    misspelled: dict[str, Any] = {"temprature": 0.5}
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(**misspelled)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.1}, r"temperature must be a number in \[0, 100\], got -0.1"),
        ({"top_p": 1.5}, r"top_p must be a number in \[0, 1\], got 1.5"),
        ({"top_k": -2}, r"top_k must be an integer in \[-1, 2147483647\], got -2"),
        ({"top_k": 5.0}, r"top_k must be an integer in .*, got 5.0"),
        ({"repetition_penalty": 0}, r"repetition_penalty must be a number in \[0.01, 100\]"),
        ({"presence_penalty": 2.1}, r"presence_penalty must be a number in \[-2, 2\]"),
        ({"n": 0}, r"n must be an integer in \[1, 1024\], got 0"),
        ({"n": 1025}, r"n must be an integer in \[1, 1024\], got 1025"),
        ({"seed": 2**64}, r"seed must be an integer in \[0, 18446744073709551615\] or None"),
        ({"logprobs": 101}, r"logprobs must be an integer in \[0, 100\] or None, got 101"),
        ({"prompt_logprobs": -1}, r"prompt_logprobs must be an integer in \[0, 100\] or None"),
        ({"ignore_eos": 1}, r"ignore_eos must be true or false, got 1"),
        ({"stop": ["a", ""]}, r"stop must hold strings of 1 to 1024 characters, got ''"),
        ({"stop": "x" * 1025}, r"stop must hold strings of 1 to 1024 characters"),
        ({"stop": ["x"] * 1025}, r"stop must have at most 1024 strings"),
        ({"stop": ["x" * 1024] * 65}, r"stop must have at most 65536 characters in all"),
        ({"stop": [1]}, r"stop must hold strings only, got 1"),
        ({"stop": 1}, r"stop must be a string or a list of strings, got 1"),
        ({"bad_words": ["\ud800"]}, r"bad_words must hold no unpaired surrogate"),
        ({"bad_words_token_ids": [[]]}, r"bad_words_token_ids must hold no empty list"),
        ({"bad_words_token_ids": [3]}, r"bad_words_token_ids must be a list of token ids, got 3"),
        ({"stop_token_ids": [True]}, r"stop_token_ids must be an integer in .*, got True"),
        ({"stop_token_ids": [-1]}, r"stop_token_ids must be an integer in .*, got -1"),
        ({"stop_token_ids": "12"}, r"stop_token_ids must be a list of token ids, got '12'"),
        ({"allowed_token_ids": []}, r"allowed_token_ids must have at least one id"),
        ({"allowed_token_ids": [1.0]}, r"allowed_token_ids must be an integer in .*, got 1.0"),
        ({"logit_bias": [1]}, r"logit_bias must map token ids to numbers"),
        ({"logit_bias": {5: 100.5}}, r"logit_bias\[5\] must be a number in \[-100, 100\]"),
        ({"logit_bias": {-5: 1}}, r"each key of logit_bias must be an integer in .*, got -5"),
        ({"min_tokens": 4, "max_tokens": 3}, r"min_tokens must be at most max_tokens \(3\), got 4"),
        ({"max_tokens": 0}, r"max_tokens must be at least 1, or 0 together with prompt_logprobs"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_field_bound_and_value(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidParameterError, match=message) as refusal:
        SamplingParams(**fields)
    assert isinstance(refusal.value, RequestError)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 100},
        {"temperature": 5e-324},
        {"top_p": 0},
        {"top_k": -1},
        {"top_k": 2**31 - 1},
        {"min_p": 1},
        {"seed": 0},
        {"n": 1024},
        {"n": 2, "temperature": 0},
        {"logprobs": 0},
        {"min_tokens": 3, "max_tokens": 3},
        {"min_tokens": 3},
        {"max_tokens": 0, "prompt_logprobs": 0},
    ],
)
def test_the_bounds_themselves_are_allowed(fields: dict[str, Any]) -> None:
    params = SamplingParams(**fields)
    assert {name: getattr(params, name) for name in fields} == fields


def test_only_temperature_zero_is_greedy() -> None:
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=1e-4).greedy
    assert not SamplingParams(top_k=1).greedy


def test_penalties_are_needed_only_where_one_is_set() -> None:
    assert not SamplingParams().needs_penalties
    assert SamplingParams(repetition_penalty=1.2).needs_penalties
    assert not SamplingParams(repetition_penalty=1.2).needs_output_penalties
    assert SamplingParams(presence_penalty=-1).needs_output_penalties
    assert SamplingParams(frequency_penalty=1).needs_penalties


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logit_bias": {60000: 1}}, r"logit_bias\[60000\] must be in \[0, 49152\)"),
        ({"allowed_token_ids": [1, 49152]}, r"allowed_token_ids must be .*, got 49152"),
        ({"stop_token_ids": [50000]}, r"stop_token_ids must be in \[0, 49152\), got 50000"),
        ({"bad_words_token_ids": [[1, 50000]]}, r"bad_words_token_ids must be .*, got 50000"),
    ],
)
def test_an_id_beyond_the_vocabulary_is_refused_with_the_fields_name(
    fields: dict[str, Any], message: str
) -> None:
    params = SamplingParams(**fields)
    with pytest.raises(InvalidParameterError, match=message):
        params.validate_for_vocabulary(49152)
    params.validate_for_vocabulary(60001)


def test_bad_words_are_encoded_as_they_stand_and_with_a_space_before() -> None:
    def encode(text: str) -> list[int]:
        return [ord(character) for character in text]

    params = SamplingParams(bad_words=["no", " a"], bad_words_token_ids=[[5]])
    resolved = params.with_bad_words(encode)
    n, o, a, space = map(ord, "noa ")
    assert resolved.bad_words_token_ids == ((5,), (n, o), (space, n, o), (space, a))
    assert resolved.with_bad_words(encode) == resolved
    assert SamplingParams().with_bad_words(encode) == SamplingParams()


def test_a_bad_word_that_encodes_to_nothing_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="bad_words must encode to some token"):
        SamplingParams(bad_words=["x"]).with_bad_words(lambda _: [])


def test_json_keys_of_logit_bias_become_ids_and_others_are_refused() -> None:
    assert parse_logit_bias({"50256": -100, 7: 1}) == {50256: -100, 7: 1}
    assert SamplingParams.from_dict({"logit_bias": {"5": 2}}).logit_bias[5] == 2.0
    for bad in ("-5", "5.0", "x", "", "٣", "9" * 5000):
        with pytest.raises(InvalidParameterError, match="each key of logit_bias"):
            SamplingParams.from_dict({"logit_bias": {bad: 1}})
    with pytest.raises(InvalidParameterError, match="logit_bias must name each token once"):
        SamplingParams.from_dict({"logit_bias": {"5": 1, "05": 2}})
