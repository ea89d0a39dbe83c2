"""Whether a run that says how many layers it needs looks at its inputs, and what that is worth at every length.

    python benchmarks/structure.py depths runs/alberta-small-sst2 --threshold 0.7
    python benchmarks/structure.py lengths runs/alberta-small-sst2 --beside runs/alberta-small-fixed-sst2 --plot out.png

``depths`` runs examples of a split one by one: mean and deviation of the depths that were expected and run, and how
they go with length and loss of an example (Pearson). A deviation of 0 means that all inputs are the same to it.
``lengths`` times text of every length, in batches of 1 and 32, at several thresholds and by the run beside; without
one, a threshold of 0 stands for it. The text is that of a split, for tasks with one text.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from timing import interleaved_seconds

from depthwise.config import StructureExitConfig
from depthwise.depth import StructureExit
from depthwise.evaluation import Run, by_policy, load_run
from depthwise.evaluation.depths import recorded_depths

LENGTHS = (16, 32, 64, 128, 256, 512)
BATCHES = (1, 32)
THRESHOLDS = (0.0, 0.1, 0.5, 0.7, 0.9)
REPEATS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description="What a run that says how many layers it needs makes of its inputs.")
    parser.add_argument("what", choices=["depths", "lengths"])
    parser.add_argument("run", type=Path)
    parser.add_argument("--split", default="valid")
    parser.add_argument("--limit", type=int, default=1000, help="examples at most")
    parser.add_argument("--threshold", type=float, default=StructureExitConfig.threshold)
    parser.add_argument("--beside", type=Path, help="a run of fixed depth to compare with")
    parser.add_argument("--plot", type=Path, help="where speed-up against length is drawn")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    run = load_run(options.run, device=options.device)
    if run.model.structure is None:
        parser.error(f"{options.run} does not say how many layers it needs; train one with model.structure")
    if options.what == "depths":
        print(json.dumps(depths(run, options.split, options.limit, options.threshold), indent=2))
        return
    beside = None if options.beside is None else load_run(options.beside, device=options.device)
    found = lengths(run, beside, options.split)
    print(json.dumps(found, indent=2))
    if options.plot is not None:
        plot(found, options.plot)


@torch.inference_mode()
def depths(run: Run, split: str, limit: int, threshold: float) -> dict[str, float]:
    task, model = run.task, by_policy(run, StructureExitConfig(threshold=threshold)).model
    assert model.structure is not None
    examples, values = task.examples(split), list[tuple[float, ...]]()
    for number in range(min(limit, len(examples))):
        batch = {name: value.to(model.device) for name, value in task.collate([examples[number]]).items()}
        with recorded_depths(model) as record:
            loss = float(task.losses(model, batch, None).loss)
        expected = model.structure.expected
        assert expected is not None
        values.append((float(expected.mean()), float(max(record()[0])), float(batch["attention_mask"].sum()), loss))
    expected_depths, run_depths, sizes, losses = np.array(values).T
    return {
        "examples": len(values),
        "threshold": threshold,
        "expected_depth": float(expected_depths.mean()),
        "expected_deviation": float(expected_depths.std()),
        "depth": float(run_depths.mean()),
        "deviation": float(run_depths.std()),
        "depth_with_length": correlation(run_depths, sizes),
        "depth_with_loss": correlation(run_depths, losses),
        "expected_with_length": correlation(expected_depths, sizes),
        "expected_with_loss": correlation(expected_depths, losses),
    }


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's; 0 where one of them does not vary."""
    return float(np.corrcoef(one, other)[0, 1]) if one.std() and other.std() else 0.0


@torch.inference_mode()
def lengths(run: Run, beside: Run | None, split: str) -> list[dict[str, float]]:
    """Seconds of a batch; those of the run beside stand in every row of the same length and batch."""
    found, structure, longest = [], run.model.structure, run.task.max_tokens or LENGTHS[-1]
    assert structure is not None
    policies = {level: StructureExit(StructureExitConfig(threshold=level)) for level in THRESHOLDS}
    first, text = running_text(run, split)
    for length in (length for length in LENGTHS if length <= longest):
        for rows in BATCHES:
            begins = np.linspace(0, max(0, len(text) - length), rows).astype(int)
            parts = np.stack([np.resize(text[begin : begin + length], length) for begin in begins])
            parts[:, 0] = first
            ids = torch.from_numpy(parts).to(run.device)

            def at(threshold: float, ids: torch.Tensor = ids) -> torch.Tensor:
                structure.use(policies[threshold])
                depths = run.engine(input_ids=ids).depths
                assert depths is not None
                return depths

            works: dict[float | str, Callable[[], object]] = {level: partial(at, level) for level in THRESHOLDS}
            if beside is not None:
                works["fixed"] = partial(beside.engine, input_ids=ids)
            seconds = interleaved_seconds(works, device=run.device, repeats=REPEATS)
            for level in THRESHOLDS:
                row = {
                    "length": length,
                    "rows": rows,
                    "threshold": level,
                    "mean_depth": float(at(level).float().mean()),
                }
                row |= {"seconds": seconds[level], "speed_up": seconds["fixed" if beside else 0.0] / seconds[level]}
                found.append(row)
    return found


def running_text(run: Run, split: str) -> tuple[int, np.ndarray]:
    """The token that texts begin with, and all others of a split one behind the other."""
    examples = run.task.examples(split)
    texts = [np.asarray(examples[number].texts[0]) for number in range(min(1000, len(examples)))]
    return int(texts[0][0]), np.concatenate([text[1:] for text in texts]).astype(np.int64)


def plot(found: list[dict[str, float]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(BATCHES), figsize=(9, 3.5), sharey=True)
    for axis, rows in zip(axes, BATCHES, strict=True):
        for threshold in THRESHOLDS:
            points = [row for row in found if row["rows"] == rows and row["threshold"] == threshold]
            speed_ups = [row["speed_up"] for row in points]
            axis.plot([row["length"] for row in points], speed_ups, marker="o", label=f"γ = {threshold:g}")
        axis.set(title=f"batches of {rows}", xlabel="tokens", xscale="log")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("times as fast as the fixed depth")
    axes[-1].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
