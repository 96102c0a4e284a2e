"""How few tokens a text can become: never more than it does become."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from pagemill.errors import RequestTooLargeError
from pagemill.loading.text_bounds import NFC_SHRINKS, TextBound
from pagemill.loading.tokenizer import FileTokenizer
from tests.unit.loading_text.tiny_vocabularies import (
    CHATML,
    byte_level_metadata,
    sentencepiece_metadata,
)

BYTE_LEVEL = FileTokenizer.from_gguf(
    byte_level_metadata(template=CHATML, merges=["h e", "l l", "ll o", "he llo"])
)
SENTENCEPIECE = FileTokenizer.from_gguf(
    sentencepiece_metadata(bos_token_id=1, eos_token_id=2, add_bos_token=False)
)


def bound_of(tokenizer: FileTokenizer) -> TextBound:
    bound = tokenizer._text_bound
    assert bound is not None
    return bound


@given(st.text(alphabet=st.sampled_from("helo ab▁\n é日😀"), max_size=200))
def test_a_text_never_becomes_fewer_tokens(text: str) -> None:
    for tokenizer in (BYTE_LEVEL, SENTENCEPIECE):
        assert bound_of(tokenizer).min_tokens(text) <= len(tokenizer.encode(text))


def test_the_bound_is_that_of_the_longest_token() -> None:
    bound = bound_of(FileTokenizer.from_gguf(byte_level_metadata(control=("<|e|>",))))
    assert bound == TextBound(bytes_per_token=5, counts_spaces=True, not_counted=b"")
    assert [bound.min_tokens("a" * n) for n in (0, 1, 5, 6)] == [0, 1, 1, 2]
    assert bound.min_tokens("é" * 5) == 2


def test_a_text_that_is_too_long_is_refused_with_its_numbers_before_it_is_encoded() -> None:
    text = "hello" * 1000
    assert len(BYTE_LEVEL.encode(text, max_tokens=1000)) == 1000
    with pytest.raises(RequestTooLargeError, match="5000 characters is at least 417 tokens"):
        BYTE_LEVEL.encode(text, max_tokens=416)
    with pytest.raises(RequestTooLargeError, match="more than the 100"):
        BYTE_LEVEL.encode_chat([{"role": "user", "content": text}], max_tokens=100)


def byte_level(**parts: Any) -> tokenizers.Tokenizer:
    vocabulary = {char: i for i, char in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


def test_bytes_that_a_vocabulary_lacks_are_not_counted() -> None:
    vocabulary = {c: i for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet()) if c != "a"}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bound = TextBound.of(tokenizer)
    assert bound is not None
    assert bound.not_counted == b"a"
    assert bound.min_tokens("aaabbb") <= len(tokenizer.encode("aaabbb").ids) == 3
    assert bound.min_tokens("a" * 1000) == 0
    tokenizer.normalizer = normalizers.NFC()
    assert TextBound.of(tokenizer) is None


def test_spaces_that_a_special_token_swallows_are_not_counted() -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken("<m>", lstrip=True)])
    bound = TextBound.of(tokenizer)
    assert bound is not None
    text = "a" + " \u3000\n" * 500 + "<m>"
    assert bound.min_tokens(text) <= len(tokenizer.encode(text).ids) == 2


def test_what_normal_form_c_shrinks_is_allowed_for() -> None:
    bound = TextBound.of(byte_level(normalizer=normalizers.NFC()))
    assert bound is not None
    assert bound.bytes_per_token == NFC_SHRINKS * len("Ġ".encode())
    for text in ("\u212a" * 50, unicodedata.normalize("NFD", "\u0390") * 50):
        shrunk = unicodedata.normalize("NFC", text)
        assert bound.min_tokens(text) <= len(shrunk.encode())


def test_normal_form_c_shrinks_no_text_more_than_it_is_allowed_for() -> None:
    """Over all characters: to the decomposition at most thrice, and from there at most thrice."""
    largest_down = largest_up = 0.0
    for code in [*range(0xD800), *range(0xE000, 0x30000)]:
        char = chr(code)
        decomposed = unicodedata.normalize("NFD", char)
        if decomposed != char:
            largest_down = max(largest_down, len(char.encode()) / len(decomposed.encode()))
            largest_up = max(largest_up, len(decomposed.encode()) / len(char.encode()))
    assert (largest_down, largest_up) == (3, 3)


@pytest.mark.parametrize(
    "tokenizer",
    [
        byte_level(normalizer=normalizers.Strip()),
        byte_level(normalizer=normalizers.Replace("  ", " ")),
        byte_level(normalizer=normalizers.Lowercase()),
        byte_level(normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.NFKC()])),
        byte_level(
            pre_tokenizer=pre_tokenizers.Sequence(
                [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()]
            )
        ),
        byte_level(pre_tokenizer=pre_tokenizers.Split("a", "removed")),
        byte_level(pre_tokenizer=None),
        tokenizers.Tokenizer(models.BPE({"a": 0, "<unk>": 1}, [], unk_token="<unk>")),
        tokenizers.Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>")),
    ],
    ids=["strip", "replace", "lowercase", "nfkc", "whitespace", "removed", "no bytes", "unknown",
         "words"],
)  # fmt: skip
def test_where_text_can_be_left_out_there_is_no_bound(tokenizer: tokenizers.Tokenizer) -> None:
    assert TextBound.of(tokenizer) is None
