"""Small engines without a model, and what tests ask of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from pagemill.config import EngineConfig
from pagemill.engine import LLMEngine
from pagemill.outputs import RequestOutput
from pagemill.runner.simulated import SimulatedRunner, VirtualClock
from pagemill.sampling_params import SamplingParams

BLOCK = 16


class ByteTokenizer:
    """Ids 0 to 255 are bytes; 256 is <eos>, 257 is <bos> (not added)."""

    vocab_size = 258
    bos_token_id: int | None = None
    eos_token_ids = frozenset({256})

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return b"".join(self.token_bytes(i) for i in token_ids).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b"<eos>" if token_id == 256 else b"<bos>"

    def is_special(self, token_id: int) -> bool:
        return token_id >= 256


def simulated_engine(
    *,
    num_kv_blocks: int = 64,
    block_size: int = BLOCK,
    max_model_len: int = 1024,
    vocab_size: int = 1000,
    tokenizer: ByteTokenizer | None = None,
    num_swap_slots: int = 0,
    block_bytes: int = 1,
    fingerprint: Callable[[], str] = str,
    **config: object,
) -> LLMEngine:
    """An engine on the simulated runner, audited after every step.

    With swap slots it swaps unless told otherwise; a block counts as one byte.
    """
    if num_swap_slots and config.get("preemption_mode") != "recompute":
        config = {"preemption_mode": "swap", "swap_space": num_swap_slots} | config
    clock = VirtualClock()
    if tokenizer is not None:
        vocab_size = tokenizer.vocab_size
    return LLMEngine(
        EngineConfig.from_kwargs(block_size=block_size, check_invariants=True, **config),
        SimulatedRunner(
            num_kv_blocks=num_kv_blocks,
            block_size=block_size,
            num_swap_slots=num_swap_slots,
            vocab_size=vocab_size,
            clock=clock,
        ),
        tokenizer,
        num_kv_blocks=num_kv_blocks,
        max_model_len=max_model_len,
        num_swap_slots=num_swap_slots,
        block_bytes=block_bytes,
        fingerprint=fingerprint,
        clock=clock,
    )


def run_to_end(engine: LLMEngine, max_steps: int = 20_000) -> dict[str, RequestOutput]:
    """Step until nothing is left; the last output of each request."""
    last: dict[str, RequestOutput] = {}
    for _ in range(max_steps):
        if not engine.has_unfinished_requests():
            assert_idle(engine)
            return last
        for output in engine.step():
            last[output.request_id] = output
    raise AssertionError(f"not finished after {max_steps} steps: the engine does not advance")


def assert_idle(engine: LLMEngine) -> None:
    """An idle engine holds nothing but what is pinned."""
    engine.audit()
    assert engine.kv.num_free_blocks == engine.kv.num_usable_blocks
    assert engine.kv.num_swapped_blocks == 0
    assert len(engine.scheduler.running) == len(engine.scheduler.waiting) == 0


def prompt_of(length: int, start: int = 1) -> list[int]:
    """A prompt of ``length`` tokens that differs with ``start``."""
    return [(start * 7919 + i * 31) % 1000 for i in range(length)]


def tokens(output: RequestOutput) -> list[list[int]]:
    """Generated ids of each sample."""
    return [completion.token_ids for completion in output.outputs]


def alone(prompt: Sequence[int], params: SamplingParams, **engine_options: object) -> RequestOutput:
    """What the request gives in an engine of its own with plenty of room and nothing shared."""
    engine = roomy_engine(**engine_options)
    engine.add_request("alone", list(prompt), params)
    return run_to_end(engine)["alone"]


def embedding_alone(prompt: Sequence[int], **engine_options: object) -> list[float]:
    """Of the prompt, likewise."""
    engine = roomy_engine(**engine_options)
    engine.add_embedding_request("alone", list(prompt))
    return embedding_of(run_to_end(engine)["alone"])


def embedding_of(output: RequestOutput) -> list[float]:
    """Its numbers, to be compared by ``==``: none of them is NaN."""
    assert output.finished
    assert output.embedding is not None
    assert output.embedding.dtype == np.float32
    assert np.isfinite(output.embedding).all()
    return [float(number) for number in output.embedding]


def roomy_engine(**engine_options: object) -> LLMEngine:
    """Plenty of room and nothing shared, unless told otherwise."""
    options: Mapping[str, object] = {
        "num_kv_blocks": 512,
        "max_num_batched_tokens": 8192,
        "max_model_len": 4096,
        "enable_prefix_caching": False,
        **engine_options,
    }
    return simulated_engine(**options)  # type: ignore[arg-type]


def generate_all(
    engine: LLMEngine, requests: Iterable[tuple[str, Sequence[int], SamplingParams]]
) -> dict[str, RequestOutput]:
    """Add all requests at once and run to the end."""
    for request_id, prompt, params in requests:
        engine.add_request(request_id, list(prompt), params)
    return run_to_end(engine)
