"""`LLM`: the offline Python API."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from tqdm import tqdm

from pagemill.assembly import build_engine
from pagemill.beam_search import search_all
from pagemill.beams import BeamSearchOutput, BeamSearchParams
from pagemill.call_arguments import (
    DeadlineForAll,
    Messages,
    ParamsForAll,
    PriorityForAll,
    Prompt,
    for_each,
    listed_conversations,
    listed_prompts,
    params_for_each,
)
from pagemill.config import DEFAULT_MODEL, EngineConfig
from pagemill.errors import RequestError, RequestTooLargeError
from pagemill.interrupts import InterruptFlag
from pagemill.kept_prefixes import PinnedPrefix
from pagemill.kvcache.prefix_file import LoadedPrefixes
from pagemill.outputs import EmbeddingOutput, RequestOutput
from pagemill.sampling_params import SamplingParams


class LLM:
    """A model that answers. Threads may share one; their calls run one after another.

    Requests that you have added to its `engine` go on while a call runs; what there is to say of
    them, the next `LLMEngine.step` returns.

        with LLM("smollm2-135m") as llm:
            outputs = llm.generate(["The capital of France is"], SamplingParams(temperature=0))
            print(outputs[0].outputs[0].text)

    Args:
        model: an alias, a ``.gguf`` file, a directory, or a hub id.
        engine_config: any field of `EngineConfig`.

    Raises:
        ConfigError: an option is unknown or out of bounds.
        ModelError: the model cannot be found, read or run.
    """

    def __init__(self, model: str = DEFAULT_MODEL, **engine_config: Any) -> None:
        config = EngineConfig.from_kwargs(model=model, **engine_config)
        assembly = build_engine(config)
        self.engine = assembly.engine
        self.model_config = assembly.model_config
        self.pool = assembly.pool
        self.tokenizer = assembly.tokenizer
        self._num_calls = 0
        self._lock = threading.Lock()

    def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        sampling_params: ParamsForAll = None,
        use_tqdm: bool = True,
        *,
        priority: PriorityForAll = 0,
        deadline_seconds: DeadlineForAll = None,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts; all of them share the engine's batches.

        Args:
            prompts: a text, a list of texts, a list of token ids, or a list of those lists.
            sampling_params: one for all, or one for each prompt; None: `SamplingParams` defaults.
            use_tqdm: show a progress bar.
            priority: one for all, or one for each prompt; smaller is more urgent. Only under
                ``scheduling_policy="priority"``.
            deadline_seconds: when they should have ended, from now: one for all, or one for each
                prompt. Only under ``scheduling_policy="deadline"``.
            cache_salt: share computed prefixes among calls of the same salt only.

        Returns:
            One output for each prompt, in their order.

        Raises:
            RequestError: a prompt cannot be served as asked; then nothing is generated for any.
        """
        return self._run(
            listed_prompts(prompts),
            sampling_params,
            use_tqdm,
            priority,
            deadline_seconds,
            cache_salt,
        )

    def chat(
        self,
        messages: Messages | SequenceOf[Messages],
        sampling_params: ParamsForAll = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        priority: PriorityForAll = 0,
        deadline_seconds: DeadlineForAll = None,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of several, through the model's own chat template.

        Args:
            messages: ``[{"role": "user", "content": "…"}, …]``, or a list of such lists.
            sampling_params: as for `generate`.
            use_tqdm: show a progress bar.
            add_generation_prompt: end the prompt where the assistant's answer begins.
            continue_final_message: let the model go on with the last message instead.
            priority: as for `generate`, for each conversation.
            deadline_seconds: likewise.
            cache_salt: as for `generate`.

        Raises:
            RequestError: a message is malformed, or the model has no chat template.
        """
        if self.tokenizer is None:
            raise RequestError("this model has no tokenizer, so it cannot chat")
        prompts = [
            self.tokenizer.encode_chat(
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )
            for conversation in listed_conversations(messages)
        ]
        return self._run(prompts, sampling_params, use_tqdm, priority, deadline_seconds, cache_salt)

    def beam_search(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        beam_width: int,
        max_tokens: int | None,
        length_penalty: float = 1.0,
        *,
        early_stopping: bool | Literal["never"] = False,
        n: int | None = None,
        ignore_eos: bool = False,
        priority: PriorityForAll = 0,
        deadline_seconds: DeadlineForAll = None,
        cache_salt: str | None = None,
        use_tqdm: bool = True,
    ) -> list[BeamSearchOutput]:
        """Find the likeliest continuations of prompts; the beams of all share the engine's batches.

        Finds what Hugging Face's ``generate(num_beams=beam_width, do_sample=False)`` does.

        Args:
            prompts: as for `generate`.
            beam_width: how many beams of a prompt run at once, and how many ended ones are kept.
            max_tokens: where a beam ends if it has not before; None: at the end of the context.
            length_penalty: a beam's score is its log-probability over its length to this power.
            early_stopping: when to stop once ``beam_width`` beams have ended, see
                `pagemill.beams.BeamSearchParams`.
            n: how many of the best beams to return; None: ``beam_width``.
            ignore_eos: let no token end a beam.
            priority: as for `generate`.
            deadline_seconds: as for `generate`.
            cache_salt: as for `generate`.
            use_tqdm: show a progress bar.

        Returns:
            One output for each prompt, in their order.

        Raises:
            RequestError: a prompt cannot be searched as asked; then none is.
        """
        params = BeamSearchParams(
            beam_width=beam_width,
            max_tokens=max_tokens,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            n=n,
            ignore_eos=ignore_eos,
        )
        listed = listed_prompts(prompts)
        priorities = for_each("priority", priority, len(listed))
        deadlines_seconds = for_each("deadline_seconds", deadline_seconds, len(listed))
        with (
            self._lock,
            InterruptFlag() as interrupted,
            _progress_bar("prompts", len(listed), use_tqdm) as bar,
        ):
            self._num_calls += 1
            return search_all(
                self.engine,
                f"call-{self._num_calls}",
                listed,
                params,
                priorities=priorities,
                deadlines_seconds=deadlines_seconds,
                cache_salt=cache_salt,
                interrupted=interrupted,
                on_finished=bar.update,
            )

    def embed(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        *,
        normalize: bool = False,
        use_tqdm: bool = True,
        priority: PriorityForAll = 0,
        deadline_seconds: DeadlineForAll = None,
        cache_salt: str | None = None,
    ) -> list[EmbeddingOutput]:
        """Embed prompts: of each, the mean over all its tokens of the model's last hidden state.

        They share the engine's batches like all requests, and have the same bits whatever is in
        those. A text is encoded as for `generate`, so the mean is also over the special tokens that
        the model's tokenizer adds.

        Args:
            prompts: as for `generate`; each may be as long as the context.
            normalize: scale each embedding to length 1; one of all zeros stays so.
            use_tqdm: show a progress bar.
            priority: as for `generate`.
            deadline_seconds: as for `generate`.
            cache_salt: as for `generate`; others may reuse what is computed here, but an embedding
                itself needs all of its prompt computed.

        Returns:
            One output for each prompt, in their order.

        Raises:
            RequestError: a prompt cannot be served; then none is.
            ModelError: the model computed NaN or infinity for one.
        """
        listed = listed_prompts(prompts)
        asked = zip(
            listed,
            for_each("priority", priority, len(listed)),
            for_each("deadline_seconds", deadline_seconds, len(listed)),
            strict=True,
        )
        requests = [
            partial(
                self.engine.add_embedding_request,
                prompt=prompt,
                priority=one_priority,
                deadline_seconds=one_deadline,
                cache_salt=cache_salt,
            )
            for prompt, one_priority, one_deadline in asked
        ]
        outputs = self._run_to_end(requests, use_tqdm)
        return [EmbeddingOutput.of(output, normalize=normalize) for output in outputs]

    def pin_prefix(self, prefix: Prompt, *, cache_salt: str | None = None) -> PinnedPrefix:
        """Compute a prefix, say a long system prompt, and keep its blocks until `unpin_prefix`.

        Whatever begins with it starts behind it, however long ago it was last used. A text is
        encoded as a prompt is; a chat's prefix is best given as token ids.

        Raises:
            RequestError: it cannot be served, or prefix caching is off.
            RequestTooLargeError: it does not fit, or what is under way could not finish without
                these blocks.
        """
        if not self.engine.config.enable_prefix_caching:
            raise RequestError("pin_prefix needs enable_prefix_caching=True")
        params = SamplingParams(temperature=0, max_tokens=1)
        try:
            (output,) = self._run([prefix], params, use_tqdm=False, cache_salt=cache_salt)
        except RequestTooLargeError as error:
            raise RequestTooLargeError(self._why_too_long(prefix)) from error
        with self._lock:
            return self.engine.kept_prefixes.pin(output.prompt_token_ids, cache_salt)

    def unpin_prefix(self, pinned: PinnedPrefix) -> None:
        """Let a pinned prefix be evicted like any other. Harmless if it was unpinned before.

        Raises:
            InvalidParameterError: it is not what `pin_prefix` of this `LLM` has returned.
        """
        with self._lock:
            self.engine.kept_prefixes.unpin(pinned)

    def save_prefix_cache(self, path: str | Path) -> int:
        """Write the computed blocks that the pool holds to a file; returns how many.

        Prefixes under a cache salt stay out of it.

        Raises:
            OSError: it cannot be written; what had its name before is as it was.
            EngineError: the engine has failed or was closed.
        """
        with self._lock:
            return self.engine.kept_prefixes.save(path)

    def load_prefix_cache(self, path: str | Path) -> LoadedPrefixes:
        """Take up the blocks of a file, as many as there are empty ones; says what became of each.

        Raises:
            InvalidFileError: it is no such file, or of another model or configuration.
            RequestError: prefix caching is off, so nobody would find them.
            OSError: it cannot be read.
            EngineError: the engine has failed or was closed.
        """
        with self._lock:
            return self.engine.kept_prefixes.load(path)

    def stats(self) -> dict[str, Any]:
        """Counters and latencies since the start; see `MetricsCollector.stats`."""
        return self.engine.stats()

    def close(self) -> None:
        """Free the model and its KV pool. Closing twice is harmless."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(
        self,
        prompts: SequenceOf[Prompt],
        sampling_params: ParamsForAll,
        use_tqdm: bool,
        priority: PriorityForAll = 0,
        deadline_seconds: DeadlineForAll = None,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Run requests that generate to their end."""
        asked = zip(
            prompts,
            params_for_each(sampling_params, len(prompts)),
            for_each("priority", priority, len(prompts)),
            for_each("deadline_seconds", deadline_seconds, len(prompts)),
            strict=True,
        )
        requests = [
            partial(
                self.engine.add_request,
                prompt=prompt,
                sampling_params=params,
                priority=one_priority,
                deadline_seconds=one_deadline,
                cache_salt=cache_salt,
                stream=False,
            )
            for prompt, params, one_priority, one_deadline in asked
        ]
        return self._run_to_end(requests, use_tqdm)

    def _run_to_end(
        self, requests: SequenceOf[Callable[[str], None]], use_tqdm: bool
    ) -> list[RequestOutput]:
        """Run requests to their end; on any failure none of them is left in the engine.

        Args:
            requests: each adds itself to the engine, under the id that it is called with.
            use_tqdm: show a progress bar.
        """
        ids: list[str] = []
        with self._lock, InterruptFlag() as interrupted:
            self._num_calls += 1
            try:
                for add in requests:
                    request_id = f"call-{self._num_calls}-{len(ids)}"
                    add(request_id)
                    ids.append(request_id)
                finished = self._step_to_end(frozenset(ids), use_tqdm, interrupted)
            except BaseException:
                for request_id in ids:
                    self.engine.abort(request_id, report=False)
                raise
        return [finished[request_id] for request_id in ids]

    def _step_to_end(
        self, ids: Collection[str], use_tqdm: bool, interrupted: InterruptFlag
    ) -> dict[str, RequestOutput]:
        """The last output of each request of ``ids``; those of others wait for the next step.

        Ctrl-C is taken between two steps, so that the engine can go on afterwards.
        """
        finished: dict[str, RequestOutput] = {}
        with _progress_bar("requests", len(ids), use_tqdm) as bar:
            while len(finished) < len(ids):
                for output in self.engine.step_for(ids):
                    if output.finished:
                        finished[output.request_id] = output
                        bar.update()
                        if output.embedding is None:
                            speed = self.engine.metrics.generation_tokens_per_second
                            bar.set_postfix_str(f"{speed:.1f} tok/s", refresh=False)
                if interrupted.requested:
                    raise KeyboardInterrupt
        return finished

    def _why_too_long(self, prefix: Prompt) -> str:
        """Of a prefix that was not admitted: in its own words, since it has no ``max_tokens``."""
        if isinstance(prefix, str):
            assert self.tokenizer is not None, "it was encoded"
            prefix = self.tokenizer.encode(prefix)
        kv = self.engine.kv
        return (
            f"a prefix of {len(prefix)} tokens is too long: with one token more it must fit the "
            f"context, max_model_len={self.engine.max_model_len} tokens, and the KV pool, "
            f"{kv.describe_size()} blocks of {kv.block_size}; shorten it, or raise the smaller of "
            f"the two"
        )


@contextmanager
def _progress_bar(what: str, total: int, shown: bool) -> Iterator[Any]:
    """A bar on standard error, which an error takes away again."""
    with tqdm(total=total, desc=what, disable=not shown) as bar:
        try:
            yield bar
        except Exception:
            bar.leave = False
            raise
