"""The frontier of a run: quality against cost at every fixed depth and under every policy, each run over the same data.

``RUN/results/frontier.json`` has, beside what the numbers are numbers of,

    schema               1; another number means that these words have changed
    metric               the name of the quality
    depth_of             "encoder" where depths are those of sources, read by an encoder below a decoder
    higher_is_better     whether more of it is better
    points               in the order in which they were run, each with
      policy               its kind; "fixed" for a fixed depth, "separate" for a model that was trained by itself
      setting              the options that decide, such as {"depth": 3} or {"threshold": 0.9}
      quality              none where it is not finite
      mean_depth           over all tokens
      token_layers         blocks that all tokens ran together
      flops                operations, deciding included (``costing``)
      seconds              measured, behind a warm-up

The fixed point whose depth is ``num_layers`` is the full model, without any policy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from depthwise.config import (
    ConfidenceConfig,
    FixedDepthConfig,
    LearnedConfidenceConfig,
    PatienceConfig,
    PoissonBinomialConfig,
    PolicyConfig,
    StructureExitConfig,
)
from depthwise.data import Example
from depthwise.data.progress import shown
from depthwise.errors import InputError
from depthwise.evaluation.comparing import check_comparable
from depthwise.evaluation.evaluating import Outcome, outcome_of, settings
from depthwise.evaluation.policies import (
    by_structure,
    check_of_one_side,
    decides_itself,
    is_of_sources,
    own_policy,
    setting_of,
)
from depthwise.evaluation.results import RESULTS, examples_digest, finite, replace_file, strict_json, weights_digest
from depthwise.evaluation.runs import Run, by_policy
from depthwise.evaluation.timing import hardware
from depthwise.tasks import Tagging, TextClassification

SCHEMA = 1
FIXED, SEPARATE = FixedDepthConfig.kind, "separate"
CHANCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
PROBABILITIES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
MARGINS = (0.1, 0.3, 0.5, 0.7, 0.9)
WEIGHTS = (0.02, 0.05, *CHANCES, 0.95, 0.99)
COSINES = (0.8, 0.9, 0.95, 0.98, 0.99)


@dataclass(frozen=True, kw_only=True)
class Point:
    """How good a run is at one setting, and what that costs; the module says what each is."""

    policy: str
    setting: dict[str, Any]
    quality: float | None
    mean_depth: float | None
    token_layers: int
    flops: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """All points, and what they are points of."""

    task: str
    split: str
    metric: str
    higher_is_better: bool
    num_layers: int
    exits: tuple[int, ...]
    examples: int
    batch_rows: int | None
    """Inputs that are answered at a time, at most; none means as many as ``evaluation.batch_tokens`` allows."""
    settings: dict[str, Any]
    hardware: str
    examples_digest: str
    weights_digest: str | None
    points: tuple[Point, ...]
    depth_of: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As plain data for a JSON file."""
        return {"schema": SCHEMA, **asdict(self)}

    @property
    def full(self) -> Point:
        """The model at full depth."""
        (found,) = (
            point for point in self.points if point.policy == FIXED and point.setting["depth"] == self.num_layers
        )
        return found

    @property
    def cheapest(self) -> Point | None:
        """Of the settings that are as good as the full depth, the one of least mean depth; none where all are worse."""
        full, sign = self.full, 1 if self.higher_is_better else -1
        if full.quality is None or full.mean_depth is None:
            return None
        found, least = None, full.mean_depth
        for point in self.points:
            if point.policy == SEPARATE or point.quality is None or point.mean_depth is None:
                continue
            if sign * (point.quality - full.quality) >= 0 and point.mean_depth < least:
                found, least = point, point.mean_depth
        return found


def sweep(
    run: Run,
    split: str,
    examples: Sequence[Example],
    beside: Sequence[Run] = (),
    policies: Sequence[PolicyConfig] | None = None,
) -> Frontier:
    """Run the examples at every setting, and through models that were trained by themselves at their full depth.

    ``policies`` are tried beside all fixed depths, each once; none means those of ``policies_to_try``.
    """
    exits, task = run.model.config.options.stopping_depths, run.task
    if run.model.config.options.stopping_side is None:
        raise InputError(
            f"{run.folder} has no exits to leave at, so that there is nothing to sweep; train a run with model.exits"
        )
    metric = task.metrics[0]
    for other in beside:
        check_comparable(task, other.task, other.folder)
        if other.task.metrics[0] != metric:
            raise InputError(
                f"{other.folder} is judged by {other.task.metrics[0]}, not by {metric}; "
                f"name one for all with evaluation.metrics=[{metric}]"
            )
    check_of_one_side(run.model, run.folder, policies or ())
    of_sources = is_of_sources(run.model, None)
    settings_to_try = policies_to_try(run) if policies is None else _once([*fixed_depths(run), *policies])
    tried: list[tuple[Run, PolicyConfig | None]] = [(run, options) for options in settings_to_try]
    tried += [(other, None) for other in beside]
    points = []
    try:
        for each, options in shown(tried, "sweeping", len(tried)):
            set_so = by_policy(each, _unless_full(options, exits[-1]))
            found = outcome_of(set_so, examples, shows_progress=False, of_sources=of_sources)
            if options is None:
                encoder, depth = each.model.config.options.encoder, each.model.config.num_hidden_layers
                depth = encoder.num_layers if of_sources and encoder is not None else depth
                setting = {"run": str(each.folder), "depth": depth}
            else:
                setting = setting_of(options)
            points.append(_point(SEPARATE if options is None else options.kind, setting, found, metric))
    finally:
        by_policy(run, run.policy)
    return Frontier(
        task=task.kind,
        split=split,
        metric=metric,
        higher_is_better=metric not in task.lower_is_better,
        num_layers=exits[-1],
        exits=exits,
        examples=len(examples),
        batch_rows=task.recipe.evaluation.batch_rows,
        settings={name: value for name, value in settings(task, run.precision).items() if name not in _OF_POINTS},
        hardware=hardware(run.device),
        examples_digest=examples_digest(examples),
        weights_digest=weights_digest(run.folder),
        depth_of="encoder" if of_sources else None,
        points=tuple(points),
    )


