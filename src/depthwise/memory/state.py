"""The state of decoding: everything that a next step needs, as one value that can be listed, sliced and reordered."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import Cache

from depthwise.memory.base import Memory
from depthwise.memory.keys_values import KeyValueMemory
from depthwise.shapes import Int, Tensor


@dataclass(frozen=True)
class LayerMemory:
    """What one block keeps: its own past, and the source it attends to (none without an encoder)."""

    past: Memory
    source: KeyValueMemory | None = None

    def keep(self, rows: Int[Tensor, "R"]) -> "LayerMemory":
        return LayerMemory(self.past.keep(rows), None if self.source is None else self.source.keep(rows))

    def without_last(self, count: int) -> "LayerMemory":
        return LayerMemory(self.past.without_last(count), self.source)


class DecodeState(Cache):
    """Memories of all layers after ``length`` steps, in the form that Transformers' ``generate`` hands around.

    A model never changes a state: it returns the next one. ``num_real`` counts each row's real tokens, which is its
    next position. ``depths`` holds, for every call so far, how deep each of its tokens ran, in the order that the rows
    had then. ``remembers_all`` asks the stack to keep even what no later step can see, so that ``crop`` can take steps
    back.
    """

    is_compileable = False

    def __init__(
        self,
        memories: Sequence[LayerMemory] = (),
        length: int = 0,
        num_real: Int[Tensor, "B"] | None = None,
        depths: Sequence[Int[Tensor, "_r _t"]] = (),
        remembers_all: bool = False,
    ) -> None:
        super().__init__(layers=[])
        self.memories = tuple(memories)
        self.length = length
        self.num_real = num_real
        self.depths = tuple(depths)
        self.remembers_all = remembers_all

    def advanced(
        self, memories: Sequence[LayerMemory], num_new: int, num_real: Int[Tensor, "B"], depths: Int[Tensor, "B T"]
    ) -> "DecodeState":
        """The state after ``num_new`` more steps."""
        if self.num_real is not None:
            num_real = num_real + self.num_real
        return DecodeState(memories, self.length + num_new, num_real, (*self.depths, depths), self.remembers_all)

    def keep(self, rows: Int[Tensor, "R"]) -> "DecodeState":
        """The state of these rows, in this order, repeats allowed. What is on record of depths stays as it was."""
        num_real = None if self.num_real is None else self.num_real.index_select(0, rows)
        memories = [layer.keep(rows) for layer in self.memories]
        return DecodeState(memories, self.length, num_real, self.depths, self.remembers_all)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Steps so far, as Transformers asks for them."""
        return self.length

    def activate_past_recording(self) -> None:
        """From now on memories are kept whole, so that ``crop`` can take steps back."""
        self.remembers_all = True

    def crop(self, tokens_to_remove: int | Int[Tensor, ""]) -> None:
        """Take the last ``-tokens_to_remove`` steps back, in place; they must have been real tokens in every row."""
        count = -int(tokens_to_remove)
        assert 0 <= count <= self.length, "a state cannot be cropped by more steps than it has"
        if count == 0:
            return
        assert self.remembers_all, "activate_past_recording must come before the steps that crop takes back"
        assert self.num_real is not None
        self.memories = tuple(layer.without_last(count) for layer in self.memories)
        self.length -= count
        self.num_real = self.num_real - count
        kept = list(self.depths)
        while count:
            last = kept.pop()
            if last.shape[1] > count:
                kept.append(last[:, : last.shape[1] - count])
            count -= min(count, last.shape[1])
        self.depths = tuple(kept)

    def reorder_cache(self, beam_idx: Int[Tensor, "R"]) -> None:
        """``keep`` in place, as Transformers calls it."""
        kept = self.keep(beam_idx)
        self.memories, self.num_real = kept.memories, kept.num_real

    def batch_select_indices(self, indices: Int[Tensor, "R"]) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.num_real is not None:
            rows = torch.arange(len(self.num_real), device=self.num_real.device)
            self.reorder_cache(rows.repeat_interleave(repeats))

    @property
    def is_croppable(self) -> bool:
        """Whether a reference that was taken earlier follows later steps; it does not, states being values."""
        return False
