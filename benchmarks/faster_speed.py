"""How fast runs with depths known in advance are, by both executors. ``faster.py speed`` prints it.

*Whole* runs all blocks for all tokens, *masked* all tokens of a batch to the depth of its deepest one (n_max), and
*compact* each token as deep as its word says, by blocks that are recorded where there is a GPU, as ``Engine`` runs
them. Each is timed from batches that are tokenised, with their depths, to
scores; finding depths by reconstruction is not part of it. The *ceiling* is the number of blocks over the mean depth,
the *efficiency* what was reached of it: how many times as fast the compact executor is as the whole stack, over the
ceiling.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from timing import interleaved_seconds

from depthwise.engine.choosing import MaskedEncoder
from depthwise.engine.encoder import CompactEncoder
from depthwise.engine.recorded_walk import RecordedWalks
from depthwise.engine.recorder import GraphRecorder
from depthwise.evaluation import load_run
from depthwise.evaluation.evaluating import read_examples
from depthwise.models.executing import executed_by
from depthwise.tasks.encoding import inputs_in, placed

COLUMNS = ("run", "rows", "mean depth", "n_max", "whole", "masked", "compact", "times", "ceiling", "efficiency")
REPEATS = 5


def measured(runs: Sequence[str], rows: Sequence[int], most: int, device: str) -> Iterator[str]:
    """Lines of a table: texts in a second."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"| {' | '.join(['---'] * len(COLUMNS))} |"
    for name in runs:
        run = load_run(name, device=device)
        inputs = [run.task.inputs_of(example) for example in read_examples(run.task, "test")[:most]]
        texts = sorted(run.task.rows(inputs), key=lambda row: len(row.texts[0]))
        for size in rows:
            batches = [
                placed(run.task.collate(texts[begin : begin + size]), run.device)
                for begin in range(0, len(texts), size)
            ]
            yield _line(name, size, run.model, batches, len(texts))


def _line(name: str, size: int, model: Any, batches: list[dict[str, Any]], num_texts: int) -> str:
    inputs = [inputs_in(batch) for batch in batches]
    whole = [{key: value for key, value in batch.items() if key != "depths"} for batch in inputs]
    compact = CompactEncoder(RecordedWalks(GraphRecorder) if model.device.type == "cuda" else None)
    ways: dict[str, Callable[[], object]] = {
        "whole": _through(model, whole, compact),
        "masked": _through(model, inputs, MaskedEncoder()),
        "compact": _through(model, inputs, compact),
    }
    seconds = interleaved_seconds(ways, device=model.device, repeats=REPEATS)
    num_layers = model.model.encoder.stack.num_layers
    if "depths" in inputs[0]:
        num_tokens = sum(int((batch["depths"] > 0).sum()) for batch in inputs)
        mean = sum(int(batch["depths"].sum()) for batch in inputs) / num_tokens
        deepest = sum(int(batch["depths"].max()) for batch in inputs) / len(inputs)
    else:
        mean = deepest = float(num_layers)
    times, ceiling = seconds["whole"] / seconds["compact"], num_layers / mean
    rates = [f"{num_texts / seconds[way]:.1f}" for way in ways]
    cells = [name, str(size), f"{mean:.2f}", f"{deepest:.2f}", *rates]
    return f"| {' | '.join([*cells, f'{times:.2f}', f'{ceiling:.2f}', f'{times / ceiling:.2f}'])} |"


def _through(model: Any, batches: list[dict[str, Any]], executor: Any) -> Callable[[], None]:
    @torch.inference_mode()
    def run() -> None:
        with executed_by(executor):
            for batch in batches:
                model(**batch)

    return run
