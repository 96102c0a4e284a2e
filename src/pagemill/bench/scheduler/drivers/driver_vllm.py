"""vLLM's scheduler (V1), without a model or a device. Runs in `host.py`.

It is built as vLLM's engine builds it, from a configuration of a tiny model of which nothing but
the length of its context matters.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Otherwise block hashes begin with a random one, which some versions warn of.
os.environ.setdefault("PYTHONHASHSEED", "0")

import torch
import vllm
from vllm.config import (
    CacheConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.utils.hashing import (
    get_hash_fn_by_name,
)
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.core.sched.scheduler import (
    Scheduler,
)
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import (
    StructuredOutputManager,
)

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 1 << 16,
    "max_position_embeddings": 1 << 16,
}
_DRAWN = [7]


def about() -> dict[str, Any]:
    """Version."""
    return {"engine": "vLLM", "version": vllm.__version__}


class Driven:
    """A ``vllm.v1.core.sched.scheduler.Scheduler``, with prefix caching, and timed.

    Args:
        trace: sizes of the pool and of steps.
    """

    def __init__(self, trace: dict[str, Any]) -> None:
        config = _config(trace)
        block_size, num_blocks = trace["block_size"], trace["num_blocks"]
        config.cache_config.num_gpu_blocks = num_blocks
        spec = FullAttentionSpec(
            block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        self._scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=num_blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=block_size,
            log_stats=False,
        )
        hash_function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        self._hash_blocks = get_request_block_hasher(block_size, hash_function)

    def add(self, number: int, prompt: list[int], max_tokens: int) -> None:
        """Make a request, which names its blocks, and queue it."""
        params = vllm.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        request = Request(
            request_id=str(number),
            prompt_token_ids=prompt,
            sampling_params=params,
            pooling_params=None,
            block_hasher=self._hash_blocks,
        )
        self._scheduler.add_request(request)

    def step(self) -> tuple[int, int, list[int], dict[str, float]]:
        """One step, in parts."""
        began = time.perf_counter()
        plan = self._scheduler.schedule()
        scheduled = time.perf_counter()
        drawing = self._drawing(plan.num_scheduled_tokens)
        names = list(plan.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[_DRAWN if name in drawing else [] for name in names],
        )
        before = time.perf_counter()
        outputs = self._scheduler.update_from_output(plan, output)
        after = time.perf_counter()
        ended = [
            int(one.request_id)
            for client in outputs.values()
            for one in client.outputs
            if one.finish_reason is not None
        ]
        parts = {"schedule": scheduled - began, "update": after - before}
        return plan.total_num_scheduled_tokens, len(drawing), ended, parts

    def _drawing(self, num_scheduled: dict[str, int]) -> set[str]:
        """Requests of which this step computes the last token there is.

        The scheduler has counted the step's tokens as computed already.
        """
        requests = self._scheduler.requests
        return {
            name
            for name in num_scheduled
            if requests[name].num_computed_tokens >= requests[name].num_tokens
        }


def _config(trace: dict[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(MODEL))
        model = ModelConfig(
            model=directory,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=trace["max_model_len"],
        )
    return VllmConfig(
        model_config=model,
        cache_config=CacheConfig(block_size=trace["block_size"], enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=trace["num_running"],
            max_num_batched_tokens=trace["max_num_batched_tokens"],
            max_model_len=trace["max_model_len"],
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=False,
        ),
    )
