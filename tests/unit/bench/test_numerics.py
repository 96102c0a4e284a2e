"""``pagemill bench numerics``: divergences are those of the distributions, and faults show."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from pagemill.bench.numerics.command import TEXT, NumericsCommand
from pagemill.bench.numerics.divergence import Divergence, compare, windows_of
from pagemill.bench.numerics.formats import DEFAULT_FORMATS, REFERENCE, Format, formats_named
from pagemill.bench.numerics.logprobs import PromptLogprobs
from pagemill.cli.app import run
from pagemill.errors import ConfigError
from pagemill.loading.loader import load_tokenizer
from tests.parity.paged import random_tokens, their_logits
from tests.parity.tiny_models import llama
from tests.unit.native.packing_helpers import needs_library

WINDOW = 100  # more than a step of 64 rows
WINDOWS = list(windows_of(random_tokens(150), WINDOW))


@contextmanager
def opened(model: str | Path, form: Format = REFERENCE, window: int = WINDOW) -> Iterator[Any]:
    logprobs = PromptLogprobs(str(model), form, window, num_threads=2)
    try:
        yield logprobs
    finally:
        logprobs.close()


def compared(model: str | Path, form: Format, other: str | Path | None = None) -> Divergence:
    with opened(model) as reference, opened(other or model, form) as candidate:
        return compare(reference, candidate, WINDOWS)


@pytest.fixture(scope="module")
def tiny() -> PreTrainedModel:
    # Groups of 32 columns: wide enough that int8 and int4 have something to round.
    return llama(hidden_size=96, intermediate_size=128, head_dim=16)


@pytest.fixture(scope="module")
def tiny_path(tiny: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny.save_pretrained(path)
    return path


def log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: np.ndarray[Any, Any] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


@needs_library
def test_float32_does_not_diverge_from_itself_in_a_single_bit(tiny_path: Path) -> None:
    divergence = compared(tiny_path, REFERENCE)
    assert divergence.num_tokens == 99 + 49
    assert (divergence.mean_kl, divergence.p99_kl, divergence.agreement) == (0.0, 0.0, 1.0)


@needs_library
def test_log_probabilities_and_perplexity_are_those_of_transformers(
    tiny: PreTrainedModel, tiny_path: Path
) -> None:
    total, count = 0.0, 0
    with opened(tiny_path) as ours:
        for window in WINDOWS:
            theirs = log_softmax(their_logits(tiny, window).double().numpy())
            rows = torch.cat(list(ours.of(window))).numpy()
            np.testing.assert_allclose(rows, theirs[:-1], atol=2e-4)
            total -= theirs[np.arange(len(window) - 1), window[1:]].sum()
            count += len(window) - 1
    divergence = compared(tiny_path, REFERENCE)
    assert divergence.perplexity == pytest.approx(math.exp(total / count), rel=1e-5)


@needs_library
def test_the_divergence_is_the_sum_over_the_vocabulary(tiny_path: Path) -> None:
    with opened(tiny_path) as one, opened(tiny_path, Format("int4")) as two:
        kl, same = [], []
        for window in WINDOWS:
            p, q = (torch.cat(list(x.of(window))).numpy() for x in (one, two))
            for i in range(len(p)):
                kl.append(sum(math.exp(a) * (a - b) for a, b in zip(p[i], q[i], strict=True)))
                same.append(p[i].argmax() == q[i].argmax())
    divergence = compared(tiny_path, Format("int4"))
    assert divergence.mean_kl == pytest.approx(sum(kl) / len(kl), rel=1e-9)
    assert divergence.p99_kl == pytest.approx(np.percentile(kl, 99), rel=1e-9)
    assert divergence.agreement == sum(same) / len(same)


@needs_library
def test_fewer_bits_diverge_more(tiny_path: Path) -> None:
    by_name = {
        name: compared(tiny_path, Format.named(name)).mean_kl
        for name in ("float16", "bfloat16", "int8", "int4", "float32+kv-bfloat16")
    }
    assert 0 < by_name["float16"] < by_name["bfloat16"] < by_name["int8"] < by_name["int4"]
    assert 0 < by_name["float32+kv-bfloat16"] < by_name["int8"]


@needs_library
def test_a_fault_in_the_weights_shows(tiny_path: Path, tmp_path: Path) -> None:
    faulty = llama(hidden_size=96, intermediate_size=128, head_dim=16)
    with torch.no_grad():
        faulty.model.layers[1].mlp.down_proj.weight[5] = 0
    faulty.save_pretrained(tmp_path)
    found = compared(tiny_path, REFERENCE, tmp_path)
    assert found.mean_kl > 10 * compared(tiny_path, Format("bfloat16")).mean_kl
    assert found.agreement < 1


@needs_library
def test_windows_longer_than_the_models_context_are_refused(tiny_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="max_model_len must be at most 128 for this model, got 129"
    ):
        PromptLogprobs(str(tiny_path), REFERENCE, 129)


@needs_library
def test_a_real_models_formats_stay_within_their_bounds(smollm2_path: Path) -> None:
    token_ids = load_tokenizer(str(smollm2_path)).encode(TEXT.read_text()[6000:6300])
    windows = list(windows_of(token_ids, 128))
    most = {"stored": 0.01, "bfloat16": 0.002, "int8": 0.02, "float32+kv-int8": 0.002}
    with opened(smollm2_path, window=128) as reference:
        for name, bound in most.items():
            with opened(smollm2_path, Format.named(name), 128) as candidate:
                divergence = compare(reference, candidate, windows)
            assert 0 < divergence.mean_kl < bound, name
            assert divergence.agreement > 0.9, name


def test_windows_begin_with_what_the_model_expects_and_lose_no_token() -> None:
    assert list(windows_of(range(7), 3)) == [[0, 1, 2], [3, 4, 5]]  # 6 alone predicts nothing
    assert list(windows_of(range(5), 4, [9])) == [[9, 0, 1, 2], [9, 3, 4]]
    assert list(windows_of([], 4, [9])) == []


def test_the_text_has_a_few_thousand_tokens_and_no_letter_that_needs_more_than_ascii() -> None:
    text = TEXT.read_text(encoding="utf-8")
    assert 2500 < len(text.split()) * 1.3 < 4000
    assert text.isascii()


def test_formats_have_names() -> None:
    assert Format.named("stored+kv-int8") == Format("stored", "int8")
    for form in DEFAULT_FORMATS:
        assert Format.named(str(form)) == form
    assert formats_named("int8, float32") == (Format("int8"), Format("float32"))
    for wrong in ("q4", "int8+kv-int4", "", "+kv-int8", "int8+kv-"):
        with pytest.raises(ConfigError, match=r"--formats: .* is none; a format is one of float32"):
            formats_named(wrong)


def test_windows_too_short_to_say_anything_are_refused() -> None:
    with pytest.raises(ConfigError, match="--window must be at least 16, got 15"):
        NumericsCommand(num_threads=1, window_tokens=15)


@needs_library
def test_a_measurement_becomes_json_and_a_table_in_a_document(
    smollm2_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, result, document = tmp_path / "t.txt", tmp_path / "r.json", tmp_path / "d.md"
    text.write_text("The water mill stands where the valley narrows. Its wheel turns.")
    name = f"numerics {smollm2_path.name}"
    document.write_text(f"Before\n<!-- generated: {name} -->\nold\n<!-- end: {name} -->\nafter\n")
    options = ["--formats", "float32,stored", "--window", "16", "--threads", "2"]
    where = ["--text", str(text), "--json", str(result), "--docs", str(document)]
    assert run(["bench", "numerics", str(smollm2_path), *options, *where]) == 0
    assert "against float32" in capsys.readouterr().out
    found = json.loads(result.read_text())
    assert [row["weights"] for row in found["formats"]] == ["float32", "stored"]
    assert found["formats"][0]["mean_kl"] == 0
    assert found["text"]["name"] == "t.txt"
    assert found["environment"]["num_threads"] == 2
    written = document.read_text()
    assert "| float32 | float32 | " in written
    assert "| 0.000000 | 0.00000 | 100.00% |" in written

    document.write_text(written.replace("| stored |", "| changed |"))
    again = ["--from-json", str(result), "--docs", str(document)]
    assert run(["bench", "numerics", *again]) == 0
    assert document.read_text() == written
    capsys.readouterr()
    assert run(["bench", "numerics", "smollm2-135m", *again]) != 0
    assert "--from-json measures nothing; drop MODEL" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_text_that_cannot_be_read_is_named(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.txt"
    if content is not None:
        path.write_bytes(content)
    assert run(["bench", "numerics", "--text", str(path)]) != 0
    assert f"--text={path}: cannot be read as text" in capsys.readouterr().err
