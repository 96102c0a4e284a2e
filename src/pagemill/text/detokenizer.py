r"""Token ids of one generated sequence to text that may be shown, one token at a time.

    token bytes    b"na\xc3"     b"\xafve ST"       b"OP it"      stop = ["STOP"]
    characters     "na"          "ïve ST"          "OP"          \xc3 waits for the rest of "ï"
    may be shown   "na"          "naïve "          "naïve "      "ST" waits: it could be "STOP"

Nothing is decoded twice: a token costs time in proportion to its own bytes.
"""

from __future__ import annotations

import codecs
from typing import NamedTuple

from pagemill.text.stop_strings import StopStringMatcher
from pagemill.text.tokenizer_protocol import Tokenizer


class StopMatch(NamedTuple):
    """A stop string was found; the sequence ends with the token that completed it."""

    stop: str
    """The stop string, as the request gave it."""
    text_offset: int
    """Where it starts in the sequence's text, in characters."""


class IncrementalDetokenizer:
    """The text of one generated sequence; the prompt is no part of it.

    Rules:

    - The text is the tokens' bytes, joined and decoded as UTF-8. Bytes that cannot become a
      character are U+FFFD, one for each maximal ill-formed part, as
      ``bytes.decode("utf-8", "replace")`` gives; bytes that still can are held back. With
      ``skip_special_tokens``, special tokens add no bytes.
    - The stop string that is completed first ends the text (see `StopStringMatcher` for ties). The
      text is cut before it, or after it with ``include_stop_str_in_output``. A match lies wholly in
      the generated text: it never begins in the prompt.
    - Text that could be the beginning of a stop string is held back until that is decided.
    - A stop string completed by a token before the ``min_tokens``-th is ordinary text and is not
      looked at again; one that has begun there and is completed later counts.

    Ids at or beyond ``tokenizer.vocab_size`` (a model's padding rows) add no bytes. The samples of
    one request share its matcher ``stop``, which holds no state of a text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool,
        stop: StopStringMatcher | None,
        include_stop_str_in_output: bool,
        min_tokens: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._include_stop = include_stop_str_in_output
        self._min_tokens = min_tokens
        self._matcher = stop
        self._state = StopStringMatcher.START
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._shown: list[str] = []
        self._shown_length = 0
        self._held = ""  # decoded text that may be the beginning of a stop string
        self._num_tokens = 0
        self._finished = False

    @property
    def text(self) -> str:
        """What may be shown so far. It is only ever appended to."""
        if len(self._shown) > 1:
            self._shown = ["".join(self._shown)]
        return self._shown[0] if self._shown else ""

    @property
    def text_length(self) -> int:
        """Length of `text` in characters, without building it."""
        return self._shown_length

    def text_since(self, offset: int) -> str:
        """``text[offset:]`` in time proportional to its length: what a stream has not sent yet."""
        if not 0 <= offset <= self._shown_length:
            raise ValueError(f"offset must be in [0, {self._shown_length}], got {offset}")
        start = self._shown_length
        first = len(self._shown)
        while start > offset:
            first -= 1
            start -= len(self._shown[first])
        return "".join(self._shown[first:])[offset - start :]

    @property
    def finished(self) -> bool:
        """Whether the text is complete: a stop string was found or `finish` was called."""
        return self._finished

    def append(self, token_id: int, *, is_final: bool = False) -> StopMatch | None:
        """Add the sequence's next token; report the stop string that it completes, if any.

        After a match the text is complete. ``is_final`` says that no token follows, as `finish`
        does. A stop *token* whose text is not to be shown is simply not appended.
        """
        assert not self._finished, "a token after the end of the text"
        self._num_tokens += 1
        chars = self._utf8.decode(self._bytes_of(token_id))
        match = self._scan(chars)
        if is_final and match is None:
            self.finish()
        return match

    def finish(self) -> None:
        """End the text: show what was held back, an unfinished character as U+FFFD.

        No stop string is looked for in such a U+FFFD, which is no text of the model's. Calling this
        twice, or after a match, changes nothing.
        """
        if self._finished:
            return
        self._finished = True
        self._show(self._held + self._utf8.decode(b"", final=True))
        self._held = ""

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id >= self._tokenizer.vocab_size:
            return b""
        if self._skip_special_tokens and self._tokenizer.is_special(token_id):
            return b""
        return self._tokenizer.token_bytes(token_id)

    def _scan(self, chars: str) -> StopMatch | None:
        """Show what of ``chars`` can be shown; stop at the first stop string."""
        matcher = self._matcher
        if matcher is None:
            self._show(chars)
            return None
        may_stop = self._num_tokens >= self._min_tokens
        state = self._state
        pending = self._held + chars
        for end, char in enumerate(chars, start=len(self._held) + 1):
            state = matcher.step(state, char)
            if may_stop and (stop := matcher.match(state)) is not None:
                return self._stop_at(pending, end, stop)
        self._state = state
        # A stop string that is to be shown anyway need not be waited for.
        held_length = 0 if self._include_stop else matcher.held_length(state)
        shown_length = len(pending) - held_length
        self._show(pending[:shown_length])
        self._held = pending[shown_length:]
        return None

    def _stop_at(self, pending: str, end: int, stop: str) -> StopMatch:
        """End the text at ``stop``, which ends at ``pending[:end]``."""
        # May be less than what is shown: a stop string that is to be included is not held back.
        offset = self._shown_length + end - len(stop)
        self._show(pending[: end if self._include_stop else end - len(stop)])
        self._held = ""
        self._finished = True
        return StopMatch(stop, offset)

    def _show(self, chars: str) -> None:
        if chars:
            self._shown.append(chars)
            self._shown_length += len(chars)
