from __future__ import annotations

import pytest

from pagemill.bench.workload import FIRST_ID, LAST_ID, SCENARIOS, WARM_UP_TOKENS, Run, Scenario

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def lengths(scenario: Scenario, number: int = 0) -> list[tuple[int, int]]:
    return [(len(prompt), tokens) for prompt, tokens in scenario.requests(number)]


def test_the_scenarios_are_as_large_as_they_are_said_to_be() -> None:
    assert lengths(BY_NAME["S1"]) == [(128, 128)]
    assert lengths(BY_NAME["S2"]) == [(1024, 1)]
    assert lengths(BY_NAME["S4"]) == [(544, 32)] * 32
    for name in ("S3", "S5"):
        many = lengths(BY_NAME[name])
        assert len(many) == 64
        assert (sum(i for i, _ in many), sum(o for _, o in many)) == (9916, 4481)
        assert all(32 <= i <= 256 and 16 <= o <= 128 for i, o in many)


def test_requests_of_s4_share_512_tokens_and_no_more() -> None:
    prompts = [prompt for prompt, _ in BY_NAME["S4"].requests(0)]
    assert all(prompt[:512] == prompts[0][:512] for prompt in prompts)
    assert len({tuple(prompt[512:516]) for prompt in prompts}) == 32
    assert BY_NAME["S4"].requests(1)[0].prompt_token_ids[:512] != prompts[0][:512]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_rounds_differ_in_ids_only_and_are_the_same_every_time(scenario: Scenario) -> None:
    first, again, second = (scenario.requests(n) for n in (0, 0, 1))
    assert first == again
    assert lengths(scenario, 0) == lengths(scenario, 1)
    beginnings = {tuple(prompt[:8]) for prompt, _ in (*first, *second, *scenario.warm_up())}
    assert len(beginnings) == 3 * (1 if scenario.name == "S4" else len(first))
    ids = {token_id for prompt, _ in first for token_id in prompt}
    assert min(ids) >= FIRST_ID
    assert max(ids) <= LAST_ID
    assert all(tokens <= WARM_UP_TOKENS for _, tokens in scenario.warm_up())


def test_s5_repeats_no_prompt_of_s3() -> None:
    prompts = [tuple(p) for name in ("S3", "S5") for p, _ in BY_NAME[name].requests(0)]
    assert len(set(prompts)) == 128


@pytest.mark.parametrize(
    ("name", "figure"), [("S1", 2.0), ("S2", 1.5), ("S3", 1.0), ("S4", 5.0), ("S5", 1.0)]
)
def test_a_figure_is_made_of_times_and_tokens(name: str, figure: float) -> None:
    run = Run(ttft_s=1.5, total_s=5.0, num_output_tokens=8 if name == "S1" else 5)
    assert BY_NAME[name].measure(run) == figure
    assert BY_NAME[name].higher_is_better == (name in ("S1", "S3", "S5"))


def test_the_ids_are_the_same_in_every_process_and_version() -> None:
    assert BY_NAME["S1"].requests(0)[0].prompt_token_ids[:3] == [30029, 21145, 9412]
