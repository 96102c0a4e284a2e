"""Short forms for the tests of sampling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pagemill import sampling
from pagemill.batch import SampledToken, SamplingTask, ScoringTask, TokenLogprobs
from pagemill.kernels import native
from pagemill.sampling import NumpyVocabulary, VocabularyOps
from pagemill.sampling.adjustments import Adjustments
from pagemill.sampling_params import SamplingParams

_in_use: list[VocabularyOps] = [NumpyVocabulary()]


@cache
def native_vocabulary(num_threads: int = 2) -> VocabularyOps:
    """On threads of its own; skips the test where there is no library."""
    from pagemill.sampling.native import NativeVocabulary

    library = native.load()
    if library is None:
        pytest.skip("no native library")
    return NativeVocabulary(native.ThreadPool(library, num_threads))


@contextmanager
def use_vocabulary(name: str) -> Iterator[None]:
    """Let `sample` and `score` compute with ``numpy`` or ``native``."""
    _in_use.append(native_vocabulary() if name == "native" else NumpyVocabulary())
    yield
    _in_use.pop()


def sample(logits: torch.Tensor, tasks: Sequence[SamplingTask]) -> list[SampledToken]:
    return sampling.sample(logits, tasks, _in_use[-1])


def score(logits: torch.Tensor, tasks: Sequence[ScoringTask]) -> list[TokenLogprobs]:
    return sampling.score(logits, tasks, _in_use[-1])


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


def adjusted_natively(
    adjustments: Adjustments, logits: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32] | None:
    """`Adjustments.apply` of the native library; None if it refuses them."""
    from pagemill.kernels.sampling_library import sampling_library
    from pagemill.sampling.native import adjustments_struct

    adjusted, counts = logits.copy(), np.zeros(len(logits), np.int32)
    addresses = [array.ctypes.data for array in (logits, adjusted, counts)]
    is_done = sampling_library().pagemill_vocab_adjust(
        adjustments_struct(adjustments), addresses[0], len(logits), *addresses[1:]
    )
    assert not counts.any(), "the counts are not zero again"
    return adjusted if is_done else None
