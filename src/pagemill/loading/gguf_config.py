"""From GGUF metadata to the keys of a Hugging Face ``config.json``.

So that there is one way into a model's configuration. Every key under the architecture's own
prefix is read here, or known to have no effect, or refused: a setting that is passed over in
silence gives wrong text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pagemill.errors import InvalidFileError, UnsupportedModelError
from pagemill.loading.gguf_names import ARCHITECTURES

_NO_EFFECT: Final = frozenset({"vocab_size", "tensor_data_layout", "rope.scaling.finetuned"})
_DEFAULT_ROPE_THETA: Final = 10000.0
_GEMMA3_LOCAL_ROPE_THETA: Final = 10000.0
_GEMMA3_LAYERS_PER_GLOBAL: Final = 6
# The largest Gemma 3 (27B, the one with 62 layers) scales its queries by hidden_size / num_heads
# where all others use head_dim; no converter writes it down.
_GEMMA3_27B_LAYERS: Final = 62
_MAX_LAYERS: Final = 4096

Shapes = Mapping[str, tuple[int, ...]]


class GGUFFields:
    """Typed access to the metadata under the architecture's prefix; remembers what was read."""

    def __init__(self, metadata: Mapping[str, Any], source: str = "GGUF metadata") -> None:
        self.metadata = metadata
        self.source = source
        self._read: set[str] = set()

    def architecture(self, known: Sequence[str]) -> str:
        """``general.architecture``, which must be one of ``known``."""
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise InvalidFileError(f"{self.source}: general.architecture is {name!r}, not a text")
        if name not in known:
            raise UnsupportedModelError(
                f"{self.source}: architecture {name!r} is not supported; "
                f"supported are {', '.join(known)}"
            )
        return name

    def get(self, key: str) -> Any:
        """Return the value of ``{architecture}.{key}``, or None."""
        self._read.add(key)
        return self.metadata.get(self._full(key))

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a positive integer; a list (one for each layer) must hold the same throughout."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, list) and value:
            if any(item != value[0] for item in value):
                raise UnsupportedModelError(
                    f"{self.source}: {self._full(key)} differs between layers, which is not "
                    f"supported: {value[:8]}"
                )
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(key, "a positive integer", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number of at least 0."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0:
            raise self._wrong(key, "a finite number of at least 0", value)
        return float(value)

    def num_layers(self) -> int:
        """Return the number of layers; bounded, since lists of that length are made."""
        num_layers = self.integer("block_count")
        if num_layers > _MAX_LAYERS:
            raise self._wrong("block_count", f"at most {_MAX_LAYERS}", num_layers)
        return num_layers

    def num_heads(self) -> int:
        """Return the number of query heads."""
        return self.integer("attention.head_count")

    def num_kv_heads(self) -> int:
        """Return the number of key and value heads; as many as query heads if not given."""
        return self.integer("attention.head_count_kv", self.num_heads())

    def refuse_unread(self) -> None:
        """Refuse settings of the architecture that nothing has read and that are not "off"."""
        prefix = self._full("")
        for full_key, value in self.metadata.items():
            key = full_key.removeprefix(prefix)
            if key == full_key or key in self._read or key in _NO_EFFECT:
                continue
            if value not in (0, "", []):  # equal to False and 0.0 too
                raise UnsupportedModelError(
                    f"{self.source}: {full_key} = {str(value)[:80]} is not supported"
                )

    def _full(self, key: str) -> str:
        return f"{self.metadata.get('general.architecture')}.{key}"

    def _wrong(self, key: str, expected: str, value: object) -> InvalidFileError:
        state = "is missing" if value is None else f"is {str(value)[:80]!r}"
        return InvalidFileError(f"{self.source}: {self._full(key)} {state}; expected {expected}")


def gguf_to_hf_config(
    metadata: Mapping[str, Any],
    tensor_shapes: Shapes,
    *,
    rope_factors: Mapping[str, list[float]] | None = None,
    source: str = "GGUF metadata",
) -> dict[str, Any]:
    """Translate GGUF metadata into a Hugging Face configuration (old spelling of rope).

    Args:
        metadata: keyed by GGUF's names.
        tensor_shapes: by GGUF's names, numpy order; tells of tied embeddings, biases and the
            vocabulary's size.
        rope_factors: content of the tensors of rotary frequency factors, by name.
            ``rope_freqs.weight`` becomes the key ``rope_freq_factors``.
        source: what an error names as the place of the mistake.

    Raises `InvalidFileError` for a missing or impossible value and `UnsupportedModelError` for a
    setting that is not implemented.
    """
    fields = GGUFFields(metadata, source)
    architecture = fields.architecture(ARCHITECTURES)
    config: dict[str, Any] = {"tie_word_embeddings": "output.weight" not in tensor_shapes}
    config["vocab_size"] = _vocab_size(fields, tensor_shapes)
    for hf_key, gguf_key in (("bos_token_id", "bos"), ("eos_token_id", "eos")):
        token_id = metadata.get(f"tokenizer.ggml.{gguf_key}_token_id")
        if token_id is not None:
            config[hf_key] = token_id
    if architecture == "gpt2":
        config |= _gpt2(fields)
    else:
        config |= _rotary_family(fields, architecture, tensor_shapes)
        config |= _rope(fields, rope_factors or {})
    fields.refuse_unread()
    return config


def _vocab_size(fields: GGUFFields, shapes: Shapes) -> int:
    """Rows of the embedding; converters fill up the token list to it, but need not."""
    if "token_embd.weight" not in shapes:
        raise InvalidFileError(f"{fields.source}: there is no tensor 'token_embd.weight'")
    rows = shapes["token_embd.weight"][0]
    tokens = fields.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > rows:
        raise InvalidFileError(
            f"{fields.source}: tokenizer.ggml.tokens lists {len(tokens)} tokens, but "
            f"token_embd.weight has only {rows} rows"
        )
    return rows


def _gpt2(fields: GGUFFields) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": fields.integer("embedding_length"),
        "n_inner": fields.integer("feed_forward_length"),
        "n_layer": fields.num_layers(),
        "n_head": _equal_heads(fields),
        "n_positions": fields.integer("context_length"),
        "layer_norm_epsilon": fields.number("attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
    }


def _equal_heads(fields: GGUFFields) -> int:
    num_heads, num_kv_heads = fields.num_heads(), fields.num_kv_heads()
    if num_heads != num_kv_heads:
        raise UnsupportedModelError(
            f"{fields.source}: gpt2 with {num_heads} query heads and {num_kv_heads} key heads is "
            "not supported; both numbers must be equal"
        )
    return num_heads


def _rotary_family(fields: GGUFFields, architecture: str, shapes: Shapes) -> dict[str, Any]:
    """What llama, qwen2, qwen3 and gemma3 have in common, and the few keys of their own."""
    config: dict[str, Any] = {
        "hidden_size": fields.integer("embedding_length"),
        "intermediate_size": fields.integer("feed_forward_length"),
        "num_hidden_layers": fields.num_layers(),
        "num_attention_heads": fields.num_heads(),
        "num_key_value_heads": fields.num_kv_heads(),
        "head_dim": _head_dim(fields),
        "max_position_embeddings": fields.integer("context_length"),
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": fields.number("rope.freq_base", _DEFAULT_ROPE_THETA),
    }
    if architecture == "gemma3":
        return config | _gemma3(fields, config)
    config["hidden_act"] = "silu"
    if architecture == "llama":
        return config | _llama(fields, shapes)
    class_name = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[architecture]
    return config | {"architectures": [class_name], "model_type": architecture}


def _llama(fields: GGUFFields, shapes: Shapes) -> dict[str, Any]:
    """Llama, or Mistral, which is the same file but for a sliding window."""
    if fields.get("attention.sliding_window"):
        return {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": fields.integer("attention.sliding_window"),
        }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "mlp_bias": "blk.0.ffn_up.bias" in shapes,
    }


