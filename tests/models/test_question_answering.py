"""Two pointers into a text: labels in either form, and padding that no pointer can reach."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from depthwise.errors import InputError

HEAD = "question_answering"
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


def test_start_and_end_are_the_two_columns(build: Model, draw_ids: Ids) -> None:
    output = build(HEAD)(draw_ids())
    assert torch.equal(output.start_logits, output.logits[..., 0])
    assert torch.equal(output.end_logits, output.logits[..., 1])


def test_labels_or_two_positions(build: Model, draw_ids: Ids) -> None:
    model, ids = build(HEAD), draw_ids()
    starts, ends = torch.tensor([0, 2]), torch.tensor([3, 5])
    output = model(ids, labels=torch.stack([starts, ends], dim=1))
    expected = (F.cross_entropy(output.start_logits, starts) + F.cross_entropy(output.end_logits, ends)) / 2
    torch.testing.assert_close(output.loss, expected)
    assert torch.equal(model(ids, start_positions=starts, end_positions=ends).loss, output.loss)


def test_answers_that_lie_outside_do_not_count(build: Model, draw_ids: Ids) -> None:
    model, ids = build(HEAD), draw_ids()
    output = model(ids, labels=torch.tensor([[1, -100], [-100, -100]]))
    torch.testing.assert_close(output.loss, F.cross_entropy(output.start_logits[:1], torch.tensor([1])))


@pytest.mark.parametrize("given", ["start_positions", "end_positions"])
def test_one_position_alone(build: Model, draw_ids: Ids, given: str) -> None:
    with pytest.raises(InputError) as raised:
        build(HEAD)(draw_ids(), **{given: torch.tensor([0, 1])})
    message = "start_positions and end_positions go together; give both or labels with two columns"
    assert str(raised.value) == message


@pytest.mark.parametrize("wrong", [[1, 4], [3, -100], [0, 6], [-1, 2]], ids=str)
@pytest.mark.parametrize("form", ["labels", "positions"])
def test_answers_where_there_is_no_token(build: Model, draw_ids: Ids, wrong: list[int], form: str) -> None:
    """On padding or outside nothing can be right, so the label is refused rather than given an endless loss."""
    labels = torch.tensor([[0, 5], wrong])
    given = {"labels": labels} if form == "labels" else {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}
    message = (
        f"labels row 1 points at {wrong}, which is not among its real tokens; use -100 where an answer lies outside"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        build(HEAD)(draw_ids(padding=[0, 3]), **given)


def test_labels_may_stay_on_the_cpu(build: Model, draw_ids: Ids) -> None:
    """While the model is elsewhere; what is padding is not looked into then."""
    output = build(HEAD).to("meta")(draw_ids(padding=[0, 3]).to("meta"), labels=torch.tensor([[0, 5], [1, 2]]))
    assert output.loss.shape == ()


def test_answers_outside_without_padding(build: Model, draw_ids: Ids) -> None:
    with pytest.raises(InputError, match=r"^labels row 0 points at \[0, 6\]"):
        build(HEAD)(draw_ids(), labels=torch.tensor([[0, 6], [1, 2]]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_padding_never_wins(build: Model, draw_ids: Ids, dtype: torch.dtype) -> None:
    """Not even against scores far below what an untrained model gives padding."""
    model, ids = build(HEAD).to(dtype), draw_ids(padding=[4, -3])
    with torch.no_grad():
        model.pointers.bias.fill_(-1000)
    output, padding = model(ids), ids == 1
    for logits in (output.start_logits, output.end_logits):
        assert not padding[range(2), logits.argmax(1)].any()
        probabilities = logits.float().softmax(1)
        assert not probabilities[padding].any()
        assert probabilities.isfinite().all()


def test_padding_changes_no_probability(build: Model, draw_ids: Ids, mixer: str) -> None:
    model, ids = build(HEAD, mixer), draw_ids(padding=[3, -2])
    probabilities = model(ids).logits.softmax(1)
    for row in range(2):
        real = ids[row] != 1
        alone = model(ids[row, real].unsqueeze(0)).logits.softmax(1)
        torch.testing.assert_close(probabilities[row, real], alone[0], rtol=1e-10, atol=1e-12)
