"""``pagemill bench numerics``: what each way to keep weights, keys and values costs in exactness.

formats      the ways, by name
logprobs     log-probabilities over the whole vocabulary, from the engine itself
divergence   two of them compared, token by token
command      all formats of a model on a text, as JSON and as a table
"""

from pagemill.bench.numerics.command import NumericsCommand

__all__ = ["NumericsCommand"]
