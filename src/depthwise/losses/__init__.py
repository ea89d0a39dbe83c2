"""What training minimises."""

from depthwise.losses.cross_entropy import IGNORED, classification_loss, summed_over_items, token_cross_entropy

__all__ = ["IGNORED", "classification_loss", "summed_over_items", "token_cross_entropy"]
