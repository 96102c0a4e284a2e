"""Temperature, top-k, top-p and min-p, and the draw from what they leave.

Passes over the whole vocabulary are in float32. Cumulative sums, and what decides about a token
once it is a candidate, are in float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pagemill.sampling.distribution import inverse_temperature, softmax_weights
from pagemill.sampling.selection import keep_largest, largest
from pagemill.sampling.vocabulary import DoubleArray, FloatArray
from pagemill.sampling_params import SamplingParams

IdArray = npt.NDArray[np.intp]

_BLOCK_SIZE = 512
"""A draw sums blocks of this many weights first, then searches inside one block."""
_SLACK_NATS = 1e-3
"""A bound that only narrows the search is set this much too wide, to cover rounding; the tokens
in between are judged exactly afterwards."""
_BINS_PER_NAT = 16
_NUM_BINS = 1024
"""So the last bin holds everything less likely than the best token by exp(-64)."""


class KeptTokens(NamedTuple):
    """The tokens that the filters leave, in ascending order of their ids."""

    token_ids: IdArray | None  # [C]; None: the whole vocabulary
    weights: FloatArray | DoubleArray  # [C] proportional to the probabilities


def filter_tokens(
    logits: FloatArray, peak: float, params: SamplingParams, weights: FloatArray | None = None
) -> KeptTokens:
    """Apply temperature, then top-k, top-p and min-p, each to what the one before it leaves.

    Each keeps at least the most likely token; ties are broken by lower id. ``logits`` [V] come
    after masks, bias and penalties, and ``peak`` is their maximum, finite. ``weights`` [V] are
    their softmax weights at this temperature, if the caller has them already.
    """
    if 0 < params.top_k < len(logits):
        return _judge(largest(logits, params.top_k), logits, peak, params)
    if params.top_p == 1.0 and params.min_p > 0.0:
        depth_nats = -math.log(params.min_p)
        return _judge(_tokens_within(depth_nats, logits, peak, params), logits, peak, params)
    if weights is None:
        weights = softmax_weights(logits, peak, params.temperature)
    if params.top_p == 1.0:
        return KeptTokens(None, weights)
    total = float(weights.sum(dtype=np.float64))
    # The tokens deeper than this weigh at most (1 - top_p) * total, all V of them together.
    depth_nats = math.log(len(logits) / ((1.0 - params.top_p) * total))
    candidates = _tokens_within(depth_nats, logits, peak, params)
    return _judge(candidates, logits, peak, params, total)


def draw_token(kept: KeptTokens, uniform: float) -> int:
    """Invert the cumulative distribution function at ``uniform`` in [0, 1).

    That is: the first token, in order of ids, up to which the cumulative weight exceeds that
    share of the total. A token of weight 0 is never drawn.
    """
    weights = kept.weights
    starts = np.arange(0, len(weights), _BLOCK_SIZE)
    ends = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    target = uniform * ends[-1]  # less than the total: a uniform number is at most 1 - 2^-53
    block = int(np.searchsorted(ends, target, side="right"))
    before = ends[block - 1] if block > 0 else 0.0
    inside = weights[block * _BLOCK_SIZE : (block + 1) * _BLOCK_SIZE]
    cumulative = before + np.cumsum(inside, dtype=np.float64)
    index = int(np.searchsorted(cumulative, target, side="right"))
    if index == len(inside):  # this sum rounded to less than the block's own
        index = int(np.flatnonzero(inside)[-1])
    index += block * _BLOCK_SIZE
    return index if kept.token_ids is None else int(kept.token_ids[index])


def _tokens_within(
    depth_nats: float, logits: FloatArray, peak: float, params: SamplingParams
) -> IdArray:
    """Find the tokens whose weight is at least ``exp(-depth_nats)``, and perhaps a few more."""
    lowest = np.float32(peak - params.temperature * (depth_nats + _SLACK_NATS))
    return np.flatnonzero(logits >= np.nextafter(lowest, np.float32(-np.inf)))


def _judge(
    token_ids: IdArray,
    logits: FloatArray,
    peak: float,
    params: SamplingParams,
    total: float | None = None,
) -> KeptTokens:
    """Apply top-p and min-p to candidates that include all tokens that can pass.

    ``total`` is the mass that ``top_p`` is a share of; None: that of the candidates.
    """
    candidates = logits[token_ids].astype(np.float64)
    depths_nats = (peak - candidates) * inverse_temperature(params.temperature)
    weights = np.exp(-depths_nats)
    keep = weights >= params.min_p
    if params.top_p < 1.0:
        keep &= _nucleus(candidates, depths_nats, weights, params.top_p, total)
    return KeptTokens(token_ids[keep], weights[keep])


def _nucleus(
    logits: DoubleArray,
    depths_nats: DoubleArray,
    weights: DoubleArray,
    top_p: float,
    total: float | None,
) -> npt.NDArray[np.bool_]:
    """Mark the smallest set of best candidates whose mass is at least ``top_p * total``.

    A histogram of the mass by depth finds the bin in which that mass is reached. All better
    bins are in, all worse ones are out, and only this one's tokens have to be sorted.
    """
    bins = np.minimum(depths_nats * _BINS_PER_NAT, _NUM_BINS - 1).astype(np.intp)
    mass_through_bin = np.cumsum(np.bincount(bins, weights, minlength=_NUM_BINS))
    if total is None:
        total = mass_through_bin[-1]
    target = top_p * total
    last_bin = min(int(np.searchsorted(mass_through_bin, target)), int(bins.max()))

    contested = np.flatnonzero(bins == last_bin)
    mass_before = mass_through_bin[last_bin - 1] if last_bin > 0 else 0.0
    cumulative = mass_before + np.cumsum(np.sort(weights[contested])[::-1])
    num_in = int(np.searchsorted(cumulative, target)) + 1
    keep: npt.NDArray[np.bool_] = bins < last_bin
    # Ranked by logit, not by weight: different logits may round to one weight.
    keep[contested] = keep_largest(logits[contested], num_in)
    return keep
