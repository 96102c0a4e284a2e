"""Stop strings: never sent, wherever they lie, and the text before them exact."""

from __future__ import annotations

import itertools

import pytest

from pagemill.loading.tokenizer import FileTokenizer
from pagemill.text.detokenizer import IncrementalDetokenizer, StopMatch
from pagemill.text.stop_strings import StopStringMatcher
from tests.unit.loading_text.tiny_vocabularies import byte_level_metadata

# "CD", "FGH" and the like are tokens, so that a stop string starts and ends inside tokens.
MERGES = ["C D", "D E", "F G", "FG H", "I J", "J K", "L M"]


def stream(
    text: str, stop: list[str], *, include_stop: bool = False, tokenizer: FileTokenizer
) -> tuple[list[str], StopMatch | None]:
    """Return the pieces that a client is sent, and the match."""
    detokenizer = IncrementalDetokenizer(
        tokenizer,
        skip_special_tokens=True,
        stop=StopStringMatcher(stop),
        include_stop_str_in_output=include_stop,
    )
    pieces: list[str] = []
    match = None
    for token_id in tokenizer.encode(text):
        match = detokenizer.append(token_id)
        pieces.append(detokenizer.text_since(sum(map(len, pieces))))
        if match:
            break
    detokenizer.finish()
    pieces.append(detokenizer.text_since(sum(map(len, pieces))))
    return pieces, match


@pytest.fixture(scope="module")
def tokenizer() -> FileTokenizer:
    return FileTokenizer.from_gguf(byte_level_metadata(merges=MERGES))


def test_nothing_of_a_stop_string_is_ever_sent(tokenizer: FileTokenizer) -> None:
    """After "Here is the English alphabet: ABC", with stop "DEFGHIJ"."""
    pieces, match = stream("DEFGHIJKLM", ["DEFGHIJ"], tokenizer=tokenizer)
    assert match == StopMatch("DEFGHIJ", 0)
    assert "".join(pieces) == ""


def test_what_turns_out_not_to_be_the_stop_string_is_sent(tokenizer: FileTokenizer) -> None:
    pieces, match = stream("DEFGHIxDEFG", ["DEFGHIJ"], tokenizer=tokenizer)
    assert match is None
    assert "".join(pieces) == "DEFGHIxDEFG"
    assert pieces[-1] == "DEFG", "held back until the text is over"


def test_a_stop_string_inside_tokens_is_found_and_the_text_before_it_is_exact(
    tokenizer: FileTokenizer,
) -> None:
    text, stop = "ABCDEFGHIJKLM", "DEFGHI"
    tokens = [tokenizer.token_bytes(i) for i in tokenizer.encode(text)]
    ends = set(itertools.accumulate(map(len, tokens)))
    assert not ends & {text.index(stop), text.index(stop) + len(stop)}, "cut inside tokens"
    pieces, match = stream(text, [stop], tokenizer=tokenizer)
    assert match == StopMatch(stop, 3)
    assert "".join(pieces) == "ABC"
    pieces, _ = stream(text, [stop], include_stop=True, tokenizer=tokenizer)
    assert "".join(pieces) == "ABCDEFGHI"


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (["EFGH", "FG"], StopMatch("FG", 5)),
        (["FG", "EFGH"], StopMatch("FG", 5)),
        (["EFG", "FG"], StopMatch("EFG", 4)),
        (["DEFGHIJK", "JKL"], StopMatch("DEFGHIJK", 3)),
        (["M", "GHIJ"], StopMatch("GHIJ", 6)),
    ],
)
def test_of_two_stop_strings_the_earliest_match_wins_in_any_order(
    tokenizer: FileTokenizer, stop: list[str], expected: StopMatch
) -> None:
    text = "ABCDEFGHIJKLM"
    pieces, match = stream(text, stop, tokenizer=tokenizer)
    assert match == expected
    assert "".join(pieces) == text[: expected.text_offset]
