"""The native row ops against their PyTorch references, and each row by itself bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pagemill.batch import MoveKind
from pagemill.kernels import native, reference
from pagemill.kernels.native import ThreadPool
from pagemill.kernels.row_ops_library import KVCacheStruct
from tests.unit.native import row_ops_helpers as ops

pytestmark = pytest.mark.skipif(native.load() is None, reason="no native library")

SIZES = [1, 15, 16, 17, 63, 64, 65, 100, 576, 1000]
ACTIVATIONS = {
    "silu": (0, reference.silu, reference.silu_and_mul),
    "gelu": (1, reference.gelu, reference.gelu_and_mul),
    "gelu_tanh": (2, reference.gelu_tanh, reference.gelu_tanh_and_mul),
}


@pytest.fixture(params=ops.supported_isas(), autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[None]:
    with ops.use_isa(request.param):
        yield


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


def check_rows(op: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    """Each row alone, and each run of rows, has the bits that it has among all."""
    together = op(x)
    for first in range(0, len(x), 7):
        assert torch.equal(op(x[first : first + 1].clone()), together[first : first + 1])
        assert torch.equal(op(x[first : first + 5].clone()), together[first : first + 5])


@pytest.mark.parametrize("size", SIZES)
def test_rms_norm(size: int) -> None:
    x, weight = random(70, size), random(size, seed=1)
    expected = reference.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(ops.norm(x, weight), expected, rtol=1e-5, atol=1e-5)
    check_rows(lambda rows: ops.norm(rows, weight), x)


@pytest.mark.parametrize("size", SIZES)
def test_rms_norm_of_a_sum_updates_the_residual(size: int) -> None:
    x, residual, weight = random(9, size), random(9, size, seed=1), random(size, seed=2)
    expected, total = reference.add_rms_norm(x, residual, weight, 1e-5)
    out = ops.norm(x, weight, residual=residual)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(residual, total)
    assert torch.equal(out, ops.norm(total, weight))


@pytest.mark.parametrize("size", SIZES)
def test_layer_norm(size: int) -> None:
    x, weight, bias = random(70, size) + 2, random(size, seed=1), random(size, seed=2)
    expected = reference.layer_norm(x, weight, bias, 1e-5)
    out = ops.norm(x, weight, bias, subtract_mean=True)
    torch.testing.assert_close(out, expected, rtol=2e-5, atol=2e-5)
    check_rows(lambda rows: ops.norm(rows, weight, bias, subtract_mean=True), x)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("size", SIZES)
def test_activations(size: int, name: str) -> None:
    kind, plain, gated = ACTIVATIONS[name]
    x = random(20, 2 * size)
    torch.testing.assert_close(ops.activation(x, kind, False), plain(x), rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(ops.activation(x, kind, True), gated(x), rtol=2e-6, atol=4e-6)
    check_rows(lambda rows: ops.activation(rows, kind, True), x)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_exact_to_the_last_digits_everywhere(name: str) -> None:
    kind = ACTIVATIONS[name][0]
    steps = torch.cat([torch.linspace(-14, 14, 40001), torch.logspace(-30, 1, 999)])[None]
    x = torch.cat([steps, -steps], dim=1)
    exact = {
        "silu": lambda v: v * torch.sigmoid(v),
        "gelu": lambda v: v * 0.5 * torch.erfc(-v * 0.5**0.5),
        "gelu_tanh": lambda v: v * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (v + 0.044715 * v**3)),
    }[name](x.double())
    # Far left, an exponent of x^2 is rounded before exp; then come results below 1e-36, or 0.
    tolerance = 4e-7 * exact.abs() * (1 + 0.4 * x.double() ** 2) + 1e-36
    assert ((ops.activation(x, kind, False) - exact).abs() <= tolerance).all()


def test_activations_of_huge_numbers_end_where_they_should() -> None:
    x = torch.tensor([[1e30, -1e30, 100.0, -100.0, 0.0, -0.0]])
    for kind, _, _ in ACTIVATIONS.values():
        expected = torch.tensor([[1e30, 0.0, 100.0, 0.0, 0.0, 0.0]])
        torch.testing.assert_close(ops.activation(x, kind, False), expected, rtol=0, atol=1e-30)


@pytest.mark.parametrize("size", SIZES)
def test_add_takes_rows_or_one_row(size: int) -> None:
    a, b, bias = random(5, size), random(5, size, seed=1), random(size, seed=2)
    assert torch.equal(ops.add(a, b), a + b)
    assert torch.equal(ops.add(a, bias), a + bias)


@pytest.mark.parametrize("size", SIZES)
def test_scale_and_soft_cap(size: int) -> None:
    x = random(20, size) * 20
    assert torch.equal(ops.scale_cap(x, 0.3, 0.0), x * 0.3)
    expected = reference.soft_cap(x * 0.3, 15.0)
    torch.testing.assert_close(ops.scale_cap(x, 0.3, 15.0), expected, rtol=1e-6, atol=1e-6)
    check_rows(lambda rows: ops.scale_cap(rows, 0.3, 15.0), x)


@pytest.mark.parametrize("dtype", ops.FLOAT_TYPES)
@pytest.mark.parametrize("size", SIZES)
def test_embedding_rows_are_exact(size: int, dtype: torch.dtype) -> None:
    table = random(11, size).to(dtype)
    table[0, 0] = 1e-7  # subnormal in float16
    ids = torch.tensor([3, 0, 10, 3])
    rows = reference.embedding(ids, table)
    assert torch.equal(ops.embedding(table, ids), rows)
    onto = random(4, size, seed=1)
    assert torch.equal(ops.embedding(table, ids, 5.5, onto), onto + rows * 5.5)


@pytest.mark.parametrize("size", SIZES)
def test_quantized_rows(size: int) -> None:
    x = random(30, size)
    x[1] = 0.0
    x[2, 0] = 1e-40
    x[3] *= 1e30
    q, shifted, scales, sums, totals = ops.quantize_rows(x).parts
    groups = F.pad(x, (0, -size % 32)).view(30, -1, 32)
    assert torch.equal(scales, groups.abs().amax(-1) / 127)
    inverse = torch.where(scales < 1.2e-38, 0.0, 1 / scales)
    expected = (groups * inverse[..., None]).round().clamp(-127, 127).to(torch.int8)
    assert torch.equal(q.view(30, -1, 32), expected)
    assert torch.equal(shifted.int(), q.int() + 128)
    assert torch.equal(sums, expected.view(30, -1, 16).sum(-1, dtype=torch.int32))
    assert torch.equal(totals, scales * sums.view(30, -1, 2).sum(-1))
    for row in range(0, 30, 7):
        alone = ops.quantize_rows(x[row : row + 1].clone()).parts
        for part, whole in zip(alone, (q, shifted, scales, sums, totals), strict=True):
            assert torch.equal(part[0], whole[row])


@pytest.mark.parametrize("size", [*SIZES, 2048, 4100])
def test_rows_in_14_bits(size: int) -> None:
    x = random(30, size)
    x[1] = 0.0
    x[2, 0] = 1e-40
    x[3] *= 1e30
    rounded = ops.quantize_rows(x)
    _, scales, sums = rounded.wide_parts
    blocks = F.pad(x, (0, -size % 2048)).view(30, -1, 2048)
    assert torch.equal(scales, blocks.abs().amax(-1) / 8191)
    inverse = torch.where(scales < 1.2e-38, 0.0, 1 / scales)
    expected = (blocks * inverse[..., None]).round().clamp(-8191, 8191).int()
    integers = rounded.wide_integers()
    assert torch.equal(integers, expected.view(30, -1)[:, : integers.shape[1]])
    upper = expected >> 7 if ops.lies_in_halves() else expected * 0
    assert torch.equal(sums, upper.sum(-1, dtype=torch.int32))
    for row in range(0, 30, 7):
        alone = ops.quantize_rows(x[row : row + 1].clone())
        for part, whole in zip(alone.wide_parts, rounded.wide_parts, strict=True):
            assert torch.equal(part[0], whole[row])


@pytest.mark.parametrize("wrong", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("size", [1, 33, 576])
def test_a_row_that_is_not_finite_has_scales_that_are_not_numbers(size: int, wrong: float) -> None:
    x = random(3, size)
    for column in {0, size // 2, size - 1}:
        x[1] = 1.0
        x[1, column] = wrong
        rounded = ops.quantize_rows(x)
        scales, totals = rounded.parts[2], rounded.parts[4]
        assert scales[1].isnan().sum() == totals[1].isnan().sum() == 1
        assert scales[1, column // 32].isnan()
        assert rounded.wide_parts[1].isnan().tolist() == [[False], [True], [False]]


def rotated(kv_type: str, begin_rows: list[int]) -> tuple[torch.Tensor, np.ndarray]:
    """Queries, keys and values of 21 rows after `rotary_write`, and the bytes of the cache."""
    num_heads, num_kv_heads, head_dim, num_pairs = 3, 2, 40, 17
    cache = ops.Cache(kv_type, 5, 12, num_kv_heads, head_dim)
    qkv = random(21, (num_heads + 2 * num_kv_heads) * head_dim)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))[:21]
    positions = torch.arange(21) * 3
    angles = positions.max() * random(64, num_pairs, seed=2)
    norms = (random(head_dim, seed=3), random(head_dim, seed=4))
    for begin, end in zip(begin_rows, [*begin_rows[1:], 21], strict=True):
        part = qkv[:end]
        ops.rotary_write(
            cache, part, num_heads, positions, order, angles.cos(), angles.sin(), norms, begin
        )
    assert cache.is_intact()
    return qkv, cache.blocks


@pytest.mark.parametrize("kv_type", ops.KV_TYPES)
def test_rotary_write_gives_the_same_bytes_in_any_chunks(kv_type: str) -> None:
    qkv, blocks = rotated(kv_type, [0])
    for begins in (list(range(21)), [0, 5, 11], [0, 20]):
        other_qkv, other_blocks = rotated(kv_type, begins)
        assert torch.equal(other_qkv, qkv)
        assert np.array_equal(other_blocks, blocks)


def test_rotary_write_equals_the_reference() -> None:
    num_heads, num_kv_heads, head_dim, block_size = 3, 2, 40, 12
    qkv, blocks = rotated("float32", [0])
    given = random(21, num_heads + 2 * num_kv_heads, head_dim)
    positions = torch.arange(21) * 3
    angles = positions.max() * random(64, 17, seed=2)
    query = reference.rms_norm(given[:, :num_heads], random(head_dim, seed=3), 1e-6)
    key = reference.rms_norm(given[:, num_heads:-num_kv_heads], random(head_dim, seed=4), 1e-6)
    query = reference.rotary(query, positions, angles.cos(), angles.sin())
    key = reference.rotary(key, positions, angles.cos(), angles.sin())
    heads = qkv.view(21, -1, head_dim)
    torch.testing.assert_close(heads[:, :num_heads], query, rtol=1e-5, atol=1e-5)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))[:21]
    for row, slot in enumerate(order.tolist()):
        block = blocks[slot // block_size].view(np.float32).reshape(num_kv_heads, -1)
        keys, values = block[:, : block_size * head_dim], block[:, block_size * head_dim :]
        keys = torch.from_numpy(keys.reshape(num_kv_heads, head_dim, block_size))
        values = torch.from_numpy(values[:, : block_size * 48].reshape(num_kv_heads, -1, 48))
        offset = slot % block_size
        torch.testing.assert_close(keys[:, :, offset], key[row], rtol=1e-5, atol=1e-5)
        assert torch.equal(values[:, offset, :head_dim], given[row, -num_kv_heads:])
        assert torch.equal(values[:, offset, head_dim:], torch.zeros(num_kv_heads, 8))


@pytest.mark.parametrize("kv_type", ops.KV_TYPES)
def test_blocks_move_whole_in_all_layers_and_in_the_order_of_the_plan(kv_type: str) -> None:
    layers = [ops.Cache(kv_type, 6, 5, 2, 20) for _ in range(3)]
    generator = np.random.default_rng(0)
    for layer in layers:
        layer.blocks[:] = generator.integers(0, 256, layer.blocks.shape)
    before = [layer.blocks.copy() for layer in layers]
    structs = (KVCacheStruct * 3)(*(layer.struct for layer in layers))
    swap = np.zeros((2, 3, layers[0].struct.block_bytes), np.uint8)
    copy, swap_out, swap_in = MoveKind.COPY, MoveKind.SWAP_OUT, MoveKind.SWAP_IN
    # Block 1 goes out, is overwritten twice, and comes back somewhere else.
    plan = [
        (swap_out, 1, 0), (copy, 2, 1), (copy, 1, 4), (copy, 3, 1), (swap_in, 0, 5), (copy, 0, 0)
    ]  # fmt: skip
    moves = np.array(plan, np.int64)
    library = native.load()
    assert library is not None
    pool = ThreadPool(library, 2)
    layers[0].library.pagemill_move_blocks(
        pool.handle, structs, 3, ops.address(moves), len(moves), ops.address(swap)
    )
    pool.close()
    for i, layer in enumerate(layers):
        assert np.array_equal(layer.blocks, before[i][[0, 3, 2, 3, 2, 1]])
        assert np.array_equal(swap[0, i], before[i][1])
        assert not swap[1].any()
        assert layer.is_intact()
