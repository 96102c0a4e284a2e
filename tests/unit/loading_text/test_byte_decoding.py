from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pagemill.errors import UnsupportedModelError
from pagemill.loading.byte_decoding import BYTE_LEVEL_ALPHABET, ByteDecoder

SENTENCEPIECE: dict[str, Any] = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def test_the_byte_level_alphabet_is_that_of_the_tokenizers_library() -> None:
    assert sorted(BYTE_LEVEL_ALPHABET) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(BYTE_LEVEL_ALPHABET.values()) == list(range(256))
    encode = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    for char in "\x00\t\n A~\x7f\xa0é你🙂":
        [(written, _)] = encode(char)
        assert bytes(BYTE_LEVEL_ALPHABET[c] for c in written) == char.encode()


@given(st.lists(st.binary(min_size=1, max_size=3), max_size=12))
def test_byte_level_bytes_are_exact_where_decode_hides_them(pieces: list[bytes]) -> None:
    written = {byte: char for char, byte in BYTE_LEVEL_ALPHABET.items()}
    tokens = ["".join(written[byte] for byte in piece) for piece in pieces]
    decoder = ByteDecoder.from_spec({"type": "ByteLevel"})
    assert [decoder.token_bytes(token) for token in tokens] == pieces
    expected = decoders.ByteLevel().decode(tokens)
    assert b"".join(pieces).decode("utf-8", "replace") == expected


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("▁Hello", b" Hello"),
        ("a▁▁", b"a  "),
        ("<0x0A>", b"\n"),
        ("<0xe4>", b"\xe4"),
        ("é", b"\xc3\xa9"),
    ],
)
def test_sentencepiece_tokens_are_spaces_bytes_and_text(token: str, expected: bytes) -> None:
    assert ByteDecoder.from_spec(SENTENCEPIECE).token_bytes(token) == expected


def test_only_the_space_that_encoding_added_is_stripped() -> None:
    decoder = ByteDecoder.from_spec(SENTENCEPIECE)
    assert decoder.strip_leading_spaces("  a ") == " a "
    assert decoder.strip_leading_spaces("a") == "a"


def test_without_byte_fallback_a_byte_token_is_text() -> None:
    decoder = ByteDecoder.from_spec({"type": "Metaspace", "replacement": "▁"})
    assert decoder.token_bytes("▁<0x0A>") == b" <0x0A>"


def test_a_special_token_stands_for_its_own_text() -> None:
    decoder = ByteDecoder.from_spec(SENTENCEPIECE)
    assert decoder.added_token_bytes("<0x0A>▁", special=True) == "<0x0A>▁".encode()
    assert decoder.added_token_bytes("▁▁", special=False) == b"  "
    byte_level = ByteDecoder.from_spec({"type": "ByteLevel"})
    assert byte_level.added_token_bytes("é Ġ", special=False) == "é Ġ".encode()


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (None, "none at all"),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "WordPiece"),
        ({"type": "Sequence", "decoders": [{"type": "CTC"}]}, "CTC"),
        ({"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""}, "Replace"),
        ({"type": "Strip", "content": "x", "start": 1, "stop": 0}, "Strip"),
        (
            {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "ByteFallback"}]},
            "ByteLevel, ByteFallback",
        ),
    ],
)
def test_a_decoder_that_does_not_map_tokens_to_bytes_is_refused_by_name(
    spec: dict[str, Any] | None, name: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=f"decoder is not supported: .*{name}"):
        ByteDecoder.from_spec(spec)


def test_the_decoder_is_read_from_a_tokenizer() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    assert ByteDecoder.of(tokenizer) == ByteDecoder(replacements=(("▁", " "),))
