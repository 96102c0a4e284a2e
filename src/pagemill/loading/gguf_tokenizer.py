"""The tokenizer inside a GGUF file, rebuilt from its metadata for the ``tokenizers`` library.

Two kinds are in use, named by ``tokenizer.ggml.model``:

``gpt2``
    Byte-level BPE. The file holds the merges and the name of the rule that cuts a text into words.
``llama``
    SentencePiece BPE. The file holds a score for each piece, and no merges; see
    `_merges_from_scores`.

The file is untrusted: what contradicts itself is refused with `InvalidFileError`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from pagemill.errors import InvalidFileError, UnsupportedModelError
from pagemill.loading.byte_decoding import SPACE_SYMBOL
from pagemill.loading.gguf_pretokenizers import WordRule, word_rule
from pagemill.loading.tokenizer_parts import TokenizerParts

# Values of tokenizer.ggml.token_type.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)


def build_from_gguf(metadata: Mapping[str, Any]) -> TokenizerParts:
    """Rebuild the tokenizer. ``metadata``: plain Python values by GGUF key.

    Raises:
        UnsupportedModelError: a kind of vocabulary or pre-tokenizer that is not implemented.
        InvalidFileError: a key is missing or contradicts another one.
    """
    model = metadata.get("tokenizer.ggml.model")
    vocabulary = _Vocabulary.read(metadata)
    match model:
        case "gpt2":
            rule = word_rule(metadata.get("tokenizer.ggml.pre", "default"))
            tokenizer = _byte_level_bpe(vocabulary, metadata, rule)
            adds_bos, default_bos, default_eos = rule.adds_bos, None, None
        case "llama":
            tokenizer = _sentencepiece_bpe(vocabulary, metadata)
            adds_bos, default_bos, default_eos = True, 1, 2
        case _:
            raise UnsupportedModelError(
                f"tokenizer.ggml.model is {model!r}; supported are 'gpt2' (byte-level BPE) and "
                "'llama' (SentencePiece BPE)"
            )
    vocabulary.add_to(tokenizer)
    bos = vocabulary.named(metadata, "bos", default_bos)
    eos = vocabulary.named(metadata, "eos", default_eos)
    _add_around(
        tokenizer,
        bos if metadata.get("tokenizer.ggml.add_bos_token", adds_bos) else None,
        eos if metadata.get("tokenizer.ggml.add_eos_token", False) else None,
    )
    end_of_turn = vocabulary.named(metadata, "eot")
    end_of_message = vocabulary.named(metadata, "eom")
    template = metadata.get("tokenizer.chat_template")
    return TokenizerParts(
        tokenizer,
        bos_token=bos,
        eos_tokens=tuple(t for t in (eos, end_of_turn, end_of_message) if t is not None),
        chat_template=template if isinstance(template, str) else None,
        vocab_size=len(vocabulary.tokens),
    )


@dataclass(frozen=True)
class _Vocabulary:
    """The arrays of the metadata, checked against each other."""

    tokens: Sequence[str]
    types: Sequence[int]
    ids: dict[str, int]

    @classmethod
    def read(cls, metadata: Mapping[str, Any]) -> _Vocabulary:
        tokens = metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, Sequence) or not tokens:
            raise InvalidFileError("tokenizer.ggml.tokens is missing or empty")
        types = metadata.get("tokenizer.ggml.token_type")
        if types is None:
            types = [_NORMAL] * len(tokens)
        _check_length("token_type", types, tokens)
        # A run of spaces defined by the user is found in the text as it is, not in symbols.
        tokens = [
            token.replace(SPACE_SYMBOL, " ") if kind == _USER_DEFINED else token
            for token, kind in zip(tokens, types, strict=True)
        ]
        ids = {token: token_id for token_id, token in enumerate(tokens)}
        if len(ids) != len(tokens):
            twice = next(token for i, token in enumerate(tokens) if ids[token] != i)
            raise InvalidFileError(
                f"tokenizer.ggml.tokens has {twice!r} twice, at {tokens.index(twice)} and "
                f"{ids[twice]}"
            )
        return cls(tokens, types, ids)

    def named(
        self, metadata: Mapping[str, Any], name: str, default: int | None = None
    ) -> str | None:
        """Return the token that ``tokenizer.ggml.<name>_token_id`` points to."""
        key = f"tokenizer.ggml.{name}_token_id"
        token_id = metadata.get(key, default)
        if token_id is None:
            return None
        if not isinstance(token_id, int) or not 0 <= token_id < len(self.tokens):
            raise InvalidFileError(
                f"{key} is {token_id!r}, but the vocabulary has {len(self.tokens)} tokens"
            )
        return self.tokens[token_id]

    def of_type(self, *kinds: int) -> list[str]:
        """Return the tokens of these types, without empty ones."""
        return [
            token
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind in kinds and token
        ]

    def add_to(self, tokenizer: Tokenizer) -> None:
        """Make control tokens special, and let user-defined ones be found before all else."""
        control = self.of_type(_CONTROL, _UNKNOWN)
        tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in control])
        user_defined = self.of_type(_USER_DEFINED)
        tokenizer.add_tokens([AddedToken(token, normalized=False) for token in user_defined])


def _byte_level_bpe(
    vocabulary: _Vocabulary, metadata: Mapping[str, Any], rule: WordRule
) -> Tokenizer:
    """Build GPT-2's kind of tokenizer.

    ``tokenizer.ggml.add_space_prefix`` says nothing about it, although some converters write it.
    """
    merges = _merges_of_file(metadata)
    tokenizer = Tokenizer(_bpe(vocabulary, merges, ignore_merges=rule.ignore_merges))
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = rule.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece_bpe(vocabulary: _Vocabulary, metadata: Mapping[str, Any]) -> Tokenizer:
    """Build SentencePiece's kind of tokenizer.

    A space prefix, if the file asks for one, goes before each stretch of text between special
    tokens: each was a text of its own when the model was trained.
    """
    if metadata.get("tokenizer.ggml.precompiled_charsmap"):
        raise UnsupportedModelError(
            "tokenizer.ggml.precompiled_charsmap: SentencePiece's text normalization is not "
            "implemented. Give the model's tokenizer.json with the tokenizer option instead"
        )
    if "tokenizer.ggml.merges" in metadata:
        merges = _merges_of_file(metadata)
    else:
        merges = _merges_from_scores(vocabulary, metadata)
    model = _bpe(
        vocabulary,
        merges,
        unk_token=vocabulary.named(metadata, "unknown", 0),
        fuse_unk=True,
        byte_fallback=_BYTE in vocabulary.types,
    )
    tokenizer = Tokenizer(model)
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_SYMBOL)]
    steps: list[decoders.Decoder] = [
        decoders.Replace(SPACE_SYMBOL, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend(SPACE_SYMBOL))
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges_from_scores(
    vocabulary: _Vocabulary, metadata: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return merges, best first, that make plain BPE do what SentencePiece does.

    SentencePiece (``bpe_model.cc``) joins the two neighbours whose union is the piece with the
    highest score, the leftmost on a tie, and has no merges. Here every way to cut a piece in two
    becomes a merge, in the order of the pieces' scores. That is the same: what is joined inside a
    stretch of text that ends as one piece does not depend on the text around it, so of all ways to
    cut a piece only one is ever met, and how they rank among each other does not matter. Pieces of
    equal score, which SentencePiece's trainer does not make, rank by id.

    Control, byte and unused pieces are not made by joining; user-defined ones are found in the text
    beforehand and never joined to anything.
    """
    scores = metadata.get("tokenizer.ggml.scores")
    _check_length("scores", scores, vocabulary.tokens)
    assert scores is not None
    tokens = vocabulary.tokens
    normal = [i for i, kind in enumerate(vocabulary.types) if kind == _NORMAL]
    if not all(map(math.isfinite, scores)):
        raise InvalidFileError("tokenizer.ggml.scores holds a value that is not a finite number")
    normal.sort(key=scores.__getitem__, reverse=True)
    pieces = {tokens[i] for i in normal}
    merges: list[tuple[str, str]] = []
    for token_id in normal:
        piece = tokens[token_id]
        for cut in range(1, len(piece)):
            left = piece[:cut]
            if left in pieces and (right := piece[cut:]) in pieces:
                merges.append((left, right))
    return merges


