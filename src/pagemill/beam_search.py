"""Beam search: the likeliest continuations of a prompt, found by following several at once.

Every running beam is a request of the engine's that reports its likeliest next tokens. Once all
beams of a prompt have them, the best continuations of all are chosen together:

    beams         A "the sky is"            B "the sky was"
    next tokens   blue -0.4   not -1.9      blue -0.3   grey -2.0     added to the beam's own
    chosen        A blue                    B blue, B grey            log-probability

A request that was chosen with its own next token simply goes on. Any other choice is a branch of
it (`LLMEngine.fork`), which shares its blocks and computes one token, as every beam does in every
step. What was not chosen is aborted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from collections.abc import Set as SetOf

from pagemill.beams import Beam, BeamSearchOutput, BeamSearchParams, EndedBeams, RunningBeam
from pagemill.engine import LLMEngine
from pagemill.errors import InvalidParameterError
from pagemill.outputs import RequestOutput
from pagemill.sampling_params import SamplingParams
from pagemill.text.detokenizer import IncrementalDetokenizer

MAX_AHEAD = 2
"""Tokens that a request may compute beyond the choice that is due. Its beam's neighbours may be
waiting for the very blocks that it holds."""

_LEAST_SECONDS = 1e-6
"""Left of a deadline that has passed: a request's must lie ahead of its arrival."""


