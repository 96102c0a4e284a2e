"""The scheduler: one budget of tokens a step, decodes and prefill chunks by the same rule.

Each sequence has tokens and computed tokens; a step moves computed towards tokens. A decode is a
sequence whose gap is 1. Decodes come first, a prompt takes what they leave, and new sequences are
admitted with the rest (the stall-free batching of Sarathi-Serve, Agrawal et al., OSDI 2024).

Memory, by two rules. A sequence is admitted when its whole prompt (after a preemption: all of its
tokens) fits beside one free block for each running sequence that may still grow, and gets these
blocks at once; so a prefill under way can never run out of blocks, and a sequence that was just
admitted is not the victim of the next step. A decode that needs a block when none is free preempts
the lowest-ranked sequence, itself if it is that one. The best-ranked sequence therefore always
advances, and `fits_ever`, checked at the door, makes sure that it can advance to its end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pagemill.errors import ConfigError, RequestTooLargeError
from pagemill.kvcache.manager import KVCacheManager
from pagemill.request import Request, Sequence, SequenceStatus
from pagemill.scheduler.policy import SchedulingPolicy
from pagemill.scheduler.ranked_queue import RankedQueue


@dataclass(slots=True)
class SchedulerOutput:
    """The plan of one step."""

    scheduled: list[tuple[Sequence, int]] = field(default_factory=list)
    """Who computes how many tokens; in the batch's row order. Blocks for them are allocated."""
    preempted: list[Sequence] = field(default_factory=list)
    """Who lost its blocks and is waiting again."""
    num_tokens: int = 0
    """Sum over ``scheduled``; at most the budget."""

    def add(self, seq: Sequence, num_tokens: int) -> None:
        """Schedule ``num_tokens`` more tokens of ``seq``."""
        self.scheduled.append((seq, num_tokens))
        self.num_tokens += num_tokens


