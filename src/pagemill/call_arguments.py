"""What the calls of `pagemill.LLM` take: one prompt or many, one value for all or one for each."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any, cast

from pagemill.errors import InvalidParameterError
from pagemill.sampling_params import SamplingParams

Prompt = str | SequenceOf[int]
Messages = SequenceOf[Mapping[str, Any]]
ParamsForAll = SamplingParams | SequenceOf[SamplingParams] | None
PriorityForAll = int | SequenceOf[int]
DeadlineForAll = float | SequenceOf[float | None] | None


def listed_prompts(prompts: Prompt | SequenceOf[Prompt]) -> list[Prompt]:
    """Tell one prompt from many."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, SequenceOf) or isinstance(prompts, (bytes, bytearray)):
        rule = "must be a text, a list of texts, a list of token ids, or a list of those"
        raise InvalidParameterError("prompts", prompts, rule)
    if len(prompts) and not isinstance(prompts[0], (str, SequenceOf)):
        return [cast("SequenceOf[int]", prompts)]
    return list(cast("SequenceOf[Prompt]", prompts))


def listed_conversations(messages: Messages | SequenceOf[Messages]) -> SequenceOf[Messages]:
    """Tell one conversation from many."""
    if not isinstance(messages, SequenceOf) or isinstance(messages, str) or not messages:
        rule = "must be a non-empty list of messages, or a list of such lists"
        raise InvalidParameterError("messages", messages, rule)
    if isinstance(messages[0], Mapping):
        return [cast("Messages", messages)]
    return cast("SequenceOf[Messages]", messages)


def params_for_each(params: ParamsForAll, count: int) -> list[SamplingParams]:
    """The parameters of each prompt."""
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if isinstance(params, str) or not isinstance(params, SequenceOf):
        rule = "must be a SamplingParams, or a list of one for each prompt"
        raise InvalidParameterError("sampling_params", params, rule)
    if len(params) != count:
        rule = f"must be one SamplingParams, or one for each of the {count} prompts"
        raise InvalidParameterError("sampling_params", f"{len(params)} of them", rule)
    return list(params)


def for_each(name: str, value: Any, count: int) -> list[Any]:
    """One value of an argument for each prompt; the engine checks the values."""
    if isinstance(value, str) or not isinstance(value, SequenceOf):
        return [value] * count
    if len(value) != count:
        rule = f"must be one value, or one for each of the {count} prompts"
        raise InvalidParameterError(name, f"{len(value)} of them", rule)
    return list(value)