class BeamSearch:
    """The search of one prompt, on an engine that others may use, too.

        search = BeamSearch(engine, "a", "The sky is", BeamSearchParams(beam_width=4, max_tokens=9))
        while not search.finished:
            search.advance({output.request_id: output for output in engine.step()})
        print(search.output.beams[0].text)

    Args:
        engine: computes; whoever steps it hands the outputs to `advance`.
        name: begins the ids of the search's requests: ``name/0``, ``name/1`` and so on.
        prompt: a text, or its token ids.
        params: checked settings.
        priority: of all its requests.
        deadline_seconds: of all its requests: when the search should have ended, from now.
        cache_salt: of all its requests.

    Raises:
        RequestError: the prompt cannot be searched as asked; the engine is as before.
    """

    def __init__(
        self,
        engine: LLMEngine,
        name: str,
        prompt: str | SequenceOf[int],
        params: BeamSearchParams,
        *,
        priority: int = 0,
        deadline_seconds: float | None = None,
        cache_salt: str | None = None,
    ) -> None:
        if not isinstance(params, BeamSearchParams):
            raise InvalidParameterError("params", params, "must be BeamSearchParams")
        self._engine = engine
        self._name = name
        self._params = params
        self._priority = priority
        self._cache_salt = cache_salt
        self._end_ids = frozenset() if params.ignore_eos else engine.eos_token_ids
        self._prompt = prompt if isinstance(prompt, str) else None
        self._prompt_token_ids: list[int] = []
        self._max_tokens = 0
        self._ended = EndedBeams(params, 0)
        self._unfinished_ids: set[str] = set()
        self._num_requests = 0
        self._deadline: float | None = None
        params_of_first = self._sampling_params()
        self._beams = [self._request(prompt, [], 0.0, params_of_first, deadline_seconds)]
        if deadline_seconds is not None:
            self._deadline = engine.clock() + deadline_seconds

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return not self._beams

    @property
    def request_ids(self) -> SetOf[str]:
        """Its requests that have not ended."""
        return self._unfinished_ids

    @property
    def output(self) -> BeamSearchOutput:
        """The best of the beams that have ended so far."""
        best = self._ended.best(self._params.n or self._params.beam_width)
        beams = [dataclasses.replace(beam, text=self._text(beam)) for beam in best]
        return BeamSearchOutput(self._prompt, self._prompt_token_ids, beams)

    def advance(self, outputs: Mapping[str, RequestOutput]) -> None:
        """Take note of a step, and choose the next tokens as far as they are known.

        Args:
            outputs: what `LLMEngine.step` returned, by request id; others' are left alone.

        Raises:
            InvalidParameterError: they are not by request id; nothing has changed.
        """
        if not isinstance(outputs, Mapping):
            rule = "must map request ids to outputs: {output.request_id: output for output in …}"
            raise InvalidParameterError("outputs", outputs, rule)
        for beam in self._beams:
            output = outputs.get(beam.request_id)
            if output is not None:
                self._note(beam, output)
        while self._beams and all(map(self._is_ready, self._beams)):
            self._choose()
        for beam in self._beams:
            if beam.num_ahead > MAX_AHEAD:
                self._end_request(beam.request_id)

    def close(self) -> None:
        """End the search, and its requests. Closing twice is harmless."""
        self._beams = []
        for request_id in list(self._unfinished_ids):
            self._end_request(request_id)

    def _note(self, beam: RunningBeam, output: RequestOutput) -> None:
        beam.computed = output.outputs[0]
        if output.finished:
            self._unfinished_ids.discard(beam.request_id)
        if not self._prompt_token_ids:
            self._prompt_token_ids = output.prompt_token_ids
            longest = min(self._engine.max_model_len, self._engine.kv.max_sequence_tokens)
            to_the_end = longest - len(output.prompt_token_ids)
            self._max_tokens = self._params.max_tokens or to_the_end
            self._ended = EndedBeams(self._params, self._max_tokens)

    def _is_ready(self, beam: RunningBeam) -> bool:
        """Whether its next tokens are known, or never will be."""
        return beam.num_ahead > 0 or not self._is_unfinished(beam)

    def _is_unfinished(self, beam: RunningBeam) -> bool:
        return beam.request_id in self._unfinished_ids

    def _choose(self) -> None:
        """Append to the beams, of all their next tokens, those that make the likeliest ones."""
        width, length = self._params.beam_width, len(self._beams[0].token_ids) + 1
        candidates = [
            (beam.logprob + known.logprob, beam, token_id)
            for beam in self._beams
            for token_id, known in beam.next_tokens().items()
        ]
        candidates.sort(key=lambda candidate: -candidate[0])  # ties: by beam, then by token
        for logprob, beam, token_id in candidates[:width]:
            if token_id in self._end_ids:
                self._ended.add([*beam.token_ids, token_id], logprob, "stop")
            elif length == self._max_tokens:
                self._ended.add([*beam.token_ids, token_id], logprob, "length")
        chosen = [candidate for candidate in candidates if candidate[2] not in self._end_ids]
        if length == self._max_tokens or not chosen or self._ended.are_final(chosen[0][0], length):
            self.close()
        else:
            self._go_on(chosen[:width])

    def _go_on(self, chosen: SequenceOf[tuple[float, RunningBeam, int]]) -> None:
        """Make the chosen continuations the running beams, and end the requests of all others."""
        following: dict[RunningBeam, list[tuple[int, float]]] = {beam: [] for beam in self._beams}
        for logprob, beam, token_id in chosen:
            following[beam].append((token_id, logprob))
        self._beams = []
        # Who has no continuation goes first: the branches can have its place.
        for beam, continuations in sorted(following.items(), key=lambda item: len(item[1])):
            self._beams += [self._follow(beam, *one) for one in continuations]
            if beam.own_next_token not in [token_id for token_id, _ in continuations]:
                self._end_request(beam.request_id)
        self._beams.sort(key=lambda beam: -beam.logprob)

    def _follow(self, beam: RunningBeam, token_id: int, logprob: float) -> RunningBeam:
        """The beam that goes on from ``beam`` with one of its next tokens."""
        token_ids = [*beam.token_ids, token_id]
        if token_id == beam.own_next_token and (self._is_unfinished(beam) or beam.num_ahead > 1):
            return dataclasses.replace(beam, token_ids=token_ids, logprob=logprob)
        if self._is_unfinished(beam):
            request_id = self._new_id()
            self._engine.fork(
                beam.request_id,
                request_id,
                beam.params,
                num_output_tokens=len(token_ids) - beam.num_in_prompt,
                last_token_id=token_id,
            )
            return RunningBeam(token_ids, logprob, request_id, beam.params, beam.num_in_prompt)
        # Its request has run too far ahead, and is gone; the prefix cache may have its blocks.
        params = self._sampling_params(self._max_tokens - len(token_ids))
        prompt, left = self._prompt_token_ids + token_ids, self._seconds_left()
        return self._request(prompt, token_ids, logprob, params, left)

    def _request(
        self,
        prompt: str | SequenceOf[int],
        token_ids: list[int],
        logprob: float,
        params: SamplingParams,
        deadline_seconds: float | None,
    ) -> RunningBeam:
        """Begin a request whose prompt ends with ``token_ids``."""
        request_id = self._new_id()
        self._engine.add_request(
            request_id,
            prompt,
            params,
            self._priority,
            deadline_seconds=deadline_seconds,
            cache_salt=self._cache_salt,
        )
        return RunningBeam(token_ids, logprob, request_id, params, len(token_ids))

    def _seconds_left(self) -> float | None:
        """Until the search should have ended."""
        if self._deadline is None:
            return None
        return max(self._deadline - self._engine.clock(), _LEAST_SECONDS)

    def _sampling_params(self, max_tokens: int | None = None) -> SamplingParams:
        """Of a request that may generate as many tokens; None: of the first one."""
        return SamplingParams(
            temperature=0,
            ignore_eos=True,
            logprobs=self._params.num_candidates(len(self._end_ids)),
            max_tokens=max_tokens or self._params.max_tokens,
        )

    def _new_id(self) -> str:
        """The name of a request that is about to begin."""
        request_id = f"{self._name}/{self._num_requests}"
        self._num_requests += 1
        self._unfinished_ids.add(request_id)
        return request_id

    def _end_request(self, request_id: str) -> None:
        """End a request, if it has not ended."""
        if request_id in self._unfinished_ids:
            self._engine.abort(request_id, report=False)
            self._unfinished_ids.discard(request_id)

    def _text(self, beam: Beam) -> str:
        tokenizer = self._engine.tokenizer
        if tokenizer is None:
            return ""
        detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=True, stop=None, include_stop_str_in_output=False
        )
        num_shown = len(beam.token_ids) - (beam.finish_reason == "stop")
        for token_id in beam.token_ids[:num_shown]:
            detokenizer.append(token_id)
        detokenizer.finish()
        return detokenizer.text


