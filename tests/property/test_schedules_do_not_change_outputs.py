"""Whatever the schedule, a request's tokens and log-probabilities are those of the request alone.

Random arrivals, shared prefixes, aborts, budgets, pools, policies, and which of prefix caching,
partial hits, swap and recompute are on; the audit runs after every step. The simulated runner's
tokens depend on every slot that a block table names. `pytest --long` draws more.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagemill import RequestOutput, RequestTooLargeError, SamplingParams
from pagemill.engine import LLMEngine
from pagemill.philox import derive_seed
from tests.core_helpers import (
    ByteTokenizer,
    alone,
    assert_idle,
    embedding_alone,
    embedding_of,
    prompt_of,
    simulated_engine,
)

FIRED: Counter[str | None] = Counter()
"""What happened in the examples of one run."""
EVENTS = (
    "whole-block hit",
    "partial hit",
    "copy on write",
    "swapped",
    "recomputed",
    "preempted in auto mode",
    "eviction",
    "chunked prompt",
    "several samples",
    "refused",
    "stop",
    "length",
    "abort",
)
BLOCK_SIZES = st.sampled_from([1, 2, 3, 4, 8, 16])


@dataclass(frozen=True)
class Arrival:
    at_step: int
    prompt: list[int]
    params: SamplingParams | None
    """None: its embedding is wanted."""
    priority: int
    abort_after: int | None
    cache_salt: str | None


def sampling_params() -> st.SearchStrategy[SamplingParams]:
    return st.builds(
        lambda temperature, seed, n, max_tokens, stop, penalty, logprobs, prompt_logprobs, end: (
            SamplingParams(
                temperature=temperature,
                seed=seed,
                n=n,
                max_tokens=max_tokens,
                min_tokens=min(2, max_tokens),
                stop=stop,
                stop_token_ids=end,
                frequency_penalty=penalty,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
            )
        ),
        temperature=st.sampled_from([0.0, 1.0]),
        seed=st.integers(0, 2**64 - 1),
        n=st.integers(1, 4),
        max_tokens=st.integers(1, 40),
        stop=st.sampled_from([(), ("a",), ("\x07b", "q")]),
        penalty=st.sampled_from([0.0, 0.5]),
        logprobs=st.sampled_from([None, 0, 2]),
        prompt_logprobs=st.sampled_from([None, 1]),
        end=st.sampled_from([(), (1, 2, 3, 4, 5, 6, 7, 8)]),
    )


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """One of a few texts up to any point, and then something of its own, or nothing."""
    shared = prompt_of(draw(st.integers(0, 60)), draw(st.integers(0, 2)))
    own = prompt_of(draw(st.integers(0, 20)), draw(st.integers(3, 9)))
    return [token % 258 for token in shared + own] or [7]


def arrivals() -> st.SearchStrategy[list[Arrival]]:
    one = st.builds(
        Arrival,
        at_step=st.integers(0, 25),
        prompt=prompts(),
        params=sampling_params(),
        priority=st.integers(-2, 2),
        abort_after=st.none() | st.integers(0, 30),
        cache_salt=st.sampled_from([None, None, "a"]),
    )
    return st.lists(one, min_size=1, max_size=8)


def engine_options() -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries(
        {
            "enable_prefix_caching": st.booleans(),
            "prefix_cache_partial_hits": st.booleans(),
            "preemption_mode": st.sampled_from(["swap", "auto", "recompute", "swap"]),
            "num_swap_slots": st.sampled_from([400, 100, 4]),
            "max_num_batched_tokens": st.integers(1, 96),
            "max_num_seqs": st.integers(1, 8),
            "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
        }
    )


@given(
    arrivals=arrivals(),
    block_size=BLOCK_SIZES,
    pool_tokens=st.integers(16, 200),
    options=engine_options(),
)
def check_one_schedule(
    arrivals: list[Arrival], block_size: int, pool_tokens: int, options: dict[str, object]
) -> None:
    engine = simulated_engine(
        num_kv_blocks=max(pool_tokens // block_size, 1),
        block_size=block_size,
        tokenizer=ByteTokenizer(),
        **options,  # type: ignore[arg-type]
    )
    use_priority = options["scheduling_policy"] == "priority"
    outputs, refused = drive(engine, arrivals, use_priority=use_priority)
    assert_idle(engine)
    count_events(engine, outputs, refused)
    for i, arrival in enumerate(arrivals):
        if i in refused:
            assert arrival.params is not None
            needed = len(arrival.prompt) + (arrival.params.max_tokens or 0) - 1
            assert needed > engine.kv.num_blocks * block_size - block_size
        elif f"{i}" in outputs:
            assert_same(outputs[f"{i}"], arrival)
        else:
            assert arrival.abort_after == 0


def test_every_schedule_gives_each_request_what_it_gives_alone(long_run: bool) -> None:
    FIRED.clear()
    settings(
        max_examples=10_000 if long_run else 400,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )(check_one_schedule)()
    # Without these the property would say little.
    for what in EVENTS:
        assert FIRED[what] >= 20, (what, FIRED)


def drive(
    engine: LLMEngine, arrivals: list[Arrival], *, use_priority: bool
) -> tuple[dict[str, RequestOutput], set[int]]:
    """Add and abort on schedule; the last output of each request, and who was refused."""
    outputs: dict[str, RequestOutput] = {}
    refused: set[int] = set()
    step = 0
    while step <= 26 or engine.has_unfinished_requests():
        for i, arrival in enumerate(arrivals):
            if arrival.at_step == step:
                try:
                    add(engine, f"{i}", arrival, arrival.priority if use_priority else 0)
                except RequestTooLargeError:
                    refused.add(i)
            if arrival.abort_after is not None and arrival.at_step + arrival.abort_after == step:
                engine.abort(f"{i}")
        for output in engine.step():
            outputs[output.request_id] = output
        step += 1
        assert step < 20_000, "the engine does not advance"
    return outputs, refused


def add(engine: LLMEngine, request_id: str, arrival: Arrival, priority: int) -> None:
    prompt, params, salt = arrival.prompt, arrival.params, arrival.cache_salt
    if params is None:
        engine.add_embedding_request(request_id, prompt, priority, cache_salt=salt)
    else:
        engine.add_request(request_id, prompt, params, priority, cache_salt=salt)


def assert_same(output: RequestOutput, arrival: Arrival) -> None:
    """Each sample equals one run alone, with nothing shared; an aborted one is a prefix of it."""
    assert output.finished
    params = arrival.params
    if params is None:
        assert_same_embedding(output)
        return
    assert output.embedding is None
    assert params.seed is not None
    for ours in output.outputs:
        seed = derive_seed(params.seed, ours.index)
        expected = alone(
            arrival.prompt,
            dataclasses.replace(params, n=1, seed=seed),
            tokenizer=ByteTokenizer(),
            block_size=16,
        )
        (theirs,) = expected.outputs
        length = len(ours.token_ids)
        assert ours.token_ids == theirs.token_ids[:length]
        if ours.logprobs is not None and theirs.logprobs is not None:
            assert ours.logprobs == theirs.logprobs[:length]
        if ours.finish_reason != "abort":
            assert dataclasses.replace(ours, index=0) == theirs
    if all(completion.finish_reason != "abort" for completion in output.outputs):
        assert output.prompt_logprobs == expected.prompt_logprobs


def assert_same_embedding(output: RequestOutput) -> None:
    """It equals one computed alone, or there is none."""
    (ending,) = output.outputs
    assert (ending.token_ids, ending.text) == ([], "")
    if ending.finish_reason == "abort":
        assert output.embedding is None
    else:
        expected = embedding_alone(output.prompt_token_ids, tokenizer=ByteTokenizer())
        assert embedding_of(output) == expected


def count_events(engine: LLMEngine, outputs: dict[str, RequestOutput], refused: set[int]) -> None:
    """That the cases of interest occur."""
    stats, config = engine.stats(), engine.config
    FIRED["whole-block hit"] += engine.kv.num_whole_hits
    FIRED["partial hit"] += engine.kv.num_partial_hits
    FIRED["eviction"] += engine.kv.num_evictions
    FIRED["copy on write"] += stats["cow_copies"]
    FIRED["swapped"] += stats["num_preemptions_swap"]
    FIRED["recomputed"] += stats["num_preemptions_recompute"]
    if config.preemption_mode == "auto":
        FIRED["preempted in auto mode"] += (
            stats["num_preemptions_swap"] + stats["num_preemptions_recompute"]
        )
    FIRED["refused"] += len(refused)
    for output in outputs.values():
        FIRED["chunked prompt"] += len(output.prompt_token_ids) > config.max_num_batched_tokens
        FIRED["several samples"] += len(output.outputs) > 1
        FIRED.update(completion.finish_reason for completion in output.outputs)
