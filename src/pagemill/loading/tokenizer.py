"""A model's tokenizer, read from its files: text to token ids, token ids to exact bytes.

The work is done by the ``tokenizers`` library; here are the rules around it: the token that begins
a sequence exactly once, each token's bytes, which tokens end a text, and chats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import tokenizers

from pagemill.errors import InvalidParameterError, RequestError, RequestTooLargeError
from pagemill.loading.byte_decoding import ByteDecoder
from pagemill.loading.chat_messages import check_messages
from pagemill.loading.chat_template import ChatTemplate
from pagemill.loading.gguf_tokenizer import build_from_gguf
from pagemill.loading.special_token_guard import SpecialTokenGuard, encoded
from pagemill.loading.text_bounds import TextBound
from pagemill.loading.tokenizer_directory import read_directory
from pagemill.loading.tokenizer_parts import TokenizerParts

END_OF_TURN_TOKENS: Final = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")
"""Special tokens that end an assistant's turn in the common chat formats."""


class FileTokenizer:
    """Implements `pagemill.text.tokenizer_protocol.Tokenizer`. Thread-safe.

    Attributes:
        vocab_size: the largest token id plus one.
        bos_token_id: the beginning-of-sequence token, if the model has one.
        eos_token_ids: tokens that end a generated text: those that the files name, and each of
            `END_OF_TURN_TOKENS` that is a special token of this vocabulary and occurs in the chat
            template (a model may end its turns with one although its files name another).
        bos_token: the text of ``bos_token_id``, or None.
        eos_token: the text of the end-of-sequence token that the files name first, or None.
        chat_template: None for a model without one.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        tokenizer = self._tokenizer = parts.tokenizer
        # Some files carry the lengths of their training batches, which must not cut a prompt.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._decoder = ByteDecoder.of(tokenizer)
        self._added = tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(i for i, token in self._added.items() if token.special)
        self._bytes: dict[int, bytes] = {}
        self.vocab_size = parts.vocab_size or _vocab_size(tokenizer)
        bos = parts.bos_token
        self.bos_token_id: int | None = None if bos is None else tokenizer.token_to_id(bos)
        self.bos_token = None if self.bos_token_id is None else bos
        named_eos = self._known_ids(parts.eos_tokens)
        self.eos_token = next(iter(named_eos), None)
        self.chat_template = self._template(parts.chat_template)
        ends = named_eos | self._known_ids(self._end_of_turn_tokens())
        self.eos_token_ids = frozenset(ends.values())

    @classmethod
    def from_directory(cls, path: Path) -> FileTokenizer:
        """Read a directory's ``tokenizer.json`` and, where they exist, the files beside it.

        Raises:
            UnsupportedModelError: there is no ``tokenizer.json``, or it is of an unsupported kind.
            InvalidFileError: one of the files is damaged.
        """
        return cls(read_directory(path))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> FileTokenizer:
        """Rebuild the tokenizer from a GGUF file's ``tokenizer.*`` metadata.

        Raises:
            UnsupportedModelError: a tokenizer model or pre-tokenizer that is not implemented.
            InvalidFileError: the metadata contradicts itself.
        """
        return cls(build_from_gguf(metadata))

    def encode(
        self, text: str, add_special_tokens: bool = True, *, max_tokens: int | None = None
    ) -> list[int]:
        """Return the token ids of ``text``; special tokens written in it are recognized.

        With ``add_special_tokens`` the tokens that the model expects around a text are added, but
        no second beginning-of-sequence token to a text that is written with one.

        Args:
            text: any.
            add_special_tokens: see above.
            max_tokens: refuse a text whose length alone shows that it becomes more tokens, before
                it is encoded; one that does not show it may still become more.

        Raises:
            InvalidParameterError: ``text`` is not a text, or not valid Unicode.
            RequestTooLargeError: see ``max_tokens``.
        """
        _check_text("prompt", text)
        self._check_length(text, max_tokens)
        try:
            ids: list[int] = encoded(self._tokenizer, text, add_special_tokens).ids
        except Exception as error:  # the library raises plain Exception, for an unknown word say
            raise RequestError(f"the tokenizer cannot encode this text: {error}") from error
        if add_special_tokens and self._adds_bos and ids[1:2] == [self.bos_token_id]:
            return ids[1:]
        return ids

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ``token_ids`` from the beginning of a text.

        Bytes that make no character become U+FFFD. A space that encoding adds before every text
        is removed again; a text that *continues* another one is for
        `pagemill.text.detokenizer.IncrementalDetokenizer`.

        Raises:
            InvalidParameterError: an id is not in the vocabulary.
        """
        pieces = [
            self.token_bytes(token_id)
            for token_id in token_ids
            if not (skip_special_tokens and self.is_special(token_id))
        ]
        text = b"".join(pieces).decode("utf-8", "replace")
        return self._decoder.strip_leading_spaces(text)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text (special tokens: their written form).

        An id that the vocabulary leaves out adds none.

        Raises:
            InvalidParameterError: the id is not in the vocabulary.
        """
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._compute_bytes(token_id)
        return known

    def is_special(self, token_id: int) -> bool:
        """Return whether ``skip_special_tokens`` leaves this token out of the text."""
        return token_id in self._special_ids

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """Return the prompt text of a chat. See `encode_chat`, which is to be preferred.

        Special tokens written in messages are in this text as they were written.
        """
        template = self._require_template()
        checked = check_messages(messages)
        return template.render(
            checked,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        max_tokens: int | None = None,
    ) -> list[int]:
        """Return the token ids of a chat.

        Special tokens are those that the template writes, the beginning of sequence included;
        special tokens written in a message are plain text.

        Args:
            messages: see `pagemill.loading.chat_messages.check_messages`; not mutated.
            add_generation_prompt: end with the beginning of the assistant's answer.
            continue_final_message: end inside the last message, for the model to continue it.
            max_tokens: as for `encode`, of the prompt that the template writes.

        Raises:
            InvalidParameterError: a message is malformed, or both options are set.
            RequestError: the model has no chat template, or it refuses the messages.
            RequestTooLargeError: see ``max_tokens``.
        """
        template = self._require_template()
        checked = check_messages(messages)
        protected, originals = self._guard.protect(checked, avoid=template.source)
        text = template.render(
            protected,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        _check_text("messages", text)
        self._check_length(text, max_tokens)
        return self._guard.encode(text, originals)

    def _check_length(self, text: str, max_tokens: int | None) -> None:
        # A token may well be one character, so a shorter text shows nothing.
        if max_tokens is None or len(text) <= max_tokens or self._text_bound is None:
            return
        at_least = self._text_bound.min_tokens(text)
        if at_least > max_tokens:
            raise RequestTooLargeError(
                f"a text of {len(text)} characters is at least {at_least} tokens, more than the "
                f"{max_tokens} that there is room for; shorten it"
            )

    @cached_property
    def _text_bound(self) -> TextBound | None:
        return TextBound.of(self._tokenizer)

    @cached_property
    def _guard(self) -> SpecialTokenGuard:
        return SpecialTokenGuard(self._tokenizer)

    @cached_property
    def _adds_bos(self) -> bool:
        return self.bos_token_id in self._tokenizer.encode("").ids[:1]

    def _require_template(self) -> ChatTemplate:
        if self.chat_template is None:
            raise RequestError(
                "this is a base model without a chat template, so it cannot chat; "
                "give it a plain text to continue (generate), or choose an instruct model"
            )
        return self.chat_template

    def _known_ids(self, tokens: Iterable[str]) -> dict[str, int]:
        ids = ((token, self._tokenizer.token_to_id(token)) for token in tokens)
        return {token: token_id for token, token_id in ids if token_id is not None}

    def _template(self, source: str | None) -> ChatTemplate | None:
        if source is None:
            return None
        tokens = {"bos_token": self.bos_token, "eos_token": self.eos_token}
        return ChatTemplate(source, {name: text for name, text in tokens.items() if text})

    def _end_of_turn_tokens(self) -> list[str]:
        if self.chat_template is None:
            return []
        special = {self._added[token_id].content for token_id in self._special_ids}
        source = self.chat_template.source
        return [token for token in END_OF_TURN_TOKENS if token in special and token in source]

    def _compute_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocab_size:
            bound = f"must be in [0, {self.vocab_size}), the tokenizer's vocabulary"
            raise InvalidParameterError("token_id", token_id, bound)
        if (added := self._added.get(token_id)) is not None:
            return self._decoder.added_token_bytes(added.content, special=added.special)
        token = self._tokenizer.id_to_token(token_id)
        return b"" if token is None else self._decoder.token_bytes(token)


def _check_text(field: str, text: object) -> None:
    if not isinstance(text, str):
        raise InvalidParameterError(field, text, "must be a text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        bound = f"must be valid Unicode, but has a lone surrogate at {error.start}"
        raise InvalidParameterError(field, text[error.start : error.end], bound) from None


def _vocab_size(tokenizer: tokenizers.Tokenizer) -> int:
    """Return the largest token id plus one, without copying the vocabulary if it has no holes."""
    count = tokenizer.get_vocab_size(with_added_tokens=True)
    if all(tokenizer.id_to_token(token_id) is not None for token_id in range(count)):
        return count
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
