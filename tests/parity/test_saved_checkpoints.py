"""A checkpoint that transformers saved is read from its directory and gives the same logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pagemill.loading.loader import load_model
from pagemill.loading.weights import Weights
from pagemill.model_config import ModelConfig
from pagemill.models import build_model
from tests.parity.paged import PagedModel, random_tokens, their_logits
from tests.parity.tiny_models import VARIANTS


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_saved_checkpoint_gives_its_logits(variant: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    theirs = VARIANTS[variant]()
    theirs.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), progress=False)
    config = ModelConfig.from_hf(loaded.hf_config)
    ours = PagedModel(build_model(config, Weights(loaded.weights, torch.float32)), config)
    prompt = random_tokens(30)
    distance = (ours.run("a", [prompt]) - their_logits(theirs, prompt)).abs().max()
    assert float(distance) < 1e-4
