"""Faults that swapping has shipped, each with its right behaviour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from pagemill import RequestOutput, SamplingParams
from pagemill.batch import Batch, BlockMove, MoveKind, StepResult
from pagemill.engine import LLMEngine
from pagemill.request import SequenceStatus
from pagemill.runner.simulated import SimulatedRunner
from pagemill.scheduler.scheduler_output import SchedulerOutput
from tests.core_helpers import BLOCK, generate_all, prompt_of, run_to_end, simulated_engine
from tests.exactness import assert_as_alone

COPY, SWAP_OUT, SWAP_IN = MoveKind.COPY, MoveKind.SWAP_OUT, MoveKind.SWAP_IN


class Pool(Protocol):
    """The part of a runner that holds blocks."""

    def read_block(self, block_id: int) -> bytes: ...
    def write_block(self, block_id: int, content: bytes) -> None: ...
    def move_blocks(self, moves: Sequence[BlockMove]) -> None: ...


NUM_BLOCKS, NUM_SLOTS = 5, 3


def simulated_pool(path: str | None) -> Pool:
    return SimulatedRunner(num_kv_blocks=NUM_BLOCKS, block_size=4, num_swap_slots=NUM_SLOTS)


class RealPool:
    """The pool of a runner on a real model, without the model."""

    def __init__(self, kv_dtype: str | None, path: str | None) -> None:
        from pagemill.kernels import native
        from pagemill.model_config import ModelConfig
        from pagemill.runner.kv_pool import KVPool
        from pagemill.runner.native_runner import NativeKVPool, native_block_bytes
        from pagemill.runner.swap_memory import SwapMemory

        sizes = {"vocab_size": 90, "hidden_size": 42, "intermediate_size": 50, "head_dim": 10}
        layers = {"num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2}
        config = ModelConfig.from_hf(
            {"model_type": "llama", "max_position_embeddings": 64, **sizes, **layers}
        )
        if kv_dtype is None:
            import torch

            pool = KVPool(config, NUM_BLOCKS, 4, torch.device("cpu"))
            swap = SwapMemory(NUM_SLOTS, pool.num_bytes // NUM_BLOCKS, path)
            self.move_blocks = lambda moves: pool.move_blocks(moves, swap)
            self.read_block, self.write_block = pool.read_block, pool.write_block
            return
        library = native.load()
        if library is None:
            pytest.skip("no native library")
        natives = NativeKVPool(config, NUM_BLOCKS, 4, kv_dtype)
        swap = SwapMemory(NUM_SLOTS, native_block_bytes(config, 4, kv_dtype), path)
        self.threads = threads = native.ThreadPool(library, 2)
        self.move_blocks = lambda moves: natives.move_blocks(threads, moves, swap)
        self.read_block, self.write_block = natives.read_block, natives.write_block


def real_pool(kv_dtype: str | None) -> Callable[[str | None], Pool]:
    return lambda path: RealPool(kv_dtype, path)


@pytest.mark.parametrize("in_a_file", [False, True])
@pytest.mark.parametrize(
    "make_pool",
    [simulated_pool, *map(real_pool, [None, "float32", "bfloat16", "int8"])],
    ids=["simulated", "torch", "float32", "bfloat16", "int8"],
)
def test_a_block_that_is_swapped_out_overwritten_and_swapped_in_has_the_same_bits(
    make_pool: Callable[[str | None], Pool], in_a_file: bool, tmp_path: Path
) -> None:
    pool = make_pool(str(tmp_path / "swap") if in_a_file else None)
    generator = np.random.default_rng(0)
    contents = [generator.bytes(len(pool.read_block(0))) for _ in range(NUM_BLOCKS)]
    assert len(contents[0]) > 0
    for block_id, content in enumerate(contents):
        pool.write_block(block_id, content)
    pool.move_blocks([BlockMove(SWAP_OUT, 1, 2), BlockMove(SWAP_OUT, 4, 0)])
    pool.write_block(1, contents[0])
    # In one plan: another takes both blocks, the slot is used again, and the first comes back.
    pool.move_blocks(
        [
            BlockMove(COPY, 2, 4),
            BlockMove(SWAP_IN, 2, 3),
            BlockMove(SWAP_OUT, 0, 2),
            BlockMove(COPY, 3, 0),
            BlockMove(SWAP_IN, 2, 1),
            BlockMove(SWAP_IN, 0, 2),
        ]
    )
    expected = [contents[i] for i in (1, 0, 4, 1, 2)]
    assert [pool.read_block(block_id) for block_id in range(NUM_BLOCKS)] == expected


class WatchedRunner(SimulatedRunner):
    """Counts the blocks that are written to while what they held is outside the pool."""

    num_overwritten = 0
    num_swapped_in = 0

    def __init__(self, num_kv_blocks: int, num_swap_slots: int) -> None:
        super().__init__(
            num_kv_blocks=num_kv_blocks, block_size=BLOCK, num_swap_slots=num_swap_slots
        )
        self.came_from: dict[int, int] = {}

    def move_blocks(self, moves: Sequence[BlockMove]) -> None:
        super().move_blocks(moves)
        for kind, source, target in moves:
            if kind is SWAP_OUT:
                self.came_from[target] = source
            elif kind is SWAP_IN:
                self.num_swapped_in += 1

    def execute(self, batch: Batch) -> StepResult:
        written = {int(slot) // BLOCK for slot in batch.slot_mapping}
        for slot, block_id in list(self.came_from.items()):
            if block_id in written:
                self.num_overwritten += 1
                del self.came_from[slot]
        return super().execute(batch)


def watched_engine(num_kv_blocks: int, num_swap_slots: int, **options: object) -> LLMEngine:
    engine = simulated_engine(
        num_kv_blocks=num_kv_blocks,
        num_swap_slots=num_swap_slots,
        **options,  # type: ignore[arg-type]
    )
    engine.runner = WatchedRunner(num_kv_blocks, num_swap_slots)
    return engine


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_who_was_swapped_out_and_overwritten_goes_on_as_if_nothing_had_been(
    prefix_caching: bool,
) -> None:
    engine = watched_engine(8, 40, enable_prefix_caching=prefix_caching)
    params = SamplingParams(max_tokens=60, seed=1, logprobs=1)
    outputs = generate_all(engine, [(f"{i}", prompt_of(30, i), params) for i in range(6)])
    stats = engine.stats()
    assert stats["num_preemptions_swap"] >= 3
    assert stats["num_preemptions_recompute"] == 0
    assert isinstance(engine.runner, WatchedRunner)
    assert engine.runner.num_overwritten >= 3
    assert engine.runner.num_swapped_in >= 3
    # Nothing is computed twice.
    assert stats["num_computed_tokens"] == 6 * (30 + 59)
    for output in outputs.values():
        assert_as_alone(output, params)


def test_when_the_swap_space_is_full_the_rest_is_recomputed_and_nothing_is_lost() -> None:
    engine = watched_engine(16, 5, max_num_batched_tokens=64, scheduling_policy="priority")
    params = SamplingParams(max_tokens=50, seed=1)
    for i in range(4):
        engine.add_request(f"{i}", prompt_of(30, i), params, priority=5)
    for _ in range(25):
        engine.step()
    # Three of the four have to go, and only one of them fits into the swap space.
    urgent = SamplingParams(max_tokens=1, seed=1)
    engine.add_request("urgent", prompt_of(11 * BLOCK, 9), urgent, priority=0)
    engine.step()
    stats = engine.stats()
    assert stats["num_preemptions_swap"] == 1
    assert stats["num_preemptions_recompute"] == 2
    assert stats["kv_blocks_swapped"] == 4
    outputs = run_to_end(engine)
    assert engine.stats()["kv_blocks_swapped"] == 0
    assert_as_alone(outputs["urgent"], urgent)
    for i in range(4):
        assert_as_alone(outputs[f"{i}"], params)


def test_a_swap_space_without_room_for_anybody_is_the_same_as_none() -> None:
    outputs = []
    params = SamplingParams(max_tokens=60, seed=1)
    for num_swap_slots in (1, 0):
        engine = simulated_engine(num_kv_blocks=8, num_swap_slots=num_swap_slots)
        requests = [(f"{i}", prompt_of(30, i), params) for i in range(4)]
        outputs.append([output.outputs for output in generate_all(engine, requests).values()])
        assert engine.stats()["num_preemptions_swap"] == 0
        assert engine.stats()["num_preemptions_recompute"] > 0
    assert outputs[0] == outputs[1]


def swap_out(engine: LLMEngine, request_id: str) -> None:
    """Preempt the only sequence of a request."""
    (seq,) = engine._requests[request_id].sequences
    engine.scheduler._preempt(seq, SchedulerOutput(engine.scheduler.decodes))
    engine._move(engine.kv.take_moves())
    assert seq.status is SequenceStatus.SWAPPED


def test_after_swap_in_the_same_prefix_again_and_eviction_every_block_has_its_owners() -> None:
    """The audit compares all reference counts with the owners, in every step."""
    engine = watched_engine(12, 20, scheduling_policy="priority")
    params = SamplingParams(max_tokens=40, seed=1)
    engine.add_request("first", prompt_of(3 * BLOCK + 2), params, priority=5)
    for _ in range(3):
        engine.step()
    # Somebody else takes all blocks, and so those that it leaves behind.
    whole_pool = SamplingParams(max_tokens=1, seed=2)
    engine.add_request("other", prompt_of(12 * BLOCK, 5), whole_pool, priority=0)
    assert_as_alone(engine.step()[0], whole_pool)
    assert engine.stats()["kv_blocks_swapped"] == 4
    assert engine.kv.num_evictions == 3
    for _ in range(2):
        engine.step()
    assert isinstance(engine.runner, WatchedRunner)
    assert engine.runner.num_swapped_in == 4
    # The same prompt shares the blocks that were brought back.
    engine.add_request("again", prompt_of(3 * BLOCK + 2), params, priority=5)
    engine.step()
    first, again = (engine._requests[name].sequences[0].blocks for name in ("first", "again"))
    assert first.table[:3] == again.table[:3]
    swap_out(engine, "again")
    engine.abort("first")
    outputs = run_to_end(engine)
    assert outputs["again"].num_cached_tokens == 3 * BLOCK
    assert_as_alone(outputs["again"], params)
    evicted = engine.kv.num_evictions
    engine.add_request("last", prompt_of(12 * BLOCK, 6), whole_pool)
    assert_as_alone(run_to_end(engine)["last"], whole_pool)
    assert engine.kv.num_evictions >= evicted + 5


def test_only_what_left_the_pool_is_brought_back() -> None:
    engine = watched_engine(20, 20)
    params = SamplingParams(max_tokens=20, seed=1)
    engine.add_request("r", prompt_of(3 * BLOCK + 2), params)
    for _ in range(3):
        engine.step()
    swap_out(engine, "r")
    outputs = run_to_end(engine)
    assert isinstance(engine.runner, WatchedRunner)
    # The three whole blocks are still there; the half-full one is nobody's.
    assert engine.runner.num_swapped_in == 1
    assert_as_alone(outputs["r"], params)


def test_a_swapped_request_that_is_aborted_gives_its_slots_back() -> None:
    engine = simulated_engine(num_kv_blocks=20, num_swap_slots=20)
    engine.add_request("r", prompt_of(40), SamplingParams(max_tokens=20, seed=1))
    for _ in range(3):
        engine.step()
    swap_out(engine, "r")
    assert engine.stats()["kv_blocks_swapped"] == 3
    engine.abort("r")
    assert engine.stats()["kv_blocks_swapped"] == 0
    run_to_end(engine)


def test_ten_requests_with_two_samples_a_small_swap_space_and_chunked_prefill_all_finish() -> None:
    """Running before swapped before waiting."""
    engine = simulated_engine(
        num_kv_blocks=40, block_size=4, num_swap_slots=30, max_num_batched_tokens=16
    )
    params = SamplingParams(max_tokens=40, n=2, seed=3, logprobs=1)
    for i in range(10):
        engine.add_request(f"{i}", prompt_of(30, i), params)
    outputs: dict[str, RequestOutput] = {}
    num_overtaken = num_with_both = 0
    while engine.has_unfinished_requests():
        swapped = [seq for seq in engine.scheduler.waiting if seq.status is SequenceStatus.SWAPPED]
        never_started = {
            seq.seq_id
            for seq in engine.scheduler.waiting
            if seq.request.times.first_scheduled_seconds is None
        }
        num_with_both += bool(swapped and never_started)
        outputs |= {output.request_id: output for output in engine.step()}
        still = [seq for seq in swapped if seq.status is SequenceStatus.SWAPPED]
        started = [seq for seq in engine.scheduler.running if seq.seq_id in never_started]
        num_overtaken += bool(still and started)
    assert num_overtaken == 0
    assert num_with_both > 0
    stats = engine.stats()
    assert stats["num_preemptions_swap"] >= 5
    assert stats["cow_copies"] >= 5
    assert [len(output.outputs) for output in outputs.values()] == [2] * 10
    for output in outputs.values():
        assert_as_alone(output, params)
