"""A researcher's own scheduling policy, as CONTRIBUTING.md shows it."""

from __future__ import annotations

import pytest

from pagemill import (
    ConfigError,
    DeadlinePolicy,
    EngineConfig,
    InvalidParameterError,
    PriorityPolicy,
    RequestError,
    SamplingParams,
)
from pagemill.request import Request
from tests.core_helpers import assert_idle, prompt_of, simulated_engine


class ShortestFirst:
    name = "shortest-first"

    def rank(self, request: Request) -> float:
        return request.num_prompt_tokens + request.max_tokens

    def check(self, request: Request) -> None:
        if request.priority:
            raise InvalidParameterError("priority", request.priority, "must be 0")


def test_a_policy_of_ones_own_decides_who_goes_first() -> None:
    engine = simulated_engine(max_num_seqs=1, scheduling_policy=ShortestFirst())
    for name, length in (("long", 90), ("short", 10), ("middle", 40)):
        engine.add_request(name, prompt_of(length), SamplingParams(max_tokens=5))
    order = []
    while engine.has_unfinished_requests():
        order += [output.request_id for output in engine.step() if output.finished]
    assert order == ["short", "middle", "long"]


class NoRank(ShortestFirst):
    def rank(self, request: Request) -> float:
        return float("nan")


class HugeRank(ShortestFirst):
    def rank(self, request: Request) -> float:
        return 10**400


class FailingRank(ShortestFirst):
    def rank(self, request: Request) -> float:
        raise KeyError(request.request_id)


class RefusingRank(ShortestFirst):
    def rank(self, request: Request) -> float:
        raise RequestError("not today")


@pytest.mark.parametrize(
    ("policy", "error", "message", "cause"),
    [
        (NoRank(), ConfigError, "'shortest-first' gave rank nan", type(None)),
        (HugeRank(), ConfigError, "gave request 'r' no rank: OverflowError", OverflowError),
        (FailingRank(), ConfigError, "gave request 'r' no rank: KeyError: 'r'", KeyError),
        (RefusingRank(), RequestError, "not today", type(None)),
    ],
)
def test_a_policy_without_an_answer_refuses_the_request_and_nothing_is_left_behind(
    policy: ShortestFirst, error: type[Exception], message: str, cause: type
) -> None:
    engine = simulated_engine(scheduling_policy=policy)
    with pytest.raises(error, match=message) as raised:
        engine.add_request("r", [1], SamplingParams(max_tokens=1))
    assert isinstance(raised.value.__cause__, cause)
    assert not engine.has_unfinished_requests()
    assert_idle(engine)


@pytest.mark.parametrize("seconds", ["a", None, 0, -1.0, float("inf"), float("nan"), True])
def test_a_policys_seconds_are_a_positive_number(seconds: object) -> None:
    with pytest.raises(ConfigError, match="aging_seconds must be a positive and finite number"):
        PriorityPolicy(seconds)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="default_deadline_seconds must be a positive"):
        DeadlinePolicy(seconds)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [ShortestFirst, object(), 3])
def test_what_is_no_policy_is_refused_with_what_one_is(policy: object) -> None:
    with pytest.raises(ConfigError, match="an object with name, rank and check"):
        EngineConfig.from_kwargs(scheduling_policy=policy)
