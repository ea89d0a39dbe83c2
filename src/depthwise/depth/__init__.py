"""How deep: the plans that decide which blocks each token runs. Policies that make plans will live here."""

from depthwise.depth.plan import Gate, Plan

__all__ = ["Gate", "Plan"]
