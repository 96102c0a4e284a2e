"""Tiny random Hugging Face models: two layers, sizes that fit no tile, logits with a spread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB_SIZE = 97
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 42,
    "intermediate_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "head_dim": 10,
}


def randomize(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """Draw every weight, biases and norms too, so that leaving one out shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    is_gemma = "gemma" in model.config.model_type
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 1:
                is_norm_weight = "bias" not in name and not is_gemma
                weight.copy_(0.3 * noise + (1.0 if is_norm_weight else 0.0))
            else:
                weight.copy_(noise * 1.5 / weight.shape[-1] ** 0.5)
    model.train(False)
    return model


def llama(**changes: Any) -> PreTrainedModel:
    return randomize(LlamaForCausalLM(LlamaConfig(**{**COMMON, **changes})))


def mistral(**changes: Any) -> PreTrainedModel:
    return randomize(MistralForCausalLM(MistralConfig(**{**COMMON, **changes})))


def qwen2(**changes: Any) -> PreTrainedModel:
    # Qwen2Config has no head_dim of its own, but its attention follows one.
    return randomize(Qwen2ForCausalLM(Qwen2Config(**{**COMMON, **changes})))


def qwen3(**changes: Any) -> PreTrainedModel:
    return randomize(Qwen3ForCausalLM(Qwen3Config(**{**COMMON, **changes})))


def gpt2(**changes: Any) -> PreTrainedModel:
    sizes = {"vocab_size": VOCAB_SIZE, "n_embd": 42, "n_layer": 2, "n_head": 6, "n_positions": 128}
    ends = {"bos_token_id": None, "eos_token_id": None}
    return randomize(GPT2LMHeadModel(GPT2Config(**{**sizes, **ends, **changes})))


def gemma3(**changes: Any) -> PreTrainedModel:
    settings = {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 7,
        "query_pre_attn_scalar": 14,
        "tie_word_embeddings": True,
    }
    return randomize(Gemma3ForCausalLM(Gemma3TextConfig(**{**COMMON, **settings, **changes})))


VARIANTS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama, untied": llama,
    "llama, tied": lambda: llama(tie_word_embeddings=True),
    "llama, attention bias": lambda: llama(attention_bias=True),
    "llama, mlp bias, gelu": lambda: llama(mlp_bias=True, hidden_act="gelu"),
    "llama, one key/value head": lambda: llama(num_key_value_heads=1),
    "llama, head_dim left out": lambda: llama(hidden_size=48, head_dim=None),
    "mistral, sliding window": lambda: mistral(sliding_window=7),
    "mistral, no window": lambda: mistral(sliding_window=None),
    "qwen2, untied": qwen2,
    "qwen2, tied": lambda: qwen2(tie_word_embeddings=True),
    "qwen2, window in the last layer": lambda: qwen2(
        use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen3, untied": qwen3,
    "qwen3, attention bias, tied": lambda: qwen3(attention_bias=True, tie_word_embeddings=True),
    "qwen3, window in the last layer": lambda: qwen3(
        use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "gpt2, tied": gpt2,
    "gpt2, untied": lambda: gpt2(tie_word_embeddings=False),
    "gpt2, n_inner, gelu": lambda: gpt2(n_inner=55, activation_function="gelu"),
    "gemma3, tied": gemma3,
    "gemma3, untied, attention bias": lambda: gemma3(
        tie_word_embeddings=False, attention_bias=True
    ),
    "gemma3, capped logits": lambda: gemma3(final_logit_softcapping=2.0),
}
