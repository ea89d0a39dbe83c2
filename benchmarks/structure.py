"""Whether a run that says how many layers it needs looks at its inputs, and what that is worth beside a fixed depth.

    python benchmarks/structure.py depths runs/alberta-small-sst2 --at 0.7
    python benchmarks/structure.py frontier runs/alberta-small-sst2 --beside runs/alberta-small-fixed-sst2 --at drop-0.5
    python benchmarks/structure.py speeds runs/alberta-small-sst2 --beside runs/alberta-small-fixed-sst2 --at 0.5 0.9
    python benchmarks/structure.py lengths runs/alberta-small-sst2 --beside runs/alberta-small-fixed-sst2 --plot out.png
    python benchmarks/structure.py draw lengths.json --plot out.png
    python benchmarks/structure.py thresholds docs/results/structure.json --plot out.png

``depths`` runs examples of a split one by one: mean and deviation of the depths that were expected and run, and how
they go with length and loss of an example (Pearson). A deviation of 0 means that all inputs are the same to it.
``frontier`` is ``depthwise sweep``, its figure included, with all that is known of one setting: its depths as above,
and the best *constant* depth of the same network that is no deeper than its mean, rounded up to whole layers.
``speeds`` says how good settings are and how many times as fast as the run beside, and as all layers of the same run,
in batches of 1 and 32 rows of the same texts, from tokens to answers; it also takes runs with exits, and what becomes
of others without half of the layers (--every-other, for LayerDrop; the second half where blocks take turns) or without
a share of the heads (--heads). ``lengths`` times text of every length, in batches of 1 and 32, at several thresholds
and by the run beside; without one, a threshold of 0 stands for it. The text is that of a split. ``draw`` makes the
figure from what ``lengths --json FILE`` kept. ``thresholds`` draws what γ does, layers that run and quality that is
lost against all of them, for every frontier that ``results.py`` collected into a file; --only names a pattern of the
commands that are shown.

A setting is a threshold γ, ``full``, ``patience-4`` or the name of one that ``depthwise calibrate`` found. With --name,
what was found becomes a result of the run, which ``results.py`` collects.
"""

import argparse
import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import interleaved_seconds

from depthwise.config import PolicyConfig, StructureExitConfig
from depthwise.data import Row
from depthwise.depth import StructureExit
from depthwise.engine import Engine
from depthwise.evaluation import (
    Run,
    by_policy,
    chosen_policy,
    hardware,
    load_run,
    open_run,
    outcome_of,
    policies_to_try,
    predict_rows,
    read_examples,
    read_settings,
    setting_named,
    setting_of,
    strict_json,
    sweep,
    write_frontier,
)
from depthwise.evaluation.depths import recorded_depths
from depthwise.evaluation.head_importance import head_importance
from depthwise.models.head_pruning import heads_to_keep, without_heads
from depthwise.tasks import Task

LENGTHS = (16, 32, 64, 128, 256, 512)
BATCHES = (1, 32)
THRESHOLDS = (0.0, 0.1, 0.5, 0.7, 0.9)
REPEATS = 5
TIMED = {1: 16, 32: 128}
"""Examples that are timed in batches of so many."""
FULL, BESIDE = "full", "beside"
JUDGING = 1000
"""Training examples by which heads are judged."""


def main() -> None:
    parser = argparse.ArgumentParser(description="What a run that says how many layers it needs makes of its inputs.")
    parser.add_argument("what", choices=["depths", "frontier", "speeds", "lengths", "draw", "thresholds"])
    parser.add_argument("run", type=Path)
    parser.add_argument("--split", default="valid")
    parser.add_argument("--limit", type=int, default=1000, help="examples whose depths are looked at, at most")
    parser.add_argument("--at", nargs="+", default=[f"{StructureExitConfig.threshold:g}"], help="settings")
    parser.add_argument("--beside", type=Path, help="a run of fixed depth to compare with")
    parser.add_argument("--every-other", action="store_true", help="leave half of the layers of the run out")
    parser.add_argument("--heads", type=float, default=0.0, help="leave this share of its heads out")
    parser.add_argument("--name", help="of the result that is written into the run")
    parser.add_argument("--json", type=Path, help="where numbers are kept")
    parser.add_argument("--plot", type=Path, help="where speed-up against length is drawn")
    parser.add_argument("--only", default="", help="commands of collected runs that this pattern is found in")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.what in ("draw", "thresholds"):
        if options.plot is None:
            parser.error("say where the figure goes, with --plot FILE")
        kept = json.loads(options.run.read_text(encoding="utf-8"))
        if options.what == "draw":
            plot(kept, options.plot)
        else:
            plot_thresholds(found := by_threshold(kept, options.only), options.plot)
            print(f"{options.plot}: {len(found)} runs")
        return
    run = load_run(options.run, device=options.device)
    if options.what != "speeds" and run.model.structure is None:
        parser.error(f"{options.run} does not say how many layers it needs; train one with model.structure")
    if options.every_other and run.model.config.options.leaves_early:
        parser.error(f"{options.run} decides on its layers by itself; leave --every-other out")
    beside = None if options.beside is None else load_run(options.beside, device=options.device)
    found: object
    if options.what == "lengths":
        found = rows = lengths(run, beside, options.split)
        if options.plot is not None:
            plot(rows, options.plot)
    else:
        if options.what == "depths":
            found = metrics = depths(run, options.split, options.limit, setting(run, options.at[0]))
        elif options.what == "frontier":
            found = metrics = frontier(run, beside, options.split, options.limit, setting(run, options.at[0]))
            if (calibrated := read_settings(run.folder).get(options.at[0])) is not None:
                metrics["goal_met"] = float(calibrated.budget_met)
        else:
            smaller = reduced(run, every_other=options.every_other, share=options.heads)
            found = metrics = speeds(smaller, beside, options.split, options.at)
        if options.name is not None:
            write_result(run, options.name, metrics, options.split)
    text = json.dumps(found, indent=2)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n", encoding="utf-8")


