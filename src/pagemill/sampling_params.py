"""What a request may ask of the sampler, checked once, when it is made.

Every bound is checked in `SamplingParams.__post_init__`, so that whoever holds a `SamplingParams`
holds a valid one; only what needs the vocabulary waits for `validate_for_vocabulary`.
The order in which the parameters act on the logits is documented in `pagemill.sampling`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pagemill.errors import InvalidParameterError

MAX_COUNT = 2**31 - 1
"""Largest token id, token count and ``top_k``: far above any vocabulary or context."""
MAX_SEED = 2**64 - 1
MAX_IDS = 2**20
"""How many entries a list of token ids may have: more than any vocabulary."""
MAX_N = 1024
MAX_LOGPROBS = 100
MAX_STRINGS = 1024
"""How many entries ``stop`` and ``bad_words`` may have."""
MAX_STRING_CHARACTERS = 1024
"""How long each entry of ``stop`` and ``bad_words`` may be."""
MAX_STRINGS_CHARACTERS = 2**16
"""How long all entries of ``stop``, or of ``bad_words``, may be together: preparing them takes time
and memory in proportion, which other requests wait for."""

_FLOAT_BOUNDS: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
_INT_BOUNDS: Mapping[str, tuple[int, int]] = {
    "top_k": (-1, MAX_COUNT),
    "min_tokens": (0, MAX_COUNT),
    "n": (1, MAX_N),
}
_OPTIONAL_INT_BOUNDS: Mapping[str, tuple[int, int]] = {
    "seed": (0, MAX_SEED),
    "max_tokens": (0, MAX_COUNT),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
}
_BOOLS = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens")
_LOGIT_BIAS_BOUNDS = (-100.0, 100.0)
_NUMBERS = (int, float, np.integer, np.floating)


class TokenBias(Mapping[int, float]):
    """An immutable map from token id to bias, ordered by id; hashable and picklable."""

    __slots__ = ("_by_id",)

    def __init__(self, biases: Mapping[int, float]) -> None:
        self._by_id = dict(sorted(biases.items()))

    def __getitem__(self, token_id: int) -> float:
        return self._by_id[token_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def __hash__(self) -> int:
        return hash(tuple(self._by_id.items()))

    def __repr__(self) -> str:
        return repr(self._by_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when they end.

    Immutable, hashable and picklable. Lists, sets and dicts that are passed in are copied; numpy
    scalars become Python numbers. A bool is not a number, and a float is not an integer.
    A field outside its bounds raises `InvalidParameterError`, which names field, rule and value.
    """

    temperature: float = 1.0
    """In [0, 100]. Logits are divided by it; 0 is greedy: the most likely token, always."""
    top_p: float = 1.0
    """In [0, 1]. Keep the smallest set of tokens whose mass is at least this much; 1 keeps all,
    0 keeps the single most likely token."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 and -1 keep all, as does a k beyond the vocabulary."""
    min_p: float = 0.0
    """In [0, 1]. Keep tokens at least this fraction as likely as the most likely one."""

    repetition_penalty: float = 1.0
    """In [0.01, 100]. Divides the positive and multiplies the negative logits of tokens that
    occur in the prompt or in the output; above 1 discourages."""
    presence_penalty: float = 0.0
    """In [-2, 2]. Subtracted once from the logit of each token that occurs in the output."""
    frequency_penalty: float = 0.0
    """In [-2, 2]. Subtracted from a token's logit once for each time it occurs in the output."""
    logit_bias: Mapping[int, float] = field(default_factory=lambda: TokenBias({}))
    """Token id -> value in [-100, 100] added to its logit. None is taken as empty."""
    allowed_token_ids: Collection[int] | None = None
    """If given, no other token can be chosen. Kept as an ascending tuple."""
    bad_words: Sequence[str] = ()
    """Words that the output must not contain. They act through ``bad_words_token_ids``."""
    bad_words_token_ids: Sequence[Sequence[int]] = ()
    """Token sequences that the output must not contain: the last token of each is impossible
    where the output ends with those before it. Filled in by `with_bad_words`."""

    seed: int | None = None
    """In [0, 2^64). None: the engine derives one from its own seed and the request's number."""
    n: int = 1
    """In [1, 1024]. How many continuations of the prompt. Greedy ones are all the same."""

    stop: Sequence[str] = ()
    """Strings that end the output; one string is taken as a list of one. None: no such string."""
    stop_token_ids: Collection[int] = ()
    """Token ids that end the output, besides the model's own. Kept as an ascending tuple."""
    include_stop_str_in_output: bool = False
    """Whether the text keeps the stop string that ended it."""
    ignore_eos: bool = False
    """Go on after the model's end-of-sequence tokens. ``stop_token_ids`` still end the output."""
    min_tokens: int = 0
    """No end-of-sequence or stop token is possible, and no stop string is looked for, before
    this many tokens."""
    max_tokens: int | None = None
    """None: to the end of the context. 0 is allowed together with ``prompt_logprobs``: the
    prompt is scored and nothing is generated."""

    logprobs: int | None = None
    """In [0, 100]. How many of the most likely tokens to report with each chosen token, whose own
    log-probability and rank are reported with any number given here. They are those of the
    model's raw distribution: before penalties, bias, temperature and filters."""
    prompt_logprobs: int | None = None
    """In [0, 100]. The same for each token of the prompt after the first."""
    skip_special_tokens: bool = True
    """Whether special tokens are left out of the text. Token ids always include them."""

    def __post_init__(self) -> None:
        for name, (low, high) in _FLOAT_BOUNDS.items():
            self._set(name, checked_float(name, getattr(self, name), low, high))
        for name, bounds in _INT_BOUNDS.items():
            self._set(name, checked_int(name, getattr(self, name), *bounds))
        for name, bounds in _OPTIONAL_INT_BOUNDS.items():
            value = getattr(self, name)
            if value is not None:
                self._set(name, checked_int(name, value, *bounds, or_none=True))
        for name in _BOOLS:
            self._set(name, _checked_bool(name, getattr(self, name)))

        self._set("stop", _checked_strings("stop", self.stop))
        self._set("bad_words", _checked_strings("bad_words", self.bad_words))
        self._set("bad_words_token_ids", _checked_id_sequences(self.bad_words_token_ids))
        self._set("stop_token_ids", _checked_id_set("stop_token_ids", self.stop_token_ids))
        self._set("logit_bias", _checked_bias(self.logit_bias))
        if self.allowed_token_ids is not None:
            allowed = _checked_id_set("allowed_token_ids", self.allowed_token_ids)
            if not allowed:
                rule = "must have at least one id (None allows every token)"
                raise InvalidParameterError("allowed_token_ids", self.allowed_token_ids, rule)
            self._set("allowed_token_ids", allowed)
        self._check_token_counts()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_token_counts(self) -> None:
        if self.max_tokens is None:
            return
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            rule = "must be at least 1, or 0 together with prompt_logprobs to score the prompt only"
            raise InvalidParameterError("max_tokens", 0, rule)
        if self.min_tokens > self.max_tokens:
            rule = f"must be at most max_tokens ({self.max_tokens})"
            raise InvalidParameterError("min_tokens", self.min_tokens, rule)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> SamplingParams:
        """Make one from a mapping such as parsed JSON gives (``logit_bias`` may have digit keys).

        Raises `InvalidParameterError` for a value outside its bounds and for an unknown name, with
        the nearest known one.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        for name, value in fields.items():
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                rule = f"is no sampling parameter ({hint})"
                raise InvalidParameterError(str(name), value, rule)
        arguments = dict(fields)
        if isinstance(arguments.get("logit_bias"), Mapping):
            arguments["logit_bias"] = parse_logit_bias(arguments["logit_bias"])
        return cls(**arguments)

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON-friendly values; `from_dict` gives an equal object back."""
        result: dict[str, Any] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, TokenBias):
                value = dict(value)
            elif isinstance(value, tuple):
                value = [list(item) if isinstance(item, tuple) else item for item in value]
            result[f.name] = value
        return result

    def with_bad_words(self, encode: Callable[[str], Sequence[int]]) -> SamplingParams:
        """Resolve ``bad_words`` to ``bad_words_token_ids``, in a copy.

        Each word is encoded as it stands and with a space before it, since most vocabularies have
        different tokens for a word inside and at the start of another. A word that the model
        spells with other tokens than the tokenizer would is not recognized.

        ``encode`` maps a text to token ids and adds no special tokens.
        """
        if not self.bad_words:
            return self
        sequences = {tuple(ids): None for ids in self.bad_words_token_ids}
        for word in self.bad_words:
            spellings = (word,) if word.startswith(" ") else (word, " " + word)
            for spelling in spellings:
                ids = tuple(int(token_id) for token_id in encode(spelling))
                if not ids:
                    raise InvalidParameterError("bad_words", word, "must encode to some token")
                sequences[ids] = None
        return dataclasses.replace(self, bad_words_token_ids=tuple(sequences))

    def validate_for_vocabulary(self, vocab_size: int) -> None:
        """Raise `InvalidParameterError`, naming the field, if an id is not in [0, vocab_size)."""
        rule = f"must be in [0, {vocab_size})"
        bad_word_ids = {token_id for ids in self.bad_words_token_ids for token_id in ids}
        for name, ids in (
            ("logit_bias", self.logit_bias),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("stop_token_ids", self.stop_token_ids),
            ("bad_words_token_ids", bad_word_ids),
        ):
            for token_id in ids:
                if token_id >= vocab_size:
                    shown = f"logit_bias[{token_id}]" if name == "logit_bias" else name
                    raise InvalidParameterError(shown, token_id, rule)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, without a draw."""
        return self.temperature == 0.0

    @property
    def needs_output_penalties(self) -> bool:
        """Whether the logits depend on how often each token occurs in the output."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def needs_penalties(self) -> bool:
        """Whether the logits depend on which tokens occur in the prompt or in the output."""
        return self.repetition_penalty != 1.0 or self.needs_output_penalties