def _gemma3(fields: GGUFFields, config: Mapping[str, Any]) -> dict[str, Any]:
    num_layers = config["num_hidden_layers"]
    query_scalar = config["head_dim"]
    if num_layers == _GEMMA3_27B_LAYERS:
        query_scalar = config["hidden_size"] // config["num_attention_heads"]
    gemma: dict[str, Any] = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": query_scalar,
        "rope_local_base_freq": fields.number("rope.freq_base_swa", _GEMMA3_LOCAL_ROPE_THETA),
        "layer_types": _layer_types(fields, num_layers),
    }
    if fields.get("attention.sliding_window"):
        gemma["sliding_window"] = fields.integer("attention.sliding_window")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if fields.get(key):
            gemma[key] = fields.number(key)
    return gemma


def _layer_types(fields: GGUFFields, num_layers: int) -> list[str]:
    """Which layers of a Gemma 3 are local: five of six, unless the file says otherwise."""
    pattern = fields.get("attention.sliding_window_pattern")
    if not fields.get("attention.sliding_window"):
        is_local = [False] * num_layers
    elif isinstance(pattern, list):
        is_local = [bool(local) for local in pattern]
    else:
        period = fields.integer("attention.sliding_window_pattern", _GEMMA3_LAYERS_PER_GLOBAL)
        is_local = [(layer + 1) % period != 0 for layer in range(num_layers)]
    return ["sliding_attention" if local else "full_attention" for local in is_local]


