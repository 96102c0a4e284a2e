"""The scheduler: one budget of tokens a step, decodes and prefill chunks by the same rule.

Each sequence has tokens and computed tokens; a step moves computed towards tokens. A decode is a
sequence whose gap is 1. Decodes come first, a prompt takes what they leave, and new sequences are
admitted with the rest (the stall-free batching of Sarathi-Serve, Agrawal et al., OSDI 2024). A
prompt that fills more than a step leaves half of the rest to whoever comes behind it.

Memory, by two rules. A sequence is admitted when its whole prompt (after a preemption: all of its
tokens) fits beside one free block for each running sequence that may still grow, and gets these
blocks at once; so a prefill under way can never run out of blocks, and a decode that grows in the
next step does not evict a sequence that was just admitted. A decode that needs a block when none is
free preempts the lowest-ranked sequence, itself if it is that one. And before all that, whoever
waits with a better rank than a running sequence takes its place, if its blocks would do. The
best-ranked sequence therefore always advances, and `fits_ever`, checked at the door, makes sure
that it can advance to its end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence as SequenceOf

from pagemill.errors import ConfigError, PagemillError, RequestTooLargeError
from pagemill.kvcache.manager import KVCacheManager, slots_at_most
from pagemill.kvcache.prefix_cache import PrefixHit
from pagemill.request import Request, Sequence, SequenceStatus
from pagemill.scheduler.decode_rows import DecodeRows
from pagemill.scheduler.policy import SchedulingPolicy
from pagemill.scheduler.preemption import PreemptionCosts
from pagemill.scheduler.ranked_queue import RankedQueue
from pagemill.scheduler.scheduler_output import Chunk, SchedulerOutput

_MOST_PASSED_OVER = 32
"""Waiting sequences that a step looks at again though it cannot admit them."""


class Scheduler:
    """Holds the queues and plans steps. Allocates blocks only through the manager.

    Args:
        kv: the block accounting.
        policy: who goes first.
        preemption: what becomes of a victim's blocks.
        max_num_seqs: most sequences that hold blocks at once.
        max_num_batched_tokens: budget of a step, in tokens.
    """

    def __init__(
        self,
        kv: KVCacheManager,
        policy: SchedulingPolicy,
        preemption: PreemptionCosts,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        self.kv = kv
        self.policy = policy
        self.preemption = preemption
        self.max_num_batched_tokens = max_num_batched_tokens
        # With more running sequences than budget, some decodes would starve.
        self.max_num_running = min(max_num_seqs, max_num_batched_tokens)
        self.waiting = RankedQueue()
        """Also those swapped out. Who was preempted keeps its rank, and so goes before those that
        arrived after it."""
        self.running = RankedQueue()
        """All that hold blocks: the decodes and the prefills."""
        self.decodes = DecodeRows(kv.block_size)
        self._prefills = RankedQueue()
        self._num_growing = 0

    # Sequences come and go

    def check_fits_ever(self, request: Request) -> None:
        """Raise `RequestTooLargeError` for a request that an idle engine could not finish.

        Samples of one request can run one after another, so one of them is what must fit.
        """
        if not self.kv.fits_ever(request.num_prompt_tokens, request.max_tokens):
            needed = self.kv.blocks_needed_at_most(request.num_prompt_tokens, request.max_tokens)
            output, lower = f" and max_tokens={request.max_tokens} need", "lower max_tokens, "
            if request.pooled is not None:
                output, lower = " needs", ""
            raise RequestTooLargeError(
                f"a prompt of {request.num_prompt_tokens} tokens{output} {needed} KV blocks of "
                f"{self.kv.block_size} tokens, but the pool has {self.kv.describe_size()}; "
                f"{lower}shorten the prompt, or raise kv_cache_memory or num_kv_blocks"
            )

    def add(self, request: Request) -> None:
        """Queue the sequences of a request that `check_fits_ever` has passed."""
        rank = self._rank(request)
        for seq in request.sequences:
            seq.rank = (rank, seq.seq_id)
            self.waiting.add(seq)

    def add_fork(self, source: Sequence, fork: Sequence) -> None:
        """Queue a sequence whose tokens, but for its last one, ``source`` has, too.

        It shares the blocks of ``source`` and runs at once, if that decodes and there is room for
        one more. Otherwise it waits, and looks for its prefix as everybody does. Its place in the
        order is beside ``source``: were it behind all who have arrived meanwhile, the branches of
        a search would wait for each other.
        """
        fork.rank = (source.rank[0], fork.seq_id)
        if self._is_decoding(source) and self._has_slot_for_one_more():
            self._start_running(fork)
            self._share(source, fork)
            self.decodes.add(fork)
        else:
            self.waiting.add(fork)

    def finish(self, seq: Sequence) -> None:
        """Take a sequence out, wherever it is, and give back what it holds."""
        if seq.status is SequenceStatus.RUNNING:
            self._stop_running(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)
        self.kv.free(seq.blocks, seq.token_ids, seq.num_computed_tokens)
        seq.status = SequenceStatus.FINISHED

    # A step

    def schedule(self) -> SchedulerOutput:
        """Plan the next step: allocate its blocks, preempting where it must.

        Does not advance any sequence; `advance` does, once the step has run.
        """
        plan = SchedulerOutput(self.decodes)
        self._preempt_for_a_better_ranked(plan)
        self._make_room_for_decodes(plan)
        self._schedule_prefills(plan)
        self._admit_waiting(plan)
        self._hand_out_what_is_left(plan)
        plan.moves = self.kv.take_moves()
        return plan

    def advance(self, plan: SchedulerOutput, decoded: SequenceOf[int]) -> None:
        """The step has run, and new tokens are appended: note what is computed now.

        Args:
            plan: the step.
            decoded: the token that each decode gained, in the order of `SchedulerOutput.decodes`.
        """
        for seq in self.decodes.advance(decoded):
            self.kv.note_computed(seq.blocks, seq.token_ids, seq.num_computed_tokens)
        for seq, num_tokens, _ in plan.chunks:
            seq.num_prefilled_tokens += num_tokens
        for first, fork in plan.forks:
            self._share(first, fork)
        for seq, _, is_last in plan.chunks:
            self.kv.note_computed(seq.blocks, seq.token_ids, seq.num_prefilled_tokens)
            if is_last and seq.finish_reason is None:
                self._prefills.remove(seq)
                self.decodes.add(seq)
        for _, fork in plan.forks:
            if fork.finish_reason is None:
                self.decodes.add(fork)

    def take_back(self, plan: SchedulerOutput) -> None:
        """The step has not run, though its moves were made: the next plan may be the same."""
        for _, fork in plan.forks:
            self._stop_running(fork)
            fork.status = SequenceStatus.WAITING
            self.waiting.add(fork)

    def _make_room_for_decodes(self, plan: SchedulerOutput) -> None:
        """A slot for the last token of each decode, best rank first, who needs a block for it."""
        for seq in sorted(self.decodes.without_room(), key=lambda seq: seq.rank):
            # It may have been the victim of one before it.
            if self._is_decoding(seq) and self._make_room(seq, plan):
                self.decodes.note_last_block(seq)
                self._note_growth(seq)
        plan.num_decodes = plan.num_tokens = len(self.decodes)

    def _make_room(self, seq: Sequence, plan: SchedulerOutput) -> bool:
        """Get the block that ``seq`` grows into, preempting the lowest rank while there is none.

        Returns False if ``seq`` itself was the lowest.
        """
        while not self.kv.grow(seq.blocks, seq.num_tokens):
            victim = self.running.last
            self._preempt(victim, plan)
            if victim is seq:
                return False
        return True

    def _schedule_prefills(self, plan: SchedulerOutput) -> None:
        """Chunks for running sequences that are not done with their prompt, best rank first."""
        for seq in self._prefills:
            if plan.num_tokens == self.max_num_batched_tokens:
                return
            self._schedule_chunk(seq, plan)

    def _schedule_chunk(self, seq: Sequence, plan: SchedulerOutput) -> None:
        num_tokens = min(seq.num_uncomputed_tokens, self._share_of(seq, plan))
        is_last = num_tokens == seq.num_uncomputed_tokens
        plan.chunks.append(Chunk(seq, num_tokens, is_last))
        plan.num_tokens += num_tokens
        if seq.request.times.first_scheduled_seconds is None:
            plan.started.append(seq.request)
        if is_last and seq.request.max_tokens > 0 and not seq.output_token_ids:
            self._fork_samples(seq, plan)

    def _share_of(self, seq: Sequence, plan: SchedulerOutput) -> int:
        """The most tokens that ``seq`` may compute now.

        What is longer than a step leaves half of what there is, but for its end, to those behind
        it: they wait for a step or two then, and not until it is done. That takes the first of
        several at most twice as long, and each other one twice as long as the one before it.
        """
        left = self.max_num_batched_tokens - plan.num_tokens
        is_long = seq.num_tokens > self.max_num_batched_tokens and seq.num_uncomputed_tokens > left
        somebody_is_behind = self.waiting or self._prefills.last is not seq
        return -(-left // 2) if is_long and somebody_is_behind else left

    def _hand_out_what_is_left(self, plan: SchedulerOutput) -> None:
        """Nobody came for what a long prompt has left to others: the best-ranked one computes more.

        It does not end with that: it left half of too little for that.
        """
        left = self.max_num_batched_tokens - plan.num_tokens
        for at, (seq, num_tokens, is_last) in enumerate(plan.chunks):
            if left and not is_last:
                plan.chunks[at] = Chunk(seq, num_tokens + left, False)
                plan.num_tokens += left
                return

    def _fork_samples(self, first: Sequence, plan: SchedulerOutput) -> None:
        """The prompt is about to be done: let the request's other samples share it, as far as
        there is room. Those that are left over compute what they do not find.
        """
        for seq in first.request.sequences:
            if seq.status is not SequenceStatus.WAITING or seq.output_token_ids:
                continue
            if not self._has_slot_for_one_more():
                return
            self.waiting.remove(seq)
            self._start_running(seq)
            plan.forks.append((first, seq))

    def _admit_waiting(self, plan: SchedulerOutput) -> None:
        """Admit in order of rank. Nobody overtakes who waits for room: a large request would
        otherwise wait for ever behind small ones. Who waits for what another computes is passed
        over: it will have room, if need be that of those who went before it.
        """
        if not self.waiting:
            return
        under_way = self._blocks_under_way()
        at = 0
        while at < len(self.waiting) and plan.num_tokens < self.max_num_batched_tokens:
            if not self._has_slot_for_one_more():
                return  # without looking at a long prompt again in every step
            seq = self.waiting[at]
            hit = self._find_computed(seq)
            if self._is_being_computed(seq, hit, under_way):
                at += 1
                if at == _MOST_PASSED_OVER:
                    return
                continue
            if not self._has_room(seq, hit):
                return
            self._admit(seq, hit)
            under_way.add(self.kv.next_digest(seq.blocks, seq.num_computed_tokens))
            self._schedule_chunk(seq, plan)

    def _admit(self, seq: Sequence, hit: PrefixHit) -> None:
        """Let a waiting sequence run; it gets the blocks of all its tokens."""
        self.waiting.remove(seq)
        if seq.status is SequenceStatus.SWAPPED:
            self.kv.swap_in(seq.blocks, self._slots_at_admission(seq), hit)
        else:
            num_slots = self._slots_at_admission(seq)
            seq.num_prefilled_tokens = self.kv.allocate(seq.blocks, num_slots, hit)
            if seq.request.num_cached_tokens is None:
                seq.request.num_cached_tokens = seq.num_prefilled_tokens
        self._start_running(seq)
        self._prefills.add(seq)

    def _find_computed(self, seq: Sequence) -> PrefixHit:
        """What of a waiting sequence is in the pool, now."""
        if seq.status is SequenceStatus.SWAPPED:
            return self.kv.find_swapped(seq.blocks, seq.token_ids, seq.num_computed_tokens)
        return self.kv.find_prefix(seq.blocks, seq.token_ids, seq.max_reusable_tokens)

    def _blocks_under_way(self) -> set[bytes | None]:
        """The names of the blocks that running sequences compute next of their prompts."""
        return {self.kv.next_digest(seq.blocks, seq.num_computed_tokens) for seq in self._prefills}

    def _is_being_computed(
        self, seq: Sequence, hit: PrefixHit, under_way: set[bytes | None]
    ) -> bool:
        """Whether the first block that ``seq`` does not find is just what a running sequence
        computes. It will not be twice.
        """
        if seq.status is SequenceStatus.SWAPPED:
            return False
        first = seq.request.sequences[0]
        if (
            first is not seq
            and first.status is SequenceStatus.RUNNING
            and not (first.output_token_ids or self._is_decoding(first))
        ):
            return True
        if seq.max_reusable_tokens <= len(hit.nodes) * self.kv.block_size:
            return False  # the rest it must compute itself
        missing = self.kv.first_missing(seq.blocks, hit)
        return missing is not None and missing in under_way

    def _preempt_for_a_better_ranked(self, plan: SchedulerOutput) -> None:
        """Admit the first waiting sequence in the place of running ones that rank below it.

        Under ``fcfs`` only two can find any: a branch, which has the place of the request that it
        left, and who was passed over. Nobody is preempted unless that really makes room.
        """
        if not self.waiting or not self.running or self.running.last.rank < self.waiting.first.rank:
            return
        seq = self.waiting.first
        hit = self._find_computed(seq)
        if self._is_being_computed(seq, hit, self._blocks_under_way()):
            return
        victims: list[Sequence] = []
        while not self._has_room(seq, hit, victims):
            left = len(self.running) - len(victims)
            if left == 0 or self.running[left - 1].rank < seq.rank:
                return
            victims.append(self.running[left - 1])
        for victim in victims:
            self._preempt(victim, plan)
        if victims:  # now: the decodes of this step may take the blocks to spare
            self._admit(seq, self._find_computed(seq))

    def _has_room(self, seq: Sequence, hit: PrefixHit, victims: SequenceOf[Sequence] = ()) -> bool:
        """Whether ``seq`` may be admitted once ``victims`` are gone: a slot, its blocks, and a
        block to spare for each of the running sequences that may grow.
        """
        if len(self.running) - len(victims) >= self.max_num_running:
            return False
        leaving = Counter(block_id for victim in victims for block_id in victim.blocks.table)
        growing = self._num_growing - sum(victim.may_grow for victim in victims)
        needed = self.kv.blocks_to_take(hit, self._slots_at_admission(seq), leaving)
        return needed + growing <= self.kv.num_free_after(leaving)

    def _slots_at_admission(self, seq: Sequence) -> int:
        request = seq.request
        # The last token that is generated needs no slot.
        at_most = slots_at_most(request.num_prompt_tokens, request.max_tokens)
        return self.kv.num_slots_at_admission(seq.num_tokens, at_most)

    def _has_slot_for_one_more(self) -> bool:
        """Whether one more sequence may run that shares all blocks but one; nobody needs less."""
        return (
            len(self.running) < self.max_num_running and self._num_growing < self.kv.num_free_blocks
        )

    def _preempt(self, seq: Sequence, plan: SchedulerOutput) -> None:
        """Take all blocks of ``seq``; they are swapped out, or computed again later.

        It keeps its rank: two sequences whose ranks rose by preemption would preempt each other
        for ever.
        """
        self._stop_running(seq)
        computed, num_blocks = seq.num_computed_tokens, len(seq.blocks.table)
        swaps = self.preemption.prefers_swap(num_blocks, computed)
        if swaps and computed and self.kv.swap_out(seq.blocks, computed):
            seq.status = SequenceStatus.SWAPPED
        else:
            self.kv.free(seq.blocks, seq.token_ids, computed)
            seq.num_prefilled_tokens = 0
            seq.status = SequenceStatus.WAITING
        seq.request.times.num_preemptions += 1
        self.waiting.add(seq)
        plan.preempted.append(seq)

    # Small print

    def _rank(self, request: Request) -> float:
        """Ask the policy; raise `ConfigError` for an answer that orders nothing, or for none."""
        try:
            rank = self.policy.rank(request)
            is_finite = isinstance(rank, (int, float)) and math.isfinite(rank)
        except PagemillError:
            raise
        except Exception as error:
            raise ConfigError(
                f"scheduling_policy {self.policy.name!r} gave request {request.request_id!r} no "
                f"rank: {type(error).__name__}: {error}"
            ) from error
        if not is_finite:
            raise ConfigError(
                f"scheduling_policy {self.policy.name!r} gave rank {rank!r}; it must be a finite "
                f"number"
            )
        return rank

    def _is_decoding(self, seq: Sequence) -> bool:
        return seq.row >= 0

    def _share(self, source: Sequence, fork: Sequence) -> None:
        """Give ``fork``, which runs, the blocks of ``source`` for all its tokens but the last."""
        computed = source.num_computed_tokens
        fork.num_prefilled_tokens = min(computed, fork.num_tokens - 1)
        fork.blocks = self.kv.fork(source.blocks, computed, fork.num_prefilled_tokens)
        self._note_growth(fork)
        self._note_growth(source)
        if self._is_decoding(source):
            self.decodes.note_table(source)

    def _start_running(self, seq: Sequence) -> None:
        request = seq.request
        seq.status = SequenceStatus.RUNNING
        seq.max_blocks = self.kv.blocks_needed_at_most(
            request.num_prompt_tokens, request.max_tokens
        )
        self.running.add(seq)
        self._note_growth(seq)

    def _stop_running(self, seq: Sequence) -> None:
        self.running.remove(seq)
        if self._is_decoding(seq):
            self.decodes.remove(seq)
        elif seq in self._prefills:
            self._prefills.remove(seq)
        self._num_growing -= seq.may_grow
        seq.may_grow = False

    def _note_growth(self, seq: Sequence) -> None:
        """Keep count of the running sequences that may need another block before they end."""
        blocks = seq.blocks
        may_grow = len(blocks.table) < seq.max_blocks or blocks.shares_tail
        self._num_growing += may_grow - seq.may_grow
        seq.may_grow = may_grow
