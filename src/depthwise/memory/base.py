"""What every memory can do, and the bookkeeping of padding that all share."""

from typing import Any, Protocol, runtime_checkable

import torch

from depthwise.shapes import Bool, Int, Tensor


@runtime_checkable
class Memory(Protocol):
    """What L positions wrote, immutable. ``valid`` is false on padding; none means that there is no padding."""

    @property
    def valid(self) -> Bool[Tensor, "B L"] | None: ...

    @property
    def length(self) -> int:
        """Number of positions that can be read (L)."""
        ...

    def append(self, later: Any) -> Any:
        """This memory followed by what later positions wrote."""
        ...

    def recent(self, count: int) -> Any:
        """What is needed once only the last ``count`` positions may still be read by others."""
        ...

    def without_last(self, count: int) -> Any:
        """This memory before its last ``count`` positions were appended."""
        ...

    def keep(self, rows: Int[Tensor, "R"]) -> Any:
        """The memory of these rows, in this order, repeats allowed: beam reordering and batch compaction alike."""
        ...


def join_valid(
    earlier: Bool[Tensor, "B L"] | None,
    later: Bool[Tensor, "B M"] | None,
    lengths: tuple[int, int],
    like: Tensor,
) -> Bool[Tensor, "B _n"] | None:
    """Concatenate two validity masks, either of which may be none for all valid."""
    if earlier is None and later is None:
        return None
    parts = [
        torch.ones(like.shape[0], length, dtype=torch.bool, device=like.device) if part is None else part
        for part, length in zip((earlier, later), lengths, strict=True)
    ]
    return torch.cat(parts, dim=1)


def keep_valid(valid: Bool[Tensor, "B L"] | None, rows: Int[Tensor, "R"]) -> Bool[Tensor, "R L"] | None:
    """The masks of these rows."""
    return None if valid is None else valid.index_select(0, rows)


def first_valid(valid: Bool[Tensor, "B L"] | None, count: int) -> Bool[Tensor, "B M"] | None:
    """The mask of the first ``count`` positions."""
    return None if valid is None else first(valid, count)


def first(tensor: Tensor, count: int, axis: int = 1) -> Tensor:
    """The first ``count`` entries along an axis."""
    return tensor.narrow(axis, 0, count)


def last_valid(valid: Bool[Tensor, "B L"] | None, count: int) -> Bool[Tensor, "B M"] | None:
    """The mask of the last ``count`` positions."""
    return None if valid is None else last(valid, count)


def last(tensor: Tensor, count: int, axis: int = 1) -> Tensor:
    """The last ``count`` entries along an axis, fewer where there are fewer."""
    start = max(tensor.shape[axis] - count, 0)
    return tensor.narrow(axis, start, tensor.shape[axis] - start)
