"""A finished run, ready to work: its task, and its model on a device."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from depthwise.config import FixedDepthConfig, PolicyConfig, Recipe, changed_recipe
from depthwise.engine import Drafting, Engine
from depthwise.errors import CheckpointError, InputError
from depthwise.evaluation.calibrated import setting_named
from depthwise.evaluation.drafting import check_drafting, check_nobody_leaves
from depthwise.evaluation.policies import check_exits, chosen_policy, fixed_depth, use_policy
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.tasks import Task, load_task
from depthwise.tasks.build import run_recipe
from depthwise.tasks.latent_training import use_gates_of
from depthwise.tasks.word_depths import WordDepthTask

POLICY = "policy"
"""The depth that a policy decides."""
FULL = "full"
"""The depth at which all tokens run all blocks."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Run:
    """A trained model and what it was trained for.

    ``depth`` is how many blocks all tokens run, if not the whole stack; ``policy`` is what lets them leave, if any.
    ``engine`` runs the model, at every depth and by every policy that it is given.
    """

    folder: Path
    task: Task
    engine: Engine
    precision: str = "fp32"
    depth: int | None = None
    policy: PolicyConfig | None = None

    @property
    def model(self) -> DepthwisePreTrainedModel:
        return self.engine.model

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def recipe(self) -> Recipe:
        return self.task.recipe


def open_run(folder: str | Path, changes: Sequence[str] = ()) -> Task:
    """The task of a run without its model, with changes such as ``data.test=FILE``."""
    folder = Path(folder)
    return load_task(folder, changed_recipe(run_recipe(folder), changes))


def load_run(
    folder: str | Path,
    recipe_changes: Sequence[str] = (),
    device: str = "auto",
    precision: str = "fp32",
    depth: int | str | None = None,
    policy_changes: Sequence[str] = (),
    lossless: Drafting | None = None,
) -> Run:
    """A run with its model in evaluation mode on a device (``auto``, ``cpu``, ``cuda``).

    Without a ``depth``, tokens run as they did in training: all blocks (``full``), or as deep as words have depths of
    their own. With a number all tokens leave there: at an exit of the model, or behind so many layers of an encoder
    with a structure, else where its stack is cut, which is that of the decoder where there is one. With ``policy`` they
    leave by the run's own policy, as far as ``policy_changes`` such as ``policy.threshold=0.8`` do not say otherwise.
    Any other name is that of a setting that ``depthwise calibrate`` found.

    With ``lossless``, an exit drafts what the whole stack then verifies: text is that of full depth, and found faster.
    """
    if lossless is not None:
        check_nobody_leaves(depth, policy_changes)
    if policy_changes and depth != POLICY:
        name = policy_changes[0].partition("=")[0]
        raise InputError(f"{name} has no effect where no policy decides; add --depth policy")
    task = open_run(folder, recipe_changes)
    model = load_model(task, folder, pick_device(device), precision)
    run = Run(Path(folder), task, Engine(model, drafting=lossless), precision)
    if lossless is not None:
        check_drafting(task, run.engine, folder, lossless)
    if isinstance(task, WordDepthTask) and task.word_options is not None:
        return _by_words(run, task, depth)
    if depth == POLICY:
        return by_policy(run, chosen_policy(model, folder, policy_changes))
    if depth is None or depth == FULL:
        return run
    if isinstance(depth, str):
        return by_policy(run, setting_named(run.folder, depth))
    if model.config.options.stopping_side is not None:
        return by_policy(run, fixed_depth(model, folder, depth))
    cut_to_depth(model, depth)
    return replace(run, depth=depth)


def _by_words(run: Run, task: WordDepthTask, depth: int | str | None) -> Run:
    """A run whose words have depths: as they are, or all the same one."""
    if depth is None:
        task.marks  # noqa: B018 (says now what is wrong with them)
        return run
    if isinstance(depth, str) and depth != FULL:
        raise InputError(f"the words of {run.folder} have depths of their own; use --depth trained, full or a number")
    assert task.options.encoder is not None
    number = task.options.encoder.num_layers if isinstance(depth, str) else depth
    task.ignores_words = True
    cut_to_depth(run.model, number)
    return replace(run, depth=number)


