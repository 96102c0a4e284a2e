from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from pagemill.errors import (
    InvalidFileError,
    InvalidParameterError,
    RequestError,
    UnsupportedModelError,
)
from pagemill.loading.tokenizer import FileTokenizer
from pagemill.text.tokenizer_protocol import Tokenizer as TokenizerProtocol

from .tiny_vocabularies import CHATML, byte_level_metadata, sentencepiece_metadata


def tokenizer_json(**options: Any) -> str:
    """The text of a ``tokenizer.json``: <|im_start|> is 256, <|im_end|> 257."""
    text: str = FileTokenizer.from_gguf(byte_level_metadata(**options))._tokenizer.to_str()
    return text


def directory(path: Path, files: dict[str, Any], **options: Any) -> Path:
    """Write a model directory; values that are not texts are written as JSON."""
    for name, content in ({"tokenizer.json": tokenizer_json(**options)} | files).items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / name).write_text(text, encoding="utf-8")
    return path


def test_it_is_a_tokenizer_for_the_engine() -> None:
    tokenizer: TokenizerProtocol = FileTokenizer.from_gguf(byte_level_metadata())
    assert tokenizer.vocab_size == 258
    assert tokenizer.bos_token_id is None
    assert tokenizer.eos_token_ids == frozenset()


def test_a_directory_says_what_its_tokens_are_for(tmp_path: Path) -> None:
    files = {
        "tokenizer_config.json": {
            "bos_token": {"content": "<|im_start|>", "lstrip": False},
            "eos_token": "<|im_end|>",
            "chat_template": "config {{ bos_token }}",
        },
        "generation_config.json": {"eos_token_id": [257, 65]},
        "config.json": {"eos_token_id": 66},
    }
    tokenizer = FileTokenizer.from_directory(directory(tmp_path, files))
    assert (tokenizer.bos_token, tokenizer.bos_token_id) == ("<|im_start|>", 256)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.eos_token_ids == {257, 65}
    assert tokenizer.encode("ab") == [97, 98], "tokenizer.json adds no beginning of sequence"
    assert tokenizer.apply_chat_template([{"role": "u", "content": ""}]) == "config <|im_start|>"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"config.json": {"eos_token_id": 66}}, {66}),
        ({"generation_config.json": {}, "config.json": {"eos_token_id": [66]}}, {66}),
        ({"generation_config.json": {"eos_token_id": None}}, set()),
        ({"special_tokens_map.json": {"eos_token": "<|im_end|>"}}, {257}),
        ({"config.json": {"eos_token_id": 99999}}, set()),
        ({"tokenizer_config.json": {"eos_token": "no such token"}}, set()),
    ],
)
def test_ends_of_sequence_come_from_whichever_file_names_them(
    tmp_path: Path, files: dict[str, Any], expected: set[int]
) -> None:
    tokenizer = FileTokenizer.from_directory(directory(tmp_path, files))
    assert tokenizer.eos_token_ids == expected


def test_a_special_token_that_ends_turns_in_the_template_ends_a_text(tmp_path: Path) -> None:
    config = {"eos_token": "<|im_start|>"}
    chat = {"tokenizer_config.json": config | {"chat_template": CHATML}}
    assert FileTokenizer.from_directory(directory(tmp_path, chat)).eos_token_ids == {256, 257}
    base = {"tokenizer_config.json": config}
    assert FileTokenizer.from_directory(directory(tmp_path, base)).eos_token_ids == {256}
    # The same text as an ordinary token, or in a template alone, does not.
    template = {"tokenizer_config.json": {"chat_template": CHATML}}
    for user_defined in ([], ["<|im_end|>"]):
        plain = directory(tmp_path, template, control=[], user_defined=user_defined)
        assert FileTokenizer.from_directory(plain).eos_token_ids == set()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"chat_template.jinja": "file", "tokenizer_config.json": {"chat_template": "x"}}, "file"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [
                        {"name": "tool_use", "template": "tools"},
                        {"name": "default", "template": "default"},
                    ]
                }
            },
            "default",
        ),
    ],
)
def test_the_chat_template_has_several_places(
    tmp_path: Path, files: dict[str, Any], expected: str
) -> None:
    tokenizer = FileTokenizer.from_directory(directory(tmp_path, files))
    assert tokenizer.apply_chat_template([{"role": "u", "content": ""}]) == expected


def test_a_model_without_a_template_refuses_to_chat_and_says_why() -> None:
    tokenizer = FileTokenizer.from_gguf(byte_level_metadata())
    messages = [{"role": "user", "content": "hi"}]
    for chat in (tokenizer.encode_chat, tokenizer.apply_chat_template):
        with pytest.raises(RequestError, match="base model without a chat template"):
            chat(messages)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer.json": "{"}, "tokenizer.json is not a readable tokenizer"),
        ({"tokenizer_config.json": "{"}, "tokenizer_config.json: not valid JSON"),
        (
            {"generation_config.json": "[]"},
            "generation_config.json: holds a list, not a JSON object",
        ),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidFileError, match=message):
        FileTokenizer.from_directory(directory(tmp_path, files))


