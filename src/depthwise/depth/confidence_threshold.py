"""Leaving where a model is sure enough."""

import torch

from depthwise.config.depth import ConfidenceConfig
from depthwise.depth.confidence import saturation, score_confidence
from depthwise.depth.policy import Policy, State, Visit
from depthwise.depth.thresholds import HIGHEST, threshold_at
from depthwise.errors import InputError
from depthwise.kernels.weights import at_least_float32
from depthwise.shapes import Bool, Float, Tensor


class ConfidenceThreshold(Policy):
    """A token leaves at the first exit that is sure enough of it.

        leave at the first n with c_n ≥ τ_n        c: one of the measures in ``confidence``, all rising with certainty,
                                                   of softmax(z_n / T_n) where there are temperatures
        τ_n(t) = 0.9·τ_n + 0.1·τ_n·exp(−r·t/L)     where it decays (CALM's code; in its paper 0.1·exp(−r·t/L))

    Ours -> symbols: threshold -> τ, temperature -> T, decay_rate -> r, max_length -> L.

    Decides: at every exit, for every token by itself.
    Source: Elbayad et al. 2020 and EE-LLM (``max_probability``); Schuster et al. 2022, "CALM" (``margin``,
    ``saturation``, decay); Xin et al. 2020, "DeeBERT" (``entropy``); Liu et al. 2020, "FastBERT"
    (``normalized_entropy``).
    Choose it: for models that have exits but no trained policy, and for classifiers, whose scores are cheap. With a
    large vocabulary the scores of every exit may cost more than the blocks that are saved; ``saturation`` looks at
    states alone, those of this exit and the one below, so that nobody leaves at the first.
    Needs: exits that were trained; no parameters of its own.
    """

    def __init__(self, options: ConfidenceConfig) -> None:
        super().__init__()
        self.options = options

    def leaving(self, visit: Visit, state: State) -> tuple[Bool[Tensor, "B T"], State]:
        """Scores are not looked at where nobody can be sure enough."""
        is_first_of_two = self.options.measure == "saturation" and visit.before is None
        if is_first_of_two or self.options.threshold_of(visit.index) > HIGHEST:
            return torch.zeros(visit.hidden.shape[:2], dtype=torch.bool, device=visit.hidden.device), state
        return self._confidence(visit) >= threshold_at(self.options, visit), state

    def _confidence(self, visit: Visit) -> Float[Tensor, "B T"]:
        if self.options.measure == "saturation":
            assert visit.before is not None
            return saturation(at_least_float32(visit.before), at_least_float32(visit.hidden))
        if visit.log_prob.shape[-1] == 1:
            raise InputError(
                f"{self.options.measure} compares classes, but this model estimates a number; choose the measure "
                "saturation, or the policy patience"
            )
        log_probs, temperature = at_least_float32(visit.log_prob), self.options.temperature_of(visit.index)
        if temperature != 1:
            log_probs = (log_probs / temperature).log_softmax(-1)
        return score_confidence(self.options.measure, log_probs)
