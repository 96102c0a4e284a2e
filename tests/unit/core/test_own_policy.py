"""A researcher's own scheduling policy, as CONTRIBUTING.md shows it."""

from __future__ import annotations

from pagemill import InvalidParameterError, SamplingParams
from pagemill.request import Request
from tests.core_helpers import prompt_of, simulated_engine


class ShortestFirst:
    name = "shortest-first"

    def rank(self, request: Request) -> float:
        return request.num_prompt_tokens + request.max_tokens

    def check(self, priority: int) -> None:
        if priority:
            raise InvalidParameterError("priority", priority, "must be 0")


def test_a_policy_of_ones_own_decides_who_goes_first() -> None:
    engine = simulated_engine(max_num_seqs=1, scheduling_policy=ShortestFirst())
    for name, length in (("long", 90), ("short", 10), ("middle", 40)):
        engine.add_request(name, prompt_of(length), SamplingParams(max_tokens=5))
    order = []
    while engine.has_unfinished_requests():
        order += [output.request_id for output in engine.step() if output.finished]
    assert order == ["short", "middle", "long"]
