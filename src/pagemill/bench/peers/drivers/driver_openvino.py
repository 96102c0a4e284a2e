"""OpenVINO GenAI's continuous batching pipeline. Runs in `host.py`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import openvino
import openvino_genai


class Engine:
    """A ``ContinuousBatchingPipeline``.

    Args:
        model: a GGUF file, or a directory in OpenVINO's own format.
        threads: that compute.
        batched_tokens: most tokens of a step.
        prefix_caching: let requests share what their prompts have in common.
        cache_gib: size of the KV cache.
        first_alone: of many requests, answer the first before the others, for them to find its
            prefix; what is in one batch with it does not share.
    """

    def __init__(
        self,
        model: str,
        threads: int,
        batched_tokens: int,
        prefix_caching: bool,
        cache_gib: int,
        first_alone: bool,
    ) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = cache_gib
        scheduler.max_num_seqs = 64
        scheduler.max_num_batched_tokens = batched_tokens
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = prefix_caching
        plugin = {"INFERENCE_NUM_THREADS": threads}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", plugin)
        self._first_alone = first_alone
        self._num_requests = 0

    def about(self) -> dict[str, Any]:
        """Versions."""
        return {"version": openvino_genai.__version__, "openvino": openvino.__version__}

    def single(self, prompt: list[int], max_tokens: int) -> tuple[float, float, int]:
        """Time one request, step by step."""
        began = time.perf_counter()
        self._num_requests += 1
        handle = self._pipeline.add_request(
            self._num_requests, _tensor(prompt), _generation(max_tokens)
        )
        first = None
        num_tokens = 0
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            while handle.can_read():
                num_tokens += sum(len(out.generated_ids) for out in handle.read().values())
                if first is None:
                    first = time.perf_counter()
        ended = time.perf_counter()
        assert first is not None
        return first - began, ended - began, num_tokens

    def many(self, requests: list[tuple[list[int], int]]) -> tuple[float, list[int]]:
        """Time many requests at once."""
        prompts = [_tensor(prompt) for prompt, _ in requests]
        generations = [_generation(max_tokens) for _, max_tokens in requests]
        began = time.perf_counter()
        results = []
        if self._first_alone:
            results += self._pipeline.generate(prompts[:1], generations[:1])
            del prompts[0], generations[0]
        results += self._pipeline.generate(prompts, generations)
        total_s = time.perf_counter() - began
        return total_s, [len(result.m_generation_ids[0]) for result in results]


def _tensor(prompt: list[int]) -> Any:
    return openvino.Tensor(np.array([prompt], dtype=np.int64))


def _generation(max_tokens: int) -> Any:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = max_tokens
    config.ignore_eos = True
    config.do_sample = False
    config.num_beams = 1
    config.apply_chat_template = False
    return config
