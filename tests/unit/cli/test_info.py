from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagemill.cli import model_report
from pagemill.cli.app import run
from pagemill.cli.info_table import show_bytes
from pagemill.cli.model_report import describe_model
from pagemill.config import EngineConfig
from pagemill.errors import ModelNotFoundError
from pagemill.kernels import native


def info(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["info", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_model_that_is_not_there_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = info(capsys, "/no/such/model.gguf")
    assert (code, out) == (1, "")
    assert err.startswith("pagemill: error: ")
    assert "/no/such/model.gguf" in err


def test_a_model_named_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = info(capsys, "one", "-m", "two")
    assert code == 2
    assert "named twice" in err


def test_without_any_model_it_still_tells_about_the_machine_and_the_aliases(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(model: str, tokenizer: str | None) -> None:
        raise ModelNotFoundError("the package index cannot be reached")

    monkeypatch.setattr(model_report, "load_model", unreachable)
    code, out, _ = info(capsys)
    assert code == 0
    for shown in ("smollm2-135m", "gemma3-270m", "cannot be reached", "kernels"):
        assert shown in out
    report = json.loads(info(capsys, "--json")[1])
    assert report["model"]["not_available"] == "the package index cannot be reached"
    assert "kv_pool" not in report


def test_sizes_are_shown_in_the_largest_unit_that_leaves_one() -> None:
    sizes = (0, 1023, 1024, 1536 * 1024, 5 * 2**40)
    assert [show_bytes(size) for size in sizes] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 MiB",
        "5.0 TiB",
    ]


def test_a_real_model_is_described_from_its_header(
    capsys: pytest.CaptureFixture[str], smollm2_path: Path
) -> None:
    code, out, err = info(capsys, str(smollm2_path), "--num-kv-blocks", "100", "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    model, weights, pool = report["model"], report["weights"], report["kv_pool"]
    assert (model["architecture"], model["num_layers"]) == ("llama", 30)
    assert (model["num_heads"], model["num_kv_heads"], model["head_dim"]) == (9, 3, 64)
    assert (model["vocab_size"], model["max_model_len"]) == (49152, 8192)
    assert model["num_parameters"] == 134_515_008
    assert model["has_chat_template"]
    assert weights["stored_as"] == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    if native.load() is None:
        assert (weights["dtype"], weights["memory_bytes"]) == ("float32", 134_515_008 * 4)
    else:
        assert weights["dtype"] == "as stored"
        assert 0.95 < weights["memory_bytes"] / weights["stored_bytes"] < 1.0
    _, out, _ = info(capsys, str(smollm2_path), "--dtype", "bfloat16", "--json")
    assert json.loads(out)["weights"]["memory_bytes"] == 134_515_008 * 2
    assert pool["bytes_per_token"] == 2 * 30 * 3 * 64 * 4
    assert pool["block_bytes"] == 16 * pool["bytes_per_token"]
    assert (pool["num_blocks"], pool["num_tokens"]) == (100, 1600)
    assert pool["decided_by"] == "num_kv_blocks"
    assert "kernels" in report["environment"]["kernels"]


def test_a_real_model_is_described_for_people(
    capsys: pytest.CaptureFixture[str], smollm2_path: Path
) -> None:
    code, out, _ = info(capsys, "-m", str(smollm2_path))
    assert code == 0
    for shown in ("134.5M parameters", "Q4_1 x210, F32 x61, Q8_0 x1", "8,192 tokens", "45.0 KiB"):
        assert shown in out
    assert out.count("threads") == 1


def test_options_change_what_is_planned(smollm2_path: Path) -> None:
    config = EngineConfig(
        model=str(smollm2_path),
        rope_scaling={"rope_type": "ntk", "factor": 4.0},
        kv_cache_memory="1GiB",
        block_size=32,
        dtype="bfloat16",
    )
    report = describe_model(config)
    assert report["model"]["max_model_len"] == 4 * 8192
    assert report["model"]["rope"]["rope_type"] == "ntk"
    assert report["weights"]["memory_bytes"] == 134_515_008 * 2
    assert report["kv_pool"]["num_blocks"] == 2**30 // (32 * 46080)
    assert report["kv_pool"]["decided_by"] == "kv_cache_memory"


def test_a_base_model_is_said_not_to_chat(
    capsys: pytest.CaptureFixture[str], gemma3_path: Path
) -> None:
    code, out, _ = info(capsys, str(gemma3_path))
    assert code == 0
    assert "no chat template" in out
    assert "some layers see the last 512 only" in out
