"""Every architecture gives Hugging Face transformers' logits, however the work is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from pagemill.kernels import native
from pagemill.loading.weights import Packing
from pagemill.rope_config import RopeConfig
from tests.parity.paged import (
    NativePagedModel,
    PagedModel,
    cut,
    our_config,
    our_model,
    random_tokens,
    their_logits,
)
from tests.parity.tiny_models import VARIANTS, gemma3, llama

Paged = Callable[..., PagedModel]

TOLERANCE = 1e-4
PROMPT = random_tokens(45)


@pytest.fixture(params=list(VARIANTS))
def theirs(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.set_num_threads(1)
    return VARIANTS[request.param]()


@pytest.fixture(params=["reference", "native"])
def paged(request: pytest.FixtureRequest) -> Callable[..., PagedModel]:
    """Build our model of theirs, on one of the two implementations of the ops."""

    def build(
        theirs: PreTrainedModel, dtype: torch.dtype = torch.float32, num_blocks: int = 128
    ) -> PagedModel:
        config = our_config(theirs)
        if request.param == "reference":
            return PagedModel(our_model(theirs, dtype=dtype), config, num_blocks)
        if native.load() is None:
            pytest.skip("no native library")
        packing = Packing(as_stored=True)
        return NativePagedModel(our_model(theirs, dtype=dtype, packing=packing), config, num_blocks)

    return build


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max())


def test_logits_match_in_one_prefill_in_chunks_and_in_decodes(
    theirs: PreTrainedModel, paged: Paged
) -> None:
    expected = their_logits(theirs, PROMPT)
    assert expected.std() > 0.5, "flat logits would match whatever the model computes"
    ours = paged(theirs)
    assert distance(ours.run("whole", [PROMPT]), expected) < TOLERANCE
    assert distance(ours.run("chunks", cut(PROMPT, [1, 7, 2, 17, 18])), expected) < TOLERANCE
    assert distance(ours.run("decodes", cut(PROMPT, [3])), expected) < TOLERANCE


def test_sequences_that_share_a_batch_get_the_logits_they_get_alone(
    theirs: PreTrainedModel, paged: Paged
) -> None:
    ours, other = paged(theirs), random_tokens(30, seed=5)
    steps: list[dict[str, list[int]]] = [
        {"a": PROMPT[:9], "b": other[:4]},
        {"b": other[4:23], "a": PROMPT[9:10]},
        {"a": PROMPT[10:11], "b": other[23:24]},
        {"c": [5], "b": other[24:30], "a": PROMPT[11:30]},
        {"a": PROMPT[30:], "c": [6]},
    ]
    got: dict[str, list[torch.Tensor]] = {"a": [], "b": [], "c": []}
    for work in steps:
        for name, logits in ours.step(work).items():
            got[name].append(logits)
    for name, token_ids in {"a": PROMPT, "b": other, "c": [5, 6]}.items():
        together = torch.cat(got[name])
        assert distance(together, their_logits(theirs, token_ids)) < TOLERANCE
        assert torch.equal(together, paged(theirs).run("alone", [token_ids])), "not the same bits"


def test_chunking_does_not_change_a_bit(theirs: PreTrainedModel, paged: Paged) -> None:
    ours = paged(theirs)
    whole = ours.run("whole", [PROMPT])
    for sizes in ([1, 7, 2, 17, 18], [44], [2, 3], []):
        assert torch.equal(ours.run(f"in {sizes}", cut(PROMPT, sizes)), whole)


def test_the_parameter_count_is_theirs(theirs: PreTrainedModel) -> None:
    assert our_config(theirs).num_parameters == theirs.num_parameters()


def test_a_context_of_several_attention_tiles_matches(paged: Paged) -> None:
    torch.set_num_threads(1)
    token_ids = random_tokens(700)
    for theirs in (
        llama(max_position_embeddings=1024),
        gemma3(max_position_embeddings=1024, sliding_window=300),
    ):
        ours = paged(theirs, num_blocks=1024)
        expected = their_logits(theirs, token_ids)
        whole = ours.run("whole", [token_ids])
        assert distance(whole, expected) < TOLERANCE
        chunks = cut(token_ids, [100, 1, 300, 280])
        assert torch.equal(ours.run("chunks", chunks), whole), "not the same bits"


@pytest.mark.parametrize(
    "change",
    [
        {"norm_eps": 1e-3},
        {"attention_scale": 0.31},
        {"sliding_windows": (None, 44)},
        {"hidden_act": "gelu_tanh"},
        {"rope": RopeConfig(rotary_dim=10, trained_len=128, max_len=128, theta=10100.0)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_slightly_wrong_configuration_would_be_noticed(change: dict[str, Any]) -> None:
    theirs = llama()
    changed = replace(our_config(theirs), **change)
    ours = PagedModel(our_model(theirs, changed), changed)
    assert distance(ours.run("a", [PROMPT]), their_logits(theirs, PROMPT)) > 5 * TOLERANCE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_weights_are_computed_with_in_float32(dtype: torch.dtype, paged: Paged) -> None:
    for theirs in (llama(), gemma3()):
        ours = paged(theirs, dtype=dtype)
        with torch.no_grad():
            for weight in theirs.parameters():
                weight.copy_(weight.to(dtype))
            if "gemma" in theirs.config.model_type:
                scale = torch.tensor(theirs.config.hidden_size**0.5).to(dtype)
                theirs.model.embed_tokens.embed_scale.copy_(scale)
        assert distance(ours.run("a", [PROMPT]), their_logits(theirs, PROMPT)) < TOLERANCE
