"""The tokenizer rebuilt from scores against SentencePiece itself, on small trained vocabularies."""

from __future__ import annotations

import importlib
import io
import random
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill.loading.tokenizer import FileTokenizer

with warnings.catch_warnings():
    # Its SWIG wrapper types warn on import under some versions of Python.
    warnings.simplefilter("ignore", DeprecationWarning)
    sentencepiece = importlib.import_module("sentencepiece")

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

WORDS = (
    *(
        "the",
        "quick",
        "brown",
        "fox",
        "jumps",
        "over",
        "the",
        "lazy",
        "dog",
        "and",
        "naps",
        "we'll",
    ),
    *("banana", "aaaa", "abab", "ababab", "bbbb", "abba", "café", "naïve", "über", "žluťoučký"),
    *("人工", "智能", "是", "人工智能", "🙂🙂", "🙃", "1969", "2024", "3.14", "don't"),
)


def corpus() -> list[str]:
    """Sentences with repetitions and runs of spaces, so that pieces overlap themselves."""
    rng = random.Random(7)
    gaps = [" "] * 6 + ["  ", "   ", "     "]
    return [
        "".join(rng.choice(WORDS) + rng.choice(gaps) for _ in range(rng.randint(2, 12)))
        for _ in range(600)
    ]


def train(**options: Any) -> Any:
    """Return a SentencePiece processor with a vocabulary of its own."""
    model = io.BytesIO()
    settings: dict[str, Any] = {
        "model_type": "bpe",
        "vocab_size": 700,
        "hard_vocab_limit": False,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "split_by_whitespace": False,
        "allow_whitespace_only_pieces": True,
        "add_dummy_prefix": False,
        "num_threads": 1,
        "minloglevel": 3,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=model, **(settings | options)
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def token_type(processor: Any, token_id: int, user_defined: list[str]) -> int:
    if processor.is_unknown(token_id):
        return UNKNOWN
    if processor.is_control(token_id):
        return CONTROL
    if processor.is_byte(token_id):
        return BYTE
    return USER_DEFINED if processor.id_to_piece(token_id) in user_defined else NORMAL


def metadata(processor: Any, user_defined: list[str], add_space_prefix: bool) -> dict[str, Any]:
    """What a converter writes into a GGUF file for this vocabulary."""
    ids = range(processor.get_piece_size())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [processor.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [processor.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": [token_type(processor, i, user_defined) for i in ids],
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.eos_token_id": processor.eos_id(),
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }


VARIANTS: dict[str, tuple[dict[str, Any], bool]] = {
    "gemma-like": ({}, False),
    "llama-like": ({"add_dummy_prefix": True, "split_by_whitespace": True}, True),
    "without byte fallback": ({"byte_fallback": False, "character_coverage": 0.98}, False),
    "user-defined symbols": ({"user_defined_symbols": ["[TOOL]", "\n\n", "▁▁▁▁"]}, False),
}


# SentencePiece's processor, ours, and the space that both put before a text.
Pair = tuple[Any, FileTokenizer, str]


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request: pytest.FixtureRequest) -> Pair:
    options, prefixed = VARIANTS[request.param]
    processor = train(**options)
    user_defined = options.get("user_defined_symbols", [])
    tokenizer = FileTokenizer.from_gguf(metadata(processor, user_defined, prefixed))
    return processor, tokenizer, " " if prefixed else ""


# Words and pieces of them, glued at random: what a merge order gets wrong shows at the seams.
WORD_ENDS = [word[i:] for word in WORDS for i in range(1, len(word))]
SPACES = [" ", "  ", "   ", "    ", "\t", "\n", "\n\n"]
FRAGMENTS = st.sampled_from([*WORDS, *WORD_ENDS, *SPACES, "ab", "[TOOL]", "[TOOL"])
TEXTS = st.one_of(
    st.lists(FRAGMENTS, max_size=20).map("".join),
    st.text(alphabet="ab n", max_size=40),
    # A surrogate is no text; SentencePiece keeps U+2581 for itself; it drops a NUL.
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁\0"), max_size=20),
)


@given(TEXTS)
def test_ids_equal_those_of_sentencepiece(pair: Pair, text: str) -> None:
    processor, tokenizer, _ = pair
    assert tokenizer.encode(text) == processor.encode(text)


@given(TEXTS)
def test_the_bytes_of_the_tokens_joined_are_the_text(pair: Pair, text: str) -> None:
    processor, tokenizer, prefix = pair
    ids = tokenizer.encode(text)
    if processor.unk_id() not in ids:  # what is unknown cannot be written again
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        joined = b"".join(tokenizer.token_bytes(i) for i in ids).decode()
        assert joined == (prefix + text if text else "")


def test_the_vocabularies_are_not_trivial(pair: Pair) -> None:
    """Guards the tests above: there are merges, and long pieces are reached."""
    _, tokenizer, _ = pair
    assert len(tokenizer.encode("the quick brown fox jumps over the lazy dog")) < 20
