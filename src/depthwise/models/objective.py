"""What exits learn in one pass of a model: a value that is given to ``forward`` beside labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from depthwise.depth import Plan
from depthwise.depth.exit_targets import depth_of_exit
from depthwise.depth.layer_dropout import drawn_plan
from depthwise.losses import ExitTargets
from depthwise.losses.exits import LABELS
from depthwise.shapes import Float, Int, Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class ExitObjective:
    """How exits learn from a batch.

    With ``weights`` they are aligned: every token runs the whole stack and counts at every exit. Without, they are
    mixed: every token counts at the exit that it draws, in each of ``paths`` copies of the batch. Numbers that change
    from one pass to the next are tensors on the device where passes are recorded.
    """

    weights: Sequence[float] | Float[Tensor, "E"] | None = None
    paths: int = 1
    chosen: Int[Tensor, "B T"] | None = None
    """The index of the exit of every token of all copies, to be taken instead of drawn ones; or of every row."""
    targets: ExitTargets = LABELS
    policy_weight: float = 1.0
    dropped: Sequence[float] | Float[Tensor, "N"] | None = None
    """The chance of each block of being left out."""
    drops_by_row: bool = False
    own_factors: Sequence[float] | None = None
    """How much the parameters of each block learn from its own exit, compared to those above (``scaled_gradients``)."""

    @property
    def is_mixed(self) -> bool:
        return self.weights is None

    @property
    def num_copies(self) -> int:
        return self.paths if self.is_mixed else 1

    def repeated(self, tensor: Tensor | None) -> Tensor | None:
        """All copies of a batch, one behind the other."""
        if tensor is None or self.num_copies == 1:
            return tensor
        return tensor.repeat(self.num_copies, *(1,) * (tensor.dim() - 1))

    def items(self, num_items: Tensor | int | None) -> Tensor | int | None:
        """What the loss is divided by: the mean over copies is meant."""
        return None if num_items is None else num_items * self.num_copies

    def drawn(
        self, exits: Sequence[int], shape: tuple[int, int], device: torch.device, *, by_row: bool
    ) -> tuple[Plan | None, Int[Tensor, "B T"] | None]:
        """Which blocks the tokens of all copies run, if not all do, and which exit each has drawn, if it did."""
        num_rows, num_steps = shape
        run, chosen = None, None
        if self.is_mixed:
            chosen = self.chosen
            if chosen is None:
                chosen = torch.randint(len(exits), (num_rows, 1 if by_row else num_steps), device=device)
            run = Plan.of_depths(depth_of_exit(chosen, exits).expand(shape), exits[-1]).run
        if self.dropped is not None:
            kept = drawn_plan(self.dropped, num_rows, num_steps, by_row=self.drops_by_row, device=device).run
            run = kept if run is None else run & kept
        return None if run is None else Plan(run), chosen
