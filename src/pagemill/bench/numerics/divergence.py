"""How far one model's predictions are from another's on the same text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pagemill.bench.numerics.logprobs import PromptLogprobs
from pagemill.loading.memory import give_back_freed_memory


@dataclass(frozen=True, slots=True)
class Divergence:
    """Over the tokens of a text; natural logarithms, probabilities of the whole vocabulary."""

    num_tokens: int
    """That were predicted."""
    perplexity: float
    """Of the text, by the format that is compared."""
    mean_kl: float
    """Of KL(reference || format), the divergence of Kullback and Leibler (1951): sum over the
    vocabulary of p log(p / q), where p is what the reference predicts."""
    p99_kl: float
    """99 of 100 tokens diverge by less."""
    agreement: float
    """Share of tokens for which both find the same one most likely."""

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return {name: getattr(self, name) for name in self.__slots__}


def windows_of(
    token_ids: Sequence[int], window_tokens: int, prefix: Sequence[int] = ()
) -> Iterator[list[int]]:
    """The text in prompts of ``window_tokens``, the last one shorter.

    Args:
        token_ids: of the text.
        window_tokens: of a prompt, with its prefix.
        prefix: what the model expects at the beginning of a text, such as ``<bos>``.
    """
    step = window_tokens - len(prefix)
    for start in range(0, len(token_ids), step):
        window = [*prefix, *token_ids[start : start + step]]
        if len(window) > 1:  # else there is nothing to predict
            yield window


def compare(
    reference: PromptLogprobs, other: PromptLogprobs, windows: Sequence[Sequence[int]]
) -> Divergence:
    """Predict each window with both and compare, in steps: never more than a step's rows at once.

    The windows must hold a token to predict.
    """
    kl, nll, agrees = [], [], []
    for window in windows:
        at = 1
        for p, q in zip(reference.of(window), other.of(window), strict=True):
            following = torch.tensor(window[at : at + len(q)])
            kl.append((p.exp() * (p - q)).sum(dim=-1).numpy())
            nll.append(-q[torch.arange(len(q)), following].numpy())
            agrees.append((p.argmax(dim=-1) == q.argmax(dim=-1)).numpy())
            at += len(q)
        give_back_freed_memory()  # else gaps between small results add up to gigabytes
    all_kl = np.concatenate(kl)
    return Divergence(
        num_tokens=len(all_kl),
        perplexity=math.exp(np.concatenate(nll).mean()),
        mean_kl=float(all_kl.mean()),
        p99_kl=float(np.percentile(all_kl, 99)),
        agreement=float(np.concatenate(agrees).mean()),
    )
