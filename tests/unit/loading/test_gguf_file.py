from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from pagemill.errors import InvalidFileError, ModelNotFoundError, UnsupportedModelError
from pagemill.loading import gguf_file
from pagemill.loading.gguf_file import SUPPORTED_TENSOR_TYPES, GGUFFile, TensorInfo
from tests.unit.loading.gguf_builder import (
    ARRAY,
    BOOL,
    F32,
    F64,
    STRING,
    U8,
    U32,
    U64,
    GGUFBuilder,
    array,
    value,
)


def small_file() -> GGUFBuilder:
    builder = GGUFBuilder().set(general__architecture="llama", llama__block_count=2)
    builder.set(tokenizer__ggml__tokens=["<s>", "Ġa", "語"], tokenizer__ggml__scores=[0.5, -1.0])
    builder.tensor("a.weight", np.arange(64, dtype=np.float32).reshape(2, 32))
    return builder.tensor("b.weight", np.ones((3, 32), np.float32), Type.Q8_0)


def refused(builder: GGUFBuilder, tmp_path: Path, error: type[Exception] = InvalidFileError) -> str:
    """The message of the refusal; the file's name must be in it."""
    path = builder.write(tmp_path / "broken.gguf")
    with pytest.raises(error) as caught:
        GGUFFile.open(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_and_tensors_read_back_as_written(tmp_path: Path, version: int) -> None:
    builder = small_file()
    builder.version = version
    builder.metadata += [
        ("v.u8", value(U8, 200)),
        ("v.u64", value(U64, 2**64 - 1)),
        ("v.f64", value(F64, 0.1)),
        ("v.yes", value(BOOL, 1)),
        ("v.flags", array(BOOL, [1, 0])),
        ("v.empty", array(STRING, [])),
    ]
    file = GGUFFile.open(builder.write(tmp_path / "ok.gguf"))
    assert file.metadata == {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "tokenizer.ggml.tokens": ["<s>", "Ġa", "語"],
        "tokenizer.ggml.scores": [0.5, -1.0],
        "v.u8": 200,
        "v.u64": 2**64 - 1,
        "v.f64": 0.1,
        "v.yes": True,
        "v.flags": [True, False],
        "v.empty": [],
    }
    assert type(file.metadata["v.yes"]) is bool
    a, b = file.tensors["a.weight"], file.tensors["b.weight"]
    assert a == TensorInfo("a.weight", (2, 32), Type.F32, a.offset, 2 * 32 * 4)
    assert b == TensorInfo("b.weight", (3, 32), Type.Q8_0, b.offset, 3 * 34)
    np.testing.assert_array_equal(file.dequantize("a.weight"), np.arange(64).reshape(2, 32))


def test_a_file_of_the_gguf_librarys_own_writer_reads_the_same_as_with_its_reader(
    tmp_path: Path,
) -> None:
    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_custom_alignment(64)
    writer.add_token_list(["a", "bc"])
    writer.add_float32("llama.rope.freq_base", 1e5)
    values = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    writer.add_tensor("w.weight", gguf.quants.quantize(values, Type.Q8_0), raw_dtype=Type.Q8_0)
    writer.add_tensor("n.weight", values[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    ours, theirs = GGUFFile.open(path), gguf.GGUFReader(path)
    for key in ours.metadata:
        assert ours.metadata[key] == theirs.fields[key].contents()
    assert [t.name for t in theirs.tensors] == list(ours.tensors)
    for tensor in theirs.tensors:
        assert ours.tensors[tensor.name].shape == tuple(int(d) for d in reversed(tensor.shape))
        assert ours.raw(tensor.name).tobytes() == tensor.data.tobytes()


@pytest.mark.parametrize("tensor_type", SUPPORTED_TENSOR_TYPES, ids=lambda t: t.name)
def test_each_type_dequantizes_to_what_the_gguf_library_gives_row_by_row(
    tmp_path: Path, tensor_type: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[tensor_type]
    rng = np.random.default_rng(int(tensor_type))
    shape = (5, 3, 2 * block_values)
    num_blocks = 5 * 3 * 2
    if tensor_type in (Type.Q4_K, Type.Q5_K, Type.Q6_K):  # the library cannot quantize to these
        blocks = rng.integers(0, 256, (num_blocks, block_bytes), dtype=np.uint8)
        blocks.view(np.float16).reshape(num_blocks, -1)[:, [0, 1, -1]] = 0.5  # finite scales
    else:
        values = rng.standard_normal(shape).astype(np.float32)
        blocks = np.ascontiguousarray(gguf.quants.quantize(values, tensor_type)).view(np.uint8)
    expected = gguf.quants.dequantize(blocks.reshape(15, 2 * block_bytes), tensor_type)
    builder = GGUFBuilder().tensor("w", rng.standard_normal((1, 32)).astype(np.float32))
    builder.tensor("w2", np.zeros(shape, np.float32))
    builder.tensors[1].type = int(tensor_type)
    builder.tensors[1].data = blocks.tobytes()
    file = GGUFFile.open(builder.write(tmp_path / "t.gguf"))
    # Chunks that do not divide the tensor evenly must not show.
    monkeypatch.setattr(gguf_file, "_DEQUANTIZE_CHUNK", 7 * block_values)

    got = file.dequantize("w2")

    assert got.dtype == np.float32
    assert got.shape == shape
    assert np.abs(got).max() > 0.1
    np.testing.assert_array_equal(got.reshape(expected.shape), expected)
    assert file.raw("w2").tobytes() == blocks.tobytes()


def test_raw_bytes_are_a_read_only_view_that_outlives_the_file_object(tmp_path: Path) -> None:
    raw = GGUFFile.open(small_file().write(tmp_path / "ok.gguf")).raw("b.weight")
    assert not raw.flags.writeable
    assert raw.size == 3 * 34


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"nowhere\.gguf: no such file"):
        GGUFFile.open(tmp_path / "nowhere.gguf")


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="cannot be read"):
        GGUFFile.open(tmp_path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(InvalidFileError, match="empty"):
        GGUFFile.open(tmp_path / "empty.gguf")


def test_another_format_is_refused_with_its_first_bytes(tmp_path: Path) -> None:
    assert r"b'PK\x03\x04'" in refused(GGUFBuilder(magic=b"PK\x03\x04"), tmp_path)


def test_an_old_version_is_refused_with_its_number(tmp_path: Path) -> None:
    assert "version 1 " in refused(GGUFBuilder(version=1), tmp_path, UnsupportedModelError)


def test_a_big_endian_file_is_refused_as_such(tmp_path: Path) -> None:
    message = refused(GGUFBuilder(version=0x03000000), tmp_path, UnsupportedModelError)
    assert "big-endian" in message


def test_one_part_of_a_split_model_is_refused_with_the_way_out(tmp_path: Path) -> None:
    builder = small_file().set(split__no=1, split__count=3)
    message = refused(builder, tmp_path, UnsupportedModelError)
    assert "3 files" in message
    assert "--merge" in message


def test_a_split_count_of_one_is_a_whole_model(tmp_path: Path) -> None:
    builder = small_file().set(split__no=0, split__count=1)
    assert len(GGUFFile.open(builder.write(tmp_path / "one.gguf")).tensors) == 2


@pytest.mark.parametrize("count", [2**20 + 1, 2**63, 2**64 - 1])
def test_an_insane_tensor_count_is_refused_with_the_limit(tmp_path: Path, count: int) -> None:
    builder = small_file()
    builder.tensor_count = count
    assert f"tensor count is {count}, above the limit of {2**20}" in refused(builder, tmp_path)


def test_a_tensor_count_beyond_the_files_size_is_refused(tmp_path: Path) -> None:
    builder = small_file()
    builder.tensor_count = 5000
    assert "tensor count is 5000" in refused(builder, tmp_path)


@pytest.mark.parametrize("count", [65537, 2**64 - 1])
def test_an_insane_metadata_count_is_refused_with_the_limit(tmp_path: Path, count: int) -> None:
    builder = small_file()
    builder.metadata_count = count
    assert f"metadata count is {count}, above the limit of 65536" in refused(builder, tmp_path)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**40])
def test_a_huge_array_length_is_refused_without_allocating(tmp_path: Path, length: int) -> None:
    for element_type in (STRING, U32, U8):
        builder = small_file()
        builder.metadata.append(("x.list", array(element_type, [], length)))
        message = refused(builder, tmp_path)
        assert f"array length of metadata 'x.list' is {length}" in message


def test_an_array_longer_than_the_rest_of_the_file_is_refused(tmp_path: Path) -> None:
    builder = small_file()
    builder.metadata.append(("x.list", array(F64, [1.0], 100)))
    assert "needs at least 800 bytes" in refused(builder, tmp_path)


def test_a_string_array_that_runs_out_of_the_file_is_refused_with_the_index(
    tmp_path: Path,
) -> None:
    bad = array(STRING, ["ok", "fine"], 3) + (2**63).to_bytes(8, "little")
    builder = GGUFBuilder().update({"x.list": bad})
    assert "metadata 'x.list'[2] of 3 runs past the end" in refused(builder, tmp_path)


def test_a_string_array_cut_inside_a_length_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(
        GGUFBuilder(alignment=1).update({"x.list": ["abcdefgh"] * 9}).build()[: -16 + 4]
    )
    with pytest.raises(InvalidFileError, match=r"'x.list'\[8\] of 9 runs past the end"):
        GGUFFile.open(path)


def test_arrays_of_arrays_are_refused(tmp_path: Path) -> None:
    builder = GGUFBuilder().update({"x.list": array(ARRAY, [], 0) + bytes(64)})
    assert "array of arrays" in refused(builder, tmp_path, UnsupportedModelError)


@pytest.mark.parametrize("raw", [b"\x0d\0\0\0", b"\xff\xff\xff\xff"])
def test_an_unknown_value_type_is_refused(tmp_path: Path, raw: bytes) -> None:
    builder = GGUFBuilder().update({"x.y": raw + bytes(8)})
    assert "value type of metadata 'x.y'" in refused(builder, tmp_path)


def test_an_unknown_element_type_is_refused(tmp_path: Path) -> None:
    builder = GGUFBuilder().update({"x.y": b"\x09\0\0\0\x0d\0\0\0" + bytes(16)})
    assert "element type of metadata 'x.y' is 13" in refused(builder, tmp_path)


def test_a_boolean_of_two_is_refused(tmp_path: Path) -> None:
    builder = GGUFBuilder().update({"x.y": value(BOOL, 2)})
    assert "boolean stored as 2" in refused(builder, tmp_path)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    one = GGUFBuilder().update({"x.y": b"\x08\0\0\0" + (2).to_bytes(8, "little") + b"\xff\xfe"})
    assert "not UTF-8" in refused(one, tmp_path)
    many = GGUFBuilder().update({"x.y": array(STRING, ["fine", b"\xff"])})
    assert "metadata 'x.y'[1] is not UTF-8" in refused(many, tmp_path)


def test_a_duplicate_metadata_key_is_refused(tmp_path: Path) -> None:
    builder = small_file().set(llama__block_count=3)
    assert "metadata key 'llama.block_count' appears twice" in refused(builder, tmp_path)


@pytest.mark.parametrize("num_dims", [0, 5, 2**20])
def test_tensor_dimensions_are_one_to_four(tmp_path: Path, num_dims: int) -> None:
    builder = GGUFBuilder().tensor("w.weight", np.ones(4, np.float32))
    raw = bytearray(builder.build())
    at = raw.index(b"w.weight") + 8
    raw[at : at + 4] = num_dims.to_bytes(4, "little")
    path = tmp_path / "dims.gguf"
    path.write_bytes(raw)
    with pytest.raises(InvalidFileError, match=rf"'w.weight' has {num_dims} dimensions"):
        GGUFFile.open(path)


def test_a_dimension_of_zero_is_refused(tmp_path: Path) -> None:
    builder = small_file()
    builder.tensors[0].dims = [32, 0]
    assert "dimension of 0: [32, 0]" in refused(builder, tmp_path)


def test_dimensions_whose_product_overflows_64_bits_are_refused(tmp_path: Path) -> None:
    builder = small_file()
    builder.tensors[0].dims = [2**32, 2**32]  # 0 elements in 64-bit arithmetic
    message = refused(builder, tmp_path)
    assert "[4294967296, 4294967296]" in message
    assert "the file ends at" in message


def test_a_row_that_does_not_fill_its_blocks_is_refused(tmp_path: Path) -> None:
    builder = small_file()
    builder.tensors[1].dims = [33, 2]
    message = refused(builder, tmp_path)
    assert "'b.weight' of type Q8_0 has rows of 33 values" in message
    assert "block of 32" in message


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    builder = small_file()
    builder.tensors[1].offset = 32
    message = refused(builder, tmp_path)
    assert "'b.weight'" in message
    assert "overlaps tensor 'a.weight'" in message


def test_an_offset_off_the_alignment_is_refused(tmp_path: Path) -> None:
    builder = small_file()
    builder.tensors[1].offset = 256 + 8
    assert "offset 264, not a multiple of the alignment 32" in refused(builder, tmp_path)


def test_the_declared_alignment_places_the_data(tmp_path: Path) -> None:
    builder = small_file().set(general__alignment=128)
    builder.alignment = 128
    file = GGUFFile.open(builder.write(tmp_path / "aligned.gguf"))
    assert file.tensors["a.weight"].offset % 128 == 0
    assert file.dequantize("a.weight")[1, 31] == 63


@pytest.mark.parametrize("alignment", [0, 4, 48, 2**31, "32", True])
def test_an_alignment_that_cannot_be_is_refused(tmp_path: Path, alignment: Any) -> None:
    builder = small_file().set(general__alignment=alignment)
    assert f"general.alignment is {alignment!r}" in refused(builder, tmp_path)


def test_a_tensor_name_over_64_bytes_is_refused(tmp_path: Path) -> None:
    builder = small_file()
    builder.tensors[0].name = "x" * 65
    assert "length of name of tensor 0 is 65, above the limit of 64" in refused(builder, tmp_path)


def test_a_vocabulary_of_260000_tokens_opens_in_well_under_a_second(tmp_path: Path) -> None:
    tokens = [f"token-{i}" for i in range(262_144)]
    builder = GGUFBuilder().set(tokenizer__ggml__tokens=tokens)
    builder.metadata.append(("tokenizer.ggml.scores", array(F32, [0.0] * len(tokens))))
    path = builder.write(tmp_path / "vocabulary.gguf")
    start = time.process_time()
    file = GGUFFile.open(path)
    assert time.process_time() - start < 1.0
    assert file.metadata["tokenizer.ggml.tokens"] == tokens
