"""Parameters that stay as they are."""

from torch import nn

from depthwise.config import Recipe

OF_EXITS = (".exit_heads.", ".exit_norms.", ".trained_policy.")
"""What belongs to exits below the last, or to the policy, and to nothing else."""


def freeze(model: nn.Module, recipe: Recipe) -> None:
    """Freeze all but exits and policy where ``training.exits.freeze`` says so (DeeBERT, exit tuning, phase two)."""
    options = recipe.training.exits
    if options is None or not options.freeze:
        return
    for name, param in model.named_parameters():
        param.requires_grad_(any(part in f".{name}" for part in OF_EXITS))
