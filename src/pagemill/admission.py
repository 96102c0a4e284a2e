"""The front door: from a call's arguments to a `Request` that is known to be servable.

Every check that can refuse a request is made here, before anything is allocated for it.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import numpy as np

from pagemill.errors import InvalidParameterError, RequestError, RequestTooLargeError
from pagemill.outputs import LogprobsAtPosition
from pagemill.philox import derive_request_seed, derive_seed
from pagemill.pooling import PromptSum
from pagemill.request import Request, RequestTimes, Sequence
from pagemill.sampling_params import SamplingParams
from pagemill.scheduler.scheduler import Scheduler
from pagemill.text.detokenizer import IncrementalDetokenizer
from pagemill.text.stop_strings import StopStringMatcher
from pagemill.text.tokenizer_protocol import Tokenizer
from pagemill.token_processor import append_token

MAX_DEADLINE_SECONDS = 1e6
"""So that a rank keeps its microseconds."""


class Admission:
    """Validates requests and gives them their numbers.

    Args:
        scheduler: asked whether a request can ever fit.
        tokenizer: None if prompts come as token ids only.
        vocab_size: token ids are below this.
        max_model_len: longest prompt + output, in tokens.
        eos_token_ids: what ends a sequence unless it is ignored.
        engine_seed: key of the streams of requests without a seed.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: frozenset[int],
        engine_seed: int,
    ) -> None:
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._eos_token_ids = eos_token_ids
        self._engine_seed = engine_seed
        self._num_arrivals = 0
        self._next_seq_id = 0

    def admit(
        self,
        request_id: str,
        prompt: str | SequenceOf[int],
        params: SamplingParams,
        priority: int,
        deadline_seconds: float | None,
        cache_salt: str | None,
        now: float,
    ) -> Request:
        """Build the request with its sequences, or raise `RequestError` and change nothing."""
        _check_type_of_params(params)
        _check_terms(priority, deadline_seconds, cache_salt)
        token_ids = self._token_ids(prompt)
        params = self._checked_params(params)
        request = Request(
            request_id=request_id,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=tuple(token_ids),
            params=params,
            max_tokens=self._max_tokens(len(token_ids), params),
            end_token_ids=self._end_token_ids(params),
            priority=priority,
            times=RequestTimes(now),
            deadline_seconds=deadline_seconds,
            cache_salt=cache_salt,
            prompt_logprobs=None if params.prompt_logprobs is None else [None],
        )
        return self._admitted(request)

    def admit_embedding(
        self,
        request_id: str,
        prompt: str | SequenceOf[int],
        priority: int,
        deadline_seconds: float | None,
        cache_salt: str | None,
        now: float,
    ) -> Request:
        """Build a request that ends with its prompt, or raise `RequestError` and change nothing."""
        _check_terms(priority, deadline_seconds, cache_salt)
        token_ids = self._token_ids(prompt)
        if len(token_ids) > self._max_model_len:
            raise RequestTooLargeError(
                f"a prompt of {len(token_ids)} tokens exceeds the context of max_model_len="
                f"{self._max_model_len} tokens; shorten it or raise max_model_len"
            )
        request = Request(
            request_id=request_id,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=tuple(token_ids),
            params=SamplingParams(),
            max_tokens=0,
            end_token_ids=frozenset(),
            priority=priority,
            times=RequestTimes(now),
            deadline_seconds=deadline_seconds,
            cache_salt=cache_salt,
            pooled=PromptSum(),
        )
        return self._admitted(request)

    def _admitted(self, request: Request) -> Request:
        """``request`` with its sequences, if it can be served."""
        self._scheduler.policy.check(request)
        self._scheduler.check_fits_ever(request)
        self._add_sequences(request)
        return request

    def fork(
        self,
        source: Sequence,
        request_id: str,
        params: SamplingParams | None,
        num_output_tokens: int | None,
        last_token_id: int | None,
        now: float,
    ) -> Request:
        """Build a request that goes on from the first tokens of ``source``, or raise
        `RequestError` and change nothing. See `pagemill.engine.LLMEngine.fork`.
        """
        origin = source.request
        if origin.pooled is not None:
            rule = "must be a request that generates, not one for an embedding"
            raise InvalidParameterError("request_id", origin.request_id, rule)
        if params is None:
            params = replace(origin.params, n=1, seed=None, max_tokens=origin.max_tokens)
        _check_type_of_params(params)
        outputs = _forked_outputs(source, num_output_tokens, last_token_id, params)
        if params.n != 1:
            raise InvalidParameterError("n", params.n, "must be 1 in a fork; fork again for more")
        params = self._checked_params(params)
        request = Request(
            request_id=request_id,
            prompt=origin.prompt,
            prompt_token_ids=origin.prompt_token_ids,
            params=params,
            max_tokens=self._max_tokens(origin.num_prompt_tokens, params),
            end_token_ids=self._end_token_ids(params),
            priority=origin.priority,
            deadline_seconds=origin.deadline_seconds,
            times=RequestTimes(now),
            cache_salt=origin.cache_salt,
            prompt_logprobs=None if origin.prompt_logprobs is None else [*origin.prompt_logprobs],
            num_cached_tokens=origin.num_cached_tokens,
        )
        if request.max_tokens <= len(outputs):
            raise InvalidParameterError(
                "max_tokens", request.max_tokens, f"must exceed the fork's {len(outputs)} tokens"
            )
        self._scheduler.check_fits_ever(request)
        self._add_sequences(request)
        (seq,) = request.sequences
        if outputs:  # its prompt and first token were counted when ``source`` got them
            request.times.first_scheduled_seconds = request.times.first_token_seconds = now
            seq.first_token_seconds = source.first_token_seconds
            seq.last_token_seconds = source.last_token_seconds
        for output in outputs:
            if seq.finish_reason is None:  # other parameters may end it earlier
                append_token(seq, *output)
        return request

    def _token_ids(self, prompt: str | SequenceOf[int]) -> list[int]:
        if isinstance(prompt, str):
            if self._tokenizer is None:
                raise RequestError("prompt is a text, but the engine has no tokenizer; give ids")
            token_ids = self._tokenizer.encode(prompt)
            if max(token_ids, default=0) >= self._vocab_size:
                raise RequestError(
                    f"prompt holds token {max(token_ids)} of the tokenizer, but the model's "
                    f"vocabulary has {self._vocab_size} tokens; leave that word out, or give the "
                    "model its own tokenizer"
                )
        elif isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, SequenceOf):
            raise InvalidParameterError("prompt", prompt, "must be a text or a list of token ids")
        else:
            token_ids = [self._checked_id(i, token_id) for i, token_id in enumerate(prompt)]
        if not token_ids:
            raise InvalidParameterError("prompt", prompt, "must hold at least one token")
        return token_ids

    def _checked_id(self, index: int, token_id: object) -> int:
        if isinstance(token_id, bool) or not isinstance(token_id, (int, np.integer)):
            raise InvalidParameterError(f"prompt[{index}]", token_id, "must be a token id")
        if not 0 <= token_id < self._vocab_size:
            raise InvalidParameterError(
                f"prompt[{index}]", token_id, f"must be a token id in [0, {self._vocab_size})"
            )
        return int(token_id)

    def _checked_params(self, params: SamplingParams) -> SamplingParams:
        params.validate_for_vocabulary(self._vocab_size)
        tokenizer = self._tokenizer
        if tokenizer is not None:
            return params.with_bad_words(lambda word: tokenizer.encode(word, False))
        for name in ("stop", "bad_words"):
            if getattr(params, name):
                rule = "needs a tokenizer, which this engine lacks"
                raise InvalidParameterError(name, getattr(params, name), rule)
        return params

    def _max_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        """The output length that the context allows; `RequestTooLargeError` beyond it.

        Without ``max_tokens`` a request may run to the end of the context, or of the whole KV
        pool where that is smaller.
        """
        limit = self._max_model_len
        if params.max_tokens is not None:
            if num_prompt_tokens + params.max_tokens > limit:
                raise RequestTooLargeError(
                    f"a prompt of {num_prompt_tokens} tokens and max_tokens={params.max_tokens} "
                    f"exceed the context of max_model_len={limit} tokens; shorten the prompt, "
                    f"lower max_tokens or raise max_model_len"
                )
            return params.max_tokens
        kv = self._scheduler.kv
        limit = min(limit, kv.max_sequence_tokens)
        if num_prompt_tokens >= limit:
            raise RequestTooLargeError(
                f"a prompt of {num_prompt_tokens} tokens leaves no room for output: the context "
                f"is max_model_len={self._max_model_len} tokens and the KV pool "
                f"{kv.num_blocks} blocks of {kv.block_size}; shorten the prompt, or raise the "
                f"smaller of the two"
            )
        limit_for_min = limit - num_prompt_tokens
        if params.min_tokens > limit_for_min:
            raise RequestTooLargeError(
                f"min_tokens={params.min_tokens} exceeds the {limit_for_min} tokens that a prompt "
                f"of {num_prompt_tokens} leaves in the context"
            )
        return limit_for_min

    def _end_token_ids(self, params: SamplingParams) -> frozenset[int]:
        asked_for = frozenset(params.stop_token_ids)
        return asked_for if params.ignore_eos else asked_for | self._eos_token_ids

    def _add_sequences(self, request: Request) -> None:
        params = request.params
        seed = params.seed
        if seed is None:
            seed = derive_request_seed(self._engine_seed, self._num_arrivals)
        self._num_arrivals += 1
        stop = StopStringMatcher(params.stop) if params.stop else None
        for index in range(params.n):
            request.sequences.append(
                Sequence(
                    seq_id=self._next_seq_id,
                    request=request,
                    index=index,
                    seed=derive_seed(seed, index),
                    detokenizer=self._detokenizer(params, stop),
                    token_ids=list(request.prompt_token_ids),
                    blocks=self._scheduler.kv.new_sequence(request.cache_salt),
                )
            )
            self._next_seq_id += 1

    def _detokenizer(
        self, params: SamplingParams, stop: StopStringMatcher | None
    ) -> IncrementalDetokenizer | None:
        if self._tokenizer is None:
            return None
        return IncrementalDetokenizer(
            self._tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            stop=stop,
            include_stop_str_in_output=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
        )


