"""`ServerMetrics`: what a server counts, for Prometheus."""

from __future__ import annotations

from pagemill.engine import LLMEngine


class ServerMetrics:
    """Counts of one server.

    Args:
        model_name: the value of the label that all of them have.
    """

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name

    def follow(self, engine: LLMEngine) -> None:
        """Count what ``engine`` does from now on, added to what was counted of earlier ones."""
