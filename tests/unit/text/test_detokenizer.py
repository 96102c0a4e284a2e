from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill.text.detokenizer import IncrementalDetokenizer, StopMatch
from pagemill.text.stop_strings import StopStringMatcher


class FakeTokenizer:
    """Token i adds ``pieces[i]``; there is no encoding. Implements the `Tokenizer` protocol."""

    bos_token_id: int | None = None
    eos_token_ids: frozenset[int] = frozenset()

    def __init__(self, pieces: Sequence[bytes], special: frozenset[int] = frozenset()) -> None:
        self.pieces = list(pieces)
        self.special = special
        self.vocab_size = len(self.pieces)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        raise NotImplementedError

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        kept = [i for i in token_ids if not (skip_special_tokens and i in self.special)]
        return b"".join(self.pieces[i] for i in kept).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special


# Every byte string that could still become a character: all proper prefixes of all encodings.
UNFINISHED = {
    chr(code).encode()[:length]
    for code in range(0x80, 0x110000, 0x40)
    if not 0xD800 <= code < 0xE000
    for length in (1, 2, 3)
    if length < len(chr(code).encode())
}

# Few letters, so that stop strings occur; some of several bytes, so that tokens split them.
LETTERS = "abcé你🙂"
RAW_BYTES = st.sampled_from([b"\xc3", b"\xa9", b"\xe4\xbd", b"\xf0\x9f", b"\x99\x82", b"\xff", b""])


@st.composite
def token_streams(draw: st.DrawFn) -> list[bytes]:
    """Tokens of one sequence: a text cut at random bytes, with raw bytes strewn in."""
    data = draw(st.text(alphabet=LETTERS, max_size=30)).encode()
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=20)))
    bounds = [0, *cuts, len(data)]
    tokens = [data[a:b] for a, b in pairwise(bounds)]
    for place, raw in draw(st.lists(st.tuples(st.integers(0, 30), RAW_BYTES), max_size=3)):
        tokens.insert(place, raw)
    return tokens


STOP_STRINGS = st.lists(st.text(alphabet=LETTERS, min_size=1, max_size=5), max_size=4)


def finished_text(data: bytes) -> str:
    """The text of ``data`` without the bytes at its end that could still become a character."""
    for length in (3, 2, 1):
        if data[-length:] in UNFINISHED and len(data) >= length:
            return data[:-length].decode("utf-8", "replace")
    return data.decode("utf-8", "replace")


def expected(
    tokens: list[bytes], stop: list[str], include_stop: bool, min_tokens: int
) -> tuple[list[str], tuple[int, StopMatch] | None]:
    """Texts shown after each token and at the end, and (number of tokens, match): quadratic."""
    texts: list[str] = []
    done = ""
    for count in range(1, len(tokens) + 1):
        text = finished_text(b"".join(tokens[:count]))
        for end in range(len(done) + 1, len(text) + 1):
            found = [s for s in stop if text[:end].endswith(s)]
            if found and count >= min_tokens:
                longest = max(found, key=len)
                start = end - len(longest)
                texts.append(text[: end if include_stop else start])
                return texts, (count, StopMatch(longest, start))
        done = text
        held = 0
        if not include_stop:
            held = max(
                (
                    n
                    for n in range(1, len(text) + 1)
                    if any(s.startswith(text[-n:]) and n < len(s) for s in stop)
                ),
                default=0,
            )
        texts.append(text[: len(text) - held])
    texts.append(b"".join(tokens).decode("utf-8", "replace"))
    return texts, None


def detokenizer(
    tokens: list[bytes],
    stop: list[str] | None = None,
    *,
    include_stop: bool = False,
    min_tokens: int = 0,
    special: frozenset[int] = frozenset(),
    skip_special_tokens: bool = True,
) -> IncrementalDetokenizer:
    return IncrementalDetokenizer(
        FakeTokenizer(tokens, special),
        skip_special_tokens=skip_special_tokens,
        stop=StopStringMatcher(stop) if stop else None,
        include_stop_str_in_output=include_stop,
        min_tokens=min_tokens,
    )


