"""Beam search on the simulated runner: what it finds, what it costs, and that it leaves nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pagemill import (
    BeamSearch,
    BeamSearchOutput,
    BeamSearchParams,
    EngineError,
    InvalidParameterError,
    RequestTooLargeError,
    SamplingParams,
)
from pagemill.batch import Batch, SampledToken, StepResult, TokenLogprobs
from pagemill.beam_search import search_all
from pagemill.beams import EndedBeams
from pagemill.engine import LLMEngine
from tests.beam_helpers import VOCAB_SIZE, BruteForce, beam_engine
from tests.core_helpers import assert_idle, prompt_of


def prompts_of(*lengths: int) -> list[list[int]]:
    return [[i % VOCAB_SIZE for i in prompt_of(n, start=n)] for n in lengths]


def found(output: BeamSearchOutput) -> list[tuple[float, tuple[int, ...]]]:
    return [(beam.score, tuple(beam.token_ids)) for beam in output.beams]


@pytest.fixture(scope="module")
def brute_force() -> BruteForce:
    return BruteForce()


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("end_ids", [(), (3,), (3, 7, 8)])
def test_it_finds_what_brute_force_finds(
    brute_force: BruteForce,
    end_ids: tuple[int, ...],
    length_penalty: float,
    early_stopping: Any,
) -> None:
    prompts = prompts_of(3, 12, 25)
    for beam_width in (1, 2, 3, 5):
        params = BeamSearchParams(
            beam_width=beam_width,
            max_tokens=12,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )
        engine = beam_engine(end_ids=end_ids)
        outputs = search_all(engine, "a", prompts, params)
        assert_idle(engine)
        for prompt, output in zip(prompts, outputs, strict=True):
            assert output.prompt_token_ids == prompt
            assert found(output) == brute_force.search(prompt, params, end_ids)
            for beam in output.beams:
                length = len(beam.token_ids)
                stopped = beam.token_ids[-1] in end_ids
                assert beam.finish_reason == ("stop" if stopped else "length")
                assert length == 12 or stopped
                assert beam.score == beam.cumulative_logprob / length**length_penalty


def test_every_token_is_computed_once() -> None:
    """The prompts, and a token a beam in every step but the last, which nobody goes on from."""
    prompts = prompts_of(9, 30)
    params = BeamSearchParams(beam_width=4, max_tokens=20, ignore_eos=True)
    engine, brute_force = beam_engine(enable_prefix_caching=False), BruteForce()
    outputs = search_all(engine, "a", prompts, params)
    stats = engine.stats()
    assert stats["num_computed_tokens"] == 9 + 30 + 2 * 4 * 19
    assert stats["num_steps"] == 20
    assert stats["cow_copies"] > 20
    assert stats["num_prompt_tokens"] == 9 + 30
    # Without branches each step computes every beam from nothing.
    for prompt, output in zip(prompts, outputs, strict=True):
        assert found(output) == brute_force.search(prompt, params, ())
    without = sum(n + 4 * sum(n + i for i in range(1, 20)) for n in (9, 30))
    assert brute_force.num_computed_tokens == without > 20 * stats["num_computed_tokens"]


@pytest.mark.parametrize(
    "options",
    [
        {"num_kv_blocks": 16},
        {"num_kv_blocks": 16, "num_swap_slots": 100},
        {"num_kv_blocks": 16, "enable_prefix_caching": False},
        {"max_num_seqs": 3},
        {"max_num_seqs": 1},
        {"max_num_batched_tokens": 2},
    ],
    ids=str,
)
def test_little_room_changes_no_bit(options: dict[str, Any]) -> None:
    prompts = prompts_of(8, 20, 30)
    params = BeamSearchParams(beam_width=4, max_tokens=25, early_stopping="never")
    expected = search_all(beam_engine(), "a", prompts, params)
    engine = beam_engine(**options)
    assert search_all(engine, "a", prompts, params) == expected
    assert_idle(engine)
    stats = engine.stats()
    if "num_swap_slots" in options:
        assert stats["num_preemptions_swap"] > 0
    elif "num_kv_blocks" in options:
        assert stats["num_preemptions_recompute"] > 0
    assert (stats["cow_copies"] > 0) == (options.get("max_num_seqs") != 1)


def test_beams_that_cannot_run_together_do_not_run_far_ahead() -> None:
    params = BeamSearchParams(beam_width=4, max_tokens=60, ignore_eos=True)
    engine = beam_engine(max_num_seqs=3)
    search_all(engine, "a", prompts_of(10), params)
    assert engine.metrics.num_computed_tokens < 1.5 * (10 + 4 * 59)


def test_the_branches_of_a_prompt_go_on_before_later_prompts_do() -> None:
    params = BeamSearchParams(beam_width=4, max_tokens=40, ignore_eos=True)
    engine = beam_engine(num_kv_blocks=40, block_size=16)
    search_all(engine, "a", prompts_of(*range(30, 46)), params)
    once = sum(range(30, 46)) + 16 * 4 * 39
    # The pool holds a few of the 64 beams. Were branches last in the order, it would be 5.7 times.
    assert engine.metrics.num_computed_tokens < 4 * once


def test_a_search_shares_an_engine_with_other_requests_and_leaves_them_alone() -> None:
    (prompt,) = prompts_of(20)
    greedy = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=2)
    alone = beam_engine()
    alone.add_request("r", prompt, greedy)
    while alone.has_unfinished_requests():
        (expected,) = alone.step()
    params = BeamSearchParams(beam_width=4, max_tokens=30)
    engine = beam_engine(num_kv_blocks=24)
    search = BeamSearch(engine, "s", prompt, params)
    engine.add_request("r", prompt, greedy)
    last = None
    while not search.finished or engine.has_unfinished_requests():
        outputs = {output.request_id: output for output in engine.step()}
        search.advance(outputs)
        last = outputs.get("r", last)
    assert last is not None
    assert last.outputs == expected.outputs
    assert [search.output] == search_all(beam_engine(), "a", [prompt], params)
    assert_idle(engine)


def test_without_max_tokens_beams_run_to_the_end_of_the_context_or_the_pool() -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=None, ignore_eos=True)
    (output,) = search_all(beam_engine(max_model_len=40), "a", prompts_of(15), params)
    assert [len(beam.token_ids) for beam in output.beams] == [25] * 3
    (output,) = search_all(beam_engine(num_kv_blocks=8), "a", prompts_of(15), params)
    assert [len(beam.token_ids) for beam in output.beams] == [8 * 4 + 1 - 15] * 3


@pytest.mark.parametrize("outputs", [[], None, 5])
def test_outputs_that_are_not_by_request_id_are_refused(outputs: Any) -> None:
    engine = beam_engine()
    search = BeamSearch(engine, "a", prompts_of(5)[0], BeamSearchParams(beam_width=2, max_tokens=3))
    with pytest.raises(InvalidParameterError, match="outputs must map request ids to outputs"):
        search.advance(outputs)
    search.close()
    assert_idle(engine)


@pytest.mark.parametrize("deadline_seconds", [1e5, 0.001])
def test_a_request_that_is_begun_again_has_what_is_left_of_the_deadline(
    deadline_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = beam_engine(max_num_seqs=3, scheduling_policy="deadline")
    add_request, ends = engine.add_request, []

    def noting(*args: Any, **kwargs: Any) -> None:
        ends.append(engine.clock() + kwargs["deadline_seconds"])
        add_request(*args, **kwargs)

    monkeypatch.setattr(engine, "add_request", noting)
    params = BeamSearchParams(beam_width=4, max_tokens=60, ignore_eos=True)
    search_all(engine, "a", prompts_of(10), params, deadlines_seconds=[deadline_seconds])
    assert len(ends) > 1
    assert ends[0] == deadline_seconds
    if deadline_seconds > 1:
        assert ends == pytest.approx([deadline_seconds] * len(ends))
    else:
        assert min(ends[1:]) > deadline_seconds  # it has passed, and is still accepted


@pytest.mark.parametrize(
    ("policy", "first", "second"),
    [
        ("priority", {"priority": 5}, {"priority": -5}),
        ("deadline", {"deadline_seconds": 50}, {"deadline_seconds": 1}),
    ],
)
def test_the_more_urgent_search_is_done_first(
    policy: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=20, ignore_eos=True)
    engine = beam_engine(max_num_seqs=2, scheduling_policy=policy)
    prompts = prompts_of(10, 12)
    searches = {
        "first": BeamSearch(engine, "first", prompts[0], params, **first),
        "second": BeamSearch(engine, "second", prompts[1], params, **second),
    }
    order = []
    while searches:
        outputs = {output.request_id: output for output in engine.step()}
        for name, search in list(searches.items()):
            search.advance(outputs)
            if search.finished:
                order.append(name)
                del searches[name]
    assert order == ["second", "first"]
    with pytest.raises(InvalidParameterError, match="priority must be 0 under"):
        search_all(beam_engine(), "a", prompts, params, priorities=[0, 1])


def test_n_returns_the_best_of_all() -> None:
    prompts = prompts_of(5)
    (all_of_them,) = search_all(
        beam_engine(), "a", prompts, BeamSearchParams(beam_width=4, max_tokens=9)
    )
    assert len(all_of_them.beams) == 4
    for n in (1, 3):
        params = BeamSearchParams(beam_width=4, max_tokens=9, n=n)
        (output,) = search_all(beam_engine(), "a", prompts, params)
        assert output.beams == all_of_them.beams[:n]


def test_a_vocabulary_smaller_than_the_beam_width_gives_what_there_is() -> None:
    params = BeamSearchParams(beam_width=20, max_tokens=1)
    (output,) = search_all(beam_engine(), "a", prompts_of(5), params)
    assert len(output.beams) == VOCAB_SIZE
    params = BeamSearchParams(beam_width=20, max_tokens=2, ignore_eos=True)
    (output,) = search_all(beam_engine(), "a", prompts_of(5), params)
    assert len(output.beams) == 20


def test_one_prompt_that_cannot_be_served_leaves_none_behind() -> None:
    engine = beam_engine(max_model_len=50)
    params = BeamSearchParams(beam_width=2, max_tokens=20)
    with pytest.raises(RequestTooLargeError, match=r"max_tokens=20 exceed .*max_model_len=50"):
        search_all(engine, "a", prompts_of(10, 31), params)
    assert not engine.has_unfinished_requests()
    assert_idle(engine)


@pytest.mark.parametrize("at_step", [1, 2, 7])
def test_an_interruption_leaves_no_request_behind(at_step: int) -> None:
    engine = beam_engine()
    params = BeamSearchParams(beam_width=4, max_tokens=20, ignore_eos=True)
    with pytest.raises(KeyboardInterrupt):
        search_all(
            engine,
            "a",
            prompts_of(10, 20),
            params,
            interrupted=lambda: engine.metrics.num_steps == at_step,
        )
    assert engine.metrics.num_steps == at_step
    assert not engine.has_unfinished_requests()
    assert_idle(engine)
    assert search_all(engine, "b", prompts_of(10), params) == search_all(
        beam_engine(), "a", prompts_of(10), params
    )


def test_a_failure_in_the_middle_of_a_choice_leaves_no_request_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = beam_engine()
    fork, forks = engine.fork, []

    def failing(*args: Any, **kwargs: Any) -> None:
        forks.append(args)
        if len(forks) == 6:
            raise KeyboardInterrupt
        fork(*args, **kwargs)

    monkeypatch.setattr(engine, "fork", failing)
    params = BeamSearchParams(beam_width=4, max_tokens=20, ignore_eos=True)
    with pytest.raises(KeyboardInterrupt):
        search_all(engine, "a", prompts_of(10, 20), params)
    assert not engine.has_unfinished_requests()
    assert_idle(engine)


def test_an_engine_that_fails_ends_the_call() -> None:
    engine = beam_engine()
    params = BeamSearchParams(beam_width=2, max_tokens=20)
    search = BeamSearch(engine, "a", prompts_of(10)[0], params)
    search.advance({output.request_id: output for output in engine.step()})
    search.close()
    search.close()
    assert search.finished
    assert not engine.has_unfinished_requests()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        search_all(engine, "a", prompts_of(10), params)


def damaging(engine: LLMEngine, damage: Any) -> LLMEngine:
    """Let the model compute NaN for the tasks that ``damage`` says yes to."""
    execute = engine.runner.execute

    def damaged(batch: Batch) -> StepResult:
        result = execute(batch)
        for i, task in enumerate(batch.sampling):
            if damage(task):
                result.sampled[i] = SampledToken(None, TokenLogprobs(math.nan, 0, ()))
        return result

    engine.runner.execute = damaged  # type: ignore[method-assign]
    return engine


def test_a_beam_that_the_model_gives_up_is_dropped_and_the_others_go_on() -> None:
    prompts = prompts_of(10)
    params = BeamSearchParams(beam_width=3, max_tokens=9, ignore_eos=True)
    (whole,) = search_all(beam_engine(), "a", prompts, params)
    bad = tuple(whole.beams[0].token_ids[:4])
    engine = damaging(beam_engine(), lambda task: tuple(task.output_token_ids) == bad)
    (output,) = search_all(engine, "a", prompts, params)
    assert len(output.beams) == 3
    assert all(tuple(beam.token_ids[:4]) != bad for beam in output.beams)
    assert_idle(engine)


@pytest.mark.parametrize("at_length", [0, 1, 5])
def test_a_model_that_gives_up_all_beams_ends_the_search(at_length: int) -> None:
    engine = damaging(beam_engine(), lambda task: len(task.output_token_ids) >= at_length)
    params = BeamSearchParams(beam_width=3, max_tokens=9, ignore_eos=True)
    (output,) = search_all(engine, "a", prompts_of(10), params)
    assert output.beams == []
    assert_idle(engine)


def test_the_width_is_limited_by_the_log_probabilities_that_may_be_asked_for() -> None:
    params = BeamSearchParams(beam_width=98, max_tokens=5)
    engine = beam_engine(end_ids=(3, 7, 8))
    with pytest.raises(
        InvalidParameterError, match=r"beam_width must be at most 97: 100 less the 3 .*got 98"
    ):
        search_all(engine, "a", prompts_of(5), params)
    params = BeamSearchParams(beam_width=97, max_tokens=5)
    (output,) = search_all(engine, "a", prompts_of(5), params)
    assert len(output.beams) == 97
    assert found(output) == BruteForce().search(prompts_of(5)[0], params, (3, 7, 8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beam_width": 0}, r"beam_width must be an integer in \[1, 100\], got 0"),
        ({"beam_width": 101}, r"beam_width must be an integer in \[1, 100\], got 101"),
        ({"beam_width": 2.0}, "beam_width .*got 2.0"),
        ({"beam_width": True}, "beam_width .*got True"),
        ({"max_tokens": 0}, r"max_tokens must be an integer in \[1, \d+\] or None, got 0"),
        ({"max_tokens": "9"}, "max_tokens .*got '9'"),
        ({"length_penalty": 11}, r"length_penalty must be a number in \[-10, 10\], got 11"),
        ({"length_penalty": math.nan}, "length_penalty .*got nan"),
        ({"length_penalty": None}, "length_penalty .*got None"),
        ({"early_stopping": "always"}, 'early_stopping must be True, False or "never"'),
        ({"early_stopping": 1}, "early_stopping .*got 1"),
        ({"n": 5}, r"n must be an integer in \[1, 4\] or None, got 5"),
        ({"n": 0}, "n must .*got 0"),
        ({"ignore_eos": None}, "ignore_eos must be a bool, got None"),
    ],
)
def test_arguments_out_of_bounds_are_refused_by_name(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        BeamSearchParams(**{"beam_width": 4, "max_tokens": 9} | arguments)


def test_ended_beams_keep_the_best_and_the_earlier_of_equal_ones() -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=9, length_penalty=1.0)
    ended = EndedBeams(params, 9)
    ended.add([1, 2], -4.0, "stop")
    assert not ended.are_final(-100.0, 2)
    ended.add([1, 2, 3], -6.0, "stop")
    ended.add([1, 2, 4, 5], -8.0, "length")
    assert [beam.token_ids for beam in ended.best(2)] == [[1, 2], [1, 2, 3]]
    ended.add([7, 7, 7, 7], -4.0, "length")
    assert [beam.score for beam in ended.best(2)] == [-1.0, -2.0]
    assert not ended.are_final(-9.9, 5)
    assert ended.are_final(-10.0, 5)


def test_never_looks_as_far_ahead_as_a_beam_can_go() -> None:
    for early_stopping, length_penalty, is_final in (
        (True, 1.0, True),
        (False, 1.0, True),
        ("never", 1.0, False),
        ("never", 0.0, True),
        ("never", -1.0, True),
    ):
        params = BeamSearchParams(
            beam_width=2,
            max_tokens=40,
            length_penalty=length_penalty,
            early_stopping=early_stopping,  # type: ignore[arg-type]
        )
        ended = EndedBeams(params, 40)
        ended.add([1, 2, 3, 4], -4.0, "stop")
        ended.add([1, 2, 3, 5], -4.0, "stop")
        assert ended.are_final(-8.0, 4) is is_final
