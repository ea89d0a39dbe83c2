"""How much each exit counts in training.

Weights have any scale: a loss divides them by their sum. They follow from depths n, counted from 1 to N:

| name | ω_n | source |
|---|---|---|
| ``equal`` | 1 | Elbayad et al. 2020 |
| ``linear`` | n | PABEE (Zhou et al. 2020), CALM (Schuster et al. 2022), FREE (Bae et al. 2023) |
| ``sqrt`` | √n | Elbayad et al. 2020 |
| ``inverse_sqrt`` | 1/√n | Elbayad et al. 2020 |
| ``inverse`` | 1/n | Elbayad et al. 2020 |
| ``layerskip`` | e·Σ_{i<n} i below N, and N − 1 + e·Σ_{i<N−1} i at N | LayerSkip (Elhoushi et al. 2024) |

LayerSkip counts layers from 0, so that its first exit, at depth 1, weighs nothing; e is its ``scale``. Its curricula
leave some exits out for a while. The last exit is never left out.
"""

import math
from collections.abc import Sequence

from depthwise.errors import InputError

OMEGAS = ("equal", "linear", "sqrt", "inverse_sqrt", "inverse", "layerskip")


def exit_weights(omega: str | Sequence[float], exits: Sequence[int], *, scale: float = 1.0) -> list[float]:
    """The weight of each exit, by name or one by one. ``exits`` are their depths, from low to high."""
    if not isinstance(omega, str):
        return _given(omega, exits)
    if omega not in OMEGAS:
        raise InputError(f'"{omega}" is no weighting of exits; choose among {", ".join(OMEGAS)}, or list weights')
    match omega:
        case "equal":
            return [1.0 for _ in exits]
        case "linear":
            return [float(depth) for depth in exits]
        case "sqrt":
            return [math.sqrt(depth) for depth in exits]
        case "inverse_sqrt":
            return [1 / math.sqrt(depth) for depth in exits]
        case "inverse":
            return [1 / depth for depth in exits]
    return _layerskip(exits, scale)


def rotated(weights: Sequence[float], update: int, *, every: int) -> list[float]:
    """One of ``every`` exits counts, another one with each update, and the last always (LayerSkip's C_rot,R)."""
    if every < 1:
        raise InputError(f"one of every {every} exits cannot count; rotate through 1 or more")
    last = len(weights) - 1
    return [weight if index % every == update % every or index == last else 0.0 for index, weight in enumerate(weights)]


def unlocked(weights: Sequence[float], progress: float, *, share: float = 0.5) -> list[float]:
    """Exits begin to count one by one, from the last to the first, until a ``share`` of training is over (C_gradual).

    ``progress`` is how much of training is over, from 0 to 1. Exit i of E counts from progress share·(E − i)/E on,
    with i from 0; the last from the beginning.
    """
    if not 0 < share <= 1:
        raise InputError(f"the share of training in which exits begin to count is {share}, but lies above 0, at most 1")
    count, last = len(weights), len(weights) - 1
    return [
        weight if progress * count >= share * (count - index) or index == last else 0.0
        for index, weight in enumerate(weights)
    ]


def _layerskip(exits: Sequence[int], scale: float) -> list[float]:
    if not 0 <= scale < math.inf:
        raise InputError(f"the scale of the weights of exits is {scale}, but is a number from 0 on")
    num_layers = exits[-1]
    if num_layers == 1:
        return [1.0]  # the formula gives 0, but the only exit has all of the weight
    below = [scale * depth * (depth - 1) / 2 for depth in exits[:-1]]
    return [*below, num_layers - 1 + scale * (num_layers - 1) * (num_layers - 2) / 2]


def _given(weights: Sequence[float], exits: Sequence[int]) -> list[float]:
    if len(weights) != len(exits):
        raise InputError(f"there are {len(weights)} weights for {len(exits)} exits; give one for each")
    if not all(0 <= weight < math.inf for weight in weights) or not any(weights):
        listed = ", ".join(f"{weight:g}" for weight in weights)
        raise InputError(f"weights of exits are numbers from 0 on, and not all are 0; found {listed}")
    return [float(weight) for weight in weights]
