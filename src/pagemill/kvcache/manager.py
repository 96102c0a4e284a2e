"""`KVCacheManager`: the only code that takes or gives back blocks."""

from __future__ import annotations

from collections.abc import Collection

from pagemill.errors import InvariantError
from pagemill.kvcache.allocator import BlockAllocator


def blocks_for_tokens(num_tokens: int, block_size: int) -> int:
    """Blocks that hold ``num_tokens`` token slots."""
    return -(-num_tokens // block_size)


class KVCacheManager:
    """Owns every block table.

        sequence 7:  tokens  0 ........ 15 | 16 ....... 31 | 32 33
        block table:         block 4       | block 9       | block 2   (14 slots still empty)

    A table grows with `grow_to` and is given back whole with `free`. A sequence is named by its
    integer id.

    Args:
        num_blocks: blocks in the pool.
        block_size: token slots in a block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._allocator = BlockAllocator(num_blocks)
        self._tables: dict[int, list[int]] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that a `grow_to` could take now."""
        return self._allocator.num_free_blocks

    @property
    def usage(self) -> float:
        """Share of the pool in block tables, 0 to 1."""
        return 1.0 - self._allocator.num_free_blocks / self.num_blocks

    def fits_ever(self, num_prompt_tokens: int, max_tokens: int) -> bool:
        """Whether a sequence of this size could run to its end in an otherwise empty pool.

        The one definition, used at admission and by nothing else's arithmetic. The last token
        that is generated needs no slot: nothing is computed from it.
        """
        return self.blocks_needed_at_most(num_prompt_tokens, max_tokens) <= self.num_blocks

    @property
    def max_sequence_tokens(self) -> int:
        """Longest prompt + output that `fits_ever`: one more than the pool has slots."""
        return self.num_blocks * self.block_size + 1

    def blocks_needed_at_most(self, num_prompt_tokens: int, max_tokens: int) -> int:
        """Blocks that a sequence holds at its longest."""
        return blocks_for_tokens(num_prompt_tokens + max(max_tokens - 1, 0), self.block_size)

    def missing_blocks(self, seq_id: int, num_tokens: int) -> int:
        """Blocks that `grow_to` would take."""
        held = len(self._tables.get(seq_id, ()))
        return max(blocks_for_tokens(num_tokens, self.block_size) - held, 0)

    def grow_to(self, seq_id: int, num_tokens: int) -> bool:
        """Make the table of ``seq_id`` cover ``num_tokens`` slots, creating it if need be.

        Returns False, with nothing changed, if the pool has too few free blocks.
        """
        missing = self.missing_blocks(seq_id, num_tokens)
        if missing > self._allocator.num_free_blocks:
            return False
        if missing:
            self._tables.setdefault(seq_id, []).extend(self._allocator.take(missing))
        return True

    def block_table(self, seq_id: int) -> list[int]:
        """Physical block of each logical block. The live list: read it, do not keep it."""
        return self._tables[seq_id]

    def free(self, seq_id: int) -> None:
        """Give back all blocks of ``seq_id``; harmless if it holds none."""
        self._allocator.release(self._tables.pop(seq_id, ()))

    def audit(self, holders: Collection[int]) -> None:
        """Raise `InvariantError` unless exactly the sequences in ``holders`` hold blocks and the
        pool adds up (see `BlockAllocator.audit`).
        """
        if self._tables.keys() != set(holders):
            strays = sorted(self._tables.keys() ^ set(holders))
            raise InvariantError(
                f"sequences {strays} hold blocks but are not running, or vice versa"
            )
        self._allocator.audit(list(self._tables.values()))
