"""Depths by lot: each exit as often as the others, and the same lot whenever the same is asked again."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from depthwise.config import UniformExitConfig
from depthwise.depth import Context, Lesson, UniformExit

MakeContext = Callable[..., Context]
MANY = 500
SIX = tuple(range(1, 7))


def lots(seed: int = 1, exits: tuple[int, ...] = SIX) -> torch.Tensor:
    """The exits, from 0, of as many steps (the second axis) of sources of 1, 2, ... tokens (the first)."""
    lengths = torch.arange(1, MANY + 1).unsqueeze(1)
    context = Context(
        shape=(MANY, MANY),
        exits=exits,
        steps=torch.arange(MANY).expand(MANY, -1),
        source=torch.zeros(MANY, MANY, 1),
        source_valid=torch.arange(MANY) < lengths,
    )
    found = UniformExit(UniformExitConfig(seed=seed)).plan(context)
    return torch.searchsorted(torch.tensor(exits), found)


def shares(numbers: torch.Tensor, count: int) -> torch.Tensor:
    """How often each number comes, in comparison with what is to be expected."""
    return torch.bincount(numbers.flatten(), minlength=count) * (count / numbers.numel())


@pytest.mark.parametrize("seed", [0, 1, 2, 2**31 - 1])
@pytest.mark.parametrize("exits", [(3, 6), SIX, tuple(range(2, 13))])
def test_every_exit_is_as_likely(seed: int, exits: tuple[int, ...]) -> None:
    found, count = lots(seed, exits), len(exits)
    assert (shares(found, count) - 1).abs().max() < 0.02
    for axis in (0, 1):  # whatever the step, and whatever the length
        by_line = torch.stack([shares(line, count) for line in found.unbind(axis)])
        assert (by_line - 1).abs().max() < 6 * ((count - 1) / MANY) ** 0.5


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("axis", ["steps", "lengths"])
@pytest.mark.parametrize("distance", [1, 2, 8])
def test_neighbours_tell_nothing_of_each_other(seed: int, axis: str, distance: int) -> None:
    found = lots(seed) if axis == "steps" else lots(seed).T
    here, there = found[:, distance:], found[:, :-distance]
    assert (shares(6 * here + there, 36) - 1).abs().max() < 0.06
    assert torch.corrcoef(torch.stack([here.flatten(), there.flatten()]).double())[0, 1].abs() < 0.01


def test_seeds_draw_other_lots() -> None:
    found = [lots(seed) for seed in (1, 2, 3)]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert (shares(6 * found[one] + found[other], 36) - 1).abs().max() < 0.06
    assert not torch.equal(found[0][:, 1:], found[1][:, :-1]), "one seed is not the other, a step later"


def test_lots_stay_as_they_are(make_context: MakeContext) -> None:
    """Numbers that were printed today are those of tomorrow, on any machine."""
    context = make_context(2, 8, source=torch.zeros(2, 3, 4), source_valid=torch.tensor([[1, 1, 1], [1, 0, 0]]) > 0)
    expected = [[1, 6, 6, 2, 6, 2, 2, 4], [6, 6, 6, 6, 2, 4, 2, 6]]
    assert UniformExit(UniformExitConfig()).plan(context).tolist() == expected


@pytest.mark.parametrize("rows", [1, 5])
def test_neither_padding_nor_other_rows_matter(rows: int, make_context: MakeContext) -> None:
    policy, lengths = UniformExit(UniformExitConfig()), torch.tensor([4, 1, 7, 2, 7])[:rows]
    together = policy.plan(
        make_context(
            rows,
            6,
            source=torch.randn(rows, 9, 4),
            source_valid=torch.arange(9).flip(0) < lengths.unsqueeze(1),  # on the left here, on the right there
            valid=torch.arange(6) < torch.arange(2, 2 + rows).unsqueeze(1),
        )
    )
    for row, length in enumerate(lengths.tolist()):
        for known in ({}, {"source_valid": torch.ones(1, length) > 0}):
            for step in range(6):  # one after the other, as in decoding
                steps, source = torch.full((1, 1), step), torch.randn(1, length, 4)
                alone = policy.plan(make_context(1, 1, steps=steps, source=source, **known))
                assert alone.item() == together[row, step]


def test_a_stack_without_a_source(make_context: MakeContext) -> None:
    """All rows are alike then, wherever their tokens stand."""
    policy = UniformExit(UniformExitConfig())
    found = policy.plan(make_context(3, 40, exits=SIX))
    assert found.shape == (3, 40)
    assert found.eq(found[0]).all()
    assert set(found[0].tolist()) == set(SIX)
    late = policy.plan(make_context(1, 38, exits=SIX, steps=torch.arange(2, 40).unsqueeze(0)))
    assert torch.equal(late[0], found[0, 2:])


@pytest.mark.parametrize("padded", [True, False])
def test_whole_rows_leave_by_their_lengths(padded: bool, make_context: MakeContext) -> None:
    policy, known = UniformExit(UniformExitConfig()), dict[str, Any]()
    if padded:
        known["valid"] = torch.arange(50) < torch.arange(1, 51).unsqueeze(1)
    found = policy.plan(make_context(50, 50, exits=SIX, **known).of_rows())
    assert found.shape == (50, 1)
    assert set(found.flatten().tolist()) == (set(SIX) if padded else {found[0].item()})
    alone = policy.plan(make_context(1, 50, exits=SIX).of_rows())
    assert alone.item() == found[-1].item()


def test_nothing_is_learned(lesson: Lesson) -> None:
    policy = UniformExit(UniformExitConfig())
    assert policy.plans
    assert not policy.needs_training
    assert policy.losses(lesson) == {}
    assert list(policy.parameters()) == []
