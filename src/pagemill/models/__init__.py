"""Architectures by name, and the one way to build a model."""

from __future__ import annotations

from collections.abc import Callable

from pagemill.errors import UnsupportedModelError
from pagemill.loading.weights import Weights
from pagemill.model_config import ModelConfig
from pagemill.models.gemma3 import Gemma3Model
from pagemill.models.gpt2 import GPT2Model
from pagemill.models.llama import LlamaModel
from pagemill.models.protocol import Model
from pagemill.models.qwen2 import Qwen2Model
from pagemill.models.qwen3 import Qwen3Model

__all__ = ["Model", "build_model"]

_MODELS: dict[str, Callable[[ModelConfig, Weights], Model]] = {
    "llama": LlamaModel,
    "mistral": LlamaModel,
    "qwen2": Qwen2Model,
    "qwen3": Qwen3Model,
    "gpt2": GPT2Model,
    "gemma3_text": Gemma3Model,
}


def build_model(config: ModelConfig, weights: Weights) -> Model:
    """Build the model that ``config`` names out of ``weights``, every one of them used.

    Raises:
        UnsupportedModelError: the architecture is unknown, a weight is missing, has another shape
            than the configuration says, or is left over.
    """
    if config.architecture not in _MODELS:
        raise UnsupportedModelError(
            f"architecture {config.architecture!r} is not implemented; "
            f"supported: {', '.join(_MODELS)}"
        )
    model = _MODELS[config.architecture](config, weights)
    weights.finish()
    return model
