"""Qwen3 (dense): Llama's blocks with an RMSNorm over each head of query and key.

The norms (``qk_norm``) and a head size that is not ``hidden_size / num_heads`` are settings that
`LlamaModel` follows.
"""

from __future__ import annotations

from pagemill.models.llama import LlamaModel


class Qwen3Model(LlamaModel):
    """Implements `pagemill.models.protocol.Model`."""