def by_policy(run: Run, options: PolicyConfig | None) -> Run:
    """The same run and model, the tokens of which leave by this policy from now on; none means at the end."""
    if options is not None:
        check_exits(run.model, run.folder)
    use_policy(run.model, options)
    return replace(run, depth=options.depth if isinstance(options, FixedDepthConfig) else None, policy=options)


def load_model(
    task: Task, folder: str | Path, device: torch.device, precision: str = "fp32"
) -> DepthwisePreTrainedModel:
    """The model of a folder, with exactly the weights that are there and the gates that its task is evaluated with."""
    if precision not in DTYPES:
        raise InputError(f'there is no precision "{precision}"; give one of {", ".join(DTYPES)}')
    try:
        with _without_report():
            loaded: Any = task.model_class.from_pretrained(
                folder,
                dtype=DTYPES[precision],
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                local_files_only=True,
            )
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError) as error:
        if isinstance(error, RuntimeError):
            _check_weights(folder, {"mismatched_keys": _unlike(task, folder)})
        reason = " ".join(str(error).split()).rstrip(".")
        raise CheckpointError(
            f"the weights in {folder} cannot be loaded: {reason}; copy or train the run again"
        ) from error
    model, found = loaded
    _check_weights(folder, found)
    model.eval()
    placed: DepthwisePreTrainedModel = model.to(device)
    use_gates_of(task.recipe, placed)
    return placed


@contextmanager
def _without_report() -> Iterator[None]:
    """Of weights that do not fit, Transformers prints a table; here they become one sentence."""
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(_is_no_report)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_report)


def _is_no_report(record: logging.LogRecord) -> bool:
    return "LOAD REPORT" not in record.getMessage()


def _unlike(task: Task, folder: str | Path) -> list[tuple[str, Sequence[int], Sequence[int]]]:
    """Weights that have another shape in the files than in the model, with both shapes.

    Transformers fails before it says so where two of them are tied, since it compares the numbers that it has not read.
    """
    with torch.device("meta"):
        model = task.model_class(DepthwiseConfig.from_pretrained(folder, local_files_only=True))
    wanted = {name: weight.shape for name, weight in model.state_dict().items()}
    whole, found = Path(folder, "model.safetensors"), []
    for path in [whole] if whole.is_file() else sorted(Path(folder).glob("model-*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            shapes = {name: file.get_slice(name).get_shape() for name in names}
        found += [
            (name, shape, wanted[name]) for name, shape in shapes.items() if shape != list(wanted.get(name, shape))
        ]
    return found


def _check_weights(folder: str | Path, found: Mapping[str, Any]) -> None:
    """Refuse weights that Transformers would draw anew or leave aside, and say no more than a warning."""
    missing = [f"{name} is missing" for name in sorted(found.get("missing_keys", ()))]
    unlike = [
        f"{name} is of shape {tuple(shape)} and not {tuple(wanted)}"
        for name, shape, wanted in sorted(found["mismatched_keys"])
    ]
    unlike += [f"there is no place for {name}" for name in sorted(found.get("unexpected_keys", ()))]
    problems = [*unlike, *missing]
    if not problems:
        return
    others = len(problems) - 1
    if unlike:
        more = f", and {others} more do not fit" if others else ""
        remedy = "restore its config.json, or copy or train the run again"
        raise CheckpointError(f"the weights in {folder} do not fit its config.json: {problems[0]}{more}; {remedy}")
    more = f" and so are {others} more" if others else ""
    raise CheckpointError(f"the weights in {folder} are incomplete: {problems[0]}{more}; copy or train the run again")


def pick_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("there is no GPU here that torch can use; ask for the device cpu, or auto")
    return torch.device(name)


def cut_to_depth(model: DepthwisePreTrainedModel, depth: int) -> None:
    """Take the later blocks away, which gives the same numbers as a plan by which no token runs them."""
    backbone = model.model
    side = "encoder" if backbone.decoder is None else "decoder"
    stack = getattr(backbone, side).stack
    if not 1 <= depth <= stack.num_layers:
        raise InputError(f"the {side} has {stack.num_layers} blocks; give a depth from 1 to {stack.num_layers}")
    if stack.block_of is None:
        stack.layers = stack.layers[:depth]
    else:  # layers share blocks
        stack.block_of = stack.block_of[:depth]
    backbone.config.num_hidden_layers = depth