def parse_logit_bias(biases: Mapping[Any, Any]) -> dict[Any, Any]:
    """Turn keys such as ``"50256"``, as JSON has them, into integers.

    Other keys and all values are left as they are for `SamplingParams` to judge. Two keys for the
    same token, as ``"5"`` and ``"05"``, raise `InvalidParameterError`.
    """
    result: dict[Any, Any] = {}
    for key, value in biases.items():
        digits = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10
        parsed = int(key) if digits else key
        if parsed in result:
            raise InvalidParameterError("logit_bias", key, "must name each token once")
        result[parsed] = value
    return result


def checked_float(name: str, value: object, low: float, high: float) -> float:
    """A number in [low, high]; `InvalidParameterError`, which names ``name``, for all else."""
    # Compared before converted: a huge integer has no float. NaN fails every comparison.
    if isinstance(value, _NUMBERS) and not _is_bool(value) and low <= value <= high:
        return float(value)
    raise InvalidParameterError(name, value, f"must be a number in [{low:g}, {high:g}]")


def checked_int(name: str, value: object, low: int, high: int, *, or_none: bool = False) -> int:
    """An integer in [low, high]; `InvalidParameterError`, which names ``name``, for all else.

    With ``or_none`` the message says that None is allowed; whoever calls has looked for it.
    """
    if isinstance(value, (int, np.integer)) and not _is_bool(value) and low <= value <= high:
        return int(value)
    rule = f"must be an integer in [{low}, {high}]" + (" or None" if or_none else "")
    raise InvalidParameterError(name, value, rule)


