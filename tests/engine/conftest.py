"""The tiny models of ``tests/models``."""

from ..models.conftest import build, config_of, draw_batch, draw_ids, mixer, norm

__all__ = ["build", "config_of", "draw_batch", "draw_ids", "mixer", "norm"]