def _merges_of_file(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = metadata.get("tokenizer.ggml.merges")
    if not isinstance(lines, Sequence):
        raise InvalidFileError("tokenizer.ggml.merges is missing")
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(lines):
        # The left part may itself be a space, where spaces are not written as a symbol.
        cut = line.find(" ", 1) if isinstance(line, str) else -1
        if cut < 0 or cut == len(line) - 1:
            raise InvalidFileError(f"tokenizer.ggml.merges[{number}] is {line!r}, not two tokens")
        merges.append((line[:cut], line[cut + 1 :]))
    return merges


def _bpe(vocabulary: _Vocabulary, merges: list[tuple[str, str]], **options: Any) -> BPE:
    try:
        return BPE(vocabulary.ids, merges, **options)
    except Exception as error:  # the library raises plain Exception
        raise InvalidFileError(f"tokenizer.ggml.merges and tokens do not fit: {error}") from error


def _add_around(tokenizer: Tokenizer, bos: str | None, eos: str | None) -> None:
    """Let ``encode`` put these tokens before and after a text."""
    tokens = [token for token in (bos, eos) if token is not None]
    if not tokens:
        return
    template = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
    ids = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(tokens)]
    tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=ids)


def _check_length(name: str, values: object, tokens: Sequence[str]) -> None:
    if not isinstance(values, Sequence) or len(values) != len(tokens):
        length = len(values) if isinstance(values, Sequence) else "no"
        raise InvalidFileError(
            f"tokenizer.ggml.{name} has {length} entries for {len(tokens)} tokens"
        )
