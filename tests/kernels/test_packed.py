"""Several sequences in one row are as good as several rows."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from depthwise.errors import InputError
from depthwise.kernels import dynamic_conv, light_conv
from depthwise.kernels.packed import segments_of

BOUNDARIES = torch.tensor([0, 4, 4, 9, 10])
X = torch.randn(1, 10, 6, dtype=torch.float64)
LOGITS = torch.randn(1, 10, 3, 5, dtype=torch.float64)


@pytest.mark.parametrize("renormalize", [False, True])
def test_each_sequence_by_itself(renormalize: bool, assert_same: Callable[..., None]) -> None:
    y = dynamic_conv(X, LOGITS, left=2, boundaries=BOUNDARIES, renormalize=renormalize)
    fixed = light_conv(X, LOGITS[0, 0], left=2, boundaries=BOUNDARIES, renormalize=renormalize)
    for start, end in ((0, 4), (4, 9), (9, 10)):
        here = slice(start, end)
        assert_same(y[:, here], dynamic_conv(X[:, here], LOGITS[:, here], left=2, renormalize=renormalize))
        assert_same(fixed[:, here], light_conv(X[:, here], LOGITS[0, 0], left=2, renormalize=renormalize))


def test_some_positions(assert_same: Callable[..., None]) -> None:
    positions = torch.tensor([[9, 0, 5, 5, 3]])
    everywhere = dynamic_conv(X, LOGITS, left=4, boundaries=BOUNDARIES)
    some = dynamic_conv(X, LOGITS[:, positions[0]], left=4, positions=positions, boundaries=BOUNDARIES)
    assert_same(some, everywhere[:, positions[0]])
    nobody = positions[:, :0]
    assert dynamic_conv(X, LOGITS[:, :0], left=4, positions=nobody, boundaries=BOUNDARIES).shape == (1, 0, 6)


def test_gradients_stay_in_their_sequence() -> None:
    x = X.clone().requires_grad_()
    dynamic_conv(x, LOGITS, left=4, boundaries=BOUNDARIES)[:, 4:9].sum().backward()
    assert x.grad is not None
    assert not x.grad[:, :4].any()
    assert not x.grad[:, 9:].any()
    assert x.grad[:, 4:9].all()


def test_shared_masks_are_shared_by_all_sequences() -> None:
    x, weight = torch.ones(1, 8, 2, dtype=torch.float64), torch.zeros(1, 9, dtype=torch.float64)
    boundaries = torch.tensor([0, 4, 8])
    y: Tensor = light_conv(x, weight, left=8, boundaries=boundaries, dropconnect=0.5, dropconnect_shared=True)
    assert torch.equal(y[:, :4], y[:, 4:])


def test_numbers_of_sequences() -> None:
    assert segments_of(BOUNDARIES, 10).tolist() == [[1, 1, 1, 1, 3, 3, 3, 3, 3, 4]]


@pytest.mark.parametrize("renormalize", [False, True])
def test_segments_say_the_same(renormalize: bool, assert_same: Callable[..., None]) -> None:
    positions = torch.tensor([[9, 0, 5, 5, 3]])
    options = {"left": 2, "renormalize": renormalize, "positions": positions}
    ways = {"boundaries": BOUNDARIES}, {"segments": segments_of(BOUNDARIES, 10)}
    assert_same(*(dynamic_conv(X, LOGITS[:, :5], **options, **way) for way in ways))
    assert_same(*(light_conv(X, LOGITS[0, 0], **options, **way) for way in ways))


@pytest.mark.usefixtures("_unchecked_shapes")
def test_several_rows_cannot_be_packed() -> None:
    x, logits, segments = X.expand(2, -1, -1), LOGITS.expand(2, -1, -1, -1), segments_of(BOUNDARIES, 10)
    message = "describe one row of packed sequences but x has 2 rows; concatenate them$"
    with pytest.raises(InputError, match=f"^boundaries {message}"):
        dynamic_conv(x, logits, left=2, boundaries=BOUNDARIES)
    with pytest.raises(InputError, match=f"^segments {message}"):
        dynamic_conv(x, logits, left=2, segments=segments.expand(2, -1))


@pytest.mark.usefixtures("_unchecked_shapes")
def test_other_segments_are_refused() -> None:
    segments = segments_of(BOUNDARIES, 10)
    with pytest.raises(InputError, match=r"^segments are .* 10 steps, but these are \(1, 9\) of torch.int32"):
        dynamic_conv(X, LOGITS, left=2, segments=segments[:, 1:])
    with pytest.raises(InputError, match=r"^segments are .* but these are \(1, 10\) of torch.int64; convert them$"):
        light_conv(X, LOGITS[0, 0], left=2, segments=segments.long())
    with pytest.raises(InputError, match=r"^boundaries and segments say the same of .*; give one of them$"):
        light_conv(X, LOGITS[0, 0], left=2, segments=segments, boundaries=BOUNDARIES)


def test_last_steps_need_positions() -> None:
    message = "^the last steps of packed sequences are not the last of the row; give their positions$"
    with pytest.raises(InputError, match=message):
        light_conv(X, LOGITS[0, 0], left=2, num_last=3, boundaries=BOUNDARIES)
    with pytest.raises(InputError, match=message):
        dynamic_conv(X, LOGITS[:, :3], left=2, boundaries=BOUNDARIES)


@pytest.mark.parametrize("ends", [[], [0, 4], [4, 10], [0, 6, 4, 10], [0, 12]], ids=str)
def test_boundaries_that_do_not_cover_the_row(ends: list[int]) -> None:
    boundaries = torch.tensor(ends, dtype=torch.long)
    with pytest.raises(InputError, match=r"^boundaries must rise from 0 to 10, the length of the row, but are \["):
        dynamic_conv(X, LOGITS, left=2, boundaries=boundaries)
