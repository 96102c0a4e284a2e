"""A simulated model with likelihoods, and beam search by brute force."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pagemill.batch import SampledToken, SamplingTask, TokenLogprobs
from pagemill.beams import BeamSearchParams
from pagemill.config import EngineConfig
from pagemill.engine import LLMEngine
from pagemill.runner.simulated import SimulatedRunner, VirtualClock, _mix
from pagemill.sampling_params import SamplingParams

VOCAB_SIZE = 12


class LikelyRunner(SimulatedRunner):
    """Every token has a likelihood that depends on every slot of its context; greedy only."""

    def _draw(self, context: int, task: SamplingTask) -> SampledToken:
        logits = [6 * _mix(context, token_id) / 2**64 for token_id in range(self.vocab_size)]
        normalizer = math.log(sum(map(math.exp, logits)))
        ranked = sorted(((logit - normalizer, i) for i, logit in enumerate(logits)), reverse=True)
        best_logprob, best = ranked[0]
        top = tuple((i, logprob) for logprob, i in ranked[: task.params.logprobs])
        return SampledToken(best, TokenLogprobs(best_logprob, 1, top))


def beam_engine(
    *,
    num_kv_blocks: int = 400,
    block_size: int = 4,
    num_swap_slots: int = 0,
    max_model_len: int = 512,
    end_ids: Sequence[int] = (3,),
    **config: object,
) -> LLMEngine:
    """An engine on that model, audited after every step; with swap slots it swaps."""
    if num_swap_slots:
        config = {"preemption_mode": "swap", "swap_space": num_swap_slots} | config
    clock = VirtualClock()
    return LLMEngine(
        EngineConfig.from_kwargs(block_size=block_size, check_invariants=True, **config),
        LikelyRunner(
            num_kv_blocks=num_kv_blocks,
            block_size=block_size,
            num_swap_slots=num_swap_slots,
            vocab_size=VOCAB_SIZE,
            clock=clock,
        ),
        None,
        num_kv_blocks=num_kv_blocks,
        max_model_len=max_model_len,
        num_swap_slots=num_swap_slots,
        eos_token_ids=frozenset(end_ids),
        clock=clock,
    )


class BruteForce:
    """Beam search over whole tables of log-probabilities, each prefix computed from nothing."""

    def __init__(self) -> None:
        self._engine = beam_engine(num_kv_blocks=20, enable_prefix_caching=False)
        self._tables: dict[tuple[int, ...], list[float]] = {}

    @property
    def num_computed_tokens(self) -> int:
        return self._engine.metrics.num_computed_tokens

    def table(self, token_ids: tuple[int, ...]) -> list[float]:
        """The log-probability of every token after ``token_ids``."""
        if token_ids not in self._tables:
            params = SamplingParams(
                temperature=0, max_tokens=1, logprobs=VOCAB_SIZE, ignore_eos=True
            )
            self._engine.add_request("a", token_ids, params)
            (output,) = self._engine.step()
            assert output.outputs[0].logprobs is not None
            known = output.outputs[0].logprobs[0]
            self._tables[token_ids] = [known[i].logprob for i in range(VOCAB_SIZE)]
        return self._tables[token_ids]

    def search(
        self, prompt: Sequence[int], params: BeamSearchParams, end_ids: Sequence[int]
    ) -> list[tuple[float, tuple[int, ...]]]:
        """Score and tokens of the ended beams, best first."""
        assert params.max_tokens is not None
        width = params.beam_width
        running: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        ended: list[tuple[float, tuple[int, ...]]] = []
        for length in range(1, params.max_tokens + 1):
            penalty = length**params.length_penalty
            every = sorted(
                (
                    (logprob + more, (*tokens, i))
                    for logprob, tokens in running
                    for i, more in enumerate(self.table((*prompt, *tokens)))
                ),
                reverse=True,
            )
            is_last = length == params.max_tokens
            ended += [
                (logprob / penalty, tokens)
                for logprob, tokens in every[:width]
                if is_last or tokens[-1] in end_ids
            ]
            ended = sorted(ended, reverse=True)[:width]
            running = [beam for beam in every if beam[1][-1] not in end_ids][:width]
            if len(ended) < width:
                continue
            if params.early_stopping is True or width == 1:
                break
            if params.early_stopping == "never" and params.length_penalty > 0:
                penalty = params.max_tokens**params.length_penalty
            if running[0][0] / penalty <= ended[-1][0]:
                break
        return ended
