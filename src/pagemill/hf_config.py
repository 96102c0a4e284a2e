"""From the keys of a Hugging Face ``config.json`` to a `ModelConfig`, one function a family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagemill.errors import InvalidFileError, UnsupportedModelError
from pagemill.hf_fields import FieldReader
from pagemill.model_config import ARCHITECTURES, Activation, ModelConfig
from pagemill.rope_config import DEFAULT_THETA, RopeConfig, read_rope

_CLASSES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "GPT2LMHeadModel": "gpt2",
    "Gemma3ForCausalLM": "gemma3_text",
}
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
MAX_LAYERS = 4096
_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_model_config(hf_config: Mapping[str, Any]) -> ModelConfig:
    """See `ModelConfig.from_hf`."""
    architecture = _architecture_of(hf_config)
    fields = FieldReader(hf_config)
    if architecture == "gpt2":
        config = _read_gpt2(fields)
    elif architecture == "gemma3_text":
        config = _read_gemma3(fields)
    else:
        config = _read_llama_family(fields, architecture)
    fields.finish(architecture)
    if config.num_heads % config.num_kv_heads:
        raise InvalidFileError(
            f"config.json: num_attention_heads {config.num_heads} must be a multiple of "
            f"num_key_value_heads {config.num_kv_heads}"
        )
    return config


def _architecture_of(hf_config: Mapping[str, Any]) -> str:
    supported = ", ".join(f"{cls} ({name})" for cls, name in _CLASSES.items())
    model_type, classes = hf_config.get("model_type"), hf_config.get("architectures")
    if isinstance(classes, list) and classes:
        for name in classes:
            if isinstance(name, str) and name in _CLASSES:
                return _CLASSES[name]
        raise UnsupportedModelError(
            f"architecture {', '.join(map(str, classes))} is not implemented; "
            f"supported: {supported}"
        )
    if model_type in ARCHITECTURES:
        return str(model_type)
    raise UnsupportedModelError(
        f"model_type {model_type!r} is not implemented; supported: {supported}"
    )


def _read_llama_family(fields: FieldReader, architecture: str) -> ModelConfig:
    """Llama, Mistral, Qwen2 and Qwen3: RMSNorm before each block, rotary positions, gated MLP."""
    num_layers = fields.integer("num_hidden_layers", most=MAX_LAYERS)
    num_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    head_dim = fields.integer(
        "head_dim", 128 if architecture == "qwen3" else max(1, hidden_size // num_heads)
    )
    attention_bias = False
    if architecture in ("llama", "qwen3"):
        attention_bias = fields.flag("attention_bias")
    elif architecture == "qwen2":
        fields.fixed("attention_bias", True)  # Qwen2 always has one, on q, k and v only
    rope = _read_rope(fields, head_dim)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        max_position_embeddings=fields.integer("max_position_embeddings"),
        max_model_len=rope.max_len,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        hidden_act=fields.choice("hidden_act", "silu", _ACTIVATIONS),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        attention_scale=head_dim**-0.5,
        sliding_windows=_llama_family_windows(fields, architecture, num_layers),
        rope=rope,
        qkv_bias=attention_bias or architecture == "qwen2",
        out_bias=attention_bias,
        mlp_bias=architecture == "llama" and fields.flag("mlp_bias"),
        qk_norm=architecture == "qwen3",
    )


def _llama_family_windows(
    fields: FieldReader, architecture: str, num_layers: int
) -> tuple[int | None, ...]:
    if architecture == "llama":
        return (None,) * num_layers
    if architecture == "mistral":
        # Absent is not null: Hugging Face's default, which the first Mistral relied on, is 4096.
        absent = not fields.has("sliding_window")
        return (4096 if absent else fields.optional_integer("sliding_window"),) * num_layers
    window = fields.optional_integer("sliding_window")
    first_sliding_layer = fields.raw("max_window_layers")
    if not fields.flag("use_sliding_window"):
        window = None
    layer_types = fields.texts("layer_types", num_layers, frozenset({_FULL, _SLIDING}))
    if layer_types is None:
        start = 28 if first_sliding_layer is None else first_sliding_layer
        if isinstance(start, bool) or not isinstance(start, int) or start < 0:
            raise InvalidFileError(
                f"config.json: max_window_layers must be a whole number, got {start!r}"
            )
        layer_types = [_SLIDING if i >= start else _FULL for i in range(num_layers)]
        if window is None:
            layer_types = [_FULL] * num_layers
    return _windows_of(layer_types, window)


def _read_gpt2(fields: FieldReader) -> ModelConfig:
    """GPT-2: LayerNorm with bias, learned positions, a plain MLP, biases everywhere."""
    hidden_size, num_heads = fields.integer("n_embd"), fields.integer("n_head")
    num_layers, num_positions = (
        fields.integer("n_layer", most=MAX_LAYERS),
        fields.integer("n_positions"),
    )
    if hidden_size % num_heads:
        raise InvalidFileError(
            f"config.json: n_embd {hidden_size} must be a multiple of n_head {num_heads}"
        )
    for name, only in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
    ):
        fields.fixed(name, only)
    inner_size = fields.optional_integer("n_inner")
    return ModelConfig(
        architecture="gpt2",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=inner_size or 4 * hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        max_position_embeddings=num_positions,
        max_model_len=num_positions,
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        hidden_act=fields.choice("activation_function", "gelu_new", _ACTIVATIONS),
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        attention_scale=(hidden_size // num_heads) ** -0.5,
        sliding_windows=(None,) * num_layers,
        rope=None,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
    )


def _read_gemma3(fields: FieldReader) -> ModelConfig:
    """Gemma 3, text only: local and global layers, each with frequencies of its own."""
    num_layers = fields.integer("num_hidden_layers", most=MAX_LAYERS)
    head_dim = fields.integer("head_dim", 256)
    pattern = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))
    layer_types = fields.texts("layer_types", num_layers, frozenset({_FULL, _SLIDING}))
    if layer_types is None:
        layer_types = [_FULL if (i + 1) % pattern == 0 else _SLIDING for i in range(num_layers)]
    rope, local_rope = _read_gemma3_ropes(fields, head_dim)
    fields.fixed("use_bidirectional_attention", False)
    attention_bias = fields.flag("attention_bias")
    return ModelConfig(
        architecture="gemma3_text",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=fields.integer("num_attention_heads"),
        num_kv_heads=fields.integer("num_key_value_heads"),
        head_dim=head_dim,
        max_position_embeddings=fields.integer("max_position_embeddings"),
        max_model_len=rope.max_len,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        hidden_act=fields.choice("hidden_activation", "gelu_pytorch_tanh", _ACTIVATIONS),
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        attention_scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        sliding_windows=_windows_of(layer_types, fields.integer("sliding_window", 4096)),
        rope=rope,
        local_rope=local_rope,
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        qk_norm=True,
        attention_soft_cap=fields.optional_number("attn_logit_softcapping"),
        logits_soft_cap=fields.optional_number("final_logit_softcapping"),
    )


def _windows_of(layer_types: list[str], window: int | None) -> tuple[int | None, ...]:
    if window is None and _SLIDING in layer_types:
        raise InvalidFileError(
            "config.json: layer_types has sliding_attention, but sliding_window gives no length "
            "(or use_sliding_window is false)"
        )
    return tuple(window if kind == _SLIDING else None for kind in layer_types)


def _read_rope(fields: FieldReader, head_dim: int) -> RopeConfig:
    """``rope_theta`` and ``rope_scaling`` in old files, ``rope_parameters`` in new ones."""
    parameters = {
        **(fields.mapping("rope_parameters") or {}),
        **(fields.mapping("rope_scaling") or {}),
    }
    return _rope_from(fields, head_dim, parameters, fields.number("rope_theta", DEFAULT_THETA))


def _read_gemma3_ropes(fields: FieldReader, head_dim: int) -> tuple[RopeConfig, RopeConfig]:
    """The frequencies of the global layers and of the local ones.

    ``rope_parameters`` is nested by layer type; in old files ``rope_theta`` and ``rope_scaling``
    are the global layers', ``rope_local_base_freq`` the local ones'.
    """
    nested = fields.mapping("rope_parameters") or {}
    for name, parameters in nested.items():
        if name not in (_FULL, _SLIDING) or not isinstance(parameters, Mapping | None):
            raise UnsupportedModelError(
                f"config.json: rope_parameters must have a dictionary for each of {_FULL} and "
                f"{_SLIDING}, got {name!r}: {parameters!r}"
            )
    full = {**(nested.get(_FULL) or {}), **(fields.mapping("rope_scaling") or {})}
    local = nested.get(_SLIDING) or {}
    theta = fields.number("rope_theta", 1_000_000.0)
    local_theta = fields.number("rope_local_base_freq", DEFAULT_THETA)
    return (
        _rope_from(fields, head_dim, full, theta),
        _rope_from(fields, head_dim, local, local_theta),
    )


def _rope_from(
    fields: FieldReader, head_dim: int, parameters: Mapping[str, Any], theta: float
) -> RopeConfig:
    fields.fixed("rope_interleaved", False)
    return read_rope(
        parameters,
        head_dim=head_dim,
        max_position_embeddings=fields.integer("max_position_embeddings"),
        theta=theta,
        partial_rotary_factor=fields.number("partial_rotary_factor", 1.0),
        original_max_position_embeddings=fields.optional_integer(
            "original_max_position_embeddings"
        ),
        freq_factors=fields.numbers("rope_freq_factors"),
        error=UnsupportedModelError,
        source="config.json: rope_scaling",
    )
