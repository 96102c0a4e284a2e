"""Real keys and values, shared, copied, moved and computed again: a request keeps its bits.

Requests with prefixes in common arrive while others run, in pools too small for them, under each
way of making room. What each sample gives is compared with what it gives alone, with nothing shared
and nothing moved. `pytest --long` draws more.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagemill import LLM, RequestOutput, SamplingParams
from pagemill.kernels import native
from pagemill.outputs import CompletionOutput
from tests.exactness import each_sample
from tests.parity.tiny_models import gemma3, llama

DATA = Path(__file__).parent.parent / "data"
needs_native = pytest.mark.skipif(native.load() is None, reason="no native library")


@dataclass(frozen=True)
class Setting:
    """One way to make room."""

    options: dict[str, Any]
    events: tuple[str, ...]
    """What must have happened: counters of `events_of`."""
    num_tokens: int = 144
    """Size of the pool: hardly more than the longest request."""
    num_swap_tokens: int = 0
    swap_file: bool = False


HITS = ("whole-block hits", "partial hits", "copies on write")
SETTINGS = {
    "plenty": Setting({"max_num_batched_tokens": 48}, HITS, num_tokens=6400),
    "swap": Setting(
        {"preemption_mode": "swap", "num_threads": 2},
        (*HITS, "swaps", "evictions"),
        num_swap_tokens=1000,
    ),
    "swap to a file": Setting(
        {"preemption_mode": "swap", "enable_prefix_caching": False},
        ("copies on write", "swaps"),
        num_swap_tokens=1000,
        swap_file=True,
    ),
    "recompute": Setting(
        {"preemption_mode": "recompute", "max_num_batched_tokens": 24},
        (*HITS, "recomputations", "evictions"),
    ),
    "little swap, small blocks": Setting(
        {"preemption_mode": "swap", "prefix_cache_partial_hits": False, "block_size": 4},
        ("whole-block hits", "copies on write", "swaps", "recomputations", "evictions"),
        num_swap_tokens=64,
        swap_file=True,
    ),
}


@dataclass(frozen=True)
class Arrival:
    at_step: int
    prompt: list[int]
    params: SamplingParams
    abort_after: int | None


def draw_arrivals(
    generator: np.random.Generator, text: Sequence[int], count: int, max_tokens: int
) -> list[Arrival]:
    """Requests that begin with ``text`` up to some point: at, before and behind block borders."""
    vocab_size = int(max(text)) + 1
    arrivals = []
    for i in range(count):
        shared = int(generator.choice([0, 5, 15, 16, 17, 31, 32, 33, 48, 53, 64]))
        own = generator.integers(0, vocab_size, generator.integers(1, 20)).tolist()
        params = (
            SamplingParams(temperature=0, logprobs=3),
            SamplingParams(top_p=0.9, logprobs=2, n=2),
            SamplingParams(top_k=30, frequency_penalty=0.5, logprobs=0, n=3),
            SamplingParams(min_p=0.05, repetition_penalty=1.2, presence_penalty=0.3),
            SamplingParams(temperature=0, repetition_penalty=1.3, logprobs=1, n=2),
            SamplingParams(temperature=0.7, prompt_logprobs=1, logprobs=1, n=2),
        )[i % 6]
        arrivals.append(
            Arrival(
                at_step=int(generator.integers(0, 12)),
                prompt=[*text[:shared], *own],
                params=dataclasses.replace(
                    params,
                    seed=int(generator.integers(2**63)),
                    max_tokens=int(generator.integers(max_tokens // 2, max_tokens + 1)),
                ),
                abort_after=int(generator.integers(1, 12)) if i % 7 == 6 else None,
            )
        )
    return arrivals


def engine_options(setting: Setting, bytes_per_token: int, swap_path: Path) -> dict[str, Any]:
    block_size = setting.options.get("block_size", 16)
    options = {
        "num_threads": 1,
        "check_invariants": True,
        "num_kv_blocks": setting.num_tokens // block_size,
        **setting.options,
    }
    if setting.num_swap_tokens:
        options["swap_space"] = setting.num_swap_tokens * bytes_per_token
    if setting.swap_file:
        options["swap_path"] = str(swap_path)
    return options


def drive(llm: LLM, arrivals: Sequence[Arrival]) -> dict[int, RequestOutput]:
    """Add and abort on schedule; the last output of each request."""
    engine, outputs, step = llm.engine, dict[int, RequestOutput](), 0
    last_step = max(arrival.at_step for arrival in arrivals)
    while step <= last_step or engine.has_unfinished_requests():
        for i, arrival in enumerate(arrivals):
            if arrival.at_step == step:
                engine.add_request(f"{i}", arrival.prompt, arrival.params)
            if arrival.abort_after is not None and arrival.at_step + arrival.abort_after == step:
                engine.abort(f"{i}")
        for output in engine.step():
            outputs[int(output.request_id)] = output
        step += 1
    return outputs


def events_of(llm: LLM) -> Counter[str]:
    kv, stats = llm.engine.kv, llm.stats()
    return Counter(
        {
            "whole-block hits": kv.num_whole_hits,
            "partial hits": kv.num_partial_hits,
            "evictions": kv.num_evictions,
            "copies on write": stats["cow_copies"],
            "swaps": stats["num_preemptions_swap"],
            "recomputations": stats["num_preemptions_recompute"],
        }
    )


def samples_alone(llm: LLM, arrivals: Sequence[Arrival]) -> list[list[RequestOutput]]:
    """Each sample of each request by itself."""
    return [
        [
            llm.generate([arrival.prompt], one, use_tqdm=False)[0]
            for one in each_sample(arrival.params)
        ]
        for arrival in arrivals
    ]


def bits(completion: CompletionOutput) -> list[Any]:
    """All that a caller sees of a sample, one entry for each token, then the rest."""
    shown: list[Any] = [None] * len(completion.token_ids)
    if completion.logprobs is not None:
        shown = list(completion.logprobs)
    return list(zip(completion.token_ids, shown, strict=True))


def assert_same(
    arrival: Arrival, output: RequestOutput, alone: list[RequestOutput], *, only_tokens: bool
) -> None:
    for ours, theirs in zip(output.outputs, [one.outputs[0] for one in alone], strict=True):
        if only_tokens:
            assert ours.token_ids == theirs.token_ids[: len(ours.token_ids)]
            assert ours.finish_reason in (theirs.finish_reason, "abort")
        elif ours.finish_reason == "abort":
            assert arrival.abort_after is not None
            assert bits(ours) == bits(theirs)[: len(ours.token_ids)]
        else:
            assert dataclasses.replace(ours, index=0) == theirs
    is_aborted = any(completion.finish_reason == "abort" for completion in output.outputs)
    if not is_aborted and not only_tokens:
        assert output.prompt_logprobs == alone[0].prompt_logprobs


def check(
    model: str,
    swap_path: Path,
    text: Sequence[int],
    *,
    count: int,
    max_tokens: int,
    seeds: Sequence[int],
    only_tokens: bool = False,
    **options: Any,
) -> None:
    """Run drawn requests under every setting, and each sample of them alone."""
    fired = {name: Counter[str]() for name in SETTINGS}
    off = {"enable_prefix_caching": False, "num_threads": 1, "num_kv_blocks": 20}
    for seed in seeds:
        arrivals = draw_arrivals(np.random.default_rng(seed), text, count, max_tokens)
        with LLM(model, **off | options) as llm:
            alone = samples_alone(llm, arrivals)
            bytes_per_token = llm.pool.block_bytes // 16
        for name, setting in SETTINGS.items():
            on = engine_options(setting, bytes_per_token, swap_path)
            with LLM(model, **on | options) as llm:
                outputs = drive(llm, arrivals)
                fired[name] += events_of(llm)
            for i, arrival in enumerate(arrivals):
                assert_same(arrival, outputs[i], alone[i], only_tokens=only_tokens)
    for name, setting in SETTINGS.items():
        for event in setting.events:
            assert fired[name][event] > 0, (name, event, fired[name])


@needs_native
def test_smollm2_keeps_its_bits(smollm2_path: Path, tmp_path: Path, long_run: bool) -> None:
    entries = json.loads((DATA / "smollm2_float32_greedy.json").read_text())
    text = [token for entry in entries[:4] for token in entry["token_ids"]]
    seeds = range(20 if long_run else 1)
    check(str(smollm2_path), tmp_path / "swap", text, count=11, max_tokens=18, seeds=seeds)


@pytest.fixture(scope="module")
def tiny_paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Saved models: full attention, and a window of seven tokens in one of two layers."""
    paths = {}
    for name, build in (("llama", llama), ("gemma3", gemma3)):
        paths[name] = str(tmp_path_factory.mktemp(name))
        build().save_pretrained(paths[name])
    return paths


TEXT = np.random.default_rng(0).integers(0, 97, 64).tolist()


@needs_native
@pytest.mark.parametrize(
    ("name", "kv_cache_dtype"),
    [("llama", "float32"), ("llama", "bfloat16"), ("llama", "int8"), ("gemma3", "float32")],
)
def test_a_tiny_model_keeps_its_bits_with_every_kind_of_kv_cache(
    name: str, kv_cache_dtype: str, tiny_paths: dict[str, str], tmp_path: Path, long_run: bool
) -> None:
    check(
        tiny_paths[name],
        tmp_path / "swap",
        TEXT,
        count=14,
        max_tokens=40,
        seeds=range(200 if long_run else 1 if name == "gemma3" else 2),
        kv_cache_dtype=kv_cache_dtype,
    )


def test_a_tiny_model_keeps_its_tokens_on_torch(
    tiny_paths: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bits are nothing that PyTorch promises."""
    monkeypatch.setattr(native, "load", lambda: None)
    check(
        tiny_paths["llama"],
        tmp_path / "swap",
        TEXT,
        count=10,
        max_tokens=20,
        seeds=[0],
        only_tokens=True,
        num_threads=1,
    )
