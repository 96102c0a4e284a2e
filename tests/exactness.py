"""A request's outputs against those of each of its samples, run alone with everything off."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pagemill import RequestOutput, SamplingParams
from pagemill.outputs import CompletionOutput
from pagemill.philox import derive_seed
from tests.core_helpers import alone


def each_sample(params: SamplingParams) -> list[SamplingParams]:
    """What asks for each of the samples by itself. ``params`` needs a seed."""
    assert params.seed is not None
    return [
        dataclasses.replace(params, n=1, seed=derive_seed(params.seed, index))
        for index in range(params.n)
    ]


def samples_alone(
    prompt: Sequence[int], params: SamplingParams, **engine_options: object
) -> list[CompletionOutput]:
    """Each sample of a request, run alone on the simulated runner with nothing shared."""
    outputs = [alone(prompt, one, **engine_options).outputs[0] for one in each_sample(params)]
    return [dataclasses.replace(output, index=i) for i, output in enumerate(outputs)]


def assert_as_alone(
    output: RequestOutput, params: SamplingParams, **engine_options: object
) -> None:
    """Tokens, texts, log-probabilities and reasons to end, of all samples and of the prompt."""
    prompt = output.prompt_token_ids
    assert output.finished
    assert output.outputs == samples_alone(prompt, params, **engine_options)
    expected = alone(prompt, each_sample(params)[0], **engine_options)
    assert output.prompt_logprobs == expected.prompt_logprobs
