"""`LLM` on an engine that its user drives too."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pagemill import LLM, InvalidParameterError, SamplingParams
from pagemill.loading.tokenizer import FileTokenizer
from tests.core_helpers import assert_idle, prompt_of, simulated_engine
from tests.unit.loading_text.tiny_vocabularies import CHATML, byte_level_metadata


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> LLM:
    assembly = SimpleNamespace(
        engine=simulated_engine(),
        model_config=None,
        pool=None,
        tokenizer=FileTokenizer.from_gguf(byte_level_metadata(template=CHATML)),
    )
    monkeypatch.setattr("pagemill.llm.build_engine", lambda config: assembly)
    return LLM()


def test_requests_of_others_that_end_meanwhile_are_not_taken_for_ones_own(llm: LLM) -> None:
    llm.engine.add_request("aborted", prompt_of(3), SamplingParams(max_tokens=9))
    llm.engine.abort("aborted")
    llm.engine.add_request("short", prompt_of(3), SamplingParams(max_tokens=1))
    params = SamplingParams(max_tokens=6)
    outputs = llm.generate([prompt_of(5), prompt_of(7)], params, use_tqdm=False)
    assert [len(output.prompt_token_ids) for output in outputs] == [5, 7]
    assert all(len(output.outputs[0].token_ids) == 6 for output in outputs)
    assert_idle(llm.engine)


@pytest.mark.parametrize("messages", [["user"], [[]], [["user", "Hi"]], [5], [{"role": "user"}]])
def test_messages_that_are_none_are_refused_by_name(llm: LLM, messages: object) -> None:
    with pytest.raises(InvalidParameterError, match=r"^messages"):
        llm.chat(messages, use_tqdm=False)  # type: ignore[arg-type]
