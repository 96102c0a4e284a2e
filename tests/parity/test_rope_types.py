"""Each rope type gives transformers' frequencies, and its logits beyond the trained length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pagemill.layers.rope import rope_frequencies
from pagemill.model_config import ModelConfig
from tests.parity.paged import (
    PagedModel,
    cut,
    our_config,
    our_model,
    random_tokens,
    their_logits,
)
from tests.parity.tiny_models import COMMON, gemma3, llama, mistral, qwen2, qwen3

TRAINED_LEN = 32
PROMPT = random_tokens(3 * TRAINED_LEN, seed=3)
PAIRS = 5  # of the tiny models' head_dim 10
ORIGINAL = {"original_max_position_embeddings": TRAINED_LEN}
LONGROPE: dict[str, Any] = {
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4],
    "long_factor": [1.0, 1.5, 2.5, 3.5, 4.5],
}

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, **ORIGINAL},
    "yarn, attention factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "attention_factor": 1.3,
        **ORIGINAL,
    },
    "yarn, mscale, betas, not truncated": {
        "rope_type": "yarn",
        "factor": 4.0,
        "mscale": 1.2,
        "mscale_all_dim": 0.8,
        "beta_fast": 5.0,
        "beta_slow": 0.5,
        "truncate": False,
        **ORIGINAL,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        **ORIGINAL,
    },
    "longrope": {"rope_type": "longrope", **LONGROPE, "factor": 4.0, **ORIGINAL},
    "longrope, factor from the lengths": {"rope_type": "longrope", **LONGROPE, **ORIGINAL},
    "longrope, attention factor": {
        "rope_type": "longrope",
        **LONGROPE,
        "factor": 4.0,
        "attention_factor": 1.2,
        **ORIGINAL,
    },
}

EXTENDED_LEN = 4 * TRAINED_LEN


def stated_len(rope_type: str) -> int:
    """What ``max_position_embeddings`` says: the extended length, or the one before scaling."""
    return TRAINED_LEN if rope_type == "dynamic" else EXTENDED_LEN


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max())


@pytest.mark.parametrize("name", SCALINGS)
def test_logits_match_beyond_the_trained_length(name: str) -> None:
    torch.set_num_threads(1)
    scaling = SCALINGS[name]
    theirs = llama(
        rope_parameters={"rope_theta": 500.0, **scaling},
        max_position_embeddings=stated_len(scaling["rope_type"]),
    )
    config = our_config(theirs).with_overrides(max_model_len=len(PROMPT))
    ours = PagedModel(our_model(theirs, config), config)
    expected = their_logits(theirs, PROMPT)
    assert distance(ours.run("whole", [PROMPT]), expected) < 1e-4
    assert distance(ours.run("chunks", cut(PROMPT, [20, 1, 60])), expected) < 1e-4
    unscaled = llama(rope_parameters={"rope_theta": 500.0, "rope_type": "default"})
    assert distance(their_logits(unscaled, PROMPT), expected) > 0.05, "the scaling would not show"


@pytest.mark.parametrize("rope_type", ["linear", "yarn", "dynamic"])
@pytest.mark.parametrize("family", [mistral, qwen2, qwen3, gemma3])
def test_scaling_reaches_every_family(family: Any, rope_type: str) -> None:
    scaling = {"rope_theta": 500.0, **SCALINGS[rope_type]}
    if family is gemma3:
        local = {"rope_type": "default", "rope_theta": 100.0}
        scaling = {"full_attention": scaling, "sliding_attention": local}
    theirs = family(rope_parameters=scaling, max_position_embeddings=stated_len(rope_type))
    config = our_config(theirs).with_overrides(max_model_len=len(PROMPT))
    ours = PagedModel(our_model(theirs, config), config)
    assert distance(ours.run("whole", [PROMPT]), their_logits(theirs, PROMPT)) < 1e-4


@pytest.mark.parametrize("served_len", [TRAINED_LEN // 2, TRAINED_LEN, TRAINED_LEN + 1, 100])
@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("head_dim", [10, 64, 128])
def test_frequencies_are_those_of_transformers(name: str, served_len: int, head_dim: int) -> None:
    scaling = dict(SCALINGS[name])
    if scaling["rope_type"] == "longrope":
        for key in ("short_factor", "long_factor"):
            scaling[key] = [1.0 + 0.1 * i for i in range(head_dim // 2)]
        scaling["long_factor"][-1] = 9.0
    theirs = LlamaConfig(
        **{
            **COMMON,
            "head_dim": head_dim,
            "rope_parameters": {"rope_theta": 12345.0, **scaling},
            "max_position_embeddings": stated_len(scaling["rope_type"]),
        }
    )
    rope = ModelConfig.from_hf({"model_type": "llama", **theirs.to_dict()}).rope
    assert rope is not None
    expected, expected_factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](
        theirs, torch.device("cpu"), seq_len=served_len
    )
    frequencies, factor = rope_frequencies(rope, served_len)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(expected_factor, rel=1e-7)


def test_the_users_scaling_equals_the_checkpoints() -> None:
    """``rope_scaling`` given by the user does what the same dictionary in the file does."""
    for name in ("linear", "dynamic", "yarn", "llama3", "longrope"):
        scaling = SCALINGS[name]
        stated = stated_len(scaling["rope_type"])
        theirs = llama(
            rope_parameters={"rope_theta": 500.0, **scaling}, max_position_embeddings=stated
        )
        plain = llama(
            rope_parameters={"rope_theta": 500.0, "rope_type": "default"},
            max_position_embeddings=TRAINED_LEN,
        )
        config = our_config(plain).with_overrides(len(PROMPT), rope_scaling=scaling)
        ours = PagedModel(our_model(plain, config), config)
        assert distance(ours.run("whole", [PROMPT]), their_logits(theirs, PROMPT)) < 1e-4, name


@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling, theta beside", "type"])
def test_old_and_new_spellings_mean_the_same(spelling: str) -> None:
    fields: dict[str, Any] = {"model_type": "llama", **COMMON}
    linear = {"rope_type": "linear", "factor": 4.0}
    if spelling == "rope_parameters":
        fields["rope_parameters"] = {"rope_theta": 500.0, **linear}
    elif spelling == "type":
        fields |= {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}}
    else:
        fields |= {"rope_theta": 500.0, "rope_scaling": linear}
    rope = ModelConfig.from_hf(fields).rope
    assert rope is not None
    assert (rope.rope_type, rope.factor, rope.theta) == ("linear", 4.0, 500.0)


def test_gemma3_reads_its_two_bases_in_both_spellings() -> None:
    common = {"model_type": "gemma3_text", **COMMON, "sliding_window": 7}
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = {"rope_theta": 7e5, "rope_local_base_freq": 9e3, "rope_scaling": scaling}
    new = {
        "rope_parameters": {
            "full_attention": {"rope_theta": 7e5, **scaling},
            "sliding_attention": {"rope_theta": 9e3, "rope_type": "default"},
        }
    }
    from_old, from_new = (ModelConfig.from_hf({**common, **fields}) for fields in (old, new))
    assert from_old == from_new
    assert from_old.rope is not None
    assert from_old.local_rope is not None
    assert (from_old.rope.theta, from_old.rope.factor) == (7e5, 8.0)
    assert (from_old.local_rope.theta, from_old.local_rope.factor) == (9e3, 1.0)
