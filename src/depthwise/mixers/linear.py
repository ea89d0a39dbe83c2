"""Linear maps that a new model starts with weights of another size than others."""

from math import sqrt

from torch import nn


class ScaledLinear(nn.Linear):
    """A linear map whose weights start as Xavier-uniform ones times ``gain``."""

    def __init__(self, inputs: int, outputs: int, gain: float) -> None:
        super().__init__(inputs, outputs)
        self.gain = gain


def torch_gain(inputs: int, outputs: int) -> float:
    """The gain that makes Xavier's bound, sqrt(6 / (inputs + outputs)), torch's own: 1 / sqrt(inputs)."""
    return sqrt((inputs + outputs) / (6 * inputs))
