from __future__ import annotations

import datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from pagemill.errors import InvalidParameterError, RequestError
from pagemill.loading.chat_messages import check_messages
from pagemill.loading.chat_template import ChatTemplate

from .tiny_vocabularies import CHATML

USER = [{"role": "user", "content": "Hi  "}]
TALK = [
    {"role": "system", "content": "Be <brief> & 'kind'."},
    {"role": "user", "content": " What? "},
    {"role": "assistant", "content": "That.\n"},
    {"role": "user", "content": "你好 🙂"},
]

LLAMA2 = """{% if messages[0]['role'] == 'system' %}
    {% set loop_messages = messages[1:] %}
    {% set system_message = messages[0]['content'] %}
{% else %}
    {% set loop_messages = messages %}
    {% set system_message = false %}
{% endif %}
{% for message in loop_messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant') }}
    {% endif %}
    {%- if message['role'] == 'user' -%}
        {{ bos_token + '[INST] ' + (system_message or '') }}
        {{- message['content'].strip() + ' [/INST]' }}
    {%- else -%}
        {{ ' ' + message['content'] | trim + ' ' + eos_token }}
    {%- endif -%}
{% endfor %}
"""
FEATURES = """{%- set ns = namespace(n=0) -%}
{%- macro show(m) -%}[{{ m.role | upper }}]{%- endmacro -%}
{% for m in messages %}
  {% if m.role == 'system' %}{% continue %}{% endif %}
  {% set ns.n = ns.n + 1 %}
  {{ show(m) }}{{ {'k': m.content, 'n': [1, none, 2.5]} | tojson }}{{ m | tojson(indent=2) }}
  {% generation %}{{ m.content[:3] }}{% endgeneration %}
  {% if ns.n == 2 %}{% break %}{% endif %}
{% endfor %}
{{ tools is none }} {{ 'x' * 3 }} {{ range(3) | list }} {{ 7 % 4 }} {{ 2 ** 5 }}
{% if add_generation_prompt %}>{% endif %}
"""


TRIMS = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}|{% endfor %}"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def transformers_text(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    render: Any = render_jinja_template
    [text], _ = render(conversations=[messages], chat_template=source, **TOKENS, **options)
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("source", [CHATML, LLAMA2, FEATURES], ids=["chatml", "llama2", "features"])
@pytest.mark.parametrize("messages", [USER, TALK], ids=["one", "talk"])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_a_template_renders_as_with_transformers(
    source: str, messages: list[dict[str, Any]], add_generation_prompt: bool
) -> None:
    expected = transformers_text(source, messages, add_generation_prompt=add_generation_prompt)
    template = ChatTemplate(source, TOKENS)
    assert template.render(messages, add_generation_prompt=add_generation_prompt) == expected


@pytest.mark.parametrize("source", [CHATML, LLAMA2, TRIMS], ids=["chatml", "llama2", "trims"])
@pytest.mark.parametrize("content", ["It was ", "It was", "a<|im_end|>a"])
def test_the_last_message_is_left_open_as_with_transformers(source: str, content: str) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content}]
    expected = transformers_text(source, messages, continue_final_message=True)
    template = ChatTemplate(source, TOKENS)
    rendered = template.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == expected
    assert messages[-1]["content"] == content


def test_continuing_and_a_generation_prompt_exclude_each_other() -> None:
    with pytest.raises(InvalidParameterError, match="add_generation_prompt must be False when"):
        ChatTemplate(CHATML).render(USER, continue_final_message=True)


def test_continuing_a_message_that_the_template_leaves_out_is_refused() -> None:
    with pytest.raises(RequestError, match="leaves out the last message's content"):
        ChatTemplate("fixed").render(USER, add_generation_prompt=False, continue_final_message=True)


def test_a_template_knows_the_date() -> None:
    rendered = ChatTemplate("{{ strftime_now('%Y') }}").render(USER)
    assert abs(int(rendered) - datetime.datetime.now().year) <= 1


def test_the_templates_own_refusal_is_passed_on() -> None:
    template = ChatTemplate("{{ raise_exception('No system role, please') }}")
    with pytest.raises(RequestError, match="refuses the messages: No system role, please"):
        template.render(USER)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ messages[5].content }}", "UndefinedError"),
        ("{{ 1 + 'a' }}", "TypeError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ raise_exception.__globals__.x }}", "SecurityError"),
        ("{% set x = 'a' * 99999999999 %}", "SecurityError"),
        ("{% set x = 99999999999 * [1] %}", "SecurityError"),
        ("{{ 10 ** 99999999999 }}", "SecurityError"),
        ("{% for i in range(99999999999) %}{% endfor %}", "SecurityError"),
        (
            "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
            "SecurityError",
        ),
        ("{% set x = 'a' * 9999999 %}{{ x }}{{ x }}", "SecurityError: it writes more than"),
    ],
)
def test_a_template_that_fails_or_oversteps_refuses_one_request(source: str, reason: str) -> None:
    with pytest.raises(RequestError, match=f"fails on these messages: {reason}"):
        ChatTemplate(source).render(USER)


def test_an_unreadable_template_is_an_error_of_the_chat_not_of_the_model() -> None:
    template = ChatTemplate("{% for m in messages %}")
    with pytest.raises(RequestError, match=r"chat template cannot be read: .*plain prompt"):
        template.render(USER)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages must be a list of at least one message"),
        ("hi", "messages must be a list"),
        (["hi"], r"messages\[0\] must be a dict"),
        ([{"content": "x"}], r"messages\[0\]\.role must be a text"),
        ([{"role": 3, "content": "x"}], r"messages\[0\]\.role must be a text"),
        ([{"role": "", "content": "x"}], r"messages\[0\]\.role must be a text"),
        ([*USER, {"role": "user"}], r"messages\[1\]\.content must be a text or a list"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content must be a text or a list"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
            r"messages\[0\]\.content\[0\] must be .*only text is supported",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": 1}]}],
            r"messages\[0\]\.content\[0\] must be",
        ),
        (
            [{"role": "user", "content": "x", "extra": object()}],
            r"messages\[0\]\.extra must be JSON",
        ),
        ([{"role": "user", "content": "x", 3: 1}], r"messages\[0\] must have texts as keys"),
    ],
)
def test_a_malformed_message_is_refused_by_its_field(messages: Any, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        check_messages(messages)


def test_deep_nesting_is_refused() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidParameterError, match="must be nested at most 32 deep"):
        check_messages([{"role": "user", "content": "x", "extra": deep}])


def test_text_parts_are_joined_by_newlines_and_messages_are_copied() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": parts, "name": ["n"]}]
    checked = check_messages(messages)
    assert checked == [{"role": "user", "content": "one\ntwo", "name": ["n"]}]
    checked[0]["name"].append("changed")
    assert messages[0] == {"role": "user", "content": parts, "name": ["n"]}


def test_content_may_be_missing_beside_tool_calls() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    assert check_messages([call]) == [call]
