"""Sums over taps with given weights: the arithmetic that light and dynamic convolution share.

Every function here computes

    y[b, p, c] = sum_k weight[b, p, head(c), k] * x[b, t(p) - left + k, c],      x = 0 outside the sequence,

where ``head(c) = c // (C / H)`` (contiguous blocks of channels) and ``t(p) = p`` or the p-th entry of ``positions``.
Axes of ``weight`` of size 1 are broadcast, so that a fixed kernel is ``(1, 1, H, K)``. They differ in how they walk
through memory; ``correlate`` picks by shape. Their memory grows as T·C, without the factor K that unfolding costs.
"""

from collections.abc import Callable
from itertools import product

import torch
from torch.nn import functional as F

from depthwise.shapes import Float, Int, Tensor

TAPS_UP_TO = 7
"""Widest kernel that is summed tap by tap; wider ones are cheaper, most of all in training, as a banded product."""
BAND_FROM = 4
"""Narrowest head whose kernels, one per position, are worth a band: each band serves only the channels of its head."""
GROUPED_BELOW = 32
"""Fixed kernels of narrower heads go through torch's grouped convolution even where that is not its fast version."""
BLOCK = 32
"""Positions per band. The product computes (BLOCK + K - 1) / K times the useful work, in return for matrix units."""
WINDOWED_AT_ONCE = 2**19
"""Values in windows that are gathered at a time on a CPU, for the same reason."""
POSITIONS_AT_ONCE = 2048
"""Positions (over all rows) whose bands and windows exist at a time on a CPU: few enough to stay in its cache."""
PIECE = 256
"""The same for each thread where nothing is kept for gradients, and pieces go straight into the output."""
PIECES_FROM = 513
"""Positions (over all rows) from which pieces are faster than bands of all positions at once."""
BANDED_FROM = 31
"""Shortest fixed kernel whose bands may be faster than oneDNN, whose work grows with every tap."""
BANDED_UP_TO = 512
"""Positions (over all rows) up to which they are: what oneDNN does once for each call counts there."""
BANDED_FROM_LENGTH = 512
"""Length of rows from which they are on one thread too; oneDNN shares its work better among several."""


def correlate(
    x: Float[Tensor, "B L C"], weight: Float[Tensor, "_b _p H K"], *, left: int, positions: Int[Tensor, "B P"] | None
) -> Float[Tensor, "B P C"]:
    """The sum over taps by the way that suits the shape; ``positions`` is none for all L of them."""
    if positions is not None:
        walk = correlate_windows if _suit_windows(x, positions) else correlate_gathered
        return walk(x, weight, left, positions)
    return _walk_everywhere(x, weight, left)(x, weight, left)


def _suit_windows(x: Tensor, positions: Tensor) -> bool:
    """Single steps; and on a CPU all that will not be differentiated, since windows need not be kept then."""
    return positions.shape[1] == 1 or (x.device.type == "cpu" and not torch.is_grad_enabled())


def _walk_everywhere(x: Tensor, weight: Tensor, left: int) -> Callable[[Tensor, Tensor, int], Tensor]:
    """How to compute every position, by what is fastest on a CPU at lengths 64 to 8192.

    What will be differentiated is measured forward and backward together, everything else forward alone. Compiled
    and exported programs never go piece by piece: that is a loop for one length.
    """
    taps, head_width = weight.shape[-1], x.shape[-1] // weight.shape[-2]
    if x.numel() == 0:
        return correlate_taps
    is_fixed, is_free = weight.shape[:2] == (1, 1), _is_free(x, weight)
    if is_fixed and head_width < GROUPED_BELOW:
        return correlate_grouped
    if is_fixed and _has_fast_grouped(x) and not (is_free and _beat_grouped(x, taps, left)):
        return correlate_grouped
    if taps <= TAPS_UP_TO or head_width < BAND_FROM:
        return correlate_taps
    return correlate_pieces if is_free and x.shape[0] * x.shape[1] >= PIECES_FROM else correlate_banded


def _is_free(x: Tensor, weight: Tensor) -> bool:
    """On a CPU all that will not be differentiated, unless it is being compiled or its sizes are symbols."""
    is_run = not torch.compiler.is_compiling() and isinstance(x.shape[0], int) and isinstance(x.shape[1], int)
    is_differentiated = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return x.device.type == "cpu" and is_run and not is_differentiated


