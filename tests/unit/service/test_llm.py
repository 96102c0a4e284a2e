from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagemill import (
    LLM,
    ConfigError,
    EngineError,
    InvalidParameterError,
    ModelNotFoundError,
    RequestError,
    RequestTooLargeError,
    SamplingParams,
)
from pagemill.call_arguments import Prompt
from pagemill.kernels import native
from pagemill.runner.torch_runner import TorchRunner
from tests.core_helpers import assert_idle

GREEDY = SamplingParams(temperature=0, max_tokens=6)


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_model), num_kv_blocks=32, num_threads=1, check_invariants=True) as llm:
        yield llm


@pytest.mark.skipif(native.load() is None, reason="there are no native kernels")
def test_a_quantization_that_would_change_nothing_is_refused(smollm2_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'int8' is for float weights.*stores Q4_1, Q8_0"):
        LLM(str(smollm2_path), quantization="int8")


def test_one_prompt_and_many_as_text_or_ids(llm: LLM) -> None:
    ids = list(b"Hello")
    one_text = llm.generate("Hello", GREEDY, use_tqdm=False)
    assert [output.prompt for output in one_text] == ["Hello"]
    assert one_text[0].prompt_token_ids == ids
    expected = one_text[0].outputs[0].token_ids
    assert len(expected) == 6
    forms: list[tuple[Any, int]] = [(ids, 1), ([ids], 1), (["Hello"] * 2, 2), ([ids, "Hello"], 2)]
    for prompts, count in forms:
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
        assert [output.outputs[0].token_ids for output in outputs] == [expected] * count
    assert llm.generate([], GREEDY, use_tqdm=False) == []
    assert_idle(llm.engine)


def test_embeddings_of_one_prompt_and_many_come_in_their_order(llm: LLM) -> None:
    hello, world = (llm.embed(text, use_tqdm=False)[0] for text in ("Hello", "World"))
    assert hello.prompt == "Hello"
    assert hello.prompt_token_ids == list(b"Hello")
    assert hello.embedding.shape == (llm.model_config.hidden_size,)
    assert not np.array_equal(hello.embedding, world.embedding)
    (ids,) = llm.embed(list(b"Hello"), use_tqdm=False)
    assert ids.prompt is None
    assert np.array_equal(ids.embedding, hello.embedding)
    prompts: list[Prompt] = ["World", list(b"Hello"), "x" * 100, "World"]
    many = llm.embed(prompts, use_tqdm=False)
    for output, expected in [(many[0], world), (many[1], hello), (many[3], world)]:
        assert np.array_equal(output.embedding, expected.embedding)
    (scaled,) = llm.embed("Hello", normalize=True, use_tqdm=False)
    assert np.linalg.norm(scaled.embedding) == pytest.approx(1)
    assert llm.embed([], use_tqdm=False) == []
    assert_idle(llm.engine)


def test_one_prompt_that_cannot_be_embedded_leaves_none_behind(llm: LLM) -> None:
    with pytest.raises(RequestTooLargeError, match=r"129 tokens exceeds .* max_model_len=128"):
        llm.embed(["fine", "x" * 129], use_tqdm=False)
    with pytest.raises(InvalidParameterError, match="prompt must hold at least one token"):
        llm.embed(["fine", ""], use_tqdm=False)
    with pytest.raises(InvalidParameterError, match="priority must be one value, or one for each"):
        llm.embed(["a", "b", "c"], priority=[1, 2], use_tqdm=False)
    assert_idle(llm.engine)
    assert len(llm.embed("x" * 128, use_tqdm=False)) == 1


def test_a_progress_bar_of_embeddings_says_nothing_of_generated_tokens(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.embed(["a", "b"])
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "tok/s" not in shown


def test_outputs_come_in_the_order_of_the_prompts_whatever_finishes_first(llm: LLM) -> None:
    lengths = [9, 1, 5, 3]
    outputs = llm.generate(
        ["a", "b", "c", "d"],
        [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths],
        use_tqdm=False,
    )
    assert [output.prompt for output in outputs] == ["a", "b", "c", "d"]
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths


def test_n_samples_differ_and_the_first_is_that_of_n_1(llm: LLM) -> None:
    params: dict[str, Any] = {"seed": 7, "max_tokens": 8, "ignore_eos": True}
    three = llm.generate("x", SamplingParams(n=3, **params), use_tqdm=False)[0].outputs
    one = llm.generate("x", SamplingParams(**params), use_tqdm=False)[0].outputs
    assert [completion.index for completion in three] == [0, 1, 2]
    assert len({tuple(completion.token_ids) for completion in three}) == 3
    assert three[0].token_ids == one[0].token_ids


def test_one_request_that_cannot_be_served_leaves_none_behind(llm: LLM) -> None:
    with pytest.raises(RequestTooLargeError):
        llm.generate(["fine", "x" * 500], GREEDY, use_tqdm=False)
    assert_idle(llm.engine)
    assert len(llm.generate("fine", GREEDY, use_tqdm=False)) == 1


def test_the_number_of_sampling_params_must_be_that_of_the_prompts(llm: LLM) -> None:
    with pytest.raises(InvalidParameterError, match="each of the 3 prompts"):
        llm.generate(["a", "b", "c"], [GREEDY, GREEDY], use_tqdm=False)


@pytest.mark.parametrize("params", [5, "greedy", {"temperature": 0}, ["greedy"]])
def test_what_are_no_sampling_params_is_refused(llm: LLM, params: object) -> None:
    with pytest.raises(InvalidParameterError, match="sampling_params must be a SamplingParams"):
        llm.generate("a", params, use_tqdm=False)  # type: ignore[arg-type]
    assert_idle(llm.engine)


def test_a_prefix_that_does_not_fit_is_refused_in_its_own_words(llm: LLM) -> None:
    for prefix in ([1] * 200, "x" * 200):
        with pytest.raises(RequestTooLargeError, match="prefix of 200 tokens is too long") as error:
            llm.pin_prefix(prefix)
        assert "max_model_len=128" in str(error.value)
        assert "max_tokens" not in str(error.value)
    assert_idle(llm.engine)


@pytest.mark.parametrize("prompts", [None, 5, b"bytes", {"a": 1}])
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: object) -> None:
    with pytest.raises(RequestError, match="prompt"):
        llm.generate(prompts, GREEDY, use_tqdm=False)  # type: ignore[arg-type]


def test_chat_renders_the_template_for_one_conversation_and_for_several(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "Hi"}]
    (one,) = llm.chat(conversation, GREEDY, use_tqdm=False)
    rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert llm.tokenizer is not None
    assert one.prompt_token_ids == llm.tokenizer.encode(rendered)
    two = llm.chat([conversation, conversation], GREEDY, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in two] == [one.outputs[0].token_ids] * 2
    with pytest.raises(InvalidParameterError, match="messages"):
        llm.chat([], GREEDY)


