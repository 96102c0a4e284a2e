from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from pagemill.errors import RequestError
from pagemill.loading.tokenizer import FileTokenizer
from pagemill.loading.tokenizer_parts import TokenizerParts

from .tiny_vocabularies import CHATML, byte_level_metadata, sentencepiece_metadata

CONTROL = ["<|im_start|>", "<|im_end|>", "<|im", "\ue000"]
START, END = 256, 257


def chatml(**options: Any) -> FileTokenizer:
    return FileTokenizer.from_gguf(byte_level_metadata(control=CONTROL, template=CHATML, **options))


TOKENIZER = chatml()
ROLES = st.sampled_from(["user", "assistant", "<|im_end|>"])
CONTENTS = st.lists(
    st.sampled_from(
        [*CONTROL, "<", "<|", "|>", "im_end|>", "hello", " ", "\n", "é", "🙂", "\ue001"]
    ),
    max_size=8,
).map("".join)


@given(st.lists(st.tuples(ROLES, CONTENTS), min_size=1, max_size=4))
def test_nothing_that_a_client_writes_becomes_a_control_token(turns: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": content} for role, content in turns]
    ids = TOKENIZER.encode_chat(messages)
    marks = [i for i in ids if TOKENIZER.is_special(i)]
    assert marks == [START, END] * len(turns) + [START]
    # And not a character of it is lost.
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == TOKENIZER.apply_chat_template(
        messages
    )


@given(st.lists(st.text(alphabet="ab <|é🙂\n", max_size=10), min_size=1, max_size=4))
def test_a_chat_without_special_tokens_has_the_ids_of_its_text(contents: list[str]) -> None:
    messages = [{"role": "user", "content": content} for content in contents]
    text = TOKENIZER.apply_chat_template(messages)
    assert TOKENIZER.encode_chat(messages) == TOKENIZER.encode(text, add_special_tokens=False)


def test_a_vocabulary_without_special_tokens_can_chat() -> None:
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    tokenizer = FileTokenizer.from_gguf(byte_level_metadata(control=(), template=template))
    assert tokenizer.encode_chat([{"role": "user", "content": "<|im_end|>"}]) == [*b"[<|im_end|>]"]


def test_further_fields_of_a_message_are_guarded_too() -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.tool_calls[0].name }}{% endfor %}"
    tokenizer = FileTokenizer.from_gguf(byte_level_metadata(template=template))
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "x<|im_end|>"}]}
    assert tokenizer.encode_chat([call]) == [START, *b"x<|im_end|>"]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("<|im_start|>{{ messages[0].content | trim }}<|im_end|>", b"<|im_end|>"),
        ("<|im_start|>{{ messages[0].content | upper }}<|im_end|>", b"  <|im_end|> "),
        ("<|im_start|>{{ messages[0].content | tojson }}<|im_end|>", b'"  <|im_end|> "'),
    ],
)
def test_templates_may_transform_contents(template: str, expected: bytes) -> None:
    tokenizer = FileTokenizer.from_gguf(byte_level_metadata(template=template))
    ids = tokenizer.encode_chat([{"role": "user", "content": "  <|im_end|> "}])
    assert ids == [START, *expected, END]


def test_user_defined_tokens_in_messages_stay_tokens() -> None:
    """Only control tokens are guarded: a run of spaces or a tag is how the model reads a text."""
    tokenizer = chatml(user_defined=["    ", "<tag>"])
    spaces, tag = 256 + len(CONTROL), 257 + len(CONTROL)
    ids = tokenizer.encode_chat([{"role": "u", "content": "    <tag><|im_end|>"}])
    assert ids[:5] == [START, ord("u"), ord("\n"), spaces, tag]


def test_an_added_token_outside_the_models_vocabulary_keeps_its_id() -> None:
    model = Tokenizer.from_str(chatml()._tokenizer.to_str())
    model.add_tokens([AddedToken("<new>", normalized=False)])
    model.add_special_tokens([AddedToken("<ctl>", normalized=False)])
    model.add_tokens([AddedToken("<newer>", normalized=False)])
    new, newer = model.get_vocab()["<new>"], model.get_vocab()["<newer>"]
    tokenizer = FileTokenizer(
        TokenizerParts(model, bos_token=None, eos_tokens=(), chat_template=CHATML)
    )
    ids = tokenizer.encode_chat([{"role": "u", "content": "<new><ctl><newer>"}])
    assert ids[3:-13] == [new, *b"<ctl>", newer]
    assert tokenizer.vocab_size == newer + 1


def test_a_normalizer_cannot_smuggle_a_control_token_in() -> None:
    """Full-width letters become ASCII under NFKC, after the search for special tokens."""
    model = Tokenizer.from_str(chatml()._tokenizer.to_str())
    model.normalizer = normalizers.NFKC()
    model.add_special_tokens([AddedToken("<ctl>", normalized=True)])
    tokenizer = FileTokenizer(
        TokenizerParts(model, bos_token=None, eos_tokens=(), chat_template=CHATML)
    )
    wide = "".join(chr(ord(char) + 0xFEE0) for char in "<ctl>")
    assert model.encode(wide).tokens == ["<ctl>"]
    ids = tokenizer.encode_chat([{"role": "u", "content": wide}])
    assert ids[:8] == [START, *b"u\n", *b"<ctl>"]


def test_a_sentencepiece_run_gets_its_space_prefix_once() -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    tokenizer = FileTokenizer.from_gguf(
        sentencepiece_metadata() | {"tokenizer.chat_template": template}
    )
    ids = tokenizer.encode_chat([{"role": "user", "content": "ab</s>ab"}])
    assert ids.count(1) == 1
    assert ids.count(2) == 1
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s> ab</s>ab</s>"


def metaspace_tokenizer(template: str) -> FileTokenizer:
    """As newer files write SentencePiece: the prefix only at the very start of a text."""
    spec = json.loads(FileTokenizer.from_gguf(sentencepiece_metadata())._tokenizer.to_str())
    model = Tokenizer.from_str(json.dumps(spec | {"normalizer": None}))
    model.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return FileTokenizer(
        TokenizerParts(model, bos_token="<s>", eos_tokens=("</s>",), chat_template=template)
    )


def test_a_run_inside_a_text_gets_no_prefix_where_only_a_beginning_has_one() -> None:
    inside = metaspace_tokenizer("<s>{{ messages[0].content }}")
    beginning = metaspace_tokenizer("{{ messages[0].content }}<s>")
    for content, text in (("ab", "ab"), ("ab</s>", "ab</s>")):
        messages = [{"role": "user", "content": content}]
        ids = inside.encode_chat(messages)
        assert inside.decode(ids, skip_special_tokens=False) == "<s>" + text
        joined = b"".join(map(beginning.token_bytes, beginning.encode_chat(messages)))
        assert joined.decode() == f" {text}<s>"


def test_a_control_token_that_can_only_be_written_as_such_is_refused() -> None:
    """A word-level vocabulary has no smaller pieces to spell it with."""
    model = Tokenizer(models.WordLevel({"<unk>": 0, "[END]": 1, "hi": 2}, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model.decoder = decoders.Metaspace()
    model.add_special_tokens(["[END]"])
    tokenizer = FileTokenizer(
        TokenizerParts(
            model, bos_token=None, eos_tokens=(), chat_template="{{ messages[0].content }}[END]"
        )
    )
    assert tokenizer.encode_chat([{"role": "u", "content": "hi"}]) == [2, 1]
    with pytest.raises(RequestError, match=r"contains '\[END\]', a control token"):
        tokenizer.encode_chat([{"role": "u", "content": "hi [END]"}])
