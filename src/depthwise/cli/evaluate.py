"""``depthwise evaluate``: how good runs are on a split of their data, and what that costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from depthwise.cli.run_arguments import (
    DepthOption,
    Device,
    DeviceOption,
    DraftedOption,
    LosslessOption,
    Precision,
    PrecisionOption,
    Split,
    check_file_name,
    depth_of,
    drafting_of,
    paths_and_changes,
    quieten,
)
from depthwise.config import parse_policy

if TYPE_CHECKING:
    from depthwise.evaluation import Contest, Evaluation, Seeds

MEBIBYTE = 1 << 20


def evaluate(
    arguments: Annotated[
        list[str],
        typer.Argument(help="Run folders, and changes such as data.test=FILE.", metavar="RUN... [KEY=VALUE...]"),
    ],
    split: Annotated[Split, typer.Option(help="Which part of the data.")] = Split.test,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    predictions: Annotated[
        Path | None,
        typer.Option(
            help="Score these predictions, one on each line, instead of the model's; kept under --name alone."
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", help="Another run, or a file of predictions, to compare with.", metavar="RUN|FILE"),
    ] = None,
    depth: DepthOption = "trained",
    lossless: LosslessOption = None,
    drafted: DraftedOption = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the result files, if not that of the split and depth.")
    ] = None,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = Precision.fp32,
) -> None:
    """Score a run on its data; write RUN/results/SPLIT.json and SPLIT.predictions.txt, or those of another --name.

    Several runs of one task, which differ in their seeds, are summed up by mean and deviation. Changes reach the data,
    generation and evaluation sections of the recipe: generation.num_beams=1, evaluation.metrics=[bleu,chrf]. With
    --against, they hold for both sides, and a paired bootstrap says whether the difference could be chance; the other
    run has its full depth. With --depth policy, changes such as policy.threshold=0.8 reach the run's policy, and
    policy.kind=confidence policy.threshold=0.9 or policy.kind=patience policy.patience=2 choose one that needs no
    training. With --lossless nobody leaves: text is that of full depth, made faster by drafts. Results of other ways to
    run have names of their own, such as test-depth-2, test-confidence-0.9 and test-lossless-2.
    """
    folders, given = paths_and_changes(arguments)
    _check_folders(folders, alone=predictions is not None or against is not None)
    wanted_depth = depth_of(depth)
    if predictions is not None and wanted_depth is not None:
        raise typer.BadParameter("predictions that are given have no depth; leave one out", param_hint="--depth")
    drafting = drafting_of(lossless, drafted)
    if predictions is not None and drafting is not None:
        raise typer.BadParameter("predictions that are given are not drafted; leave one out", param_hint="--lossless")
    _check_name(name, split)

    from depthwise.evaluation import (
        contest,
        evaluation_of,
        load_run,
        open_run,
        opponent,
        over_runs,
        parted,
        read_examples,
        read_predictions,
        score_predictions,
        strict_json,
        write_evaluation,
    )

    quieten()
    console = Console(soft_wrap=True, highlight=False, markup=False)
    changes, policy_changes = parted(given)
    task = open_run(folders[0], changes)
    theirs: tuple[str, ...] = ()
    if against is not None:  # first, so that what is wrong with it comes to light before our own work is done
        examples, how = read_examples(task, split.value), (changes, device.value, precision.value)
        theirs = opponent(task, split.value, examples, against, *how)
    found = []
    for folder in folders:
        if predictions is not None:
            evaluation = score_predictions(task, split.value, read_predictions(predictions))
        else:
            run = load_run(folder, changes, device.value, precision.value, wanted_depth, policy_changes, drafting)
            evaluation = evaluation_of(run, split.value, read_examples(run.task, split.value))
        found.append((folder, evaluation))
        if not as_json:
            _show(console, folder, evaluation)
        if predictions is None or name is not None:
            write_evaluation(Path(folder), evaluation, name)
    seeds = over_runs(task, found) if len(found) > 1 else None
    comparison: Contest | None = None
    if against is not None:
        comparison = contest(
            task, read_examples(task, split.value), found[0][1].predictions, theirs, against=str(against)
        )
    if as_json:
        content = found[0][1].as_dict() if seeds is None else seeds.as_dict()
        typer.echo(strict_json(content | ({} if comparison is None else {"comparison": comparison.as_dict()})))
    elif seeds is not None:
        _show_seeds(console, seeds)
    elif comparison is not None:
        _show_comparison(console, folders[0] if predictions is None else str(predictions), comparison)


def _check_folders(folders: list[str], *, alone: bool) -> None:
    if not folders:
        raise typer.BadParameter("name the folder of a run", param_hint="RUN")
    if len(folders) > 1 and alone:
        raise typer.BadParameter("--predictions and --against take one run at a time", param_hint="RUN")


def _check_name(name: str | None, split: Split) -> None:
    """Results may be called anything that a file can be called, but not like another split."""
    check_file_name(name)
    if name in [other.value for other in Split if other is not split]:
        raise typer.BadParameter(f"{name} is another split; evaluate it with --split {name}", param_hint="--name")


def _show(console: Console, name: str, evaluation: "Evaluation") -> None:
    console.print(f"{name}, {evaluation.split}: {evaluation.examples:,} examples")
    for metric, value in evaluation.metrics.items():
        shown = "not finite" if value is None else f"{value:.2f}"
        console.print(f"  {metric:<16} {shown}  ({evaluation.signatures[metric]})")
    if evaluation.settings.get("policy") is not None:
        console.print(f"  {'policy':<16} {_policy(evaluation.settings['policy'])}")
    if (drafting := evaluation.settings.get("lossless")) is not None:
        kept = f"{evaluation.acceptance_rate:.0%} of the tokens kept"
        how = f"drafts of {drafting['num_drafted']} at depth {drafting['depth']}"
        console.print(f"  {'lossless':<16} {how}, {kept}")
    if evaluation.settings.get("word_depths") is not None:
        console.print(f"  {'word depths':<16} {evaluation.settings['word_depths']['estimator']}")
    side = "" if evaluation.depth_of is None else f"{evaluation.depth_of} "
    if evaluation.mean_depth is not None:
        console.print(f"  {f'{side}depth' if side else 'mean depth':<16} {evaluation.mean_depth:.2f}")
    cost = f"{evaluation.seconds:.2f} s"
    if evaluation.tokens_per_second is not None:
        cost += f", {evaluation.examples_per_second:,.1f} examples/s, {evaluation.tokens_per_second:,.1f} tokens/s"
    if evaluation.peak_memory_bytes is not None:
        cost += f", {evaluation.peak_memory_bytes / MEBIBYTE:,.0f} MiB"
    console.print(f"  {'time':<16} {cost} on {evaluation.hardware}")
    if evaluation.token_layers is not None:
        flops = "" if evaluation.flops is None else f"{evaluation.flops / 1e9:,.3f} GFLOPs, "
        console.print(f"  {'operations':<16} {flops}{evaluation.token_layers:,} {side}token-layers")


def _policy(options: dict[str, Any]) -> str:
    """A policy and its setting."""
    from depthwise.evaluation import in_words, setting_of

    config = parse_policy(options)
    return ", ".join(text for text in (config.kind, in_words(setting_of(config))) if text)


def _show_seeds(console: Console, seeds: "Seeds") -> None:
    table = Table("metric", "mean", "deviation", title=f"{len(seeds.runs)} runs")
    for metric, summary in seeds.summaries.items():
        table.add_row(metric, f"{summary.mean:.2f}", "-" if summary.deviation is None else f"{summary.deviation:.2f}")
    console.print(table)
    if seeds.best_on_valid is not None:
        best = dict(seeds.runs)[seeds.best_on_valid]
        console.print(f"best on validation data: {seeds.best_on_valid}, {best.metric} {best.value:.2f} here")


def _show_comparison(console: Console, name: str, contest: "Contest") -> None:
    found = contest.comparison
    console.print(f"{contest.metric}: {found.ours:.2f} of {name}, {found.theirs:.2f} of {contest.against}")
    console.print(
        f"difference {found.difference:+.2f}, {found.confidence:.0%} interval [{found.low:+.2f}, {found.high:+.2f}], "
        f"p = {found.p_value:.3f} ({found.num_resamples:,} resamples)"
    )