def _is_bool(value: object) -> bool:
    return isinstance(value, (bool, np.bool_))


def _checked_bool(name: str, value: object) -> bool:
    if _is_bool(value):
        return bool(value)
    raise InvalidParameterError(name, value, "must be true or false")


def _checked_strings(name: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise InvalidParameterError(name, value, "must be a string or a list of strings")
    if len(value) > MAX_STRINGS:
        raise InvalidParameterError(name, value, f"must have at most {MAX_STRINGS} strings")
    for text in value:
        if not isinstance(text, str):
            raise InvalidParameterError(name, text, "must hold strings only")
        if not 1 <= len(text) <= MAX_STRING_CHARACTERS:
            rule = f"must hold strings of 1 to {MAX_STRING_CHARACTERS} characters"
            raise InvalidParameterError(name, text, rule)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InvalidParameterError(name, text, "must hold no unpaired surrogate")
    if sum(map(len, value)) > MAX_STRINGS_CHARACTERS:
        rule = f"must have at most {MAX_STRINGS_CHARACTERS} characters in all"
        raise InvalidParameterError(name, value, rule)
    return tuple(sorted(value)) if isinstance(value, (set, frozenset)) else tuple(value)


def _checked_ids(name: str, value: object) -> Iterable[int]:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, (list, tuple, set, frozenset, range)):
        raise InvalidParameterError(name, value, "must be a list of token ids")
    if len(value) > MAX_IDS:
        raise InvalidParameterError(name, f"{len(value)} of them", f"must have at most {MAX_IDS}")
    for token_id in value:
        yield checked_int(name, token_id, 0, MAX_COUNT)


def _checked_id_set(name: str, value: object) -> tuple[int, ...]:
    return () if value is None else tuple(sorted(set(_checked_ids(name, value))))


def _checked_id_sequences(value: object) -> tuple[tuple[int, ...], ...]:
    name = "bad_words_token_ids"
    if not isinstance(value, (list, tuple)):
        raise InvalidParameterError(name, value, "must be a list of lists of token ids")
    sequences = tuple(tuple(_checked_ids(name, ids)) for ids in value)
    if not all(sequences):
        raise InvalidParameterError(name, value, "must hold no empty list")
    return sequences


def _checked_bias(value: object) -> TokenBias:
    if value is None:
        return TokenBias({})
    if not isinstance(value, Mapping):
        raise InvalidParameterError("logit_bias", value, "must map token ids to numbers")
    checked = {}
    for key, bias in value.items():
        token_id = checked_int("each key of logit_bias", key, 0, MAX_COUNT)
        checked[token_id] = checked_float(f"logit_bias[{token_id}]", bias, *_LOGIT_BIAS_BOUNDS)
    return TokenBias(checked)
