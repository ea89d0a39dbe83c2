"""Linear maps that a new model starts with weights of another size than others."""

from math import sqrt

from torch import nn

from depthwise.shapes import Float, Tensor


class ScaledLinear(nn.Linear):
    """A linear map whose weights start as Xavier-uniform ones times ``gain``."""

    def __init__(self, inputs: int, outputs: int, gain: float) -> None:
        super().__init__(inputs, outputs)
        self.gain = gain


def torch_gain(inputs: int, outputs: int) -> float:
    """The gain that makes Xavier's bound, sqrt(6 / (inputs + outputs)), torch's own: 1 / sqrt(inputs)."""
    return sqrt((inputs + outputs) / (6 * inputs))


def made_from(linear: nn.Module) -> nn.Module:
    """The map itself, or the one whose weights it stands in for."""
    found: nn.Module = getattr(linear, "made_from", linear)
    return found


def weights_of(linear: nn.Module) -> tuple[Float[Tensor, "O I"], Float[Tensor, "O"]] | None:
    """Weight and bias of a map that is as it was made; none where hooks listen to it, or something took its place.

    What stands in for a map with the same weights says so by ``made_from``.
    """
    made, hooks = made_from(linear), (linear._forward_hooks, linear._forward_pre_hooks)
    if not isinstance(made, nn.Linear) or type(made) not in (nn.Linear, ScaledLinear) or any(hooks):
        return None
    return None if made.bias is None else (made.weight, made.bias)
