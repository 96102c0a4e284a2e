"""A researcher's own scheduling policy, as CONTRIBUTING.md shows it."""

from __future__ import annotations

import pytest

from pagemill import ConfigError, EngineConfig, InvalidParameterError, SamplingParams
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


class FailingRank(ShortestFirst):
    def rank(self, request: Request) -> float:
        raise KeyError(request.request_id)


def test_a_policy_without_an_answer_refuses_the_request_and_nothing_is_left_behind() -> None:
    for policy, error in ((NoRank(), ConfigError), (FailingRank(), KeyError)):
        engine = simulated_engine(scheduling_policy=policy)
        with pytest.raises(error):
            engine.add_request("r", [1], SamplingParams(max_tokens=1))
        assert not engine.has_unfinished_requests()
        assert_idle(engine)


@pytest.mark.parametrize("policy", [ShortestFirst, object(), 3])
def test_what_is_no_policy_is_refused_with_what_one_is(policy: object) -> None:
    with pytest.raises(ConfigError, match="an object with name, rank and check"):
        EngineConfig.from_kwargs(scheduling_policy=policy)