def test_a_progress_bar_counts_requests_only_when_wanted(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.generate(["a", "b"], GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""
    llm.generate(["a", "b"], GREEDY)
    assert "2/2" in capsys.readouterr().err


def test_stats_count_what_was_done(tiny_model: Path) -> None:
    with LLM(str(tiny_model), num_kv_blocks=8, num_threads=1) as llm:
        llm.generate(["ab", "cde"], GREEDY, use_tqdm=False)
        stats = llm.stats()
    assert stats["num_prompt_tokens"] == 5
    assert stats["num_generation_tokens"] == 12
    assert stats["ttft_seconds"]["count"] == 2
    assert 0 < stats["ttft_seconds"]["p50"] < 60


def test_after_close_the_engine_says_so(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), num_kv_blocks=8, num_threads=1)
    llm.close()
    llm.close()
    with pytest.raises(EngineError, match="closed"):
        llm.generate("a", GREEDY)
    for call in (llm.save_prefix_cache, llm.load_prefix_cache):
        with pytest.raises(EngineError, match="takes no more work: it was closed"):
            call("anything")


def test_a_pin_belongs_to_the_model_that_made_it(tiny_model: Path, llm: LLM) -> None:
    with LLM(str(tiny_model), num_kv_blocks=8, num_threads=1) as other:
        pins = [model.pin_prefix("x" * 20) for model in (llm, other)]
        with pytest.raises(InvalidParameterError, match="pinned is another engine's"):
            other.unpin_prefix(pins[0])
        assert other.engine.memory_report().pinned == 2
    llm.unpin_prefix(pins[0])
    assert_idle(llm.engine)


def test_a_swap_space_larger_than_the_free_memory_is_refused_with_both(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagemill.kvcache.sizing.free_memory_bytes", lambda: 22 * 2**30)
    with pytest.raises(ConfigError, match=r"swap_space=30.0 GiB in memory .*22.0 GiB .*are free"):
        LLM(str(tiny_model), num_kv_blocks=8, swap_space="30GiB")
    with LLM(str(tiny_model), num_kv_blocks=8, swap_space="1MiB") as model:
        assert len(model.generate("ab", GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == 6


def test_options_reach_the_engine(tiny_model: Path) -> None:
    with LLM(str(tiny_model), max_model_len=50, kv_cache_memory="1MiB", block_size=8) as llm:
        assert llm.engine.max_model_len == 50
        assert llm.pool.total_bytes <= 2**20
        assert llm.engine.kv.block_size == 8
        with pytest.raises(RequestTooLargeError, match="max_model_len=50"):
            llm.generate([1] * 45, SamplingParams(max_tokens=6), use_tqdm=False)
    scaling = {"rope_type": "ntk", "factor": 4.0}
    with LLM(str(tiny_model), rope_scaling=scaling, num_kv_blocks=64) as llm:
        assert llm.engine.max_model_len == 4 * 128
        (output,) = llm.generate([1] * 300, GREEDY, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 6


def test_weights_may_be_stored_in_half_precision(tiny_model: Path) -> None:
    with LLM(str(tiny_model), dtype="bfloat16", num_kv_blocks=8) as llm:
        (output,) = llm.generate("Hello", GREEDY, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 6


def test_a_wrong_name_or_option_is_one_clear_error(tiny_model: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="smollm2-135m"):
        LLM("smolm2-135m")
    with pytest.raises(ConfigError, match="did you mean 'block_size'"):
        LLM(str(tiny_model), blocksize=16)
    with pytest.raises(ConfigError, match="max_model_len"):
        LLM(str(tiny_model), max_model_len=4096)


def test_a_closed_model_leaves_no_file_open(tiny_model: Path) -> None:
    def open_files() -> set[str]:
        paths = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
        return {os.readlink(path) for path in paths if os.path.exists(path)}

    with LLM(str(tiny_model), num_kv_blocks=8):
        pass
    assert not [path for path in open_files() if str(tiny_model) in path]


def test_two_models_in_one_process_do_not_meet(tiny_model: Path, llm: LLM) -> None:
    alone = llm.generate("abc", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    with LLM(str(tiny_model), num_kv_blocks=4, num_threads=1) as other:
        for engine in (llm.engine, other.engine):
            engine.add_request("r", "abc", GREEDY)
        results = []
        while llm.engine.has_unfinished_requests() or other.engine.has_unfinished_requests():
            for engine in (llm.engine, other.engine):
                results += [output for output in engine.step() if output.finished]
    assert [output.outputs[0].token_ids for output in results] == [alone, alone]


def test_ctrl_c_is_taken_between_steps_and_the_model_can_be_used_again(llm: LLM) -> None:
    program = (
        "import os, signal, sys, threading\n"
        "from pagemill import LLM, SamplingParams\n"
        "llm = LLM(sys.argv[1], num_kv_blocks=32, num_threads=1, check_invariants=True)\n"
        "params = SamplingParams(temperature=0, max_tokens=120, ignore_eos=True)\n"
        "step = llm.engine.step\n"
        "def step_and_interrupt():\n"
        "    outputs = step()\n"
        "    if llm.engine.metrics.num_steps == 9:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return outputs\n"
        "llm.engine.step = step_and_interrupt\n"
        "try:\n"
        "    llm.generate('abc', params, use_tqdm=False)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted after', llm.engine.metrics.num_steps, 'steps')\n"
        "llm.engine.audit()\n"
        "print(len(llm.generate('abc', params, use_tqdm=False)[0].outputs[0].token_ids))\n"
    )
    arguments = [sys.executable, "-c", program, llm.engine.config.model]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split("\n")[:2] == ["interrupted after 9 steps", "120"]


def test_threads_that_share_a_model_take_turns(llm: LLM) -> None:
    expected = [o.outputs[0].token_ids for o in llm.generate(["ab", "cd"], GREEDY, use_tqdm=False)]
    results: dict[str, list[int]] = {}

    def ask(prompt: str) -> None:
        (output,) = llm.generate(prompt, GREEDY, use_tqdm=False)
        results[prompt] = output.outputs[0].token_ids

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in ("ab", "cd") * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [results["ab"], results["cd"]] == expected


@pytest.mark.skipif(native.load() is None, reason="no native library")
@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "int8"},
        {"quantization": "int4"},
        {"kv_cache_dtype": "bfloat16"},
        {"kv_cache_dtype": "int8", "quantization": "int8"},
        {"deterministic": True},
    ],
    ids=str,
)
def test_narrower_weights_and_caches_change_log_probabilities_a_little(
    tiny_model: Path, llm: LLM, options: dict[str, Any]
) -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    prompt = list(range(40, 90))

    def scores(model: LLM) -> list[float]:
        (output,) = model.generate(prompt, params, use_tqdm=False)
        assert output.prompt_logprobs is not None
        pairs = zip(prompt[1:], output.prompt_logprobs[1:], strict=True)
        return [at[token_id].logprob for token_id, at in pairs if at is not None]

    with LLM(str(tiny_model), num_kv_blocks=32, num_threads=1, **options) as other:
        difference = np.abs(np.array(scores(other)) - np.array(scores(llm)))
    if "deterministic" in options:
        assert difference.max() == 0
    else:
        # Random weights amplify rounding far more than trained ones.
        bound = {"int8": 0.3, "int4": 2.0, None: 0.05}[options.get("quantization")]
        assert 0 < difference.mean() < bound


@pytest.mark.skipif(native.load() is None, reason="no native library")
def test_a_narrower_cache_holds_more_blocks_in_the_same_memory(tiny_model: Path) -> None:
    blocks = {}
    for kv_cache_dtype in ("float32", "bfloat16", "int8"):
        options = {"kv_cache_dtype": kv_cache_dtype, "kv_cache_memory": "256KiB"}
        with LLM(str(tiny_model), num_threads=1, **options) as model:
            blocks[kv_cache_dtype] = model.engine.kv.num_blocks
    assert blocks["float32"] < blocks["bfloat16"] < blocks["int8"]


def test_what_needs_native_kernels_is_refused_without_them(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_load", lambda: (None, "no compiler"))
    for options in ({"quantization": "int8"}, {"kv_cache_dtype": "int8"}, {"deterministic": True}):
        with pytest.raises(ConfigError, match=r"needs the native kernels.*no compiler"):
            LLM(str(tiny_model), **options)
    with LLM(str(tiny_model), num_kv_blocks=8) as model:
        assert isinstance(model.engine.runner, TorchRunner)
        assert len(model.generate("ab", GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == 6