def _head_dim(fields: GGUFFields) -> int:
    num_heads, hidden_size = fields.num_heads(), fields.integer("embedding_length")
    head_dim = fields.integer("attention.key_length", max(1, hidden_size // num_heads))
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(key, head_dim) != head_dim:
            raise UnsupportedModelError(
                f"{fields.source}: {key} {fields.get(key)} differs from the head dimension "
                f"{head_dim}, which is not supported"
            )
    return head_dim


def _rope(fields: GGUFFields, factors: Mapping[str, list[float]]) -> dict[str, Any]:
    """The scaling of rotary frequencies: ``rope_scaling`` and ``rope_freq_factors``."""
    config: dict[str, Any] = {}
    if "rope_freqs.weight" in factors:
        config["rope_freq_factors"] = factors["rope_freqs.weight"]
    rope_type = fields.get("rope.scaling.type") or "linear"
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    original_len = fields.get("rope.scaling.original_context_length")
    attention_factor = fields.number("rope.scaling.attn_factor", 1.0)
    scaling: dict[str, Any] = {"rope_type": rope_type}
    if original_len:
        scaling["original_max_position_embeddings"] = fields.integer(
            "rope.scaling.original_context_length"
        )
    if rope_type == "none" or (rope_type == "linear" and factor in (0.0, 1.0)):
        return config
    if rope_type == "linear":
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif rope_type == "yarn":
        config["rope_scaling"] = scaling | _yarn(fields, factor, attention_factor)
    elif rope_type == "longrope":
        config["rope_scaling"] = scaling | _longrope(fields, factors, attention_factor)
    else:
        raise UnsupportedModelError(
            f"{fields.source}: rope.scaling.type {rope_type!r} is not supported; "
            "supported are none, linear, yarn, longrope"
        )
    return config


def _yarn(fields: GGUFFields, factor: float, attention_factor: float) -> dict[str, Any]:
    """YaRN. The file's attention factor multiplies YaRN's own, 1 + 0.1 ln(factor)."""
    attention_factor *= fields.number("rope.scaling.yarn_attn_factor", 1.0)
    if fields.number("rope.scaling.yarn_ext_factor", 1.0) != 1.0:
        raise UnsupportedModelError(
            f"{fields.source}: rope.scaling.yarn_ext_factor other than 1 is not supported"
        )
    if factor < 1.0:
        raise InvalidFileError(f"{fields.source}: rope.scaling.factor is {factor}, below 1")
    scaling = {"factor": factor}
    if attention_factor != 1.0:
        scaling["attention_factor"] = attention_factor * (1.0 + 0.1 * math.log(factor))
    for hf_key in ("beta_fast", "beta_slow"):
        if fields.get(f"rope.scaling.yarn_{hf_key}"):
            scaling[hf_key] = fields.number(f"rope.scaling.yarn_{hf_key}")
    return scaling


def _longrope(
    fields: GGUFFields, factors: Mapping[str, list[float]], attention_factor: float
) -> dict[str, Any]:
    scaling: dict[str, Any] = {"attention_factor": attention_factor}
    for hf_key, name in (
        ("short_factor", "rope_factors_short.weight"),
        ("long_factor", "rope_factors_long.weight"),
    ):
        if name not in factors:
            raise InvalidFileError(f"{fields.source}: longrope scaling, but no tensor {name!r}")
        scaling[hf_key] = factors[name]
    return scaling