def _beat_grouped(x: Tensor, taps: int, left: int) -> bool:
    """Whether bands are faster than oneDNN, which in addition wants a copy where both sides differ in zeros."""
    (rows, length, _), differ = x.shape, 2 * left != taps - 1
    is_long = length >= BANDED_FROM_LENGTH and torch.get_num_threads() == 1
    return taps >= BANDED_FROM and (differ or is_long or rows * length <= BANDED_UP_TO)


def _has_fast_grouped(x: Tensor) -> bool:
    """Whether oneDNN convolves this tensor, as it lies, channel by channel; it knows no float64."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def correlate_taps(x: Tensor, weight: Tensor, left: int) -> Tensor:
    """One shifted multiply-add per tap."""
    length = x.shape[1]
    padded = _by_head(_pad(x, left, weight.shape[-1] - 1 - left), weight.shape[-2])
    first, *others = weight.unsqueeze(-2).unbind(-1)
    total = padded[:, :length] * first
    for tap, factor in enumerate(others, 1):
        total.addcmul_(padded[:, tap : tap + length], factor)
    return total.flatten(-2)


def correlate_banded(x: Tensor, weight: Tensor, left: int) -> Tensor:
    """One matrix product per block of positions and head: the taps of BLOCK neighbours form a band.

    Row i of a block holds its K taps from column i on; the inputs it meets are the ``BLOCK + K - 1`` around the block.
    Bands and windows are several times the size of their sources, so on a CPU they are made for a few blocks at a time.
    """
    (rows, length, _), (heads, taps) = x.shape, weight.shape[-2:]
    blocks = -(-length // BLOCK)
    spare = blocks * BLOCK - length
    span = BLOCK + taps - 1
    at_once = max(1, POSITIONS_AT_ONCE // (rows * BLOCK)) if x.device.type == "cpu" else blocks
    windows = _windows(_pad(x, left, taps - 1 - left + spare), span, heads)
    kernels = _in_blocks(weight, blocks, spare)
    if blocks <= at_once:
        mixed = (_band(kernels, span) @ windows).transpose(2, 3)
    else:
        some = windows.split(at_once, dim=1)
        parts = kernels.split(at_once, dim=1) if kernels.shape[1] == blocks else [kernels] * len(some)
        products = [_band(part, span) @ window for part, window in zip(parts, some, strict=True)]
        mixed = torch.cat([part.transpose(2, 3) for part in products], dim=1)
    return mixed.reshape(rows, blocks * BLOCK, -1)[:, :length]


def correlate_pieces(x: Tensor, weight: Tensor, left: int) -> Tensor:
    """The same bands for PIECE positions at a time, from inputs of their own and straight into the output.

    Nothing else as large as ``x`` is made, not even a copy with zeros around it; but nothing can be differentiated.
    """
    (rows, length, channels), (heads, taps) = x.shape, weight.shape[-2:]
    blocks, span = -(-length // BLOCK), BLOCK + taps - 1
    piece = PIECE * torch.get_num_threads() // BLOCK
    at_once = min(blocks, piece)
    rows_at_once = piece // at_once
    y = x.new_empty(rows, blocks, BLOCK, heads, channels // heads)
    fixed = _band(_in_blocks(weight, 1, 0), span) if weight.shape[:2] == (1, 1) else None
    for row, block in product(range(0, rows, rows_at_once), range(0, blocks, at_once)):
        some, here = slice(row, row + rows_at_once), slice(block, min(block + at_once, blocks))
        start, end = here.start * BLOCK, here.stop * BLOCK
        first, last = start - left, end + taps - 1 - left
        inputs = _pad(x[some, max(first, 0) : last], max(-first, 0), max(last - length, 0))
        if (band := fixed) is None:
            kernels = weight if weight.shape[0] == 1 else weight[some]
            kernels = kernels if weight.shape[1] == 1 else kernels[:, start:end]
            band = _band(_in_blocks(kernels, here.stop - here.start, max(end - length, 0)), span)
        y[some, here] = (band @ _windows(inputs, span, heads)).transpose(2, 3)
    return y.flatten(3).flatten(1, 2)[:, :length]


def correlate_gathered(x: Tensor, weight: Tensor, left: int, positions: Tensor) -> Tensor:
    """One gathered multiply-add per tap, only at the asked positions."""
    heads, taps = weight.shape[-2:]
    padded = _pad(x, left, taps - 1 - left)
    total = x.new_zeros(*positions.shape, heads, x.shape[-1] // heads)
    for tap in range(taps):
        index = (positions + tap).unsqueeze(-1).expand(-1, -1, x.shape[-1])
        total = total.addcmul(_by_head(padded.gather(1, index), heads), weight[..., tap : tap + 1])
    return total.flatten(-2)


def correlate_windows(x: Tensor, weight: Tensor, left: int, positions: Tensor) -> Tensor:
    """The whole windows of some positions at once: few operations, for few positions."""
    (rows, length, channels), (heads, taps) = x.shape, weight.shape[-2:]
    padded = _pad(x, left, taps - 1 - left).flatten(0, 1)
    starts = positions + torch.arange(rows, device=x.device).unsqueeze(1) * (length + taps - 1)
    kernels = weight.transpose(-1, -2).unsqueeze(-1)
    at_once = WINDOWED_AT_ONCE // max(1, rows * taps * channels) if x.device.type == "cpu" else positions.shape[1]
    at_once = max(1, at_once)
    parts = kernels.split(at_once, dim=1) if kernels.shape[1] > 1 else None
    mixed = []
    for number, some in enumerate(starts.split(at_once, dim=1)):
        steps = some.unsqueeze(-1) + torch.arange(taps, device=x.device)
        windows = padded.index_select(0, steps.flatten()).view(*steps.shape, heads, channels // heads)
        mixed.append((windows * (kernels if parts is None else parts[number])).sum(2).flatten(-2))
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=1)


def correlate_grouped(x: Tensor, weight: Tensor, left: int) -> Tensor:
    """A fixed kernel through torch's own grouped convolution.

    On a CPU the channels stay last, as they lie in memory, and the steps are the height of an image one pixel wide:
    along the width, the backward pass would take ten times as long. So it would if oneDNN put zeros on both sides that
    only one side needs, as in causal mode: it adds those that both need, the others are there before.
    """
    channels, (heads, taps) = x.shape[-1], weight.shape[-2:]
    right = taps - 1 - left
    filters = weight.reshape(heads, 1, taps).repeat_interleave(channels // heads, dim=0)
    if x.device.type != "cpu":
        return F.conv1d(_pad(x, left, right).transpose(1, 2), filters, groups=channels).transpose(1, 2)
    both = min(left, right)
    padded = x if left == right else _pad(x, left - both, right - both)
    image = padded.unsqueeze(2).permute(0, 3, 1, 2)
    return F.conv2d(image, filters.unsqueeze(-1), padding=(both, 0), groups=channels).squeeze(-1).transpose(1, 2)


def _pad(x: Tensor, before: int, after: int) -> Tensor:
    return F.pad(x, (0, 0, before, after))


def _by_head(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1))


def _windows(padded: Tensor, span: int, heads: int) -> Tensor:
    """The inputs that each block meets, as (rows, blocks, heads, span, channels per head)."""
    return _by_head(padded.unfold(1, span, BLOCK).transpose(2, 3), heads).transpose(2, 3)


def _in_blocks(weight: Tensor, blocks: int, spare: int) -> Tensor:
    """Kernels as (rows, blocks, heads, BLOCK, taps); a fixed kernel has one block that serves all."""
    if weight.shape[1] == 1:
        weight = weight.expand(-1, BLOCK, -1, -1)
        return weight.unsqueeze(1).transpose(2, 3)
    weight = F.pad(weight, (0, 0, 0, 0, 0, spare)) if spare else weight
    return weight.unflatten(1, (blocks, BLOCK)).transpose(2, 3)


def _band(kernels: Tensor, span: int) -> Tensor:
    """Shift row i of the last two axes (BLOCK, K) right by i: pad each row to span + 1, read on with stride span."""
    taps = kernels.shape[-1]
    return F.pad(kernels, (0, span + 1 - taps)).flatten(-2)[..., : BLOCK * span].unflatten(-1, (BLOCK, span))
