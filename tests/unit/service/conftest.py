"""A model directory as a user has one: weights, configuration, tokenizer, chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pagemill.loading.byte_decoding import BYTE_LEVEL_ALPHABET
from tests.parity.tiny_models import llama
from tests.unit.loading_text.tiny_vocabularies import CHATML

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Byte-level vocabulary of 259, two random layers, a context of 128."""
    directory = tmp_path_factory.mktemp("tiny")
    llama(vocab_size=259).save_pretrained(directory)
    vocabulary = dict(BYTE_LEVEL_ALPHABET)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in CONTROL])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": CHATML}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory
