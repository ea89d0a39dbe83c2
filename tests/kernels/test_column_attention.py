"""Single queries over columns, against a softmax in float64: on a GPU, or on the CPU by Triton's interpreter."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from depthwise.errors import BackendUnavailable, InputError
from depthwise.kernels.column_attention import read_columns

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
SHAPES = [(1, 1, 1, 8), (3, 7, 2, 12), (2, 64, 4, 16), (5, 65, 3, 64), (2, 200, 1, 128)]
"""Rows of the table, columns, heads, channels of a head."""


def by_definition(queries: Tensor, columns: Tensor, mask: Tensor, heads: int, rows: Tensor) -> Tensor:
    """One query after the other, one head after the other."""
    out, width = torch.zeros(queries.shape, dtype=torch.float64, device=queries.device), queries.shape[1] // heads
    queries, columns, mask = queries.double(), columns.double(), mask.double()
    for reader, row in enumerate(rows.tolist()):
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            keys, values = (columns[row, :, start:][:, part] for start in (0, queries.shape[1]))
            shares = (keys @ queries[reader, part] / width**0.5 + mask[row]).softmax(0)
            out[reader, part] = shares @ values
    return out


def a_case(shape: tuple[int, int, int, int], num_queries: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, a table with a row that nobody reads, full of what is no number, and a mask; its columns likewise."""
    num_rows, length, heads, width = shape
    queries = torch.randn(num_queries, heads * width, device=DEVICE).to(dtype)
    columns = torch.randn(num_rows + 1, length, 2 * heads * width, device=DEVICE).to(dtype)
    hidden = torch.rand(num_rows + 1, length, device=DEVICE) < 0.4
    hidden[:, length // 2] = False
    mask = torch.zeros(hidden.shape, dtype=dtype, device=DEVICE).masked_fill_(hidden, -torch.inf)
    columns[-1] = torch.nan
    return queries, columns, mask


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype == dtype
    assert (actual.double() - expected).norm() <= TOLERANCES[dtype] * expected.norm()


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_row(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    queries, columns, mask = a_case(shape, shape[0], dtype)
    expected = by_definition(queries, columns, mask, shape[2], torch.arange(shape[0]))
    assert_close(read_columns(queries, columns, mask, num_heads=shape[2], backend="triton"), expected, dtype)
    if DEVICE == "cpu":
        columns[-1] = 0
        assert_close(read_columns(queries, columns, mask, num_heads=shape[2], backend="reference"), expected, dtype)


@pytest.mark.parametrize("backend", ["triton", "reference"])
@pytest.mark.parametrize("rows_each", [1, 3])
def test_some_rows(backend: str, rows_each: int) -> None:
    """Rows in any order, some of them twice; several that share what they read."""
    shape = (4, 21, 2, 16)
    rows = torch.tensor([9, 0, 5, 5, 11], device=DEVICE) if rows_each == 3 else torch.tensor([3, 0, 0], device=DEVICE)
    queries, columns, mask = a_case(shape, len(rows), torch.float32)
    expected = by_definition(queries, columns, mask, 2, rows // rows_each)
    found = read_columns(queries, columns, mask, num_heads=2, rows=rows, rows_each=rows_each, backend=backend)
    assert_close(found, expected, torch.float32)


@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_neighbours_share(backend: str) -> None:
    queries, columns, mask = a_case((2, 9, 2, 8), 6, torch.float32)
    expected = by_definition(queries, columns, mask, 2, torch.tensor([0, 0, 0, 1, 1, 1]))
    found = read_columns(queries, columns, mask, num_heads=2, rows_each=3, backend=backend)
    assert_close(found, expected, torch.float32)


def test_hidden_columns_may_hold_anything() -> None:
    queries, columns, mask = a_case((3, 40, 2, 16), 3, torch.float32)
    expected = read_columns(queries, columns, mask, num_heads=2, backend="triton")
    columns[:3].masked_fill_(mask[:3, :, None] == -torch.inf, torch.nan)
    assert torch.equal(read_columns(queries, columns, mask, num_heads=2, backend="triton"), expected)


def test_seeing_nothing_is_zero() -> None:
    queries, columns, mask = a_case((2, 20, 2, 16), 2, torch.float32)
    mask[1] = -torch.inf
    assert not read_columns(queries, columns, mask, num_heads=2, backend="triton")[1].any()


def test_large_scores() -> None:
    """Scores far beyond what exponentials can hold, the largest last."""
    queries, columns, mask = a_case((1, 130, 1, 128), 1, torch.float32)
    columns[:, :, :128] *= torch.linspace(1, 100, 130, device=DEVICE)[:, None]
    expected = by_definition(queries, columns, mask, 1, torch.tensor([0]))
    assert_close(read_columns(queries, columns, mask, num_heads=1, backend="triton"), expected, torch.float32)


def test_queries_between_others() -> None:
    """Queries lie beside keys and values, as one product makes them."""
    _, columns, mask = a_case((3, 12, 2, 8), 3, torch.float32)
    queries = torch.randn(3, 48, device=DEVICE)[:, :16]
    expected = by_definition(queries, columns, mask, 2, torch.arange(3))
    assert_close(read_columns(queries, columns, mask, num_heads=2, backend="triton"), expected, torch.float32)


def test_nobody_reads() -> None:
    queries, columns, mask = a_case((1, 4, 1, 8), 0, torch.float32)
    assert read_columns(queries, columns, mask, num_heads=1, backend="triton").shape == (0, 8)


def test_what_triton_does_not_serve() -> None:
    queries, columns, mask = a_case((1, 4, 1, 8), 1, torch.float32)
    with pytest.raises(BackendUnavailable, match="gradients"):
        read_columns(queries.requires_grad_(), columns, mask, num_heads=1, backend="triton")
    with pytest.raises(BackendUnavailable, match="float64"):
        read_columns(queries.detach().double(), columns.double(), mask.double(), num_heads=1, backend="triton")


def test_widths_that_do_not_fit() -> None:
    queries, columns, mask = a_case((1, 4, 1, 8), 1, torch.float32)
    with pytest.raises(InputError, match="side by side"):
        read_columns(queries, columns[..., :8], mask, num_heads=1)
