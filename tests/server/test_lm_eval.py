"""lm-eval's ``local-completions`` scores a task through a server: the figures are exactly our own.

It runs in a process and, where `PAGEMILL_LM_EVAL` names another Python, in an environment of its
own. Nothing is fetched: task, questions and tokenizer are local files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pagemill import LLM, SamplingParams
from pagemill.kernels import native
from pagemill.loading.tokenizer import FileTokenizer
from tests.server.processes import REAL, ServerProcess

QUESTIONS = Path(__file__).parent.parent / "data" / "lm_eval_questions.jsonl"
TASK = """\
task: pagemill_tiny
dataset_path: json
dataset_kwargs:
  data_files:
    test: {questions}
output_type: multiple_choice
test_split: test
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - metric: acc
  - metric: acc_norm
"""
PYTHON = os.environ.get("PAGEMILL_LM_EVAL", sys.executable)

Scores = list[list[tuple[float, bool]]]
"""Of each question the log-likelihood of each choice, and whether it is the greedy answer."""


def has_lm_eval() -> bool:
    program = "import importlib.util as u, sys; sys.exit(u.find_spec('lm_eval') is None)"
    return subprocess.run([PYTHON, "-c", program]).returncode == 0


pytestmark = [
    pytest.mark.skipif(
        not has_lm_eval(), reason="no lm-eval here; PAGEMILL_LM_EVAL may name a Python that has it"
    ),
    pytest.mark.skipif(native.load() is None, reason="PyTorch's sums differ in their last bits"),
]


def documents() -> list[dict[str, Any]]:
    return [json.loads(line) for line in QUESTIONS.read_text().splitlines()]


def contexts_and_choices() -> list[tuple[str, list[str]]]:
    return [
        (f"Question: {document['question']}\nAnswer:", [f" {c}" for c in document["choices"]])
        for document in documents()
    ]


def direct_scores(llm: LLM) -> Scores:
    """What the task's choices get from the engine itself."""
    tokenizer = llm.engine.tokenizer
    assert tokenizer is not None
    scored = []
    for context, choices in contexts_and_choices():
        num_context = len(tokenizer.encode(context, False))
        ids = [tokenizer.encode(context + choice, False) for choice in choices]
        params = SamplingParams(prompt_logprobs=1, max_tokens=0)
        found = []
        for output in llm.generate(ids, params, use_tqdm=False):
            assert output.prompt_logprobs is not None
            chosen = [
                known[token_id]
                for token_id, known in zip(
                    output.prompt_token_ids[num_context:],
                    output.prompt_logprobs[num_context:],
                    strict=True,
                )
                if known is not None
            ]
            total = sum(token.logprob for token in chosen)
            found.append((total, all(token.rank == 1 for token in chosen)))
        scored.append(found)
    return scored


def accuracies(scores: Scores) -> dict[str, float]:
    """As lm-eval defines them: of the likeliest choice, and of the likeliest one by its length."""
    right = normalized = 0
    for document, found in zip(documents(), scores, strict=True):
        totals = [total for total, _ in found]
        lengths = [len(choice) for choice in document["choices"]]
        by_length = [total / length for total, length in zip(totals, lengths, strict=True)]
        right += totals.index(max(totals)) == document["answer"]
        normalized += by_length.index(max(by_length)) == document["answer"]
    return {"acc": right / len(scores), "acc_norm": normalized / len(scores)}


def save_tokenizer(tokenizer: FileTokenizer, directory: Path) -> None:
    """As files that transformers reads."""
    directory.mkdir()
    tokenizer._tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def served_scores(url: str, directory: Path, **options: object) -> tuple[Scores, dict[str, Any]]:
    """What lm-eval measures through the server, and its summary."""
    task = directory / "task.yaml"
    task.write_text(TASK.format(questions=QUESTIONS))
    model = {"model": "smollm2", "base_url": f"{url}/v1/completions", "num_concurrent": 3}
    model |= {"tokenizer": directory / "tokenizer", "tokenizer_backend": "huggingface", **options}
    batch_size = model.pop("batch_size", 1)
    command = [PYTHON, "-m", "lm_eval", "--model", "local-completions", "--log_samples"]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in model.items())]
    command += ["--tasks", str(task), "--output_path", str(directory / "out")]
    command += ["--batch_size", str(batch_size)]
    offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(directory / "hf")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=400, env=os.environ | offline
    )
    assert done.returncode == 0, done.stderr
    (samples,) = (directory / "out").rglob("samples_*.jsonl")
    (results,) = (directory / "out").rglob("results_*.json")
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    lines.sort(key=lambda line: int(line["doc_id"]))
    scores = [
        [(float(total), greedy == "True") for ((total, greedy),) in line["resps"]] for line in lines
    ]
    return scores, json.loads(results.read_text())["results"]["pagemill_tiny"]


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 4}, {"tokenized_requests": False}],
    ids=["token ids in batches", "texts one by one"],
)
def test_its_score_and_every_log_likelihood_are_those_computed_directly(
    smollm2_path: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    with LLM(str(smollm2_path), num_kv_blocks=64) as llm:
        assert isinstance(llm.engine.tokenizer, FileTokenizer)
        save_tokenizer(llm.engine.tokenizer, tmp_path / "tokenizer")
        expected = direct_scores(llm)
    arguments = (str(smollm2_path), "--served-model-name", "smollm2", "--num-kv-blocks", "64")
    with ServerProcess(*arguments, module=REAL) as server, server.ready() as client:
        url = str(client.base_url).rstrip("/")
        scores, summary = served_scores(url, tmp_path, **options)
    assert scores == expected
    score = accuracies(expected)
    assert {name: summary[f"{name},none"] for name in score} == score
    assert 0 < score["acc"] < 1, "a task that tells something"
