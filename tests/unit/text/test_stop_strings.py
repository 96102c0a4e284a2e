from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill.text.stop_strings import StopStringMatcher

TEXTS = st.text(alphabet="abc", max_size=40)
STOP_STRINGS = st.lists(st.text(alphabet="abc", min_size=1, max_size=6), min_size=1, max_size=6)


def state_after(matcher: StopStringMatcher, text: str) -> int:
    state = StopStringMatcher.START
    for char in text:
        state = matcher.step(state, char)
    return state


@given(TEXTS, STOP_STRINGS)
def test_the_state_knows_the_longest_stop_string_that_the_text_ends_with(
    text: str, stop_strings: list[str]
) -> None:
    matcher = StopStringMatcher(stop_strings)
    ending = [stop for stop in stop_strings if text.endswith(stop)]
    assert matcher.match(state_after(matcher, text)) == max(ending, key=len, default=None)


@given(TEXTS, STOP_STRINGS)
def test_what_is_held_is_the_longest_suffix_that_could_still_become_a_stop_string(
    text: str, stop_strings: list[str]
) -> None:
    matcher = StopStringMatcher(stop_strings)
    open_suffixes = [
        length
        for length in range(1, len(text) + 1)
        if any(s.startswith(text[-length:]) and len(s) > length for s in stop_strings)
    ]
    assert matcher.held_length(state_after(matcher, text)) == max(open_suffixes, default=0)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopStringMatcher(["a", ""])


def test_a_long_stop_string_over_a_text_that_almost_matches_takes_linear_time() -> None:
    """A quadratic search would compare 10^10 characters here."""
    matcher = StopStringMatcher(["a" * 100_000 + "b"])
    assert matcher.match(state_after(matcher, "a" * 200_000 + "b")) is not None
