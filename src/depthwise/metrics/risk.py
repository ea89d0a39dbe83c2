"""May a risk that was small on some examples be promised for all? Learn then Test (Angelopoulos et al. 2021).

Each example has a loss from 0 to 1 at every setting, such as how far its text is from that of the full model. For a
setting whose mean loss over n independent examples is R̂, a p-value bounds the chance of a mean that small if the
expected loss were above δ. Settings are tested from the most careful to the boldest, and the walk ends at the first
that fails (Bauer 1991), as CALM does (Schuster et al. 2022, section 4): then, whatever the number of settings,

    P(expected loss of the one that is chosen ≤ δ) ≥ 1 − ε.

A bolder setting that would pass behind the first failure does not count, or the promise would break.
"""

import math
from collections.abc import Callable, Iterable

import numpy as np

from depthwise.errors import InputError

PValue = Callable[[float, int, float], float]
"""From mean loss, number of examples and δ to a bound on the chance of such a mean."""


def hoeffding(mean_loss: float, num_examples: int, risk: float) -> float:
    """exp(−2 n max(0, δ − R̂)²)."""
    return math.exp(-2 * num_examples * max(0.0, risk - mean_loss) ** 2)


def bentkus(mean_loss: float, num_examples: int, risk: float) -> float:
    """min(1, e · P(Binomial(n, δ) ≤ ⌈n R̂⌉)), the tighter one where risks are small (Bentkus 2004)."""
    # A sum that rounding put a little above a whole number is that number.
    most = min(num_examples, math.ceil(num_examples * mean_loss - 1e-9))
    return min(1.0, math.e * _binomial_tail(most, num_examples, risk))


P_VALUES: dict[str, PValue] = {"hoeffding": hoeffding, "bentkus": bentkus}


def furthest_passing(
    mean_losses: Iterable[float], num_examples: int, risk: float, error: float, bound: str = "hoeffding"
) -> int | None:
    """The place of the boldest setting that may be promised, of settings from the most careful to the boldest.

    ``risk`` is δ, ``error`` is ε. None where not even the first one passes. Losses behind the first failure are not
    asked for, so that they need not be measured.
    """
    check_levels(risk, error)
    if num_examples < 1:
        raise InputError("there are no examples to calibrate on; give some")
    if bound not in P_VALUES:
        raise InputError(f'there is no bound "{bound}"; give one of {", ".join(P_VALUES)}')
    passed = None
    for place, mean_loss in enumerate(mean_losses):
        if not 0 <= mean_loss <= 1:
            raise InputError(f"losses are from 0 to 1; setting {place} has a mean of {mean_loss}")
        if P_VALUES[bound](mean_loss, num_examples, risk) > error:
            break
        passed = place
    return passed


def fewest_examples(risk: float, error: float, bound: str = "hoeffding") -> int:
    """How many examples it takes to promise anything at all, were every loss 0."""
    check_levels(risk, error)
    if bound == "hoeffding":
        return math.ceil(math.log(1 / error) / (2 * risk**2))
    return math.ceil(math.log(error / math.e) / math.log1p(-risk))


def check_levels(risk: float, error: float) -> None:
    """Raises an error where the risk or the chance of breaking the promise is none."""
    for name, value in (("risk", risk), ("chance of breaking the promise", error)):
        if not 0 < value < 1:
            raise InputError(f"the {name} lies between 0 and 1; {value} does not")


def binomial_interval(count: int, num_trials: int, level: float = 0.95) -> tuple[float, float]:
    """Chances by which that many of so many trials are no wonder, from the least to the greatest (Clopper, Pearson)."""
    if not 0 <= count <= num_trials or num_trials < 1:
        raise InputError(f"there cannot be {count} of {num_trials}; give a count from 0 to at least one trial")
    aside = (1 - level) / 2
    low = 0.0 if count == 0 else _chance_where(lambda chance: _binomial_tail(count - 1, num_trials, chance) < 1 - aside)
    high = _chance_where(lambda chance: _binomial_tail(count, num_trials, chance) < aside)
    return low, 1.0 if count == num_trials else high


def _chance_where(is_above: Callable[[float], bool]) -> float:
    """The chance from which on something is so, by halving."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if is_above(middle) else (middle, high)
    return (low + high) / 2


def _binomial_tail(most: int, num_trials: int, chance: float) -> float:
    """P(Binomial(num_trials, chance) ≤ most), summed from logarithms."""
    if most >= num_trials:
        return 1.0
    counts = np.arange(most + 1)
    logs = np.array([_log_choose(num_trials, int(count)) for count in counts])
    logs += counts * math.log(chance) + (num_trials - counts) * math.log1p(-chance)
    highest = logs.max()
    return min(1.0, math.exp(highest) * float(np.exp(logs - highest).sum()))


def _log_choose(num: int, taken: int) -> float:
    return math.lgamma(num + 1) - math.lgamma(taken + 1) - math.lgamma(num - taken + 1)
