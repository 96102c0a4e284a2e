from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer

from pagemill.errors import InvalidFileError, UnsupportedModelError
from pagemill.loading.gguf_pretokenizers import WORD_RULES
from pagemill.loading.tokenizer import FileTokenizer

from .tiny_vocabularies import byte_level_metadata, sentencepiece_metadata

SENTENCE = "I'M here: HTTPServer fooBar 12345\n\n  x=/\n"


def words(name: str, text: str) -> list[str]:
    """How a rule cuts ``text``."""
    cuts = WORD_RULES[name].pre_tokenizer().pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in cuts]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", "I|'|M| here|:| HTTPServer| fooBar| 12345|\n\n | x|=/|\n"),
        ("smollm", "I|'|M| here|:| HTTPServer| fooBar| |1|2|3|4|5|\n\n | x|=/|\n"),
        ("llama-bpe", "I|'M| here|:| HTTPServer| fooBar| |123|45|\n\n| | x|=/\n"),
        ("qwen2", "I|'M| here|:| HTTPServer| fooBar| |1|2|3|4|5|\n\n| | x|=/\n"),
        ("tekken", "I|'M| here|:| HTTPServer| foo|Bar| |1|2|3|4|5|\n\n| | x|=/\n"),
        ("gpt-4o", "I'M| here|:| HTTPServer| foo|Bar| |123|45|\n\n| | x|=/\n"),
    ],
)
def test_each_rule_cuts_words_as_its_models_do(name: str, expected: str) -> None:
    assert words(name, SENTENCE) == expected.split("|")


@pytest.mark.parametrize("name", WORD_RULES)
def test_no_rule_loses_a_character(name: str) -> None:
    text = SENTENCE + "Café cafe\u0301 ½Ⅷ٣ สวัสดี 你好 🙂👩\u200d👧 \u00a0\u3000\t\r\n  'S"
    assert "".join(words(name, text)) == text


def test_a_missing_name_is_that_of_gpt2() -> None:
    metadata = byte_level_metadata()
    del metadata["tokenizer.ggml.pre"]
    assert WORD_RULES["default"] == WORD_RULES["gpt-2"]
    assert FileTokenizer.from_gguf(metadata).encode("a b") == list(b"a b")


def test_an_unknown_pre_tokenizer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'weird'.* known are default, gpt-2, gpt-4o"):
        FileTokenizer.from_gguf(byte_level_metadata(pre="weird"))


def test_an_unknown_kind_of_vocabulary_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.model is 't5'"):
        FileTokenizer.from_gguf(byte_level_metadata(model="t5"))


def test_a_words_merges_are_ignored_only_where_its_models_do() -> None:
    # "abc" is a token that no merge reaches: (a, bc) needs bc, and (ab, c) comes first.
    merges = ["a b", "b c", "a bc"]
    by_merges = FileTokenizer.from_gguf(byte_level_metadata(merges=merges))
    assert len(by_merges.encode("abc")) == 2
    whole = FileTokenizer.from_gguf(
        byte_level_metadata(merges=merges, pre="llama-bpe", add_bos_token=False)
    )
    assert whole.encode("abc") == [258]


def test_only_qwen_composes_characters() -> None:
    for pre, expected in (("qwen2", "é"), ("gpt-2", "e\u0301")):
        tokenizer = FileTokenizer.from_gguf(byte_level_metadata(pre=pre))
        assert tokenizer.decode(tokenizer.encode("e\u0301")) == expected


@pytest.mark.parametrize(
    ("metadata", "around"),
    [
        (byte_level_metadata(bos_token_id=256, eos_token_id=257), (0, 0)),
        (byte_level_metadata(bos_token_id=256, pre="llama-bpe"), (1, 0)),
        (byte_level_metadata(bos_token_id=256, pre="tekken"), (1, 0)),
        (byte_level_metadata(bos_token_id=256, pre="tekken", add_bos_token=False), (0, 0)),
        (byte_level_metadata(bos_token_id=256, add_bos_token=True), (1, 0)),
        (byte_level_metadata(add_bos_token=True), (0, 0)),
        (byte_level_metadata(bos_token_id=256, eos_token_id=257, add_eos_token=True), (0, 1)),
        (sentencepiece_metadata(), (1, 0)),
        (sentencepiece_metadata(add_bos_token=False, add_eos_token=True), (0, 1)),
        (sentencepiece_metadata(add_eos_token=True), (1, 1)),
    ],
)
def test_what_is_added_around_a_text_is_what_the_file_or_its_kind_says(
    metadata: dict[str, Any], around: tuple[int, int]
) -> None:
    tokenizer = FileTokenizer.from_gguf(metadata)
    plain = tokenizer.encode("ab", add_special_tokens=False)
    before = [tokenizer.bos_token_id] * around[0]
    assert tokenizer.encode("ab") == [
        *before,
        *plain,
        *sorted(tokenizer.eos_token_ids)[: around[1]],
    ]


