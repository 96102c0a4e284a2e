"""Short forms for the tests of sampling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from pagemill.batch import SampledToken, SamplingTask
from pagemill.sampling import sample
from pagemill.sampling_params import SamplingParams


def task(
    row: int = 0,
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    end: Iterable[int] = (),
    stream: int = 0,
    **params: Any,
) -> SamplingTask:
    """Make a task; ``stream`` is the seed of the draws, the rest are sampling parameters."""
    return SamplingTask(
        logits_row=row,
        params=SamplingParams(**params),
        prompt_token_ids=prompt,
        output_token_ids=output,
        seed=stream,
        end_token_ids=frozenset(end),
    )


def sample_one(logits: Sequence[float] | torch.Tensor, one: SamplingTask) -> SampledToken:
    """Sample from a single row."""
    return sample(torch.as_tensor(logits, dtype=torch.float32)[None], [one])[0]


def draws(logits: torch.Tensor, count: int, **params: Any) -> list[int | None]:
    """Draw ``count`` tokens from one row, each from a stream of its own."""
    tasks = [task(stream=stream, **params) for stream in range(count)]
    return [sampled.token_id for sampled in sample(logits[None], tasks)]


def random_logits(vocab_size: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    """Logits of about the spread of a language model's."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(vocab_size, generator=generator) * scale
