"""Logits of the real Gemma 3 270M against transformers' own reading of the same GGUF file."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from pagemill.loading.loader import load_model
from pagemill.loading.weights import Weights
from pagemill.model_config import ModelConfig
from pagemill.models import build_model
from tests.parity.paged import PagedModel, cut, their_logits

TEXT = (
    "The engine of a mill turns slowly, and the water that drives it comes from the same river "
    "that carries the flour away. In 1832, 47 mills stood here; "
)


def test_gemma3_logits_are_those_of_transformers(gemma3_path: Path) -> None:
    loaded = load_model(str(gemma3_path))
    assert loaded.tokenizer is not None
    # Longer than the sliding window of 512, so that local layers forget.
    prompt = loaded.tokenizer.encode(TEXT * 16)[:600]
    assert len(prompt) == 600
    theirs = AutoModelForCausalLM.from_pretrained(
        gemma3_path.parent, gguf_file=gemma3_path.name, dtype=torch.float32
    )
    expected = their_logits(theirs, prompt)
    del theirs
    config = ModelConfig.from_hf(loaded.hf_config)
    ours = PagedModel(
        build_model(config, Weights(loaded.weights, torch.float32)), config, block_size=16
    )
    chunks = cut(prompt, [256, 100, 239])
    actual = ours.run("a", chunks)
    assert float(expected.std()) > 1.0
    assert float((actual - expected).abs().max()) < 1e-2