def test_end_of_turn_and_end_of_message_end_a_text_too() -> None:
    control = ["<bos>", "<eos>", "<eot>", "<eom>"]
    tokenizer = FileTokenizer.from_gguf(
        byte_level_metadata(
            control=control, bos_token_id=256, eos_token_id=257, eot_token_id=258, eom_token_id=259
        )
    )
    assert tokenizer.eos_token_ids == {257, 258, 259}
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<bos>", "<eos>")


def test_control_tokens_are_special_and_user_defined_ones_are_text() -> None:
    metadata = byte_level_metadata(control=["<c>"], user_defined=["<u>", "é "])
    tokenizer = FileTokenizer.from_gguf(metadata)
    ids = tokenizer.encode("a<c><u>é b")
    assert ids == [ord("a"), 256, 257, 258, ord("b")]
    assert tokenizer.decode(ids) == "a<u>é b"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<c><u>é b"
    assert [tokenizer.is_special(i) for i in ids] == [False, True, False, False, False]


def test_control_and_byte_tokens_written_in_text_are_not_built_by_merges() -> None:
    pieces = ["▁", "<", "0", "x", "4", "1", ">", "<0", "<0x", "<0x4", "<0x41"]
    tokenizer = FileTokenizer.from_gguf(
        sentencepiece_metadata(pieces, add_space_prefix=False, add_bos_token=False)
    )
    ids = tokenizer.encode("<0x41>")
    assert [tokenizer.token_bytes(i) for i in ids] == [b"<0x41", b">"]


def test_merges_in_a_sentencepiece_file_are_preferred_to_scores() -> None:
    metadata = sentencepiece_metadata(add_bos_token=False, add_space_prefix=False)
    tokenizer = FileTokenizer.from_gguf(metadata | {"tokenizer.ggml.merges": ["▁ a", "a b"]})
    assert tokenizer.encode(" ab") == [264, 261]  # by scores: ▁, ab
    assert FileTokenizer.from_gguf(metadata).encode(" ab") == [259, 263]


def test_the_space_prefix_is_added_unless_the_file_says_no() -> None:
    assert FileTokenizer.from_gguf(sentencepiece_metadata()).encode("a", False) == [264]
    plain = sentencepiece_metadata(add_space_prefix=False)
    assert FileTokenizer.from_gguf(plain).encode("a", False) == [260]


def broken(metadata: dict[str, Any], **keys: Any) -> dict[str, Any]:
    changed = metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return {key: value for key, value in changed.items() if value is not None}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (broken(byte_level_metadata(), tokens=None), "tokens is missing or empty"),
        (broken(byte_level_metadata(), tokens=[]), "tokens is missing or empty"),
        (broken(byte_level_metadata(), token_type=[1]), "token_type has 1 entries for 258 tokens"),
        (broken(byte_level_metadata(), merges=None), "merges is missing"),
        (broken(byte_level_metadata(), merges=["ab"]), r"merges\[0\] is 'ab', not two tokens"),
        (broken(byte_level_metadata(), merges=["a "]), r"merges\[0\] is 'a ', not two tokens"),
        (broken(byte_level_metadata(), merges=["a b"]), "merges and tokens do not fit"),
        (broken(byte_level_metadata(), bos_token_id=258), "bos_token_id is 258, but .* 258 tokens"),
        (broken(byte_level_metadata(), eos_token_id=-1), "eos_token_id is -1"),
        (broken(byte_level_metadata(), eot_token_id="x"), "eot_token_id is 'x'"),
        (broken(sentencepiece_metadata(), scores=None), "scores has no entries"),
        (broken(sentencepiece_metadata(), scores=[float("nan")] * 265), "not a finite number"),
        (
            sentencepiece_metadata(["a", "b", "a"]),
            "tokens has 'a' twice, at 259 and 261",
        ),
    ],
)
def test_metadata_that_contradicts_itself_is_refused(
    metadata: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidFileError, match=message):
        FileTokenizer.from_gguf(metadata)


def test_sentencepiece_normalization_is_refused_rather_than_left_out() -> None:
    with pytest.raises(UnsupportedModelError, match="precompiled_charsmap"):
        FileTokenizer.from_gguf(sentencepiece_metadata(precompiled_charsmap=[1, 2]))


def test_a_rebuilt_tokenizer_survives_a_round_trip_through_its_own_format() -> None:
    tokenizer = FileTokenizer.from_gguf(byte_level_metadata(pre="gpt-4o"))
    assert Tokenizer.from_str(tokenizer._tokenizer.to_str()).encode(SENTENCE).ids == (
        tokenizer.encode(SENTENCE)
    )
