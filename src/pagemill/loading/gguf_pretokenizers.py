"""How byte-level vocabularies cut a text into words, by the name that a GGUF file gives.

BPE merges inside words only, so the cut decides the tokens. A GGUF file holds no regular expression
but a name (``tokenizer.ggml.pre``); the rules here are those of the original models'
``tokenizer.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from pagemill.errors import UnsupportedModelError


@dataclass(frozen=True)
class WordRule:
    """How words are cut, and what of the tokenizer goes with it."""

    pattern: str | None = None
    """None: GPT-2's own expression, which ``tokenizers`` has built in."""
    single_digits: bool = False
    """Every digit is a word, before anything else is cut."""
    nfc: bool = False
    """Texts are brought to Unicode's composed form first."""
    ignore_merges: bool = False
    """A word that is a token is that token, whatever the merges would give."""
    adds_bos: bool = False
    """Whether a beginning of sequence is added where the file does not say."""

    def pre_tokenizer(self) -> PreTokenizer:
        """Return the rule as a step of a tokenizer."""
        steps: list[PreTokenizer] = []
        if self.single_digits:
            steps.append(Digits(individual_digits=True))
        if self.pattern is not None:
            steps.append(Split(Regex(self.pattern), "isolated"))
        steps.append(ByteLevel(add_prefix_space=False, use_regex=self.pattern is None))
        return Sequence(steps)


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
# Upper case then lower case, at least one of either: "HTTPServer" is one word, "fooBar" two.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LOWER_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_UPPER_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SYMBOLS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = WordRule()
_LLAMA3 = WordRule(
    "|".join([_CONTRACTION, _WORD, r"\p{N}{1,3}", _SYMBOLS, _SPACES]),
    ignore_merges=True,
    adds_bos=True,
)
_QWEN2 = WordRule("|".join([_CONTRACTION, _WORD, r"\p{N}", _SYMBOLS, _SPACES]), nfc=True)
_TEKKEN = WordRule(
    "|".join([_LOWER_WORD, _UPPER_WORD, r"\p{N}", _SYMBOLS_AND_SLASHES, _SPACES]),
    ignore_merges=True,
    adds_bos=True,
)
_GPT4O = WordRule(
    "|".join(
        [
            f"{_LOWER_WORD}{_CONTRACTION}?",
            f"{_UPPER_WORD}{_CONTRACTION}?",
            r"\p{N}{1,3}",
            _SYMBOLS_AND_SLASHES,
            _SPACES,
        ]
    )
)

WORD_RULES: Final[Mapping[str, WordRule]] = {
    # Written where a converter recorded no name: the kind of vocabulary is itself called gpt2.
    "default": _GPT2,
    "gpt-2": _GPT2,
    "gpt-4o": _GPT4O,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "smollm": WordRule(single_digits=True),
    "tekken": _TEKKEN,
}


def word_rule(name: object) -> WordRule:
    """Return the rule of that name.

    Raises:
        UnsupportedModelError: there is none; it lists those there are.
    """
    rule = WORD_RULES.get(name) if isinstance(name, str) else None
    if rule is None:
        raise UnsupportedModelError(
            f"tokenizer.ggml.pre is {name!r}, a way to cut words that is not implemented; known "
            f"are {', '.join(WORD_RULES)}. Give the model's tokenizer.json with the tokenizer "
            "option instead"
        )
    return rule
