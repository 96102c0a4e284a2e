"""What a file's tensors take in memory, once a model has been made of them."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file

from pagemill.errors import InvalidFileError
from pagemill.loading.gguf_file import GGUFFile
from pagemill.loading.gguf_weights import GGUFWeights
from pagemill.loading.safetensors_weights import SINGLE_FILE, SafetensorsWeights
from pagemill.loading.weights import Weights
from tests.unit.loading.gguf_builder import GGUFBuilder
from tests.unit.native.packing_helpers import needs_library

MIB = 1 << 20
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")


def mapped_bytes(path: Path) -> int:
    """How much of a mapped file is in this process's memory."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word = line.split(maxsplit=1)[0]
        if not word.endswith(":"):
            inside = line.endswith(str(path))
        elif inside and word == "Rss:":
            total += int(line.split()[1]) * 1024
    return total


def gguf_of_8_mib(path: Path) -> Path:
    builder = GGUFBuilder().update(
        {
            "general.architecture": "llama",
            "llama.attention.head_count": 2,
            "llama.attention.head_count_kv": 2,
        }
    )
    values = np.random.default_rng(0).standard_normal((4096, 1024)).astype(np.float32)
    builder.tensor("blk.0.ffn_up.weight", values, Type.Q8_0)
    builder.tensor("blk.0.ffn_gate.weight", values[:1024], Type.F32)
    return builder.write(path)


@needs_linux
def test_a_gguf_files_pages_leave_memory_when_its_tensors_have_been_read(tmp_path: Path) -> None:
    path = gguf_of_8_mib(tmp_path / "m.gguf")
    file = GGUFFile.open(path)
    source = GGUFWeights(file)
    up, gate = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"
    for name in (up, gate):
        file.raw(source.gguf_name(name)).max()
    assert mapped_bytes(path) > 8 * MIB
    weights = Weights(source, torch.float32)
    first = weights.take(up, (4096, 1024))
    weights.take(gate, (1024, 1024))
    assert mapped_bytes(path) < MIB
    assert torch.equal(weights.take(up, (4096, 1024)), first)  # it may be read again


@needs_linux
@needs_library
def test_packing_a_gguf_files_blocks_leaves_none_of_its_pages(tmp_path: Path) -> None:
    path = gguf_of_8_mib(tmp_path / "m.gguf")
    weights = Weights(GGUFWeights(GGUFFile.open(path)), torch.float32)
    names = ["model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"]
    linear = weights.take_linear(names, 1024, [1024, 4096])
    assert linear.format == "F32+Q8_0"
    assert mapped_bytes(path) < MIB


@needs_linux
def test_a_safetensors_file_is_not_mapped_while_its_tensors_live(tmp_path: Path) -> None:
    save_file({"a": torch.randn(1024, 1024), "b": torch.randn(1024, 1024)}, tmp_path / SINGLE_FILE)
    source = SafetensorsWeights(tmp_path, "llama")
    tensors = [source.load(name) for name in source.names()]
    assert len(tensors) == 2
    assert mapped_bytes(tmp_path / SINGLE_FILE) == 0


def test_a_safetensors_file_cut_short_after_it_was_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / SINGLE_FILE
    save_file({"a": torch.randn(64, 64)}, path)
    source = SafetensorsWeights(tmp_path, "llama")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidFileError, match=r"tensor 'a' .*become shorter") as error:
        source.load(next(iter(source.names())))
    assert str(path) in str(error.value)


GAPS = """
import sys
import numpy as np
from pathlib import Path
from pagemill.loading.memory import give_back_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

blocks = [np.ones(1 << 14) for _ in range(800)]  # of 128 KiB: too small for mappings of their own
kept = blocks[::2]
del blocks
before = resident()
give_back_freed_memory()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others keep no memory to give back")
def test_memory_freed_between_what_stays_goes_back_to_the_system() -> None:
    result = subprocess.run(
        [sys.executable, "-c", GAPS], capture_output=True, text=True, check=True
    )
    assert int(result.stdout) > 20 * MIB
