"""Blocks that are left out at random in training, so that the others learn to do without them.

A block that is left out copies its input; nothing is rescaled, in training or afterwards. As in the papers, blocks are
drawn independently of each other and none is kept by force: LayerDrop leaves out all of N blocks with a chance of p^N,
while the first block of LayerSkip is never left out.
"""

from collections.abc import Sequence

import torch

from depthwise.depth.plan import Plan
from depthwise.errors import InputError
from depthwise.shapes import Float, Tensor


def layerdrop(num_layers: int, chance: float) -> list[float]:
    """The same chance of being left out for every block (Fan et al. 2019).

    A model that is to be pruned to r of N layers wants the chance 1 − r/N.
    """
    _check(chance)
    return [chance] * num_layers


def layerskip(num_layers: int, highest: float, progress: float | None = None) -> list[float]:
    """A chance that grows with the layer l, and with training where ``progress`` (0 to 1) is given (LayerSkip).

        p_l = p_max · D(l) · S(t),    D(l) = 2^{l/(L−1)} − 1,    S(t) = 2^{progress} − 1, or 1 without it

    (Elhoushi et al. 2024 write exp(x·ln 2) for 2^x.) S grows for a model that is trained from scratch, where progress
    is t/(T − 1) at update t of T. The first layer is never left out, be it the only one.
    """
    _check(highest)
    if progress is not None and not 0 <= progress <= 1:
        raise InputError(f"the progress of training is {progress}, but goes from 0 to 1")
    by_now = 1.0 if progress is None else 2.0**progress - 1
    return [highest * by_now * (2.0 ** (layer / max(1, num_layers - 1)) - 1) for layer in range(num_layers)]


def drawn_plan(
    chances: Sequence[float] | Float[Tensor, "N"],
    num_rows: int,
    num_steps: int,
    *,
    by_row: bool,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Plan:
    """A plan that leaves out each block with its chance: for every row by itself (LayerSkip) or for all (LayerDrop).

    All tokens of a row run the same blocks. Chances as numbers are a fixed part of a recorded CUDA graph; those of a
    tensor, which lies on the device and is not looked at, may change from one replay to the next.
    """
    draws = torch.rand(len(chances), num_rows if by_row else 1, 1, device=device, generator=generator)
    if isinstance(chances, Tensor):
        run = draws >= chances.view(-1, 1, 1)
    else:
        for chance in chances:
            _check(chance)
        run = torch.stack([draw >= chance for draw, chance in zip(draws, chances, strict=True)])
    return Plan(run.expand(-1, num_rows, num_steps))


def _check(chance: float) -> None:
    if not 0 <= chance <= 1:
        raise InputError(f"the chance of leaving out a block is {chance}, but lies between 0 and 1")
