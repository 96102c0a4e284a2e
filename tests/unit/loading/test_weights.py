from __future__ import annotations

from collections.abc import Collection

import pytest
import torch

from pagemill.errors import InvalidFileError, UnsupportedModelError
from pagemill.loading.weights import Weights


class FakeSource:
    """Holds float16 tensors in memory."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        self.tensors = {
            name.replace("__", "."): torch.ones(shape, dtype=torch.float16)
            for name, shape in shapes.items()
        }

    def names(self) -> Collection[str]:
        return self.tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def load(self, name: str) -> torch.Tensor:
        return self.tensors[name]


def test_a_taken_tensor_is_cast_and_contiguous() -> None:
    source = FakeSource(a__weight=(2, 3))
    source.tensors["a.weight"] = torch.ones((3, 2), dtype=torch.float16).T
    tensor = Weights(source, torch.float32).take("a.weight", (2, 3))
    assert tensor.dtype == torch.float32
    assert tensor.is_contiguous()
    assert tensor.shape == (2, 3)


def test_a_missing_tensor_is_named_with_its_expected_shape() -> None:
    with pytest.raises(UnsupportedModelError, match=r"no tensor 'b\.weight' \(expected .*\[4\]"):
        Weights(FakeSource(a=(1,)), torch.float32).take("b.weight", (4,))


def test_a_wrong_shape_is_refused_with_both_shapes() -> None:
    weights = Weights(FakeSource(a=(2, 3)), torch.float32)
    with pytest.raises(InvalidFileError, match=r"'a' has shape \[2, 3\].* asks for \[3, 2\]"):
        weights.take("a", (3, 2))


def test_has_tells_what_the_checkpoint_holds() -> None:
    weights = Weights(FakeSource(a=(1,)), torch.float32)
    assert weights.has("a")
    assert not weights.has("b")


def test_tensors_that_nobody_took_are_refused_by_name() -> None:
    weights = Weights(FakeSource(a=(1,), b=(1,), c=(1,)), torch.float32)
    weights.take("b", (1,))
    with pytest.raises(UnsupportedModelError, match=r"holds 2 tensor\(s\) .*: a, c$"):
        weights.finish()


def test_many_leftover_tensors_are_counted() -> None:
    weights = Weights(FakeSource(**{f"t{i:02}": (1,) for i in range(30)}), torch.float32)
    with pytest.raises(UnsupportedModelError, match="t07 and 22 more"):
        weights.finish()


def test_everything_taken_is_fine() -> None:
    weights = Weights(FakeSource(a=(1,)), torch.float32)
    weights.take("a", (1,))
    weights.finish()


@pytest.mark.parametrize(
    "name",
    [
        "lm_head__weight",  # repeats tied embeddings
        "model__layers__3__self_attn__rotary_emb__inv_freq",
        "transformer__h__11__attn__bias",
        "transformer__h__0__attn__masked_bias",
    ],
)
def test_what_is_computed_or_repeated_may_be_left(name: str) -> None:
    Weights(FakeSource(**{name: (1,)}), torch.float32).finish()


@pytest.mark.parametrize(
    "name",
    ["transformer__h__0__attn__c_attn__bias", "model__layers__0__self_attn__q_proj__bias"],
)
def test_biases_may_not_be_left(name: str) -> None:
    with pytest.raises(UnsupportedModelError):
        Weights(FakeSource(**{name: (1,)}), torch.float32).finish()


def test_progress_is_shown_on_stderr_only_when_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagemill.loading.progress._DELAY_SECONDS", 0)
    for show, expected in ((True, True), (None, False), (False, False)):  # stderr is no terminal
        weights = Weights(FakeSource(a=(1,)), torch.float32, progress=show)
        weights.take("a", (1,))
        weights.finish()
        output = capsys.readouterr()
        assert output.out == ""
        assert ("loading weights" in output.err) is expected
