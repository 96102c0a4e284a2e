"""The embedding of a prompt: the mean of its hidden states, summed up as they are computed.

Rows are added one after another, in the order of their positions, in float64. So the sum has the
same bits however the prompt was cut, whatever else was computed beside it, and however often it
was preempted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
SumArray = npt.NDArray[np.float64]


def add_rows(total: SumArray | None, rows: FloatArray) -> SumArray:
    """``total`` and ``rows``, added up in this order.

    Args:
        total: ``[hidden_size]``, left as it is; None: nothing yet.
        rows: ``[num_rows, hidden_size]``.
    """
    result = np.zeros(rows.shape[1]) if total is None else total.copy()
    with np.errstate(invalid="ignore"):  # infinity - infinity: the mean says so
        # Not `rows.sum`, whose order is numpy's own affair.
        for row in rows:
            result += row
    return result


@dataclass(slots=True)
class PromptSum:
    """How far the hidden states of a prompt are summed up."""

    num_tokens: int = 0
    """Leading tokens whose rows are in ``total``, each once."""
    total: SumArray | None = None
    """``[hidden_size]``; replaced, never written to."""

    def mean(self) -> FloatArray | None:
        """``[hidden_size]``; None if the model computed NaN or infinity."""
        assert self.total is not None, "no row was added"
        if not np.isfinite(self.total).all():
            return None
        return (self.total / self.num_tokens).astype(np.float32)


def scaled_to_length_1(embedding: FloatArray) -> FloatArray:
    """``embedding`` over its Euclidean length; zeros, which have no direction, stay zeros."""
    wide = embedding.astype(np.float64)
    length = np.sqrt(np.square(wide).sum())
    return embedding if length == 0 else (wide / length).astype(np.float32)
