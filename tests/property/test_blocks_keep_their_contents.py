"""Whatever is done with sequences and their blocks, each finds its own content in its own blocks.

The manager alone, in orders that no scheduler would choose. The "keys and values" of a token are
the whole text up to it, so any wrong block shows. Moves are made late, just before something is
written, as a step does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from pagemill.batch import MoveKind
from pagemill.kvcache.manager import KVCacheManager, blocks_for_tokens
from pagemill.kvcache.sequence_blocks import SequenceBlocks

B = 3
NUM_BLOCKS = 9
NUM_SWAP_SLOTS = 5
OPERATIONS = [
    *("start", "start", "compute", "compute", "append", "append"),  # oftener than the others
    *("fork", "swap_out", "swap_in", "end", "make_moves"),
]

FIRED: Counter[str] = Counter()
"""What happened in the examples of one run."""

Content = tuple[str | None, tuple[int, ...]]


@dataclass(eq=False)
class Text:
    """A sequence under way."""

    tokens: list[int]
    cache_salt: str | None
    blocks: SequenceBlocks
    num_computed: int = 0
    is_swapped: bool = False

    def content(self, position: int) -> Content:
        return (self.cache_salt, tuple(self.tokens[: position + 1]))


class World:
    """A manager, and memory in which its plans are carried out."""

    def __init__(self) -> None:
        self.kv = KVCacheManager(NUM_BLOCKS, B, num_swap_slots=NUM_SWAP_SLOTS)
        self.pool: list[list[Content | None]] = [[None] * B for _ in range(NUM_BLOCKS)]
        self.outside: list[list[Content | None]] = [[None] * B for _ in range(NUM_SWAP_SLOTS)]
        self.texts: list[Text] = []

    def do(self, operation: str, number: int) -> None:
        """``number`` says with which text, and how."""
        if operation == "start":
            # One of two texts up to somewhere, perhaps with another last token.
            tokens = [number % 2, 0, 1, 1, 0, 1, 0, 0, 1, 1, 1, 0][: number // 2 % 12 + 1]
            tokens[-1] ^= number // 24 % 2
            self.start(tokens, "salt" if number % 7 == 0 else None)
        elif operation == "make_moves":
            self.make_moves()
        elif texts := [text for text in self.texts if text.is_swapped == (operation == "swap_in")]:
            getattr(self, operation)(texts[number % len(texts)], number // 8)
        held = {block_id for text in self.texts for block_id in text.blocks.table}
        assert self.kv.num_free_blocks == NUM_BLOCKS - len(held)

    def start(self, tokens: list[int], cache_salt: str | None) -> None:
        text = Text(tokens, cache_salt, self.kv.new_sequence(cache_salt))
        hit = self.kv.find_prefix(text.blocks, tokens, len(tokens) - 1)
        free, needed = self.kv.num_free_blocks, self.kv.blocks_to_take(hit, len(tokens))
        if needed <= free:
            text.num_computed = self.kv.allocate(text.blocks, len(tokens), hit)
            assert self.kv.num_free_blocks == free - needed
            assert text.num_computed < len(tokens)
            self.texts.append(text)

    def compute(self, text: Text, number: int) -> None:
        """Write the next tokens of the prompt, most often all of them."""
        count = number % 12 + 1
        self.write(text, min(text.num_computed + count, len(text.tokens)))

    def append(self, text: Text, number: int) -> None:
        """Gain a token and compute it."""
        if text.num_computed < len(text.tokens):
            return
        table, free = list(text.blocks.table), self.kv.num_free_blocks
        if self.kv.grow(text.blocks, len(text.tokens) + 1):
            text.tokens.append(number % 2)
            self.write(text, len(text.tokens))
        else:
            assert (text.blocks.table, self.kv.num_free_blocks) == (table, free)

    def fork(self, text: Text, number: int) -> None:
        """Share all tokens, or, one time in two, the first few."""
        if text.num_computed == len(text.tokens):
            shared = text.num_computed if number % 2 else number // 2 % text.num_computed + 1
            blocks = self.kv.fork(text.blocks, text.num_computed, shared)
            self.texts.append(Text(text.tokens[:shared], text.cache_salt, blocks, shared))

    def swap_out(self, text: Text, number: int) -> None:
        fits = blocks_for_tokens(text.num_computed, B) <= (
            NUM_SWAP_SLOTS - self.kv.num_swapped_blocks
        )
        FIRED["swap space full"] += not fits
        if text.num_computed:
            text.is_swapped = self.kv.swap_out(text.blocks, text.num_computed)
            assert text.is_swapped == fits

    def swap_in(self, text: Text, number: int) -> None:
        hit = self.kv.find_swapped(text.blocks, text.tokens, text.num_computed)
        free, needed = self.kv.num_free_blocks, self.kv.blocks_to_take(hit, len(text.tokens))
        if needed <= free:
            self.kv.swap_in(text.blocks, len(text.tokens), hit)
            assert self.kv.num_free_blocks == free - needed
            text.is_swapped = False

    def end(self, text: Text, number: int) -> None:
        self.kv.free(text.blocks, text.tokens, text.num_computed)
        self.texts.remove(text)

    def make_moves(self) -> None:
        for kind, source, target in self.kv.take_moves():
            FIRED[kind.name] += 1
            if kind is MoveKind.COPY:
                self.pool[target] = list(self.pool[source])
            elif kind is MoveKind.SWAP_OUT:
                self.outside[target] = list(self.pool[source])
            else:
                self.pool[target] = list(self.outside[source])

    def write(self, text: Text, end: int) -> None:
        self.make_moves()
        places = [(text.blocks.table[i // B], i % B, i) for i in range(text.num_computed, end)]
        self.kv.check_writable({block_id for block_id, _, _ in places})
        for block_id, offset, position in places:
            self.pool[block_id][offset] = text.content(position)
        text.num_computed = end
        self.kv.note_computed(text.blocks, text.tokens, end)
        self.check_contents()

    def check_contents(self) -> None:
        for text in self.texts:
            places, memory = text.blocks.table, self.pool
            if text.is_swapped:
                places, memory = text.blocks.swap_slots, self.outside
            for position in range(text.num_computed):
                found = memory[places[position // B]][position % B]
                assert found == text.content(position), (position, text)
        blocks = [text.blocks for text in self.texts]
        self.kv.audit(blocks, blocks)

    def finish(self) -> None:
        self.make_moves()
        self.check_contents()
        for text in list(self.texts):
            self.end(text, 0)
        self.kv.audit([])
        assert self.kv.num_free_blocks == NUM_BLOCKS
        FIRED["whole-block hit"] += self.kv.num_whole_hits
        FIRED["partial hit"] += self.kv.num_partial_hits
        FIRED["copy on write"] += self.kv.num_cow_copies
        FIRED["eviction"] += self.kv.num_evictions


@given(
    st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 1023)), min_size=40, max_size=80)
)
def check_one_history(history: list[tuple[str, int]]) -> None:
    world = World()
    for operation, number in history:
        world.do(operation, number)
    world.finish()


def test_every_sequence_finds_its_own_content_in_its_own_blocks(long_run: bool) -> None:
    FIRED.clear()
    settings(max_examples=10_000 if long_run else 300, deadline=None)(check_one_history)()
    # Without these it would say little.
    for what in (
        *("whole-block hit", "partial hit", "copy on write", "eviction", "swap space full"),
        *(kind.name for kind in MoveKind),
    ):
        assert FIRED[what] >= 20, (what, FIRED)