def test_a_directory_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"has no tokenizer\.json; save"):
        FileTokenizer.from_directory(tmp_path)


def test_truncation_and_padding_in_the_file_do_not_touch_prompts(tmp_path: Path) -> None:
    model = Tokenizer.from_str(tokenizer_json())
    model.enable_truncation(4)
    model.enable_padding(length=16)
    path = directory(tmp_path, {"tokenizer.json": model.to_str()})
    assert FileTokenizer.from_directory(path).encode("abcdefgh") == list(b"abcdefgh")


def test_holes_in_the_vocabulary_count_and_add_no_bytes(tmp_path: Path) -> None:
    spec = json.loads(tokenizer_json(control=["<a>", "<b>"]))
    spec["model"]["vocab"]["<b>"] = 300
    for token in spec["added_tokens"]:
        token["id"] = spec["model"]["vocab"][token["content"]]
    tokenizer = FileTokenizer.from_directory(directory(tmp_path, {"tokenizer.json": spec}))
    assert tokenizer.vocab_size == 301
    assert tokenizer.token_bytes(299) == b""
    assert tokenizer.token_bytes(300) == b"<b>"


@pytest.mark.parametrize("text", [None, 3, b"bytes", ["a"]])
def test_a_prompt_that_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(InvalidParameterError, match="prompt must be a text"):
        FileTokenizer.from_gguf(byte_level_metadata()).encode(text)


def test_a_lone_surrogate_is_refused_with_its_place() -> None:
    tokenizer = FileTokenizer.from_gguf(byte_level_metadata(template=CHATML))
    with pytest.raises(InvalidParameterError, match=r"prompt .* lone surrogate at 2"):
        tokenizer.encode("ab\ud800")
    with pytest.raises(InvalidParameterError, match=r"messages .* lone surrogate"):
        tokenizer.encode_chat([{"role": "user", "content": "ab\ud800"}])


@pytest.mark.parametrize("token_id", [-1, 258, 1 << 40])
def test_an_id_outside_the_vocabulary_is_refused(token_id: int) -> None:
    tokenizer = FileTokenizer.from_gguf(byte_level_metadata())
    for call in (tokenizer.token_bytes, lambda i: tokenizer.decode([97, i])):
        with pytest.raises(InvalidParameterError, match=r"token_id must be in \[0, 258\)"):
            call(token_id)


def test_incomplete_characters_decode_to_the_replacement_character() -> None:
    tokenizer = FileTokenizer.from_gguf(byte_level_metadata())
    ids = tokenizer.encode("🙂é")
    assert tokenizer.decode(ids) == "🙂é"
    assert tokenizer.decode(ids[:3] + ids[4:]) == "\ufffdé"


def test_decoding_strips_the_prefix_space_of_a_text_but_not_a_second_one() -> None:
    tokenizer = FileTokenizer.from_gguf(sentencepiece_metadata())
    for text in ("ab", " ab", "ab ", "é\n"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode(ids, skip_special_tokens=False) == "<s> " + text


def test_threads_may_share_a_tokenizer() -> None:
    tokenizer = FileTokenizer.from_gguf(byte_level_metadata(template=CHATML, merges=["a b"]))
    messages = [{"role": "user", "content": "ab <|im_end|> ab" * 20}]
    expected = tokenizer.encode("ab" * 50), tokenizer.encode_chat(messages)
    fresh = FileTokenizer.from_gguf(byte_level_metadata(template=CHATML, merges=["a b"]))
    results: list[tuple[list[int], list[int]]] = []

    def work() -> None:
        for _ in range(20):
            results.append((fresh.encode("ab" * 50), fresh.encode_chat(messages)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 80


def test_a_word_that_the_vocabulary_cannot_write_is_refused(tmp_path: Path) -> None:
    files = {"tokenizer.json": without_unknown_token()}
    tokenizer = FileTokenizer.from_directory(directory(tmp_path, files))
    assert tokenizer.encode("a") == [0]
    with pytest.raises(RequestError, match="cannot encode this text"):
        tokenizer.encode("b")


def without_unknown_token() -> str:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.Fuse()
    text: str = tokenizer.to_str()
    return text


def test_half_a_surrogate_pair_names_no_token(tmp_path: Path) -> None:
    files = {"tokenizer_config.json": r'{"bos_token": "\ud800", "eos_token": "\udc00"}'}
    tokenizer = FileTokenizer.from_directory(directory(tmp_path, files))
    assert tokenizer.bos_token is None
    assert tokenizer.eos_token_ids == frozenset()


def test_a_long_text_is_encoded_as_the_library_encodes_it() -> None:
    """It takes another way, on which other threads run meanwhile."""
    tokenizer = FileTokenizer.from_gguf(
        byte_level_metadata(merges=["h e", "l l"], template=CHATML, eos_token_id=259)
    )
    text = "hello né <|im_end|> " * 300
    assert tokenizer.encode(text) == tokenizer._tokenizer.encode(text).ids
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
    message = {"role": "user", "content": "hello né <|im_end|> " * 300}
    written = tokenizer.apply_chat_template([message])
    assert tokenizer.decode(tokenizer.encode_chat([message]), False) == written
