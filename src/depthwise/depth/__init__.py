"""How deep: the policies that decide which blocks each token runs, and the plans they make."""

from depthwise.depth.plan import Gate, Plan
from depthwise.depth.policy import Context, Lesson, Policy, State, Visit

__all__ = ["Context", "Gate", "Lesson", "Plan", "Policy", "State", "Visit"]
