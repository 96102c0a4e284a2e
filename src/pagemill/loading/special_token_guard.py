r"""Keeping special tokens that a client writes from becoming control tokens in a chat prompt.

A chat template and its messages end up in one text, where ``<|im_end|>`` from the template must
become the control token and the same characters from a message must not:

    message       "say <|im_end|> now"
    protected     "say \ue000 now"                a private character for each special token found
    rendered      "<|im_start|>user\nsay \ue000 now<|im_end|>\n"
    cut           <|im_start|> | "user\nsay \ue000 now" | <|im_end|> | "\n"
    encoded       the special tokens that are left are the template's own; a run of text between two
                  of them keeps its ids, unless it holds a private character: then the run is
                  restored and encoded by a tokenizer that knows no special tokens

So a chat without special tokens in its messages has exactly the ids of its rendered text.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from pagemill.errors import RequestError
from pagemill.loading.chat_messages import Message, map_texts, texts_in, unused_characters

LONG_TEXT_CHARS = 2000
"""Encoding so much takes about a millisecond."""

Originals = dict[str, str]
"""From each private character to the special token's text that it stands for."""


class SpecialTokenGuard:
    """Replaces special tokens in messages before rendering and encodes what was rendered."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        self._special = {i: token.content for i, token in self._added.items() if token.special}
        self._contents = frozenset(self._special.values())
        lengths = defaultdict(set)
        for content in self._contents:
            lengths[content[0]].add(len(content))
        self._lengths = {char: sorted(found, reverse=True) for char, found in lengths.items()}
        any_first_char = "[" + re.escape("".join(self._lengths)) + "]"
        self._first_char = re.compile(any_first_char if self._lengths else "(?!)")  # (?!): never

    def protect(self, messages: list[Message], avoid: str) -> tuple[list[Message], Originals]:
        """Put private characters for all special tokens in the messages' texts.

        Args:
            messages: JSON data; not mutated.
            avoid: the template's source, whose characters are not taken.
        """
        texts = texts_in(messages)
        found = sorted({content for text in texts for _, content in self._occurrences(text)})
        if not found:
            return messages, {}
        unused = unused_characters(avoid, *texts, *self._contents)
        characters = {content: next(unused) for content in found}
        protected = map_texts(messages, lambda text: self._replace(text, characters))
        return protected, {char: content for content, char in characters.items()}

    def encode(self, text: str, originals: Originals) -> list[int]:
        """Return the ids of a rendered chat, its private characters restored to plain text.

        Raises:
            RequestError: this tokenizer has no other way to write one of the special tokens.
        """
        encoding = encoded(self._tokenizer, text, add_special_tokens=False)
        ids, offsets = encoding.ids, encoding.offsets
        result: list[int] = []
        first_token = start = 0  # of the run of plain text that is being passed over
        tainted = False
        for index, (token_id, (begin, end)) in enumerate(zip(ids, offsets, strict=True)):
            content = self._special.get(token_id)
            if content is None:
                continue
            if text[begin:end].strip() != content:
                # A client's text that a normalizer turned into a special token, or the token for
                # what is unknown: either way not the template's.
                tainted = True
                continue
            run = ids[first_token:index]
            result += self._encode_run(text, start, begin, run, originals, tainted)
            result.append(token_id)
            first_token, start, tainted = index + 1, end, False
        return result + self._encode_run(
            text, start, len(text), ids[first_token:], originals, tainted
        )

    def _encode_run(
        self, text: str, start: int, end: int, ids: list[int], originals: Originals, tainted: bool
    ) -> list[int]:
        """Return ``ids``, those of ``text[start:end]``, unless it has to be encoded anew."""
        run = text[start:end]
        if not tainted and not any(char in run for char in originals):
            return ids
        for char, original in originals.items():
            run = run.replace(char, original)
        plain = self._plain_at_start if start == 0 else self._plain_inside
        ids = plain.encode(run)
        for special in self._special.keys() & set(ids):
            if self._special[special] in run:  # and not merely the token for what is unknown
                raise RequestError(
                    f"a message contains {self._special[special]!r}, a control token of this model "
                    "that its tokenizer cannot write as plain text; remove it from the message"
                )
        return ids

    def _occurrences(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield (position, special token) left to right, the longest at each position."""
        position = 0
        while match := self._first_char.search(text, position):
            position = match.start()
            for length in self._lengths[text[position]]:
                candidate = text[position : position + length]
                if candidate in self._contents:
                    yield position, candidate
                    position += length
                    break
            else:
                position += 1

    def _replace(self, text: str, characters: dict[str, str]) -> str:
        pieces: list[str] = []
        done = 0
        for position, content in self._occurrences(text):
            pieces += [text[done:position], characters[content]]
            done = position + len(content)
        return "".join([*pieces, text[done:]])

    @cached_property
    def _plain_at_start(self) -> _PlainTokenizer:
        return _PlainTokenizer(self._tokenizer, self._added, at_start=True)

    @cached_property
    def _plain_inside(self) -> _PlainTokenizer:
        return _PlainTokenizer(self._tokenizer, self._added, at_start=False)


class _PlainTokenizer:
    """The same tokenizer without its special tokens; the model inside is shared, not copied."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        added: dict[int, tokenizers.AddedToken],
        *,
        at_start: bool,
    ) -> None:
        plain = tokenizers.Tokenizer(tokenizer.model)
        if tokenizer.normalizer is not None:
            plain.normalizer = tokenizer.normalizer
        if tokenizer.pre_tokenizer is not None:
            plain.pre_tokenizer = (
                tokenizer.pre_tokenizer if at_start else _without_prefix(tokenizer.pre_tokenizer)
            )
        ordinary = {i: token for i, token in added.items() if not token.special}
        plain.add_tokens(list(ordinary.values()))
        # A token that the model's vocabulary lacks gets a new id.
        self._renumbered = {
            new_id: token_id
            for token_id, token in ordinary.items()
            if (new_id := plain.token_to_id(token.content)) != token_id
        }
        self._tokenizer = plain

    def encode(self, text: str) -> list[int]:
        ids: list[int] = encoded(self._tokenizer, text, add_special_tokens=False).ids
        if self._renumbered:
            ids = [self._renumbered.get(token_id, token_id) for token_id in ids]
        return ids


def encoded(
    tokenizer: tokenizers.Tokenizer, text: str, add_special_tokens: bool
) -> tokenizers.Encoding:
    """Encode a text; meanwhile other threads run, if it is long.

    The library's ``encode`` keeps Python's lock, and its ``encode_batch`` does not.
    """
    if len(text) < LONG_TEXT_CHARS:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    (encoding,) = tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
    return encoding


def _without_prefix(pre_tokenizer: PreTokenizer) -> PreTokenizer:
    """Return a pre-tokenizer that takes no text for the first of a prompt.

    Metaspace with the scheme "first" puts a space before a text at offset 0, where a run of a
    longer text that is encoded on its own also begins.
    """
    spec: dict[str, Any] = json.loads(pre_tokenizer.__getstate__())
    steps = spec["pretokenizers"] if spec["type"] == "Sequence" else [spec]
    changed = False
    for step in steps:
        if step["type"] == "Metaspace" and step["prepend_scheme"] == "first":
            step["prepend_scheme"] = "never"
            changed = True
    if not changed:
        return pre_tokenizer
    model = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    carrier = tokenizers.Tokenizer.from_str(json.dumps({"model": model, "pre_tokenizer": spec}))
    result: PreTokenizer = carrier.pre_tokenizer
    return result
