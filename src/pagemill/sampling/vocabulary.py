"""What the sampler asks of whoever computes rows of logits: numpy, or the native kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pagemill.batch import SampledToken, SamplingTask, ScoringTask, TokenLogprobs

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]
UInt64Array = npt.NDArray[np.uint64]


class VocabularyOps(Protocol):
    """The passes over whole rows, and what follows from them.

    No operation spans two rows, so a row's outcome is bit for bit the same whatever rows accompany
    it and however many threads work. ``rows`` are contiguous, ``[L, V]``, and are not changed.
    """

    def uniforms(self, keys: UInt64Array, positions: UInt64Array) -> DoubleArray:
        """`pagemill.philox.uniforms`: a number in [0, 1) for each pair, [N]."""
        ...

    def sample(
        self, rows: FloatArray, tasks: Sequence[SamplingTask], uniforms: Sequence[float]
    ) -> list[SampledToken]:
        """Choose a token for each task; the draw is decided by its uniform number.

        See `pagemill.sampling.sample`.
        """
        ...

    def score(self, rows: FloatArray, tasks: Sequence[ScoringTask]) -> list[TokenLogprobs]:
        """Report the log-probability and rank of each task's token.

        See `pagemill.sampling.score`.
        """
        ...
