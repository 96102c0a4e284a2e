"""Qwen2 and Qwen2.5: Llama's blocks with a bias on the query, key and value projections.

The bias (``qkv_bias``) and the layers with a sliding window (``sliding_windows``, from
``use_sliding_window`` and ``max_window_layers``) are settings that `LlamaModel` follows.
"""

from __future__ import annotations

from pagemill.models.llama import LlamaModel


class Qwen2Model(LlamaModel):
    """Implements `pagemill.models.protocol.Model`."""