def write_frontier(folder: Path, frontier: Frontier) -> tuple[Path, Path]:
    """Write the numbers and their plot into a run, each whole or not at all."""
    from depthwise.evaluation.plotting import frontier_png  # matplotlib takes a while to load

    numbers, plot = folder / RESULTS / "frontier.json", folder / RESULTS / "frontier.png"
    text, picture = strict_json(frontier.as_dict()) + "\n", frontier_png(frontier.as_dict())
    replace_file(plot, picture)
    replace_file(numbers, text)
    return numbers, plot


_OF_POINTS = ("depth", "policy")


def _unless_full(options: PolicyConfig | None, num_layers: int) -> PolicyConfig | None:
    """The full model is run without a policy."""
    return None if options == FixedDepthConfig(depth=num_layers) else options


def _point(policy: str, setting: dict[str, Any], found: Outcome, metric: str) -> Point:
    return Point(
        policy=policy,
        setting=setting,
        quality=finite(found.scores[metric].value),
        mean_depth=found.mean_depth,
        token_layers=found.token_layers,
        flops=found.flops,
        seconds=found.timing.seconds,
    )


# What is tried


def policies_to_try(run: Run) -> list[PolicyConfig]:
    """Every fixed depth, the run's own policy, confidence and patience, at a grid of settings each."""
    own, found = own_policy(run.model), fixed_depths(run)
    found += [] if own is None else _around(own)
    if decides_itself(run.model):
        found += _around(by_structure(run.model, StructureExitConfig()))
    else:
        found += _untrained(run, len(run.model.config.options.exit_depths))
    return _once(found)


def _once(policies: Sequence[PolicyConfig]) -> list[PolicyConfig]:
    return list(dict.fromkeys(policies))


def fixed_depths(run: Run) -> list[PolicyConfig]:
    """All leave at one exit, for each of them."""
    return [FixedDepthConfig(depth=depth) for depth in run.model.config.options.stopping_depths]


def _around(own: PolicyConfig) -> Iterator[PolicyConfig]:
    """A policy as it is and, where it has a threshold, at others, one for all exits."""
    match own:
        case PoissonBinomialConfig(decision="sample"):
            yield own
        case PoissonBinomialConfig():
            for chance in sorted({*CHANCES, own.threshold}):
                yield replace(own, threshold=chance)
        case StructureExitConfig(stops="argmax"):
            yield own
        case StructureExitConfig():
            for weight in sorted({*WEIGHTS, own.threshold}):
                yield replace(own, threshold=weight)
        case LearnedConfidenceConfig():
            alternatives: set[tuple[float, ...]] = {(chance,) for chance in CHANCES}
            for thresholds in sorted({*alternatives, own.threshold}):
                yield replace(own, threshold=thresholds)
        case _:
            yield own


def _untrained(run: Run, num_exits: int) -> Iterator[PolicyConfig]:
    """Thresholds that every distribution reaches, and patience that nobody can have before the end, say nothing."""
    task = run.task
    if not (isinstance(task, TextClassification) and task.is_regression):
        config = run.model.config
        num_classes = (config.num_labels if isinstance(task, TextClassification | Tagging) else config.vocab_size) or 2
        yield from (ConfidenceConfig(threshold=(level,)) for level in PROBABILITIES if level * num_classes > 1)
        if num_classes > 2:  # of two, the margin says nothing that the probability does not
            yield from (ConfidenceConfig(measure="margin", threshold=(margin,)) for margin in MARGINS)
    if num_exits > 2:
        yield from (ConfidenceConfig(measure="saturation", threshold=(cosine,)) for cosine in COSINES)
    yield from (PatienceConfig(patience=patience) for patience in range(1, num_exits - 1))
