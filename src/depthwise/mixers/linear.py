"""Linear maps that a new model starts with weights of another size than others."""

from torch import nn


class ScaledLinear(nn.Linear):
    """A linear map whose weights start as Xavier-uniform ones times ``gain``."""

    def __init__(self, inputs: int, outputs: int, gain: float) -> None:
        super().__init__(inputs, outputs)
        self.gain = gain
