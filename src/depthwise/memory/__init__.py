"""What positions leave behind for others to read: explicit values that can be appended to and indexed by row."""

from depthwise.memory.averages import AverageMemory
from depthwise.memory.base import Memory
from depthwise.memory.inputs import InputMemory
from depthwise.memory.keys_values import KeyValueMemory
from depthwise.memory.places import Around, Index, Places, Sequences
from depthwise.memory.sending import send_into, sent, sent_together
from depthwise.memory.state import DecodeState, LayerMemory

__all__ = [
    "Around",
    "AverageMemory",
    "DecodeState",
    "Index",
    "InputMemory",
    "KeyValueMemory",
    "LayerMemory",
    "Memory",
    "Places",
    "Sequences",
    "send_into",
    "sent",
    "sent_together",
]
