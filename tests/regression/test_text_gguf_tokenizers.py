"""Tokenizers rebuilt from the metadata of real GGUF files against reference ids.

The ids below were made with Hugging Face transformers 5.24 from the same files, those of the golden
files with the models' outputs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagemill.errors import RequestError
from pagemill.loading.gguf_file import GGUFFile
from pagemill.loading.tokenizer import FileTokenizer

DATA = Path(__file__).parents[1] / "data"

# fmt: off
REFERENCE = {
    "Café": (
        [51, 1939, 2756],
        [160319, 236859],
    ),
    "Cafe\u0301": (
        [51, 9980, 151, 219],
        [130965, 238288],
    ),
    "In 1969, 3.14 of 1,000,000": (
        [788, 216, 33, 41, 38, 41, 28, 216, 35, 30, 33, 36, 282, 216, 33, 28, 32, 32, 32, 28, 32,
         32, 32],
        [902, 236743, 236770, 236819, 236825, 236819, 236764, 236743, 236800, 236761, 236770,
         236812, 529, 236743, 236770, 236764, 236771, 236771, 236771, 236764, 236771, 236771,
         236771],
    ),
    "\t\tindent\n\n\nnew\tline\r\n": (
        [197, 197, 32166, 1116, 198, 2241, 197, 1311, 2738],
        [255969, 32699, 109, 1951, 255968, 1257, 251, 107],
    ),
    "  two   three    four ": (
        [216, 827, 256, 1296, 333, 1876, 216],
        [138, 13498, 139, 19891, 140, 19025, 236743],
    ),
    "สวัสดีครับ ภาษาไทย": (
        [10283, 120, 10283, 117, 10283, 126, 10283, 120, 10283, 238, 10283, 130, 10283, 222, 44701,
         10283, 126, 10283, 244, 216, 10283, 250, 43662, 10283, 119, 43662, 31933, 222, 10283, 241,
         10283, 112],
        [49366, 45451, 162660, 49862],
    ),
    "🙂🙃 👩\u200d👧": (
        [10813, 38887, 10813, 243, 221, 15107, 235, 119, 321, 231, 10813, 235, 117],
        [240731, 244499, 236743, 243767, 237243, 244814],
    ),
    "don't WE'LL": (
        [12420, 982, 26587, 23, 16421],
        [13246, 236789, 236745, 19716, 236789, 2182],
    ),
    "Žluťoučký kůň": (
        [144, 138, 1374, 144, 115, 279, 30033, 91, 47546, 501, 144, 124, 144, 226],
        [239641, 6357, 208991, 237120, 75500, 620, 237872, 238759],
    ),
}
# fmt: on


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> FileTokenizer:
    return FileTokenizer.from_gguf(GGUFFile.open(smollm2_path).metadata)


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> FileTokenizer:
    return FileTokenizer.from_gguf(GGUFFile.open(gemma3_path).metadata)


@pytest.mark.parametrize("text", REFERENCE)
def test_byte_level_ids_equal_the_reference(smollm2: FileTokenizer, text: str) -> None:
    ids, _ = REFERENCE[text]
    assert smollm2.encode(text) == ids
    assert smollm2.decode(ids) == text


@pytest.mark.parametrize("text", REFERENCE)
def test_sentencepiece_ids_equal_the_reference(gemma3: FileTokenizer, text: str) -> None:
    _, ids = REFERENCE[text]
    assert gemma3.encode(text) == [2, *ids]
    assert gemma3.decode(ids) == text


def test_prompts_and_chats_of_the_golden_file_have_its_ids(smollm2: FileTokenizer) -> None:
    entries = json.loads((DATA / "smollm2_float32_greedy.json").read_text(encoding="utf-8"))
    assert any(isinstance(entry["prompt"], list) for entry in entries)
    for entry in entries:
        prompt = entry["prompt"]
        if isinstance(prompt, str):
            assert smollm2.encode(prompt) == entry["prompt_token_ids"]
        else:
            assert smollm2.apply_chat_template(prompt) == entry["text"]
            assert smollm2.encode_chat(prompt) == entry["prompt_token_ids"]
        completion = smollm2.decode(entry["token_ids"], skip_special_tokens=False)
        assert completion == entry["completion"]


def test_prompts_of_the_golden_file_of_a_base_model_have_its_ids(gemma3: FileTokenizer) -> None:
    for entry in json.loads((DATA / "gemma3_float32_greedy.json").read_text(encoding="utf-8")):
        assert gemma3.encode(entry["prompt"]) == entry["prompt_token_ids"]
        assert gemma3.decode(entry["token_ids"]) == entry["completion"]
    with pytest.raises(RequestError, match="base model without a chat template"):
        gemma3.encode_chat([{"role": "user", "content": "Hi"}])


def test_a_run_of_spaces_is_as_few_tokens_as_sentencepiece_makes_it(gemma3: FileTokenizer) -> None:
    """The longest user-defined run first; joining by scores would stop at 16 spaces."""
    ids = gemma3.encode(" " * 40 + "x", add_special_tokens=False)
    assert [gemma3.token_bytes(i) for i in ids] == [b" " * 31, b" " * 9, b"x"]


def test_what_ends_a_text_is_read_from_the_file(
    smollm2: FileTokenizer, gemma3: FileTokenizer
) -> None:
    assert (smollm2.vocab_size, gemma3.vocab_size) == (49152, 262144)
    assert (smollm2.eos_token, gemma3.eos_token) == ("<|im_end|>", "<eos>")
    assert smollm2.eos_token_ids == {2}
    assert gemma3.eos_token_ids == {1}
    assert (gemma3.bos_token, gemma3.bos_token_id) == ("<bos>", 2)


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_every_token_adds_the_bytes_that_the_library_decodes(
    name: str, request: pytest.FixtureRequest
) -> None:
    """For tokens that are whole characters, the library's own decoder is the reference."""
    tokenizer: FileTokenizer = request.getfixturevalue(name)
    library = tokenizer._tokenizer
    for token_id in range(0, tokenizer.vocab_size, 7):
        decoded = library.decode([token_id], skip_special_tokens=False)
        expected = tokenizer.token_bytes(token_id).decode("utf-8", "replace")
        assert decoded == expected, library.id_to_token(token_id)
