"""Which Triton kernel runs with which tile, by shape: what was fastest when it was measured (docs/kernels.md)."""

from dataclasses import dataclass

NARROWEST_PRODUCT = 16
"""Smallest side of a matrix product on the tensor cores."""
TAPS_UP_TO = 4
"""Widest kernel per position whose taps are added one by one; wider ones are cheaper as a band."""
FAR_APART = 4
"""Listed readers are summed alone where there are so many positions to each: a band would cover all of these."""
WIDEST_ALONE = 64
"""Taps, up to which a program has room for all of them at once."""
BOTH_UP_TO = 33
"""Widest fixed kernel of which one launch finds both gradients; 0 launches each by itself."""


@dataclass(frozen=True)
class Tile:
    """How one program of a kernel is cut.

    A band of ``rows`` outputs and ``span`` sources goes to the tensor cores. Without a span the taps are added in
    registers, ``rows`` outputs at a time, or all at once where an output is ``alone``. An ``early`` program of a single
    span asks for all it reads at once: less waiting for more registers.
    """

    rows: int
    span: int | None
    num_warps: int
    early: bool = False
    alone: bool = False

    def step(self, taps: int) -> int:
        """Outputs per program: all rows, or as many as a single span serves if those are at least half of them."""
        assert self.span is not None, "only a band has a span"
        served = self.span - taps + 1
        return self.rows if served < self.rows // 2 else min(self.rows, served)

    def chunks(self, taps: int) -> int:
        """Spans that hold all sources of one program."""
        assert self.span is not None, "only a band has a span"
        return -(-(self.step(taps) + taps - 1) // self.span)


MEASURED: dict[str, tuple[tuple[int, Tile], ...]] = {
    "forward": (
        (9, Tile(32, 32, 2, early=True)),
        (17, Tile(16, 32, 1, early=True)),
        (33, Tile(32, 64, 2)),
        (63, Tile(32, 64, 4)),
    ),
    "forward_for_gradient": (
        (9, Tile(32, 32, 2, early=True)),
        (17, Tile(16, 32, 1, early=True)),
        (33, Tile(32, 64, 2, early=True)),
        (63, Tile(32, 64, 4)),
    ),
    "input_gradient": (
        (17, Tile(32, 32, 1)),
        (33, Tile(32, 64, 1, early=True)),
        (65, Tile(64, 128, 4)),
        (255, Tile(64, 64, 4)),
    ),
    "kernel_gradient": (
        (9, Tile(32, 32, 2, early=True)),
        (17, Tile(16, 32, 1, early=True)),
        (33, Tile(32, 64, 2, early=True)),
        (65, Tile(32, 128, 2, early=True)),
        (127, Tile(32, 256, 4)),
        (255, Tile(32, 64, 2)),
    ),
    "fixed_forward": ((17, Tile(32, 32, 2)), (33, Tile(32, 64, 2)), (65, Tile(64, 128, 4)), (129, Tile(32, 256, 4))),
    "fixed_input_gradient": (
        (17, Tile(32, 32, 2)),
        (33, Tile(32, 64, 2)),
        (65, Tile(64, 128, 4)),
        (129, Tile(32, 256, 4)),
        (255, Tile(64, 64, 4)),
    ),
    "fixed_gradients": ((17, Tile(32, 32, 2)), (33, Tile(32, 64, 2))),
    "fixed_kernel_gradient": ((17, Tile(32, 32, 1)), (33, Tile(32, 64, 2)), (255, Tile(64, 64, 4))),
}
"""For each operation, the best tile for kernels of up to so many taps, of those tried on an H200."""
WIDEST = Tile(32, 64, 1)
_NARROW = ((9, Tile(32, 32, 2, early=True)), (17, Tile(16, 32, 1, early=True)))
SINGLE: dict[str, tuple[tuple[int, Tile], ...]] = {
    "forward": (*_NARROW, (33, Tile(32, 64, 2, early=True))),
    "forward_for_gradient": (*_NARROW, (33, Tile(32, 64, 2, early=True))),
    "input_gradient": ((17, Tile(32, 32, 2)), (33, Tile(32, 64, 4, early=True))),
    "kernel_gradient": (*_NARROW, (33, Tile(32, 64, 4, early=True)), (255, Tile(16, 64, 4))),
    "fixed_forward": ((17, Tile(32, 32, 2)), (33, Tile(32, 64, 4))),
    "fixed_input_gradient": ((17, Tile(32, 32, 2)), (33, Tile(16, 64, 2))),
    "fixed_gradients": ((17, Tile(32, 32, 4)), (33, Tile(32, 64, 4))),
    "fixed_kernel_gradient": ((17, Tile(32, 32, 1)), (33, Tile(32, 64, 4))),
}
"""The same for float32, whose products are not the tensor cores': threads sum them in registers. From 18 taps on tiles
of the table above need more of these than there are, and the compiler of an H200's code then falls back on 32 registers
and up to 10 kB of memory for each thread. These were chosen by how many registers they take, not by time."""
WIDEST_SINGLE = Tile(32, 64, 4)


def choose(
    operation: str,
    *,
    taps: int,
    width: int,
    num_outputs: int,
    num_sources: int,
    listed: bool,
    single: bool = False,
) -> Tile:
    """The tile of one of the operations above.

    ``listed`` tells that the readers stand at listed positions, ``width`` is that of a head, and ``single`` tells that
    numbers are of 32 bits.
    """
    is_forward, is_input_gradient = "forward" in operation, "input_gradient" in operation
    are_far_apart = listed and num_outputs * FAR_APART <= num_sources
    if is_forward and are_far_apart and width >= NARROWEST_PRODUCT and taps <= WIDEST_ALONE:
        return Tile(1, None, 2 if taps <= WIDEST_ALONE // 2 else 4, alone=True)
    if is_forward and num_outputs < NARROWEST_PRODUCT:
        return Tile(power_of_two(num_outputs), None, 4)
    is_narrow = width < NARROWEST_PRODUCT or (taps <= TAPS_UP_TO and not operation.startswith("fixed"))
    if is_narrow and (is_forward or (is_input_gradient and not listed)):
        return Tile(8, None, 1)
    known, widest = (SINGLE, WIDEST_SINGLE) if single else (MEASURED, WIDEST)
    return next((tile for most_taps, tile in known[operation] if taps <= most_taps), widest)


def finds_both(*, taps: int, width: int, thinned: bool) -> bool:
    """Whether both gradients of a fixed convolution are one operation, "fixed_gradients", or two.

    A band that is ``thinned`` (by DropConnect, or because sequences are packed) leaves no registers for a second one.
    """
    return taps <= BOTH_UP_TO and width >= NARROWEST_PRODUCT and not thinned


def power_of_two(number: int) -> int:
    """The smallest power of two that is no less."""
    return 1 << max(0, number - 1).bit_length()
