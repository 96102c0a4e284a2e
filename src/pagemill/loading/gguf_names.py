"""GGUF's tensor names and conventions, in terms of Hugging Face's.

Converters rename tensors and, for some architectures, change their content:

- llama: the rows of Q and K are reordered so that rotary pairs are neighbours (0, 1), (2, 3)…
  Hugging Face rotates dimension i with i + head_dim / 2, and so do we.
- gemma3: norm weights are stored as 1 + w.
- gpt2: Conv1D weights ``[in, out]`` are stored transposed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Change(Enum):
    """What the converter did to a tensor's content."""

    NONE = "none"
    PERMUTED_QUERY = "rows reordered for interleaved rotary pairs, over the query heads"
    PERMUTED_KEY = "rows reordered for interleaved rotary pairs, over the key heads"
    PLUS_ONE = "one added"
    TRANSPOSED = "transposed"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a GGUF tensor belongs."""

    name: str
    """Hugging Face's."""
    change: Change


NOT_WEIGHTS: Final = frozenset(
    {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
)
"""Rotary frequency factors; they become part of the configuration."""

_LAYER_TENSOR: Final = re.compile(r"blk\.(0|[1-9][0-9]*)\.([a-z_]+)\.(weight|bias)")
_GLOBAL_TENSOR: Final = re.compile(r"([a-z_]+)\.(weight|bias)")

_GLOBAL: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_GLOBAL_GPT2: Final = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_QK_NORM: Final = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_LAYER_GEMMA3: Final = {
    **_LAYER,
    **_QK_NORM,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER_GPT2: Final = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}

_NAMES: Final[dict[str, tuple[dict[str, str], dict[str, str], str]]] = {
    # GGUF architecture: names outside the layers, names inside, prefix of a layer
    "llama": (_GLOBAL, _LAYER, "model.layers"),
    "qwen2": (_GLOBAL, _LAYER, "model.layers"),
    "qwen3": (_GLOBAL, {**_LAYER, **_QK_NORM}, "model.layers"),
    "gemma3": (_GLOBAL, _LAYER_GEMMA3, "model.layers"),
    "gpt2": (_GLOBAL_GPT2, _LAYER_GPT2, "transformer.h"),
}

ARCHITECTURES: Final = tuple(_NAMES)
"""The values of ``general.architecture`` that are understood."""


def place_of(architecture: str, gguf_name: str) -> Place | None:
    """The place of a tensor in Hugging Face's naming; None if the architecture has none for it."""
    outside, inside, layer_prefix = _NAMES[architecture]
    match = _LAYER_TENSOR.fullmatch(gguf_name)
    if match:
        layer, module, kind = match.groups()
        if module not in inside:
            return None
        name = f"{layer_prefix}.{layer}.{inside[module]}.{kind}"
        return Place(name, _change(architecture, module, kind))
    match = _GLOBAL_TENSOR.fullmatch(gguf_name)
    if not match or match[1] not in outside:
        return None
    return Place(f"{outside[match[1]]}.{match[2]}", _change(architecture, match[1], match[2]))


def _change(architecture: str, module: str, kind: str) -> Change:
    if architecture == "llama" and module == "attn_q":
        return Change.PERMUTED_QUERY
    if architecture == "llama" and module == "attn_k":
        return Change.PERMUTED_KEY
    if architecture == "gemma3" and module.endswith("norm"):
        return Change.PLUS_ONE
    in_layer_matrix = module in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
    if architecture == "gpt2" and in_layer_matrix and kind == "weight":
        return Change.TRANSPOSED
    return Change.NONE
