"""Finding stop strings in a text that arrives piece by piece.

An Aho-Corasick automaton (Aho and Corasick, "Efficient string matching", CACM 18(6), 1975) over all
stop strings of a request. Its state after a text is the longest suffix of the text that is a prefix
of some stop string; that suffix is also exactly what may not be shown yet. Each character costs
amortized constant time, whatever the number of stop strings.

    stop strings "abcd", "bc"      state: suffix kept      read "x a b c"
                                   (empty) -> (empty) -> "a" -> "ab" -> "abc", whose suffix "bc" is
                                   a stop string: a match, although "abcd" began earlier
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStringMatcher:
    """The automaton of one request's stop strings. Immutable, so that forks may share it.

    A state is an integer; the state of an empty text is `START`. The match that is *completed
    first* wins; among those completed by the same character, the longest, which is the one that
    starts first. The rule is over characters: how a text was cut into tokens does not matter.
    """

    START = 0

    def __init__(self, stop_strings: Sequence[str]) -> None:
        if any(not stop for stop in stop_strings):
            raise ValueError("a stop string must not be empty")
        self._children: list[dict[str, int]] = [{}]
        self._match: list[str | None] = [None]  # longest stop string that ends in this state
        self._held: list[int] = [0]
        depths = [0]
        for stop in stop_strings:
            state = self.START
            for char in stop:
                child = self._children[state].get(char)
                if child is None:
                    child = len(self._children)
                    self._children[state][char] = child
                    self._children.append({})
                    self._match.append(None)
                    self._held.append(0)
                    depths.append(depths[state] + 1)
                state = child
            self._match[state] = stop
        self._fallback = [self.START] * len(self._children)
        self._link(depths)

    def _link(self, depths: list[int]) -> None:
        """Fill the fallback links and what follows from them, shallow states first."""
        queue = deque([self.START])
        while queue:
            state = queue.popleft()
            for char, child in self._children[state].items():
                if state != self.START:
                    self._fallback[child] = self.step(self._fallback[state], char)
                fallback = self._fallback[child]
                if self._match[child] is None:
                    self._match[child] = self._match[fallback]
                # A leaf cannot grow into a longer stop string, but a suffix of it may.
                self._held[child] = depths[child] if self._children[child] else self._held[fallback]
                queue.append(child)

    def step(self, state: int, char: str) -> int:
        """Return the state after one more character."""
        while (child := self._children[state].get(char)) is None:
            if state == self.START:
                return self.START
            state = self._fallback[state]
        return child

    def match(self, state: int) -> str | None:
        """Return the longest stop string that the text ends with, if any."""
        return self._match[state]

    def held_length(self, state: int) -> int:
        """Return the length of the longest suffix that is a *proper* prefix of a stop string."""
        return self._held[state]