def setting(run: Run, word: str) -> PolicyConfig | None:
    """The policy of a threshold, of so much patience, of a calibrated setting, or none for all layers."""
    if word == FULL:
        return None
    if re.fullmatch(r"[\d.]+", word):
        return chosen_policy(run.model, run.folder, [f"policy.threshold={word}"])
    if patience := re.fullmatch(r"patience-(\d+)", word):
        return chosen_policy(run.model, run.folder, ["policy.kind=patience", f"policy.patience={patience[1]}"])
    return setting_named(run.folder, word)


def write_result(run: Run, name: str, metrics: Mapping[str, float], split: str) -> None:
    """Numbers beside the evaluations of a run, where ``results.py`` finds them."""
    path = run.folder / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    content = {"split": split, "metrics": metrics, "hardware": hardware(run.device)}
    path.write_text(strict_json(content) + "\n", encoding="utf-8")


@torch.inference_mode()
def depths(run: Run, split: str, limit: int, options: PolicyConfig | None) -> dict[str, float]:
    task, model = run.task, by_policy(run, options).model
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
        **({"threshold": options.threshold} if isinstance(options, StructureExitConfig) else {}),
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


def frontier(run: Run, beside: Run | None, split: str, limit: int, options: PolicyConfig | None) -> dict[str, float]:
    """Every point of a sweep, and what is known of one setting."""
    chosen = [] if options is None else [options]
    others = [] if beside is None else [beside]
    found = sweep(run, split, read_examples(run.task, split), others, [*policies_to_try(run), *chosen])
    write_frontier(run.folder, found)
    sign, metrics, constant = 1 if found.higher_is_better else -1, dict[str, float](), dict[int, float]()
    own, own_depth = math.nan, math.nan
    for point in found.points:
        if point.quality is None or point.mean_depth is None:
            continue
        if point.policy == "fixed":
            constant[point.setting["depth"]] = point.quality
            metrics[f"depth-{point.setting['depth']}"] = point.quality
        elif point.policy == StructureExitConfig.kind and "threshold" in point.setting:
            metrics |= {f"gamma-{point.setting['threshold']:g}": point.quality}
            metrics |= {f"gamma-{point.setting['threshold']:g}_layers": point.mean_depth}
        if options is not None and (point.policy, point.setting) == (options.kind, setting_of(options)):
            own, own_depth = point.quality, point.mean_depth
    best = best_constant(constant, own_depth, sign)
    if best is not None:
        metrics |= {"chosen": own, "chosen_layers": own_depth}
        metrics |= {"constant": constant[best], "constant_layers": float(best)}
    return metrics | depths(run, split, limit, options)


def best_constant(qualities: Mapping[int, float], mean_depth: float, sign: int) -> int | None:
    """Of constant depths up to a mean that is rounded up to whole layers, the best one, or the least of equals."""
    no_deeper = [depth for depth in qualities if depth < mean_depth + 1]
    return max(no_deeper, key=lambda depth: (sign * qualities[depth], -depth), default=None)


def reduced(run: Run, *, every_other: bool, share: float) -> Run:
    """The run without every other layer, or without the heads that matter least.

    Where blocks take turns, every other layer may be every other block; the first half of the layers, in which each
    block has its turn, stays then.
    """
    stack = run.model.model.encoder.stack
    if every_other and stack.block_of is None:
        stack.layers = stack.layers[::2]
    elif every_other:
        kept = stack.block_of[::2]
        stack.block_of = kept if set(kept) == set(stack.block_of) else stack.block_of[: len(kept)]
    if every_other:
        run.model.model.config.num_hidden_layers = stack.num_layers
    if not share:
        return run
    kept = heads_to_keep(head_importance(run.task, run.model, JUDGING), share)
    return replace(run, engine=Engine(without_heads(run.model, kept).eval().to(run.device)))


