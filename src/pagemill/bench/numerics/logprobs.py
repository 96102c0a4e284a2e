"""Log-probabilities over the whole vocabulary, from the engine's own path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from pagemill.assembly import build_engine
from pagemill.batch import Batch, StepResult, TokenLogprobs
from pagemill.bench.numerics.formats import Format
from pagemill.config import EngineConfig
from pagemill.kvcache.manager import blocks_for_tokens
from pagemill.runner.native_runner import NativeRunner
from pagemill.sampling.vocabulary import FloatArray
from pagemill.sampling_params import SamplingParams

_BLOCK_SIZE = 16
_STEP_TOKENS = 64
"""Rows in memory at a time. In float64, of 262,144 tokens, they take 134 MB."""


class PromptLogprobs:
    """A model in one format, and what it predicts after each token of a prompt.

    Admission, scheduling, batches and kernels are the engine's; its runner is wrapped, so that
    the logits are seen before they are gone.

    Args:
        model: as for `EngineConfig`.
        weights_and_kv: how weights, keys and values are kept.
        max_tokens: the longest prompt.
        num_threads: that compute; None: as the engine decides.

    Raises:
        ConfigError: there are no native kernels, or the model has a shorter context.
        ModelError: the model cannot be found, read or run.
    """

    def __init__(
        self, model: str, weights_and_kv: Format, max_tokens: int, num_threads: int | None = None
    ) -> None:
        config = EngineConfig(
            model=model,
            num_threads=num_threads,
            block_size=_BLOCK_SIZE,
            num_kv_blocks=blocks_for_tokens(max_tokens, _BLOCK_SIZE),
            max_model_len=max_tokens,
            max_num_seqs=1,
            max_num_batched_tokens=_STEP_TOKENS,
            enable_prefix_caching=False,
            deterministic=True,  # refuses to do without the native kernels
            **weights_and_kv.engine_options(),
        )
        assembly = build_engine(config)
        self.tokenizer = assembly.tokenizer
        self._engine = assembly.engine
        self._seen: list[torch.Tensor] = []
        runner = self._engine.runner
        assert isinstance(runner, NativeRunner)
        self._engine.runner = _ShowingRunner(runner, self._seen.append)

    def of(self, prompt: Sequence[int]) -> Iterator[torch.Tensor]:
        """Float64 ``[rows, vocab_size]``, piece by piece: row i of all is what follows token i.

        There is a row for every token but the last. A piece holds as many as a step has.
        """
        self._engine.add_request(
            "prompt", prompt, SamplingParams(max_tokens=0, prompt_logprobs=0), stream=False
        )
        while self._engine.has_unfinished_requests():
            self._engine.step()
            yield from self._seen
            self._seen.clear()

    def close(self) -> None:
        """Release the engine."""
        self._engine.close()


class _ShowingRunner:
    """A `pagemill.batch.ModelRunner` that scores, and shows all that it scores with.

    Args:
        runner: that computes.
        show: called with the log-probabilities of each piece of a step, in the order of its rows.
    """

    def __init__(self, runner: NativeRunner, show: Callable[[torch.Tensor], None]) -> None:
        self.vocab_size = runner.vocab_size
        self.move_blocks = runner.move_blocks
        self.read_block = runner.read_block
        self.write_block = runner.write_block
        self._runner = runner
        self._show = show

    def execute(self, batch: Batch) -> StepResult:
        """Score the batch's prompt tokens; nothing is sampled here."""
        assert not batch.sampling
        result = StepResult(sampled=[], scored=[])

        def score(first: int, logits: FloatArray) -> None:
            logprobs = torch.from_numpy(logits).double().log_softmax(dim=-1)
            tasks = batch.scoring[first : first + len(logits)]
            token_ids = torch.tensor([task.token_id for task in tasks])
            chosen = logprobs[torch.arange(len(tasks)), token_ids]
            ranks = 1 + (logprobs > chosen[:, None]).sum(dim=-1)
            for logprob, rank in zip(chosen.tolist(), ranks.tolist(), strict=True):
                result.scored.append(TokenLogprobs(logprob, rank, ()))
            self._show(logprobs)

        self._runner.run(batch, score)
        return result

    def close(self) -> None:
        """Close the runner that computes."""
        self._runner.close()
