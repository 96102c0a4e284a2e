"""Ops that write their rows in 8 and 14 bits themselves: the bits of the op that only rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from pagemill.kernels import native
from tests.unit.native import row_ops_helpers as ops
from tests.unit.native.attention_cases import Case
from tests.unit.native.row_ops_helpers import FLOATS, Output, Rounded

pytestmark = pytest.mark.skipif(native.load() is None, reason="no native library")

SIZES = [1, 15, 31, 32, 33, 100, 511, 512, 513, 576, 1536, 4100]


@pytest.fixture(params=ops.supported_isas(), autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[None]:
    with ops.use_isa(request.param):
        yield


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


def check(op: Callable[[Output], torch.Tensor], *, writes_14_bits: bool = True) -> None:
    """With and without the floats, which are then not touched."""
    floats = op(FLOATS)
    expected = ops.quantize_rows(floats)
    for with_floats in (True, False):
        rounded = Rounded(*floats.shape)
        written = op(Output(rounded, with_floats))
        for part, equal in zip(rounded.parts, expected.parts, strict=True):
            assert torch.equal(part, equal)
        untouched = Rounded(*floats.shape)
        wide = (expected if writes_14_bits else untouched).wide_parts
        for part, equal in zip(rounded.wide_parts, wide, strict=True):
            assert torch.equal(part.nan_to_num(7), equal.nan_to_num(7))
        assert torch.equal(written, floats) if with_floats else written.isnan().all()


@pytest.mark.parametrize("size", SIZES)
def test_norms(size: int) -> None:
    x, weight, bias = random(5, size), random(size, seed=1), random(size, seed=2)
    residual = random(5, size, seed=3)
    check(lambda output: ops.norm(x, weight, output=output))
    check(lambda output: ops.norm(x, weight, bias, subtract_mean=True, output=output))
    check(lambda output: ops.norm(x, weight, residual=residual.clone(), output=output))


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_activations(size: int, kind: int) -> None:
    x = random(5, 2 * size)
    check(lambda output: ops.activation(x, kind, False, output=output))
    check(lambda output: ops.activation(x, kind, True, output=output))


@pytest.mark.parametrize("kv_type", ops.KV_TYPES)
@pytest.mark.parametrize("head_dim", [32, 64, 96, 256, 544])
def test_attention(head_dim: int, kv_type: str) -> None:
    # The last sequence is long enough for several threads to share it.
    case = Case([19, 1, 1300], 6, 2, head_dim, kv_type)
    rows = [7, 1, 1]

    def attend(output: Output) -> torch.Tensor:
        attended = case.run(rows, num_threads=8, output=output)
        return torch.cat(attended).reshape(sum(rows), -1)

    check(attend, writes_14_bits=False)


def test_rows_of_zeros_and_of_the_smallest_numbers_have_a_scale_and_no_bits() -> None:
    rows = torch.zeros(2, 64)
    rows[1] = 1e-39
    weight = torch.ones(64)
    for x in (rows, rows.clone().fill_(1e-42)):
        check(lambda output, x=x: ops.activation(x, 0, False, output=output))  # type: ignore[misc]
        check(lambda output, x=x: ops.norm(x, weight, output=output))  # type: ignore[misc]
