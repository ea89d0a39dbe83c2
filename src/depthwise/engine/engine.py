"""The engine: a model that computes only what is asked of it."""

from typing import Any

import torch

from depthwise.engine.encoder import CompactEncoder
from depthwise.errors import InputError
from depthwise.models.executing import executed_by
from depthwise.models.outputs import DepthwiseOutput
from depthwise.models.pretrained import DepthwisePreTrainedModel


class Engine:
    """Runs a model for prediction so that depth saved is time saved, at any batch size.

    Its encoder (``__call__``: classification, tagging, answers, filling in masks) computes neither padding nor tokens
    that have left; results are those of the model itself. ``token_layers`` counts the blocks that tokens of encoders
    have run so far.
    """

    def __init__(self, model: DepthwisePreTrainedModel) -> None:
        if model.config.options.encoder is None:
            raise InputError("the engine runs models with an encoder; a language model runs by generate() alone")
        self.model = model.eval()
        self._encoder = CompactEncoder()

    @property
    def token_layers(self) -> int:
        return self._encoder.token_layers

    @torch.inference_mode()
    def __call__(self, *arguments: Any, **options: Any) -> DepthwiseOutput:
        """What the model itself says of the same inputs."""
        with executed_by(self._encoder):
            output: DepthwiseOutput = self.model(*arguments, **options)
        return output
