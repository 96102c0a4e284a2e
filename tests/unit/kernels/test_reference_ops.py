"""The reference ops compute their formulas, row by row."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from pagemill.kernels import reference
from pagemill.kernels import reference as kernels

Op = Callable[[torch.Tensor], torch.Tensor]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear_op(in_size: int, out_size: int, dtype: torch.dtype = torch.float32) -> Op:
    weight, bias = randn(out_size, in_size, seed=1).to(dtype), randn(out_size, seed=2)
    return lambda x: kernels.linear(x, weight, bias)


ROW_OPS: dict[str, tuple[int, Op]] = {
    "linear 42x97": (42, linear_op(42, 97)),
    "linear 576x192": (576, linear_op(576, 192)),
    "linear 1536x64": (1536, linear_op(1536, 64)),
    "linear bfloat16": (96, linear_op(96, 40, torch.bfloat16)),
    "rms_norm": (50, lambda x: kernels.rms_norm(x, randn(50, seed=1), 1e-6)),
    "add_rms_norm": (
        50,
        lambda x: kernels.add_rms_norm(x, x * 0.3, randn(50, seed=1), 1e-6)[0],
    ),
    "layer_norm": (
        50,
        lambda x: kernels.layer_norm(x, randn(50, seed=1), randn(50, seed=2), 1e-5),
    ),
    "silu": (50, kernels.silu),
    "gelu": (50, kernels.gelu),
    "gelu_tanh": (50, kernels.gelu_tanh),
    "silu_and_mul": (50, kernels.silu_and_mul),
    "gelu_and_mul": (50, kernels.gelu_and_mul),
    "gelu_tanh_and_mul": (50, kernels.gelu_tanh_and_mul),
    "soft_cap": (50, lambda x: kernels.soft_cap(x, 2.0)),
}


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("name", ROW_OPS)
def test_a_row_has_the_same_bits_whatever_rows_are_beside_it(name: str, num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    width, op = ROW_OPS[name]
    x = randn(300, width)
    together = op(x)
    for count in (1, 2, 3, 5, 8, 9, 13, 16, 31, 64, 100, 299):
        for start in (0, 1, 6):
            end = min(start + count, len(x))
            assert torch.equal(op(x[start:end]), together[start:end]), (start, count)
    torch.set_num_threads(1)


def test_linear_is_the_matrix_product_in_float32() -> None:
    x, weight, bias = randn(5, 33), randn(7, 33, seed=1), randn(7, seed=2)
    expected = (x.double() @ weight.double().T + bias.double()).float()
    torch.testing.assert_close(kernels.linear(x, weight, bias), expected)
    torch.testing.assert_close(kernels.linear(x, weight), expected - bias)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_weight_is_converted_piece_by_piece(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = randn(5, 33), randn(20, 33, seed=1).to(dtype)
    monkeypatch.setattr(reference, "_UPCAST_ELEMENTS", 3 * 33)
    torch.testing.assert_close(kernels.linear(x, weight), x @ weight.float().T)


def test_norms_follow_their_formulas() -> None:
    x, weight, bias = randn(4, 10) * 3 + 1, randn(10, seed=1), randn(10, seed=2)
    wide = x.double()
    rms = wide / (wide.pow(2).mean(-1, keepdim=True) + 0.1).sqrt() * weight
    torch.testing.assert_close(kernels.rms_norm(x, weight, 0.1), rms.float())
    centred = wide - wide.mean(-1, keepdim=True)
    normal = centred / (centred.pow(2).mean(-1, keepdim=True) + 0.1).sqrt() * weight + bias
    torch.testing.assert_close(kernels.layer_norm(x, weight, bias, 0.1), normal.float())
    normed, total = kernels.add_rms_norm(x, x, weight, 0.1)
    assert torch.equal(total, x + x)
    assert torch.equal(normed, kernels.rms_norm(total, weight, 0.1))


def test_activations_equal_torchs() -> None:
    x = torch.linspace(-90, 90, 1001)
    torch.testing.assert_close(kernels.silu(x), F.silu(x))
    torch.testing.assert_close(kernels.gelu(x), F.gelu(x))
    torch.testing.assert_close(kernels.gelu_tanh(x), F.gelu(x, approximate="tanh"))
    gate_up = randn(3, 14)
    gate, up = gate_up[:, :7], gate_up[:, 7:]
    torch.testing.assert_close(kernels.silu_and_mul(gate_up), F.silu(gate) * up)
    torch.testing.assert_close(kernels.gelu_and_mul(gate_up), F.gelu(gate) * up)
    torch.testing.assert_close(
        kernels.gelu_tanh_and_mul(gate_up), F.gelu(gate, approximate="tanh") * up
    )


def test_a_soft_cap_bounds_large_values_and_keeps_small_ones() -> None:
    capped = kernels.soft_cap(torch.tensor([-1000.0, 0.01, 1000.0]), 30.0)
    torch.testing.assert_close(capped, torch.tensor([-30.0, 0.01, 30.0]))


def test_rotary_turns_pairs_and_leaves_the_rest() -> None:
    x, angle = randn(2, 3, 10), torch.tensor([[0.0, 0.0, 0.0], [0.1, 0.7, 2.0]])
    turned = reference.rotary(x, torch.tensor([1, 0]), angle.cos(), angle.sin())
    assert torch.equal(turned[1], x[1]), "position 0 is not turned"
    assert torch.equal(turned[..., 6:], x[..., 6:]), "only 2 * 3 dimensions are turned"
    before = torch.complex(x[0, :, :3], x[0, :, 3:6])
    after = torch.complex(turned[0, :, :3], turned[0, :, 3:6])
    torch.testing.assert_close(after, before * torch.polar(torch.ones(3), angle[1]))


def test_keys_and_values_go_to_their_slots_and_nowhere_else() -> None:
    key_cache, value_cache = torch.zeros(3, 4, 2, 5), torch.zeros(3, 4, 2, 5)
    key, value, query = randn(2, 2, 5), randn(2, 2, 5, seed=1), randn(2, 6, 5, seed=2)
    slots, angle = torch.tensor([9, 2]), torch.tensor([[0.3, 0.5]])
    rotated = kernels.rotary_write_kv(
        query,
        key,
        value,
        torch.tensor([0, 0]),
        angle.cos(),
        angle.sin(),
        key_cache,
        value_cache,
        slots,
    )
    turn = (torch.tensor([0, 0]), angle.cos(), angle.sin())
    assert torch.equal(rotated, reference.rotary(query, *turn))
    assert torch.equal(key_cache.view(12, 2, 5)[slots], reference.rotary(key, *turn))
    assert torch.equal(value_cache.view(12, 2, 5)[slots], value)
    untouched = [slot for slot in range(12) if slot not in (9, 2)]
    assert not key_cache.view(12, 2, 5)[untouched].any()
    assert not value_cache.view(12, 2, 5)[untouched].any()
