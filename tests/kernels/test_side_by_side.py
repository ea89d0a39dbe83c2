"""Chunks are told from tensors that merely look like them, and are joined without a copy."""

import pytest
import torch
from torch import Tensor

from depthwise.kernels.side_by_side import empty_side_by_side, joined, lie_side_by_side


def chunks(*shape: int, count: int = 3) -> tuple[Tensor, ...]:
    return torch.randn(*shape[:-1], count * shape[-1]).chunk(count, dim=-1)


@pytest.mark.parametrize("shape", [(4,), (5, 4), (2, 5, 4), (1, 1, 4), (2, 1, 4), (1, 5, 4)])
def test_chunks_lie_side_by_side(shape: tuple[int, ...]) -> None:
    parts = chunks(*shape)
    assert lie_side_by_side(parts)
    whole = joined(parts)
    assert whole.data_ptr() == parts[0].data_ptr()
    assert torch.equal(whole, torch.cat(parts, dim=-1))


def test_chunks_of_a_later_part_of_memory() -> None:
    parts = torch.randn(3, 5, 12)[1:].chunk(3, dim=-1)
    assert torch.equal(joined(parts), torch.cat(parts, dim=-1))
    assert joined(parts).data_ptr() == parts[0].data_ptr()


def others() -> dict[str, tuple[Tensor, ...]]:
    first, second, third = chunks(2, 5, 4)
    return {
        "another order": (first, third, second),
        "not all": (first, second),
        "one twice": (first, first, third),
        "a copy": (first, second.clone(), third),
        "of another memory": (*chunks(2, 5, 4)[:1], second, third),
        "cut along steps": torch.randn(2, 15, 4).chunk(3, dim=1),
        "of a wider tensor": torch.randn(2, 5, 16)[..., :12].chunk(3, dim=-1),
        "of fewer steps": torch.randn(2, 6, 12)[:, :5].chunk(3, dim=-1),
        "of several widths": torch.randn(2, 5, 12).split([4, 2, 6], dim=-1),
        "of several precisions": (first, second, third.double()),
        "empty": torch.empty(0, 5, 12).chunk(3, dim=-1),
    }


@pytest.mark.parametrize("name", others())
def test_others_are_copied(name: str) -> None:
    parts = others()[name]
    assert not lie_side_by_side(parts)
    if len({part.shape[:-1] for part in parts}) == 1:
        whole = joined(parts)
        assert torch.equal(whole, torch.cat(parts, dim=-1))
        assert whole.untyped_storage().data_ptr() != parts[0].untyped_storage().data_ptr() or whole.numel() == 0


def test_split_heads_lie_side_by_side() -> None:
    parts = [part.unflatten(-1, (2, 4)) for part in chunks(2, 5, 8)]
    assert lie_side_by_side(parts, axes=2)
    assert not lie_side_by_side(parts)
    assert not lie_side_by_side([part.transpose(1, 2) for part in parts], axes=2)


def test_new_ones() -> None:
    parts = empty_side_by_side(3, torch.empty(2, 5, 4, 8, dtype=torch.float16))
    assert [part.shape for part in parts] == [(2, 5, 4, 8)] * 3
    assert {part.dtype for part in parts} == {torch.float16}
    assert lie_side_by_side(parts, axes=2)
    assert lie_side_by_side([part.flatten(2) for part in parts])
