"""The threshold of every token at an exit."""

from depthwise.config.depth import ThresholdConfig
from depthwise.depth.confidence import decayed_threshold
from depthwise.depth.policy import Visit
from depthwise.shapes import Float, Tensor

HIGHEST = 1.0
"""No confidence exceeds it, so that nobody leaves by a threshold above."""


def threshold_at(options: ThresholdConfig, visit: Visit) -> float | Float[Tensor, "B T"]:
    """One number for all tokens, or with a decay one for each. One that nobody reaches stays as it is."""
    threshold = options.threshold_of(visit.index)
    if options.decay is None or threshold > HIGHEST:
        return threshold
    assert options.max_length is not None, "validation asks for a length wherever there is a decay"
    steps = visit.context.steps
    return decayed_threshold(
        threshold, steps, length=options.max_length, rate=float(options.decay_rate), form=options.decay
    )