@given(token_streams(), STOP_STRINGS, st.booleans(), st.integers(0, 8))
def test_text_and_match_after_every_token_equal_those_of_a_plain_search_over_the_whole_text(
    tokens: list[bytes], stop: list[str], include_stop: bool, min_tokens: int
) -> None:
    detok = detokenizer(tokens, stop, include_stop=include_stop, min_tokens=min_tokens)
    texts: list[str] = []
    match = None
    for token_id in range(len(tokens)):
        found = detok.append(token_id)
        texts.append(detok.text)
        if found:
            match = (token_id + 1, found)
            break
    if match is None:
        detok.finish()
        texts.append(detok.text)
    assert (texts, match) == expected(tokens, stop, include_stop, min_tokens)


@given(token_streams(), STOP_STRINGS, st.booleans(), st.data())
def test_streamed_pieces_joined_are_the_text_whenever_they_are_taken(
    tokens: list[bytes], stop: list[str], include_stop: bool, data: st.DataObject
) -> None:
    detok = detokenizer(tokens, stop, include_stop=include_stop)
    sent = ""
    for token_id in range(len(tokens)):
        match = detok.append(token_id, is_final=token_id == len(tokens) - 1)
        assert detok.text_length >= len(sent)
        if data.draw(st.booleans()) or match:
            sent += detok.text_since(len(sent))
        if data.draw(st.booleans()):
            assert detok.text.startswith(sent)
        if match:
            break
    sent += detok.text_since(len(sent))
    assert detok.finished or not tokens
    assert sent == detok.text
    assert len(sent) == detok.text_length
    whole = detok.text
    if tokens and match and not include_stop:
        whole += match.stop
    assert b"".join(tokens).decode("utf-8", "replace").startswith(whole)


def test_special_tokens_are_left_out_or_written_as_asked() -> None:
    tokens = [b"<s>", b"hi", b"</s>"]
    for skip, text in ((True, "hi"), (False, "<s>hi</s>")):
        detok = detokenizer(tokens, special=frozenset({0, 2}), skip_special_tokens=skip)
        for token_id in range(3):
            detok.append(token_id)
        assert detok.text == text


def test_an_id_of_the_models_padding_rows_adds_nothing() -> None:
    detok = detokenizer([b"a"])
    detok.append(0)
    detok.append(7)
    assert detok.text == "a"


def test_the_last_token_shows_what_was_held_back() -> None:
    detok = detokenizer([b"S", b"T\xc3"], ["STOP"])
    detok.append(0)
    assert detok.text == ""
    detok.append(1, is_final=True)
    assert detok.text == "ST\ufffd"
    detok.finish()
    assert detok.text == "ST\ufffd"


def test_a_stop_string_before_min_tokens_is_text_and_one_that_completes_later_ends() -> None:
    detok = detokenizer([b"END", b" E", b"N", b"D!"], ["END"], min_tokens=3)
    assert [detok.append(i) for i in range(4)] == [None, None, None, StopMatch("END", 4)]
    assert detok.text == "END "


def test_a_match_is_reported_at_min_tokens_exactly() -> None:
    detok = detokenizer([b"x", b"END"], ["END"], min_tokens=2)
    detok.append(0)
    assert detok.append(1) == StopMatch("END", 1)


def test_an_offset_beyond_the_text_is_refused() -> None:
    detok = detokenizer([b"ab"])
    detok.append(0)
    with pytest.raises(ValueError, match=r"offset must be in \[0, 2\], got 3"):
        detok.text_since(3)


def test_a_token_costs_the_same_after_a_long_text() -> None:
    """200,000 tokens with their pieces taken one by one: quadratic work would take minutes."""
    detok = detokenizer([b"hello ", b"wor"], ["hello world, goodbye"])
    start = time.process_time()
    sent = 0
    for _ in range(100_000):
        for token_id in (0, 1):
            detok.append(token_id)
            sent += len(detok.text_since(sent))
    assert detok.text_length == 900_000 - len("hello wor")
    assert time.process_time() - start < 20