def speeds(run: Run, beside: Run | None, split: str, words: Sequence[str]) -> dict[str, float]:
    """Quality and mean depth of settings, and how many times as fast they are as the run beside and as all layers."""
    found, examples = dict[str, float](), read_examples(run.task, split)
    settings = {word: setting(run, word) for word in dict.fromkeys([FULL, *words])}
    for word, options in settings.items():
        outcome = outcome_of(by_policy(run, options), examples, shows_progress=False)
        assert outcome.mean_depth is not None
        quality = outcome.scores[run.task.metrics[0]].value
        found |= {word: quality} if math.isfinite(quality) else {}
        found[f"{word}_layers"] = outcome.mean_depth
    if beside is not None:
        found[BESIDE] = outcome_of(beside, examples, shows_progress=False).scores[run.task.metrics[0]].value
    for at_once, most in TIMED.items():
        task = open_run(run.folder, [f"evaluation.batch_rows={at_once}"])
        some = np.unique(np.linspace(0, len(examples) - 1, min(most, len(examples))).astype(int))
        rows = task.rows([task.inputs_of(examples[number]) for number in some])
        ways: dict[str, Callable[[], object]] = dict.fromkeys(settings, partial(answered, run, task, rows))
        chosen = {word: partial(by_policy, run, options) for word, options in settings.items()}
        if beside is not None:
            ways[BESIDE] = partial(answered, beside, task, rows)
        seconds = interleaved_seconds(ways, device=run.device, repeats=REPEATS, before=chosen)
        for word in settings:
            found[f"{word}_of_{FULL}_{at_once}"] = seconds[FULL] / seconds[word]
            if beside is not None:
                found[f"{word}_faster_{at_once}"] = seconds[BESIDE] / seconds[word]
    return found


def answered(run: Run, task: Task, rows: Sequence[Row]) -> object:
    return predict_rows(task, run.engine, rows, shows_progress=False)


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
    task, examples = run.task, run.task.examples(split)
    some = (task.collate([examples[number]]) for number in range(min(1000, len(examples))))
    texts = [batch["input_ids"][0].numpy() for batch in some]
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
        lengths = sorted({int(row["length"]) for row in found})
        axis.set_xticks(lengths, [str(length) for length in lengths])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("times as fast as the fixed depth")
    axes[-1].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def by_threshold(records: Sequence[Mapping[str, Any]], only: str) -> dict[str, list[tuple[float, float, float]]]:
    """γ, the layers that run and what is lost against all layers, of every run with thresholds, by its command.

    Of several seeds the mean.
    """
    found: dict[str, list[list[tuple[float, float, float]]]] = {}
    for record in records:
        command = " ".join(word for word in record["command"].split()[2:] if not word.startswith("seed="))
        for name, result in record["results"].items():
            if "frontier-" not in name or not re.search(only, command):
                continue
            metrics = result["metrics"]
            whole = max((key for key in metrics if re.fullmatch(r"depth-\d+", key)), key=lambda key: int(key[6:]))
            points = [
                (gamma, metrics[f"gamma-{gamma:g}_layers"], metrics[whole] - metrics[f"gamma-{gamma:g}"])
                for gamma in sorted(float(key[6:]) for key in metrics if re.fullmatch(r"gamma-[\d.]+", key))
            ]
            if points:
                found.setdefault(command, []).append(points)
    return {
        command: [(float(gamma), float(layers), float(lost)) for gamma, layers, lost in np.mean(seeds, axis=0)]
        for command, seeds in found.items()
    }


def in_short(command: str) -> str:
    """The recipe of a command, and what was changed of it, without folders and sections."""
    recipe, *changes = shlex.split(command)
    told = [change.partition("=") for change in changes if "{" not in change]
    words = (
        f"{key.removeprefix('training.').removeprefix('model.')} {value.rpartition('/')[2]}" for key, _, value in told
    )
    return ", ".join([recipe.rpartition("/")[2], *words])


def plot_thresholds(found: Mapping[str, Sequence[tuple[float, float, float]]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, (layers, lost) = plt.subplots(1, 2, figsize=(11, 5 + 0.22 * len(found)), layout="constrained")
    for number, (command, points) in enumerate(found.items()):
        gammas, depths, losses = zip(*points, strict=True)
        style = {"marker": "osvD^<>Xph"[number % 10], "markersize": 4, "label": in_short(command)}
        layers.plot(gammas, depths, **style)
        lost.plot(gammas, losses, **style)
    layers.set(xlabel="γ", ylabel="layers that run, in the mean")
    lost.set(xlabel="γ", ylabel="points lost against all layers")
    for axis in (layers, lost):
        axis.grid(alpha=0.3)
    figure.legend(*lost.get_legend_handles_labels(), loc="outside lower center", fontsize="small")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
