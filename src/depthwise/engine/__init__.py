"""The compact executor: fewer blocks are less time."""

from depthwise.engine.choosing import ChosenEncoder
from depthwise.engine.decoding import Generated
from depthwise.engine.encoder import CompactEncoder
from depthwise.engine.engine import Engine

__all__ = ["ChosenEncoder", "CompactEncoder", "Engine", "Generated"]