def search_all(
    engine: LLMEngine,
    name: str,
    prompts: SequenceOf[str | SequenceOf[int]],
    params: BeamSearchParams,
    *,
    priorities: SequenceOf[int] | None = None,
    deadlines_seconds: SequenceOf[float | None] | None = None,
    cache_salt: str | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    on_finished: Callable[[], object] = lambda: None,
) -> list[BeamSearchOutput]:
    """Search the beams of all prompts at the same time; whatever happens, leave no request behind.

    Args:
        engine: computes; outputs of requests that are not of these searches wait for its next step.
        name: begins the ids of the requests.
        prompts: texts or token ids.
        params: of every search.
        priorities: one for each search; None: 0 for all.
        deadlines_seconds: one for each search; None: none has one.
        cache_salt: of every search.
        interrupted: asked after each step; if it says so, `KeyboardInterrupt` is raised.
        on_finished: called for each prompt that is done.

    Raises:
        RequestError: a prompt cannot be searched as asked; then none is.
    """
    searches: list[BeamSearch] = []
    try:
        for i, prompt in enumerate(prompts):
            search = BeamSearch(
                engine,
                f"{name}-{i}",
                prompt,
                params,
                priority=0 if priorities is None else priorities[i],
                deadline_seconds=None if deadlines_seconds is None else deadlines_seconds[i],
                cache_salt=cache_salt,
            )
            searches.append(search)
        unfinished = list(searches)
        while unfinished:
            own = {request_id for search in unfinished for request_id in search.request_ids}
            outputs = {output.request_id: output for output in engine.step_for(own)}
            for search in unfinished:
                search.advance(outputs)
                if search.finished:
                    on_finished()
            unfinished = [search for search in unfinished if not search.finished]
            if interrupted():
                raise KeyboardInterrupt
    finally:
        for search in searches:
            search.close()
    return [search.output for search in searches]
