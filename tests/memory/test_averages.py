"""Average attention's memory: what is forgotten lives on in a sum and a number."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from depthwise.kernels import running_mean
from depthwise.memory import AverageMemory

X = torch.tensor([[[1.0], [2.0], [4.0], [8.0]], [[3.0], [9.0], [27.0], [81.0]]], dtype=torch.float64)
VALID = torch.tensor([[True, False, True, True], [False, True, True, True]])


def before(memory: AverageMemory) -> tuple[list[float], list[float]]:
    """Sum and number, per row."""
    assert memory.before is not None
    total, number = memory.before
    assert total.shape == number.shape == (len(total), 1)
    return total.flatten().tolist(), number.flatten().tolist()


def test_nothing_is_folded_while_all_may_be_read() -> None:
    memory = AverageMemory(X, VALID)
    assert memory.recent(4) is memory
    assert memory.recent(9) is memory


def test_forgotten_positions_are_summed() -> None:
    assert before(AverageMemory(X).recent(1)) == ([7.0, 39.0], [3.0, 3.0])
    assert before(AverageMemory(X).recent(0)) == ([15.0, 120.0], [4.0, 4.0])


def test_padding_is_not_summed() -> None:
    assert before(AverageMemory(X, VALID).recent(2)) == ([1.0, 9.0], [1.0, 1.0])
    assert before(AverageMemory(X, VALID).recent(0)) == ([13.0, 117.0], [3.0, 3.0])


def test_what_stands_in_padding_is_never_summed() -> None:
    """Not even if it is not finite: it is left out, not multiplied by zero."""
    dirty = torch.where(VALID.unsqueeze(-1), X, float("inf"))
    assert before(AverageMemory(dirty, VALID).recent(0)) == ([13.0, 117.0], [3.0, 3.0])


def test_a_sum_is_added_to() -> None:
    memory = AverageMemory(X, VALID).recent(3)
    assert before(memory) == ([1.0, 0.0], [1.0, 0.0])
    memory = memory.recent(2)
    assert before(memory) == ([1.0, 9.0], [1.0, 1.0])
    memory = memory.append(AverageMemory(10 * X[:, :1])).recent(1)
    assert before(memory) == ([13.0, 117.0], [3.0, 3.0])
    assert torch.equal(memory.inputs, 10 * X[:, :1])


def test_appending_keeps_the_sum() -> None:
    memory = AverageMemory(X).recent(1)
    assert before(memory.append(AverageMemory(X))) == before(memory)


def test_taking_positions_back_keeps_the_sum() -> None:
    memory = AverageMemory(X, VALID).recent(2)
    shorter = memory.append(AverageMemory(X)).without_last(4)
    assert before(shorter) == before(memory)
    assert torch.equal(shorter.inputs, memory.inputs)


def test_only_fresh_memory_is_appended() -> None:
    with pytest.raises(AssertionError, match="what is appended must have been written on its own"):
        AverageMemory(X).append(AverageMemory(X).recent(1))


def test_rows_keep_their_sums() -> None:
    memory = AverageMemory(X, VALID).recent(1)
    rows = torch.tensor([1, 0, 1, 1])
    kept = memory.keep(rows)
    total, number = before(memory)
    assert before(kept) == ([total[row] for row in rows], [number[row] for row in rows])
    assert torch.equal(kept.inputs, X[rows, -1:])
    assert AverageMemory(X).keep(rows).before is None
    assert before(kept.keep(torch.tensor([], dtype=torch.long))) == ([], [])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    """300 ones and more: in half precision the sum would stop growing."""
    memory = AverageMemory(torch.ones(1, 5000, 1, dtype=dtype)).recent(0)
    memory = memory.append(AverageMemory(torch.ones(1, 1, 1, dtype=dtype))).recent(0)
    assert memory.before is not None
    assert memory.before[0].dtype == memory.before[1].dtype == torch.float32
    assert before(memory) == ([5001.0], [5001.0])
    assert memory.inputs.dtype == dtype


def test_full_precision_is_kept() -> None:
    memory = AverageMemory(X).recent(0)
    assert memory.before is not None
    assert memory.before[0].dtype == memory.before[1].dtype == torch.float64


@given(
    chunks=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    count=st.integers(0, 5),
    masked=st.lists(st.booleans(), min_size=5, max_size=5),
    seed=st.integers(0, 99),
)
def test_means_do_not_notice_the_folding(chunks: list[int], count: int, masked: list[bool], seed: int) -> None:
    """Chunks of any size, some with a mask and some without: the mean at every step is that of the whole."""
    torch.manual_seed(seed)
    x = torch.randn(2, sum(chunks), 3, dtype=torch.float64)
    valid = torch.rand(2, sum(chunks)) < 0.6
    start, memory, means = 0, AverageMemory(x[:, :0]), []
    for size, has_mask in zip(chunks, masked, strict=False):
        part = slice(start, start + size)
        if not has_mask:
            valid[:, part] = True
        memory = memory.append(AverageMemory(x[:, part], valid[:, part] if has_mask else None))
        means.append(step_means(memory, size))
        memory = memory.recent(count)
        assert memory.length <= count
        start += size
    whole = running_mean(x, causal=True, valid=valid)
    torch.testing.assert_close(torch.cat(means, dim=1), whole, rtol=1e-10, atol=1e-12)


def step_means(memory: AverageMemory, size: int) -> Tensor:
    return running_mean(memory.inputs, causal=True, valid=memory.valid, num_last=size, before=memory.before)
