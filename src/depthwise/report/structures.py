"""What a structure predictor expected of some inputs, beside the layers that they ran; kept in ``depths.json``.

    num_static, num_layers   of the encoder
    thresholds               values of γ at which depths are told besides the setting of the file
    sequences                ``[length, expected depth, depth that was run, depth at each threshold]`` of each input; a
                             long one that is run in parts has one for every part

All layers count, the static ones too. A depth at a threshold is known as soon as static layers have run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from depthwise.depth import RowGates
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.report.checks import is_count, is_number

THRESHOLDS = (0.1, 0.5, 0.7, 0.9)
MOST_SEQUENCES = 1000
"""Sequences that are kept, the first ones."""

Sequence = list[float]
"""Length, expected depth, and depths that are run, at the setting and at each threshold."""


@contextmanager
def heard_structure(model: DepthwisePreTrainedModel) -> Iterator[list[Sequence]]:
    """The sequences whose depth is predicted meanwhile, in the order of their batches; none without a predictor."""
    predictor = model.structure
    heard: list[Sequence] = []
    if predictor is None:
        yield heard
        return

    def keep(_: Any, given: tuple[Any, ...], gates: RowGates) -> None:
        states, valid = given
        assert predictor.expected is not None
        lengths = [states.shape[1]] * len(states) if valid is None else valid.sum(1).tolist()
        at = [gates.depths, *(gates.depths_at(threshold) for threshold in THRESHOLDS)]
        depths = [(predictor.num_static + each).tolist() for each in at]
        expected = [round(each, 4) for each in predictor.expected.tolist()]
        heard.extend([*row] for row in zip(lengths, expected, *depths, strict=True))

    hook = predictor.register_forward_hook(keep)
    try:
        yield heard
    finally:
        hook.remove()


def structure_content(model: DepthwisePreTrainedModel, heard: list[Sequence]) -> dict[str, Any] | None:
    """What the file holds of it; none without a predictor."""
    predictor = model.structure
    if predictor is None:
        return None
    return {
        "num_static": predictor.num_static,
        "num_layers": predictor.num_static + predictor.num_adaptive,
        "thresholds": list(THRESHOLDS),
        "sequences": heard[:MOST_SEQUENCES],
    }


def sound_structure(found: Any) -> dict[str, Any] | None:
    """What a page shows of it, without whatever cannot be drawn."""
    if not isinstance(found, dict):
        return None
    num_layers, thresholds, sequences = (found.get(name) for name in ("num_layers", "thresholds", "sequences"))
    if not isinstance(num_layers, int) or not isinstance(thresholds, list) or not all(map(is_number, thresholds)):
        return None
    listed = sequences if isinstance(sequences, list) else []
    kept = [each for each in listed if _is_sequence(each, len(thresholds), num_layers)]
    if not kept:
        return None
    return {"num_layers": num_layers, "thresholds": thresholds, "sequences": kept[:MOST_SEQUENCES]}


def _is_sequence(found: Any, num_thresholds: int, num_layers: int) -> bool:
    if not isinstance(found, list) or len(found) != 3 + num_thresholds:
        return False
    length, expected, *depths = found
    is_expected = is_number(expected) and 0 <= expected <= num_layers + 1e-3
    return is_count(length) and is_expected and all(is_count(depth) and depth <= num_layers for depth in depths)