class Scheduler:
    """Holds the queues and plans steps. Allocates blocks only through the manager.

    Args:
        kv: the block accounting.
        policy: who goes first.
        max_num_seqs: most sequences that hold blocks at once.
        max_num_batched_tokens: budget of a step, in tokens.
    """

    def __init__(
        self,
        kv: KVCacheManager,
        policy: SchedulingPolicy,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        self.kv = kv
        self.policy = policy
        self.max_num_batched_tokens = max_num_batched_tokens
        # With more running sequences than budget, some decodes would starve.
        self.max_num_running = min(max_num_seqs, max_num_batched_tokens)
        self.waiting = RankedQueue()
        self.running = RankedQueue()

    def check_fits_ever(self, request: Request) -> None:
        """Raise `RequestTooLargeError` for a request that an idle engine could not finish.

        Samples of one request can run one after another, so one of them is what must fit.
        """
        if not self.kv.fits_ever(request.num_prompt_tokens, request.max_tokens):
            needed = self.kv.blocks_needed_at_most(request.num_prompt_tokens, request.max_tokens)
            raise RequestTooLargeError(
                f"a prompt of {request.num_prompt_tokens} tokens and max_tokens="
                f"{request.max_tokens} need {needed} KV blocks of {self.kv.block_size} tokens, "
                f"but the pool has {self.kv.num_blocks}; lower max_tokens, shorten the prompt, or "
                f"raise kv_cache_memory or num_kv_blocks"
            )

    def _rank(self, request: Request) -> float:
        """Ask the policy; raise `ConfigError` for an answer that orders nothing."""
        rank = self.policy.rank(request)
        if not isinstance(rank, (int, float)) or not math.isfinite(rank):
            raise ConfigError(
                f"scheduling_policy {self.policy.name!r} gave rank {rank!r}; it must be a finite "
                f"number"
            )
        return rank

    def add(self, request: Request) -> None:
        """Queue the sequences of a request that `check_fits_ever` has passed."""
        rank = self._rank(request)
        for seq in request.sequences:
            seq.rank = (rank, seq.seq_id)
            self.waiting.add(seq)

    def finish(self, seq: Sequence) -> None:
        """Take a sequence out, wherever it is, and give back its blocks."""
        if seq.status is SequenceStatus.RUNNING:
            self.running.remove(seq)
            self.kv.free(seq.seq_id)
        elif seq.status is SequenceStatus.WAITING:
            self.waiting.remove(seq)
        seq.status = SequenceStatus.FINISHED

    def schedule(self) -> SchedulerOutput:
        """Plan the next step: allocate its blocks, preempting where it must.

        Does not advance ``num_computed_tokens``; the engine does, once the step has run.
        """
        plan = SchedulerOutput()
        self._preempt_for_a_better_ranked(plan)
        self._schedule_decodes(plan)
        self._schedule_prefills(plan)
        self._admit_waiting(plan)
        return plan

    def _schedule_decodes(self, plan: SchedulerOutput) -> None:
        """One token for each sequence whose gap is 1, best rank first."""
        at = 0
        while at < len(self.running):
            seq = self.running[at]
            if seq.num_uncomputed_tokens == 1 and self._make_room(seq, plan):
                plan.add(seq, 1)
            at += 1

    def _make_room(self, seq: Sequence, plan: SchedulerOutput) -> bool:
        """Get the block that ``seq`` grows into, preempting the lowest rank while there is none.

        Returns False if ``seq`` itself was the lowest.
        """
        while not self.kv.grow_to(seq.seq_id, seq.num_tokens):
            victim = self.running.last
            self._preempt(victim, plan)
            if victim is seq:
                return False
        return True

    def _schedule_prefills(self, plan: SchedulerOutput) -> None:
        """Chunks for running sequences that are not done with their prompt, best rank first."""
        for seq in self.running:
            budget = self.max_num_batched_tokens - plan.num_tokens
            if budget == 0:
                return
            if seq.num_uncomputed_tokens > 1:
                plan.add(seq, min(seq.num_uncomputed_tokens, budget))

    def _admit_waiting(self, plan: SchedulerOutput) -> None:
        """Admit in order of rank. Nobody overtakes: a large request that waits for blocks would
        otherwise wait for ever behind small ones.
        """
        if not self.waiting:
            return
        growing = self._num_growing()
        while self.waiting and plan.num_tokens < self.max_num_batched_tokens:
            seq = self.waiting.first
            if not self._has_room(seq, growing, len(self.running), self.kv.num_free_blocks):
                return
            self._admit(seq)
            growing += self._may_grow(seq)
            budget = self.max_num_batched_tokens - plan.num_tokens
            plan.add(seq, min(seq.num_uncomputed_tokens, budget))

    def _admit(self, seq: Sequence) -> None:
        """Let a waiting sequence run; it gets the blocks of all its tokens."""
        self.waiting.remove(seq)
        allocated = self.kv.grow_to(seq.seq_id, seq.num_tokens)
        assert allocated, "_has_room promised the blocks"
        seq.status = SequenceStatus.RUNNING
        self.running.add(seq)

    def _preempt_for_a_better_ranked(self, plan: SchedulerOutput) -> None:
        """Admit the first waiting sequence in the place of running ones that rank below it.

        Under ``fcfs`` there are none. Nobody is preempted unless that really makes room.
        """
        if not self.waiting or not self.running or self.running.last.rank < self.waiting.first.rank:
            return
        seq = self.waiting.first
        growing, num_running = self._num_growing(), len(self.running)
        num_free = self.kv.num_free_blocks
        victims: list[Sequence] = []
        while not self._has_room(seq, growing, num_running, num_free):
            if num_running == 0 or self.running[num_running - 1].rank < seq.rank:
                return
            victim = self.running[num_running - 1]
            victims.append(victim)
            growing -= self._may_grow(victim)
            num_running -= 1
            num_free += len(self.kv.block_table(victim.seq_id))
        for victim in victims:
            self._preempt(victim, plan)
        if victims:  # now: the decodes of this step may take the blocks to spare
            self._admit(seq)

    def _has_room(self, seq: Sequence, growing: int, num_running: int, num_free: int) -> bool:
        """Whether ``seq`` may be admitted: a slot, its blocks, and a block to spare for each of
        the running sequences that may grow.
        """
        needed = self.kv.missing_blocks(seq.seq_id, seq.num_tokens)
        return num_running < self.max_num_running and needed + growing <= num_free

    def _num_growing(self) -> int:
        return sum(self._may_grow(seq) for seq in self.running)

    def _may_grow(self, seq: Sequence) -> bool:
        """Whether a running sequence may need another block before it ends."""
        request = seq.request
        at_most = self.kv.blocks_needed_at_most(request.num_prompt_tokens, request.max_tokens)
        return len(self.kv.block_table(seq.seq_id)) < at_most

    def _preempt(self, seq: Sequence, plan: SchedulerOutput) -> None:
        """Take all blocks of ``seq``; it will be computed again from its first token.

        It keeps its rank: two sequences whose ranks rose by preemption would preempt each other
        for ever.
        """
        self.running.remove(seq)
        self.kv.free(seq.seq_id)
        seq.num_computed_tokens = 0
        seq.request.times.num_preemptions += 1
        seq.status = SequenceStatus.WAITING
        self.waiting.add(seq)
        plan.preempted.append(seq)
