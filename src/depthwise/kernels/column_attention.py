"""Attention of decoding: single queries, each over the columns that its row remembers."""

from functools import cache, lru_cache
from typing import Any

import torch
from torch.nn import functional as F

from depthwise.errors import InputError
from depthwise.kernels.backend import pick_for_reading
from depthwise.kernels.plan import Plan
from depthwise.kernels.tiles import power_of_two
from depthwise.shapes import Float, Int, Tensor

TILE = 8192
"""Numbers that a program holds of keys, and as many of values."""
FEWEST_STEPS, WIDEST_HEAD = 16, 512


def read_columns(
    queries: Float[Tensor, "R D"],
    columns: Float[Tensor, "G L C"],
    mask: Float[Tensor, "G L"],
    *,
    num_heads: int,
    rows: Int[Tensor, "R"] | None = None,
    rows_each: int = 1,
    backend: str = "auto",
) -> Float[Tensor, "R D"]:
    """softmax(q K' / sqrt(d) + m) V for every query, head by head      (Vaswani et al. 2017, Eq. 1).

    A column holds keys and values of all heads side by side, C = 2 D; ``mask`` is added to scores, -inf for columns
    that nobody sees. Query r reads row r // rows_each of the table, or rows[r] // rows_each where ``rows`` names them,
    so that rows need not be gathered first. The table may have more rows than are read. A query that sees nothing gets
    zeros from Triton and no numbers from torch.
    """
    width = queries.shape[-1]
    if columns.shape[-1] != 2 * width or width % num_heads:
        raise InputError(
            f"queries of {width} channels in {num_heads} heads meet columns of {columns.shape[-1]}; "
            "give keys and values of their width side by side"
        )
    name = pick_for_reading(backend, queries, columns, mask, widest=WIDEST_HEAD * num_heads)
    return IMPLEMENTATIONS[name](queries, columns, mask, num_heads, rows, rows_each)


def read_columns_reference(
    queries: Tensor, columns: Tensor, mask: Tensor, num_heads: int, rows: Tensor | None, rows_each: int
) -> Tensor:
    """Torch's own attention, of columns that are gathered where rows are named."""
    if rows is None:
        num_sources = len(queries) // rows_each
        columns, mask = columns[:num_sources], mask[:num_sources]
    else:
        sources = rows if rows_each == 1 else rows // rows_each
        columns, mask = columns.index_select(0, sources), mask.index_select(0, sources)
    keys, values = columns.unflatten(-1, (2, num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    split = queries.reshape(len(columns), -1, num_heads, keys.shape[-1]).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(split, keys, values, attn_mask=mask[:, None, None])
    return mixed.transpose(1, 2).reshape(queries.shape)


def read_columns_triton(
    queries: Tensor, columns: Tensor, mask: Tensor, num_heads: int, rows: Tensor | None, rows_each: int
) -> Tensor:
    """One kernel."""
    num_rows, width = queries.shape
    out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    if num_rows:
        length = columns.shape[1]
        plan = plan_reading(num_heads, width // num_heads, power_of_two(length), rows is not None)
        tensors = (queries, columns, mask, queries if rows is None else rows, out)
        scale = (width // num_heads) ** -0.5
        strides = columns.stride()[:2]
        numbers = (length, rows_each, scale, queries.stride(0), mask.stride(0), *strides)
        plan.launch(num_rows * num_heads, tensors, numbers, *strides)
    return out


IMPLEMENTATIONS = {"reference": read_columns_reference, "triton": read_columns_triton}


@lru_cache(maxsize=1024)
def plan_reading(num_heads: int, width: int, length: int, has_rows: bool) -> Plan:
    """How heads of such a width read about so many columns."""
    padded = power_of_two(width)
    steps = min(max(FEWEST_STEPS, length), max(FEWEST_STEPS, TILE // padded))
    sizes = {"HEADS": num_heads, "WIDTH": width, "PADDED": padded, "STEPS": steps, "HAS_ROWS": has_rows}
    return Plan(_kernels().read_forward, sizes, 8 if steps * padded >= TILE else 4, 1, 1)


@cache
def _kernels() -> Any:
    """The file that needs Triton, imported when it is first needed."""
    from depthwise.kernels import triton_columns

    return triton_columns
