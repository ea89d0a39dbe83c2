"""Attention whose scores also know how far apart two tokens are.

    score(i, j) = (q_i·k_j + q_i·r[δ(i, j)] + k_j·r[δ(j, i)]) / √(s·d)        δ(i, j) = clip(i − j, −K, K)

    (He et al. 2021, "DeBERTa", with one table r for all heads and no projection of it)

A query meets the vectors of all distances in one product, and its row of the result is then shifted to where its keys
are. So there are (queries × keys) numbers for each head, and never a vector for each pair.
"""

import math

import torch
from torch.nn import functional as F

from depthwise.kernels.attention import sight
from depthwise.shapes import Bool, Float, Int, Tensor


def attend_relative(
    queries: Float[Tensor, "B H P d"],
    keys: Float[Tensor, "B H L d"],
    values: Float[Tensor, "B H L d"],
    distances: Float[Tensor, "_k d"],
    *,
    by_queries: bool = True,
    by_keys: bool = True,
    literal: bool = False,
    scale_terms: bool = False,
    causal: bool = False,
    window: int | None = None,
    valid: Bool[Tensor, "B L"] | None = None,
    positions: Int[Tensor, "B P"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "B H P d"]:
    """softmax(score) v over the keys that a query may see (``attention.attend``).

    ``distances`` holds r[−K] to r[K]. ``by_queries`` and ``by_keys`` switch their terms; with ``literal`` keys look up
    δ(i, j) too. With ``scale_terms`` s is the number of terms, else 1.
    """
    scale = 1 / math.sqrt(queries.shape[-1] * ((1 + by_queries + by_keys) if scale_terms else 1))
    bias = relative_scores(
        queries, keys, distances, by_queries=by_queries, by_keys=by_keys, literal=literal, positions=positions
    )
    bias = bias * scale
    seen = sight(queries.shape[2], keys.shape[2], keys.device, causal, window, valid, positions)
    if seen is not None:
        bias = bias.masked_fill(~seen.unsqueeze(1), -math.inf)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, dropout_p=dropout, scale=scale)


def relative_scores(
    queries: Float[Tensor, "B H P d"],
    keys: Float[Tensor, "B H L d"],
    distances: Float[Tensor, "_k d"],
    *,
    by_queries: bool = True,
    by_keys: bool = True,
    literal: bool = False,
    positions: Int[Tensor, "B P"] | None = None,
) -> Float[Tensor, "B H P L"]:
    """The sum of the terms that know distances; queries are the last P steps, unless ``positions`` says otherwise."""
    assert by_queries or by_keys
    if positions is None and queries.shape[2] == keys.shape[2]:
        return _shifted_scores(queries, keys, distances, by_queries, by_keys, literal)
    return _gathered_scores(queries, keys, distances, by_queries, by_keys, literal, positions)


def _shifted_scores(
    queries: Tensor, keys: Tensor, distances: Tensor, by_queries: bool, by_keys: bool, literal: bool
) -> Tensor:
    length, furthest = queries.shape[2], len(distances) // 2
    places = torch.arange(length - 1 + furthest, furthest - length - 1, -1, device=queries.device)
    places = places.clamp(0, 2 * furthest)
    falling = distances[places]  # r[L−1], …, r[−L]
    found = []
    if by_queries:
        found.append(_shifted(queries @ falling.t()))
    if by_keys:
        seen_from_keys = distances[2 * furthest - places] if literal else falling
        found.append(_shifted(keys @ seen_from_keys.t()).transpose(-1, -2))
    return found[0] if len(found) == 1 else found[0] + found[1]


def _shifted(products: Float[Tensor, "B H L M"]) -> Float[Tensor, "B H L L"]:
    """out[i, j] = products[i, j − i + L − 1] of M = 2 L columns: every row begins one place further left."""
    length = products.shape[2]
    row = products.flatten(2)[..., length - 1 : length - 1 + length * (2 * length - 1)]
    return row.unflatten(-1, (length, 2 * length - 1))[..., :length]


def _gathered_scores(
    queries: Tensor,
    keys: Tensor,
    distances: Tensor,
    by_queries: bool,
    by_keys: bool,
    literal: bool,
    positions: Int[Tensor, "B P"] | None,
) -> Tensor:
    (_, num_heads, num_queries, _), length, furthest = queries.shape, keys.shape[2], len(distances) // 2
    steps = torch.arange(length, device=keys.device)
    readers = steps[length - num_queries :].unsqueeze(0) if positions is None else positions
    offsets = (readers.unsqueeze(-1) - steps).clamp(-furthest, furthest).unsqueeze(1)
    offsets = offsets.expand(len(queries), num_heads, -1, -1)
    found = []
    if by_queries:
        found.append((queries @ distances.t()).gather(-1, offsets + furthest))
    if by_keys:
        seen_from_keys = (offsets if literal else -offsets).transpose(-1, -2)
        found.append((keys @ distances.t()).gather(-1, seen_from_keys + furthest).transpose(-1, -2))
    return found[0] if len(found) == 1 else found[0] + found[1]