def _forked_outputs(
    source: Sequence, count: int | None, last_token_id: int | None, params: SamplingParams
) -> list[tuple[int, float, LogprobsAtPosition | None]]:
    """The tokens that a fork begins with: id, log-probability, and what to show of it."""
    generated = len(source.output_token_ids)
    if count is None:
        count = generated
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= generated:
        rule = f"must be in [0, {generated}], what was generated so far"
        raise InvalidParameterError("num_output_tokens", count, rule)
    if params.logprobs is not None and source.request.params.logprobs is None and count:
        rule = "cannot be asked for in a fork of a request that did not"
        raise InvalidParameterError("logprobs", params.logprobs, rule)
    shown: list[LogprobsAtPosition | None] = [None] * count
    if params.logprobs is not None:
        shown[:] = source.logprobs[:count]
    outputs = list(zip(source.output_token_ids, source.token_logprobs, shown, strict=False))
    if last_token_id is not None:
        known = source.logprobs[count - 1] if count and source.logprobs else {}
        is_id = isinstance(last_token_id, (int, np.integer)) and not isinstance(last_token_id, bool)
        if not is_id or last_token_id not in known:
            rule = f"must be one of the tokens whose logprobs are known there: {sorted(known)}"
            raise InvalidParameterError("last_token_id", last_token_id, rule)
        outputs[-1] = (last_token_id, known[last_token_id].logprob, shown[-1])
    return outputs


def _check_type_of_params(params: object) -> None:
    if not isinstance(params, SamplingParams):
        raise InvalidParameterError("sampling_params", params, "must be a SamplingParams")


def _check_terms(priority: object, deadline_seconds: object, cache_salt: object) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidParameterError("priority", priority, "must be an integer")
    if not isinstance(cache_salt, str | None):
        raise InvalidParameterError("cache_salt", cache_salt, "must be a text")
    if deadline_seconds is not None:
        _check_deadline(deadline_seconds)


def _check_deadline(seconds: object) -> None:
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not (is_number and 0 < seconds <= MAX_DEADLINE_SECONDS):  # type: ignore[operator]
        rule = f"must be a number in (0, {MAX_DEADLINE_SECONDS:.0f}], seconds from now"
        raise InvalidParameterError("deadline_seconds", seconds, rule)
