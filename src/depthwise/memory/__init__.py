"""What positions leave behind for others to read: explicit values that can be appended to and indexed by row."""

from depthwise.memory.averages import AverageMemory
from depthwise.memory.base import Memory
from depthwise.memory.inputs import InputMemory
from depthwise.memory.keys_values import KeyValueMemory
from depthwise.memory.places import Places
from depthwise.memory.state import DecodeState, LayerMemory

__all__ = ["AverageMemory", "DecodeState", "InputMemory", "KeyValueMemory", "LayerMemory", "Memory", "Places"]
