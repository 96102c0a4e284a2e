"""Characters whose bytes lie in two tokens are streamed whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagemill.loading.gguf_file import GGUFFile
from pagemill.loading.tokenizer import FileTokenizer
from pagemill.text.detokenizer import IncrementalDetokenizer
from tests.unit.loading_text.tiny_vocabularies import byte_level_metadata, sentencepiece_metadata

TEXTS = ["🙂🙃👩\u200d👧", "人工智能是", "Žluťoučký kůň", "สวัสดี", "\ufffd is a character"]


def pieces_of(tokenizer: FileTokenizer, ids: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(
        tokenizer, skip_special_tokens=True, stop=None, include_stop_str_in_output=False
    )
    pieces: list[str] = []
    for index, token_id in enumerate(ids):
        detokenizer.append(token_id, is_final=index == len(ids) - 1)
        pieces.append(detokenizer.text_since(sum(map(len, pieces))))
    return pieces


@pytest.fixture(
    scope="module",
    params=[
        byte_level_metadata(),
        sentencepiece_metadata(add_bos_token=False, add_space_prefix=False),
    ],
    ids=["byte-level", "byte fallback"],
)
def tokenizer(request: pytest.FixtureRequest) -> FileTokenizer:
    return FileTokenizer.from_gguf(request.param)


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_pieces_joined_are_the_text_and_each_is_whole(
    tokenizer: FileTokenizer, text: str
) -> None:
    ids = tokenizer.encode(text)
    assert len(ids) > len(text), "characters are split over tokens"
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == text == tokenizer.decode(ids)
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


@pytest.mark.parametrize("num_missing", [1, 2, 3])
def test_an_output_that_ends_inside_a_character_ends_in_one_replacement_character(
    tokenizer: FileTokenizer, num_missing: int
) -> None:
    ids = tokenizer.encode("a🙂")[:-num_missing]
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == "a\ufffd" == tokenizer.decode(ids)
    assert pieces[:-1] == ["a"] + [""] * (len(ids) - 2), "not before the output is over"


def test_the_real_models_pieces_joined_are_its_golden_texts(smollm2_path: Path) -> None:
    tokenizer = FileTokenizer.from_gguf(GGUFFile.open(smollm2_path).metadata)
    golden = Path(__file__).parents[1] / "data" / "smollm2_float32_greedy.json"
    for entry in json.loads(golden.read_text(encoding="utf-8")):
        ids = entry["token_ids"]
        end = "<|im_end|>" if ids[-1] in tokenizer.eos_token_ids else ""
        pieces = pieces_of(tokenizer, ids)
        assert "".join(pieces) + end == entry["completion"]
        assert "\ufffd" not in "".join(pieces)
