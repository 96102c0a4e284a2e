"""`LLMEngine`: requests in, steps, outputs out.

One step, as `LLMEngine.step` reads:

    schedule ──> build the batch ──> run it ──> apply what came back ──> report
    (Scheduler)  (batch_builder)     (ModelRunner)  (tokens, stops, times)  (RequestOutput)

The engine is plain Python: it needs a runner for the arithmetic and a tokenizer for text, and
works the same with the simulated ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from typing import Any

from pagemill.admission import Admission
from pagemill.batch import Batch, BlockMove, ModelRunner, MoveKind, StepResult
from pagemill.batch_builder import build_batch
from pagemill.config import EngineConfig
from pagemill.errors import EngineError, InvalidParameterError, InvariantError
from pagemill.kept_prefixes import KeptPrefixes
from pagemill.kvcache.manager import KVCacheManager
from pagemill.kvcache.memory_report import MemoryReport
from pagemill.metrics import MetricsCollector
from pagemill.outputs import RequestOutput
from pagemill.request import Request, Sequence
from pagemill.sampling_params import SamplingParams
from pagemill.scheduler.policy import make_policy
from pagemill.scheduler.preemption import PreemptionCosts
from pagemill.scheduler.scheduler import Scheduler
from pagemill.scheduler.scheduler_output import SchedulerOutput
from pagemill.text.tokenizer_protocol import Tokenizer
from pagemill.token_processor import TokenProcessor


class LLMEngine:
    """The loop that everything else drives. Not thread-safe: one caller at a time.

    Args:
        config: checked settings.
        runner: computes the batches; owns the memory of the KV pool.
        tokenizer: None if all prompts come as token ids and no text is wanted.
        num_kv_blocks: blocks in the runner's pool.
        max_model_len: longest prompt + output of one sequence, in tokens.
        num_swap_slots: blocks that the runner has room for outside its pool.
        block_bytes: keys and values of one block in all layers.
        fingerprint: names the model and all that its keys and values depend on.
        eos_token_ids: what ends a sequence unless ignored; None: the tokenizer's.
        clock: monotonic seconds; a virtual one in simulations.
        kv: accounts for the blocks of the runner's pool; None: as ``config`` has it. Another one to
            compare with.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: ModelRunner,
        tokenizer: Tokenizer | None,
        *,
        num_kv_blocks: int,
        max_model_len: int,
        num_swap_slots: int = 0,
        block_bytes: int = 1,
        fingerprint: Callable[[], str] = str,
        eos_token_ids: frozenset[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
        kv: KVCacheManager | None = None,
    ) -> None:
        self.config = config
        self.runner = runner
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len
        self.kv = kv or KVCacheManager(
            num_kv_blocks,
            config.block_size,
            num_swap_slots=num_swap_slots,
            prefix_caching=config.enable_prefix_caching,
            partial_hits=config.prefix_cache_partial_hits,
        )
        self.scheduler = Scheduler(
            self.kv,
            make_policy(config.scheduling_policy),
            PreemptionCosts(config.preemption_mode, block_bytes),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
        self.kept_prefixes = KeptPrefixes(
            self.kv, self.scheduler, runner, block_bytes, fingerprint, self._check_alive
        )
        """Pins, saves and loads prefixes; between two steps."""
        self.metrics = MetricsCollector(self.kv, self.scheduler, clock)
        self.clock = clock
        """What all times and deadlines are read from."""
        if eos_token_ids is None:
            eos_token_ids = frozenset() if tokenizer is None else tokenizer.eos_token_ids
        self.eos_token_ids = eos_token_ids
        self._admission = Admission(
            self.scheduler,
            tokenizer,
            vocab_size=runner.vocab_size,
            max_model_len=max_model_len,
            eos_token_ids=eos_token_ids,
            engine_seed=config.seed,
        )
        self._processor = TokenProcessor(tokenizer, self.metrics)
        self._requests: dict[str, Request] = {}
        self._unreported: dict[str, RequestOutput] = {}
        """The newest output of each request that `step` has something to say of."""
        self._failure: EngineError | None = None
        self._closed = False

    def add_request(
        self,
        request_id: str,
        prompt: str | SequenceOf[int],
        sampling_params: SamplingParams | None = None,
        priority: int = 0,
        *,
        deadline_seconds: float | None = None,
        cache_salt: str | None = None,
        arrival_seconds: float | None = None,
        stream: bool = True,
    ) -> None:
        """Queue a request; the next `step` may already work on it.

        Args:
            request_id: a name of the caller's, unique among unfinished requests.
            prompt: a text, or its token ids.
            sampling_params: default `SamplingParams`.
            priority: smaller is more urgent; only under ``scheduling_policy="priority"``.
            deadline_seconds: when it should have ended, from now; only under
                ``scheduling_policy="deadline"``.
            cache_salt: computed prefixes are shared among requests of the same salt only.
            arrival_seconds: when it arrived, on the engine's clock, if that was before now; its
                latencies count from there.
            stream: let `step` report the request after every token, not only at its end.

        Raises:
            RequestError: it can never be served as asked; the engine is as before.
            ConfigError: a scheduling policy of the caller's gave it no rank; likewise.
            EngineError: the engine has failed and takes no requests.
        """
        self._check_alive()
        self._check_new_id("request_id", request_id)
        request = self._admission.admit(
            request_id,
            prompt,
            SamplingParams() if sampling_params is None else sampling_params,
            priority,
            deadline_seconds,
            cache_salt,
            self.clock() if arrival_seconds is None else arrival_seconds,
        )
        self._queue(request, stream=stream)

    def add_embedding_request(
        self,
        request_id: str,
        prompt: str | SequenceOf[int],
        priority: int = 0,
        *,
        deadline_seconds: float | None = None,
        cache_salt: str | None = None,
        arrival_seconds: float | None = None,
    ) -> None:
        """Queue a request for the embedding of a prompt: the mean over all its tokens of the last
        hidden state, behind the final norm.

        To the scheduler it is a request like any other, which ends when its prompt is computed.
        `step` reports it once, then: ``RequestOutput.embedding``, float32 ``[hidden_size]``, and
        ``finish_reason="length"``; or no embedding and ``"abort"``, with ``stop_reason=
        "damaged_embedding"`` if the model computed NaN or infinity.

        Args:
            request_id: as for `add_request`.
            prompt: likewise; it may be as long as the context.
            priority: likewise.
            deadline_seconds: likewise.
            cache_salt: likewise: others may reuse what is computed here. This request itself
                computes all of its prompt.
            arrival_seconds: likewise.

        Raises:
            RequestError: as for `add_request`.
            ConfigError: likewise.
            EngineError: likewise.
        """
        self._check_alive()
        self._check_new_id("request_id", request_id)
        request = self._admission.admit_embedding(
            request_id,
            prompt,
            priority,
            deadline_seconds,
            cache_salt,
            self.clock() if arrival_seconds is None else arrival_seconds,
        )
        self._queue(request, stream=False)

    def fork(
        self,
        request_id: str,
        new_request_id: str,
        sampling_params: SamplingParams | None = None,
        *,
        index: int = 0,
        num_output_tokens: int | None = None,
        last_token_id: int | None = None,
        stream: bool = True,
    ) -> None:
        """Let a request branch: queue another one that goes on from its first tokens.

        The branch shares all blocks of keys and values up to there; a block is copied when one of
        the two first writes to it. Its output begins with the tokens that it shares.

        Args:
            request_id: an unfinished request, not for an embedding.
            new_request_id: the name of the branch.
            sampling_params: of the branch, ``max_tokens`` and ``min_tokens`` counted from its first
                token; None: those of the request, with a random stream of its own.
            index: which of the request's samples branches.
            num_output_tokens: of that sample, how many are shared; None: all.
            last_token_id: take the last of these for another token, one whose log-probability the
                request was asked for (``SamplingParams.logprobs``) and so is known.
            stream: as in `add_request`.

        Raises:
            RequestError: it cannot be done as asked; the engine is as before.
        """
        self._check_alive()
        self._check_new_id("new_request_id", new_request_id)
        source = self._find_sequence(request_id, index)
        request = self._admission.fork(
            source, new_request_id, sampling_params, num_output_tokens, last_token_id, self.clock()
        )
        request.stream = stream
        (seq,) = request.sequences
        if seq.finish_reason is None:
            self.scheduler.add_fork(source, seq)
            self._requests[new_request_id] = request
        else:
            self.scheduler.finish(seq)
            self._report_ended(request)

    def abort(self, request_id: str, *, report: bool = True) -> bool:
        """End a request now and free what it holds.

        Args:
            request_id: the request to end.
            report: let the next `step` return its last output, with ``finish_reason="abort"``.

        Returns:
            False if there is no such unfinished request.
        """
        if not report:
            self._unreported.pop(request_id, None)
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        for seq in request.sequences:
            if not seq.is_finished:
                self._processor.abort(seq)
                self.scheduler.finish(seq)
        self._report_ended(request, report=report)
        return True

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to do or to report."""
        return bool(self._requests or self._unreported)

    def step(self) -> list[RequestOutput]:
        """Do one step; returns a snapshot of each streaming request that it changed, and of each
        other one that it finished; and what `step_for` has kept.

        With nothing to do it returns an empty list. If a step fails, in the runner or elsewhere,
        it raises `EngineError`, and so does every later call: the engine's state is unknown. Only
        a Ctrl-C while the runner computes does no harm: the step has not happened then.
        """
        self._check_alive()
        if not self._requests:
            return self._take_unreported()
        started = self.clock()
        with self._closed_by_failure():
            plan = self.scheduler.schedule()
            self.metrics.on_scheduled(plan)
            batch = self._build(plan)
            self._move(plan.moves)
        result = self._execute(plan, batch)
        with self._closed_by_failure():
            changed = self._apply(plan, result)
            self.metrics.on_step_done(started)
            if self.config.check_invariants:
                self.audit()
        for request in changed:
            if request.stream or request.is_finished:
                self._unreported[request.request_id] = request.to_output()
        return self._take_unreported()

    def step_for(self, request_ids: Collection[str]) -> list[RequestOutput]:
        """`step` on behalf of some requests; returns outputs of these.

        Others advance as well, and the newest output of each waits for the next `step`.
        """
        outputs = {output.request_id: output for output in self.step()}
        self._unreported = {name: o for name, o in outputs.items() if name not in request_ids}
        return [output for name, output in outputs.items() if name in request_ids]

    @contextmanager
    def _closed_by_failure(self) -> Iterator[None]:
        """Take no more work after an error in the body."""
        try:
            yield
        except EngineError as error:
            self._failure = error
            raise
        except KeyboardInterrupt:
            # It may have come in the middle of the bookkeeping.
            self._failure = EngineError("a step was interrupted")
            raise
        except Exception as error:
            self._failure = EngineError(f"a step failed: {type(error).__name__}: {error}")
            raise self._failure from error

    def _build(self, plan: SchedulerOutput) -> Batch:
        batch = build_batch(plan, self.kv.block_size)
        if self.config.check_invariants:
            self.kv.check_writable({slot // self.kv.block_size for slot in batch.slot_mapping})
        return batch

    def _move(self, moves: SequenceOf[BlockMove]) -> None:
        """Bring the contents of blocks where the plan wants them."""
        if moves:
            started = self.clock()
            self.runner.move_blocks(moves)
            if all(move.kind is not MoveKind.COPY for move in moves):
                self.scheduler.preemption.on_swapped(len(moves), self.clock() - started)

    def _execute(self, plan: SchedulerOutput, batch: Batch) -> StepResult:
        started = self.clock()
        try:
            result = self.runner.execute(batch)
        except KeyboardInterrupt:
            self.scheduler.take_back(plan)
            raise
        except Exception as error:
            self._failure = EngineError(f"the model runner failed: {type(error).__name__}: {error}")
            raise self._failure from error
        returned = len(result.sampled), len(result.scored), len(result.pooled)
        asked_for = len(batch.sampling), len(batch.scoring), len(batch.pooling)
        if returned != asked_for:
            self._failure = EngineError(
                f"the model runner returned {returned} sampled tokens, scored tokens and sums of "
                f"rows, not {asked_for}"
            )
            raise self._failure
        self.scheduler.preemption.on_computed(batch.num_tokens, self.clock() - started)
        return result

    def _apply(self, plan: SchedulerOutput, result: StepResult) -> list[Request]:
        """Advance every scheduled sequence by what the step computed; returns who changed."""
        now = self.clock()
        applied = self._processor.apply(plan, result, now)
        self.scheduler.advance(plan, applied.decoded)
        for seq in applied.ended:
            self.scheduler.finish(seq)
        for request_id in {seq.request.request_id for seq in applied.ended}:
            request = self._requests[request_id]
            if request.is_finished:
                request.times.finished_seconds = now
                del self._requests[request_id]
                self.metrics.on_finished(request)
        return list(applied.changed.values())

    def _queue(self, request: Request, *, stream: bool) -> None:
        """Let `step` work on an admitted request."""
        request.stream = stream
        self.scheduler.add(request)
        self._requests[request.request_id] = request

    def _report_ended(self, request: Request, *, report: bool = True) -> None:
        """A request has ended outside of a step; let the next one return its last output."""
        request.times.finished_seconds = self.clock()
        self.metrics.on_finished(request)
        if report:
            self._unreported[request.request_id] = request.to_output()

    def _check_new_id(self, field: str, request_id: object) -> None:
        if not isinstance(request_id, str) or not request_id:
            raise InvalidParameterError(field, request_id, "must be a non-empty text")
        if request_id in self._requests or request_id in self._unreported:
            raise InvalidParameterError(field, request_id, "is already in use")

    def _find_sequence(self, request_id: str, index: int) -> Sequence:
        """An unfinished sequence by its name."""
        request = self._requests.get(request_id) if isinstance(request_id, str) else None
        if request is None:
            raise InvalidParameterError("request_id", request_id, "names no unfinished request")
        unfinished = {seq.index: seq for seq in request.sequences if not seq.is_finished}
        if isinstance(index, bool) or not isinstance(index, int) or index not in unfinished:
            rule = f"must be one of the unfinished samples of {request_id!r}: {sorted(unfinished)}"
            raise InvalidParameterError("index", index, rule)
        return unfinished[index]

    def _take_unreported(self) -> list[RequestOutput]:
        outputs, self._unreported = self._unreported, {}
        return list(outputs.values())

    def stats(self) -> dict[str, Any]:
        """Counters and latencies since the start; see `MetricsCollector.stats`."""
        return self.metrics.stats()

    def memory_report(self) -> MemoryReport:
        """Where the blocks of the KV pool are now, and how full. Linear in the blocks in use."""
        running = self.scheduler.running
        return self.kv.report((seq.blocks, seq.num_computed_tokens) for seq in running)

    def audit(self) -> None:
        """Raise `InvariantError` unless the accounting of blocks is whole.

        Exactly the running sequences hold blocks, and every unfinished sequence is queued.
        """
        self.kv.audit(
            [seq.blocks for seq in self.scheduler.running],
            [seq.blocks for seq in self.scheduler.waiting],
        )
        queued = len(self.scheduler.running) + len(self.scheduler.waiting)
        unfinished = sum(
            not seq.is_finished for request in self._requests.values() for seq in request.sequences
        )
        if queued != unfinished:
            raise InvariantError(f"{unfinished} unfinished sequences, but {queued} are queued")

    def close(self) -> None:
        """Abort what is left and release the runner. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        for request_id in list(self._requests):
            self.abort(request_id, report=False)
        self._unreported.clear()
        if self._failure is None:
            self._failure = EngineError("it was closed")
        self.runner.close()

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise EngineError(f"the engine takes no more work: {self._failure}") from self._failure
