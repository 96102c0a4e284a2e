"""`KVCacheManager`: with its parts, the only code that takes or gives back blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from pagemill.batch import BlockMove, MoveKind
from pagemill.errors import InvariantError
from pagemill.kvcache.allocator import BlockAllocator
from pagemill.kvcache.block_hash import HashFunction, digest, extras_bytes, token_bytes
from pagemill.kvcache.memory_report import MemoryReport
from pagemill.kvcache.pins import Pins
from pagemill.kvcache.prefix_cache import CachedBlock, PrefixCache, PrefixHit
from pagemill.kvcache.prefix_file import LoadedPrefixes, Record
from pagemill.kvcache.restore import restore_blocks
from pagemill.kvcache.sequence_blocks import SequenceBlocks
from pagemill.kvcache.swap_space import SwapSpace

_NOTHING = PrefixHit([], None, 0)


def blocks_for_tokens(num_tokens: int, block_size: int) -> int:
    """Blocks that hold ``num_tokens`` token slots."""
    return -(-num_tokens // block_size)


def slots_at_most(num_prompt_tokens: int, max_tokens: int) -> int:
    """Token slots of a sequence at its longest.

    The last token that is generated needs none: nothing is computed from it.
    """
    return num_prompt_tokens + max(max_tokens - 1, 0)


class KVCacheManager:
    """Owns every block, in and out of the pool.

    Where content has to go from one block to another, the manager plans a move (`BlockMove`); the
    moves of a step are made in the order in which they were planned, before anything is computed.
    So a plan may use a block for the next thing as soon as its content has somewhere to go.

    Args:
        num_blocks: blocks in the pool.
        block_size: token slots in a block.
        num_swap_slots: blocks that fit outside the pool.
        prefix_caching: keep computed blocks, and look for them.
        partial_hits: also copy the matching head of a block.
        hash_function: names blocks; another one for tests.
        allocator: of the pool; another one for comparisons.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        num_swap_slots: int = 0,
        prefix_caching: bool = True,
        partial_hits: bool = True,
        hash_function: HashFunction = digest,
        allocator: BlockAllocator | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_cow_copies = 0
        self.num_whole_hits = 0
        """Known blocks that a new table was given, in the cache or in other tables."""
        self.num_partial_hits = 0
        """Cached blocks whose head was copied."""
        self.num_evictions = 0
        """Cached blocks that were given to somebody else."""
        self.prefix_caching = prefix_caching
        self.partial_hits = partial_hits
        self._cache = PrefixCache(
            block_size, partial_hits=partial_hits, hash_function=hash_function
        )
        self._allocator = allocator or BlockAllocator(num_blocks, self._evict)
        self._swap = SwapSpace(num_swap_slots)
        self._moves: list[BlockMove] = []
        self._pins = Pins(self._allocator)

    # How much there is

    @property
    def num_free_blocks(self) -> int:
        """Blocks that could be taken now, those included whose content may still be hit."""
        return self._allocator.num_free_blocks

    @property
    def num_cached_blocks(self) -> int:
        """Free blocks whose content may still be hit."""
        return self._allocator.num_cached_blocks

    @property
    def num_swapped_blocks(self) -> int:
        """Blocks of preempted sequences outside the pool."""
        return self._swap.num_used_slots

    @property
    def usage(self) -> float:
        """Share of the pool in block tables or pinned, 0 to 1."""
        return 1.0 - self._allocator.num_free_blocks / self.num_blocks

    @property
    def num_usable_blocks(self) -> int:
        """Blocks of the pool that are not pinned."""
        return self.num_blocks - len(self._pins.blocks())

    @property
    def max_sequence_tokens(self) -> int:
        """Longest prompt + output that `fits_ever`: one more than there are slots."""
        return self.num_usable_blocks * self.block_size + 1

    def fits_ever(self, num_prompt_tokens: int, max_tokens: int) -> bool:
        """Whether a sequence of this size could run to its end in an otherwise empty pool."""
        return self.blocks_needed_at_most(num_prompt_tokens, max_tokens) <= self.num_usable_blocks

    def describe_size(self) -> str:
        """For messages: the blocks of the pool, and how many of them are pinned, if any are."""
        pinned = self.num_blocks - self.num_usable_blocks
        return f"{self.num_blocks}" + (f" ({pinned} of them pinned)" if pinned else "")

    def blocks_needed_at_most(self, num_prompt_tokens: int, max_tokens: int) -> int:
        """Blocks that a sequence holds at its longest."""
        return blocks_for_tokens(slots_at_most(num_prompt_tokens, max_tokens), self.block_size)

    def num_slots_at_admission(self, num_tokens: int, num_tokens_at_most: int) -> int:  # noqa: ARG002
        """Token slots that a sequence is admitted with: those of the tokens that it has.

        A manager to compare with may reserve ``num_tokens_at_most``, or more.
        """
        return num_tokens

    # A sequence comes, grows, forks and goes

    def new_sequence(self, cache_salt: str | None = None) -> SequenceBlocks:
        """For a sequence that holds nothing yet."""
        return SequenceBlocks(self._cache.root(extras_bytes(cache_salt)))

    def find_prefix(
        self, blocks: SequenceBlocks, token_ids: Sequence[int], max_tokens: int
    ) -> PrefixHit:
        """What is computed already of ``token_ids``, as things are now; changes nothing.

        Args:
            blocks: of a sequence that holds no block.
            token_ids: all its tokens.
            max_tokens: use no more than this, so that something is left to compute.
        """
        if not self.prefix_caching:
            return _NOTHING
        tokens = token_bytes(token_ids)
        self._cache.extend_digests(blocks.root, blocks.digests, tokens)
        return self._cache.find(blocks.root, blocks.digests, tokens, max_tokens)

    def blocks_to_take(
        self, hit: PrefixHit, num_tokens: int, leaving: Counter[int] | None = None
    ) -> int:
        """Free blocks that `allocate` or `swap_in` would use up.

        Args:
            hit: what is shared.
            num_tokens: the table is to cover.
            leaving: references that are about to go, by block.
        """
        leaving = leaving or Counter()
        held = sum(
            self._allocator.ref_count(node.block_id) > leaving[node.block_id] for node in hit.nodes
        )
        return blocks_for_tokens(num_tokens, self.block_size) - held

    def num_free_after(self, leaving: Counter[int]) -> int:
        """Free blocks once the references in ``leaving``, by block, are gone."""
        return self._allocator.num_free_blocks + sum(
            self._allocator.ref_count(block_id) == count for block_id, count in leaving.items()
        )

    def first_missing(self, blocks: SequenceBlocks, hit: PrefixHit) -> bytes | None:
        """The name of the first whole block of a sequence that is not computed yet, if any."""
        if len(hit.nodes) == len(blocks.digests):
            return None
        digest = blocks.digests[len(hit.nodes)]
        # One that is known but not in ``hit`` is only used in part: its last token is computed.
        return digest if self._cache.get(digest, blocks.root) is None else None

    def next_digest(self, blocks: SequenceBlocks, num_computed_tokens: int) -> bytes | None:
        """The name of the next whole block of a sequence under way, if it has one to come."""
        at = num_computed_tokens // self.block_size
        return blocks.digests[at] if at < len(blocks.digests) else None

    def allocate(self, blocks: SequenceBlocks, num_tokens: int, hit: PrefixHit) -> int:
        """Give a sequence the blocks of ``num_tokens``, shared as far as ``hit`` goes.

        Returns how many tokens are computed already. The caller knows that the blocks exist.
        """
        source = None
        if hit.partial is not None:
            source = hit.partial.block_id
            self._allocator.touch(source)
        self._fill_table(blocks, hit.nodes, num_tokens)
        if source is not None:
            self.num_partial_hits += 1
            # If the source itself was just taken, its content is still there when this is done.
            self._move(MoveKind.COPY, source, blocks.table[len(hit.nodes)])
        return len(hit.nodes) * self.block_size + hit.num_partial_tokens

    def grow(self, blocks: SequenceBlocks, num_tokens: int) -> bool:
        """Make the table cover ``num_tokens`` slots, and its last block the sequence's own.

        Returns False, with nothing changed, if the pool has too few free blocks.
        """
        table = blocks.table
        missing = blocks_for_tokens(num_tokens, self.block_size) - len(table)
        must_copy = blocks.shares_tail and not self._is_writable(table[-1])
        if missing + must_copy > self._allocator.num_free_blocks:
            return False
        if must_copy:
            (own,) = self._allocator.take(1)
            self._move(MoveKind.COPY, table[-1], own)
            self._allocator.release(table[-1:])
            table[-1] = own
            self.num_cow_copies += 1
        blocks.shares_tail = False
        table += self._allocator.take(missing)
        return True

    def fork(
        self, blocks: SequenceBlocks, num_computed_tokens: int, num_shared_tokens: int
    ) -> SequenceBlocks:
        """Share the blocks of a sequence's first tokens with a new one.

        Args:
            blocks: of the sequence.
            num_computed_tokens: of it.
            num_shared_tokens: at most as many. Where they end inside a block, that is shared, too:
                whoever writes to it first, copies it.
        """
        whole, rest = divmod(num_shared_tokens, self.block_size)
        table = blocks.table[: whole + (rest > 0)]
        self._allocator.share(table)
        if num_computed_tokens % self.block_size and len(table) == len(blocks.table):
            blocks.shares_tail = True
        return SequenceBlocks(
            blocks.root,
            table,
            blocks.nodes[:whole],
            [i for i in blocks.twins if i < whole],
            blocks.digests[:whole],
            shares_tail=rest > 0,
        )

    def note_computed(
        self, blocks: SequenceBlocks, token_ids: Sequence[int], num_computed_tokens: int
    ) -> None:
        """Make the whole blocks among the first ``num_computed_tokens`` findable."""
        if not self.prefix_caching:
            return
        size, nodes, digests = self.block_size, blocks.nodes, blocks.digests
        num_whole = num_computed_tokens // size
        if num_whole <= len(nodes):
            return
        for i in blocks.twins:
            if nodes[i].is_evicted:
                # What continues an evicted block is found no more: register the sequence's own.
                del nodes[i:]
                blocks.twins = [twin for twin in blocks.twins if twin < i]
                break
        parent = nodes[-1] if nodes else blocks.root
        for i in range(len(nodes), num_whole):
            content = token_bytes(token_ids[i * size : (i + 1) * size])
            if i == len(digests):
                digests.append(self._cache.digest_after(parent, content))
            own = blocks.table[i]
            node, replaced = self._cache.register(parent, content, digests[i], own)
            if replaced is not None:
                self._allocator.forget(replaced)
            if node.block_id != own and self._allocator.ref_count(node.block_id) == 0:
                # An equal block that nobody holds is evicted before what will continue this one.
                self._allocator.forget(node.block_id)
                self._cache.rename(node, own)
            if node.block_id == own:
                self._allocator.keep(own)
            else:
                blocks.twins.append(i)
            nodes.append(node)
            parent = node

    def free(
        self, blocks: SequenceBlocks, token_ids: Sequence[int] = (), num_computed_tokens: int = 0
    ) -> None:
        """Give back everything that a sequence holds; harmless if it holds nothing.

        Its whole blocks stay findable, and so do the ``num_computed_tokens % block_size`` tokens
        of its last one.
        """
        self._keep_tail(blocks, token_ids, num_computed_tokens)
        self._allocator.release(blocks.table)
        self._swap.release(blocks.swap_slots)
        blocks.table, blocks.nodes, blocks.twins, blocks.swap_slots = [], [], [], []
        blocks.shares_tail = False

    # Out of the pool and back

    def swap_out(self, blocks: SequenceBlocks, num_computed_tokens: int) -> bool:
        """Move a sequence's computed blocks out of the pool, and give back its table.

        Returns False, with nothing changed, if the swap space has too few free slots.
        """
        num_blocks = blocks_for_tokens(num_computed_tokens, self.block_size)
        slots = self._swap.take(num_blocks)
        if slots is None:
            return False
        for block_id, slot in zip(blocks.table, slots, strict=False):
            self._move(MoveKind.SWAP_OUT, block_id, slot)
        self.free(blocks)
        blocks.swap_slots = slots
        return True

    def find_swapped(
        self, blocks: SequenceBlocks, token_ids: Sequence[int], num_computed_tokens: int
    ) -> PrefixHit:
        """Blocks of a swapped-out sequence that are still in the pool, or are again."""
        whole = num_computed_tokens // self.block_size * self.block_size
        return self.find_prefix(blocks, token_ids[:whole], whole)._replace(
            partial=None, num_partial_tokens=0
        )

    def swap_in(self, blocks: SequenceBlocks, num_tokens: int, hit: PrefixHit) -> None:
        """Give a swapped-out sequence a table of ``num_tokens`` and its content back.

        The caller knows that the blocks exist.
        """
        slots, blocks.swap_slots = blocks.swap_slots, []
        self._fill_table(blocks, hit.nodes, num_tokens)
        for i in range(len(hit.nodes), len(slots)):
            self._move(MoveKind.SWAP_IN, slots[i], blocks.table[i])
        self._swap.release(slots)

    def take_moves(self) -> list[BlockMove]:
        """The moves planned since the last call, in order; they must be made now."""
        moves, self._moves = self._moves, []
        return moves

    # What is to stay

    def num_usable_after_pin(self, hit: PrefixHit) -> int:
        """`num_usable_blocks` if the blocks of ``hit`` were pinned, too."""
        return self.num_blocks - len(self._pins.blocks() | set(_blocks_of(hit)))

    def pin(self, hit: PrefixHit) -> tuple[int, int]:
        """Hold on to the blocks of ``hit``; returns the pin's number and how many they are."""
        table = _blocks_of(hit)
        return self._pins.add(table), len(table)

    def unpin(self, number: int) -> None:
        """Let go of them; harmless if that was done."""
        self._pins.remove(number)

    def unsalted_nodes(self) -> list[CachedBlock]:
        """Every whole block of prefixes without a cache salt, parents before their children."""
        return self._cache.nodes_below(self._cache.root(extras_bytes(None)))

    def restore(
        self, records: Iterable[Record | None], write: Callable[[int, bytes], None]
    ) -> LoadedPrefixes:
        """Put saved blocks of prefixes without a cache salt into empty blocks of the pool.

        Args:
            records: parents before their children; None for one that could not be read.
            write: writes a block's content.
        """
        root = self._cache.root(extras_bytes(None))
        return restore_blocks(self._cache, self._allocator, root, records, write)

    # The report and the audit

    def report(self, running: Iterable[tuple[SequenceBlocks, int]]) -> MemoryReport:
        """Where the blocks are.

        Args:
            running: of each running sequence, its blocks and how many tokens are computed.
        """
        size = self.block_size
        tables: Counter[int] = Counter()
        used: dict[int, int] = {}
        for blocks, num_computed_tokens in running:
            tables.update(blocks.table)
            for i, block_id in enumerate(blocks.table):
                tokens = min(max(num_computed_tokens - i * size, 0), size)
                used[block_id] = max(used.get(block_id, 0), tokens)
        pinned = self._pins.blocks()
        return MemoryReport(
            total=self.num_blocks,
            empty=self.num_free_blocks - self.num_cached_blocks,
            cached=self.num_cached_blocks,
            referenced=self.num_blocks - self.num_free_blocks,
            shared=sum(self._allocator.ref_count(block) > 1 for block in tables.keys() | pinned),
            pinned=len(pinned),
            swapped=self.num_swapped_blocks,
            evicted=self.num_evictions,
            table_entries=tables.total(),
            used_tokens=sum(used.values()),
            fragmented_tokens=len(used) * size - sum(used.values()),
        )

    def audit(
        self, holders: Iterable[SequenceBlocks], swapped: Iterable[SequenceBlocks] = ()
    ) -> None:
        """Raise `InvariantError` unless the pool and the swap space add up.

        Args:
            holders: of all blocks but the pinned ones.
            swapped: of all swap slots.
        """
        self._allocator.audit([*(blocks.table for blocks in holders), *self._pins.tables])
        self._swap.audit([blocks.swap_slots for blocks in swapped])
        if self._moves:
            raise InvariantError(f"{len(self._moves)} moves were planned and never made")

    def check_writable(self, block_ids: Iterable[int]) -> None:
        """Raise `InvariantError` if one of these blocks has several owners, or known content."""
        for block_id in block_ids:
            if not self._is_writable(block_id):
                raise InvariantError(
                    f"block {block_id} is about to be written to, but it has "
                    f"{self._allocator.ref_count(block_id)} owners or its content is registered"
                )

    def _fill_table(
        self, blocks: SequenceBlocks, shared: list[CachedBlock], num_tokens: int
    ) -> None:
        """Set the table: the blocks of ``shared``, then fresh ones."""
        assert not blocks.table, "the sequence holds blocks"
        table = [node.block_id for node in shared]
        self._allocator.share(table)
        self.num_whole_hits += len(shared)
        missing = blocks_for_tokens(num_tokens, self.block_size) - len(table)
        blocks.table = table + self._allocator.take(missing)
        blocks.nodes = list(shared)

    def _keep_tail(
        self, blocks: SequenceBlocks, token_ids: Sequence[int], num_computed_tokens: int
    ) -> None:
        whole, rest = divmod(num_computed_tokens, self.block_size)
        if not (self.prefix_caching and rest and len(blocks.nodes) == whole < len(blocks.table)):
            return
        block_id = blocks.table[whole]
        parent = blocks.nodes[-1] if blocks.nodes else blocks.root
        if parent.is_evicted or self._allocator.ref_count(block_id) > 1:
            return
        tail = token_bytes(token_ids[whole * self.block_size : num_computed_tokens])
        if self._cache.register_tail(parent, tail, block_id):
            self._allocator.keep(block_id)

    def _is_writable(self, block_id: int) -> bool:
        return self._allocator.ref_count(block_id) == 1 and not self._cache.knows(block_id)

    def _evict(self, block_id: int) -> None:
        self._cache.forget_block(block_id)
        self.num_evictions += 1

    def _move(self, kind: MoveKind, source: int, target: int) -> None:
        self._moves.append(BlockMove(kind, source, target))


def _blocks_of(hit: PrefixHit) -> list[int]:
    found = hit.nodes if hit.partial is None else [*hit.nodes, hit.partial]
    return [node.block_id for node in found]
