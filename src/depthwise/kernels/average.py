"""Uniform averages over past or all positions, the mixing step of average attention."""

from depthwise.kernels.weights import at_least_float32
from depthwise.kernels.windows import trailing
from depthwise.shapes import Bool, Float, Int, Tensor


def running_mean(
    x: Float[Tensor, "B L D"],
    *,
    causal: bool,
    valid: Bool[Tensor, "B L"] | None = None,
    positions: Int[Tensor, "B P"] | None = None,
    num_last: int | None = None,
    before: tuple[Float[Tensor, "B D"], Float[Tensor, "B 1"]] | None = None,
) -> Float[Tensor, "B _p D"]:
    """y_t = (1 / t) sum_{j <= t} x_j, or the mean over all j where not causal; padding does not count.

    The first half of average attention (Zhang et al. 2018). ``before`` holds the sum and the number of the real tokens
    that came earlier than ``x``.
    """
    inputs = at_least_float32(x if valid is None else x.masked_fill(~valid.unsqueeze(-1), 0))
    real = inputs.new_ones(x.shape[:2]) if valid is None else valid.to(inputs.dtype)
    total, count = inputs.cumsum(1), real.cumsum(1).unsqueeze(-1)
    if before is not None:
        total, count = total + before[0].unsqueeze(1), count + before[1].unsqueeze(1)
    if not causal:
        total, count = total[:, -1:].expand_as(total), count[:, -1:].expand_as(count)
    mean = total / count.clamp(min=1)
    positions = trailing(x, positions, num_last)
    if positions is not None:
        mean = mean.gather(1, positions.unsqueeze(-1).expand(-1, -1, mean.shape[-1]))
    return mean.to(x.dtype)
