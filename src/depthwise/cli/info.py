"""``depthwise info``: what a model is made of and what it costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from depthwise.config import load_recipe, preset
from depthwise.config.alberta import PUBLISHED
from depthwise.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from depthwise.models.configuration import DepthwiseConfig
    from depthwise.models.cost import Cost


def info(
    model: Annotated[str, typer.Argument(help="A run folder, or the name of a preset.", metavar="RUN")],
    length: Annotated[int, typer.Option(help="Length of the sequences that costs are given for.", min=1)] = 25,
) -> None:
    """Show the parts of a model, their parameters and what they cost per token.

    Costs are floating-point operations (multiply-add = 2) of one token among LENGTH, at full depth. The last row has
    all that one target token needs: its share of the source, every block and the scores of the vocabulary.
    """
    if not Path(model).exists():
        preset(model)  # a misspelt name is reported before anything heavy is loaded

    from depthwise.kernels.backend import describe

    console = Console()
    config = _config(model)
    console.print(_parts(config, length))
    if model in PUBLISHED:
        console.print(_beside_published(config, PUBLISHED[model]), soft_wrap=True, highlight=False)
    console.print(f"kernel back end: {describe()}")
    if Path(model).exists():
        _show_run(console, Path(model))


def _show_run(console: Console, folder: Path) -> None:
    """What a run was trained for, and what is on record of how good it is."""
    from depthwise.evaluation import read_evaluation
    from depthwise.evaluation.results import RESULTS

    if (folder / "recipe.yaml").is_file():
        recipe = load_recipe(folder / "recipe.yaml")
        files = " and ".join(recipe.data.train or ("data that the recipe does not name",))
        console.print(f"trained for {recipe.task} with seed {recipe.seed} on {files}", markup=False, soft_wrap=True)
    for path in sorted((folder / RESULTS).glob("*.json")):
        found = read_evaluation(path)
        if found is not None:
            scores = ", ".join(
                f"{name} {'not finite' if value is None else f'{value:.2f}'}" for name, value in found.metrics.items()
            )
            depth = "" if found.mean_depth is None else f", mean depth {found.mean_depth:.2f}"
            line = f"{path.relative_to(folder)}: {scores}{depth}, {found.examples:,} examples in {found.seconds:.2f} s"
            console.print(line, markup=False, soft_wrap=True)


def _config(name: str) -> "DepthwiseConfig":
    """The configuration of a run folder or of a preset."""
    from depthwise.models.configuration import DepthwiseConfig
    from depthwise.tasks.run_folder import run_config

    folder = Path(name)
    if not folder.exists():
        return DepthwiseConfig.from_preset(name)
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no config.json; give a run folder, or the name of a preset")
    return run_config(folder)


def _parts(config: "DepthwiseConfig", length: int) -> Table:
    """One row per mixer, one for each other kind of part, and the sums. What one block costs, each layer costs."""
    from depthwise.models.cost import Cost, ModelCost

    cost, skeleton = ModelCost(config.options), _skeleton(config)
    backbone = getattr(skeleton, "model", skeleton)
    table = Table("part", "parameters", "FLOPs per token", title=f"{type(skeleton).__name__} at length {length}")
    for side, stack in (("encoder", cost.encoder), ("decoder", cost.decoder)):
        if stack is None:
            continue
        blocks = getattr(backbone, side).stack.layers
        running = [stack.stack.block_of(layer) for layer in range(stack.stack.num_layers)]
        for number, block in enumerate(blocks):
            layer, times = running.index(number), running.count(number)
            kernel = stack.stack.kernel_size(layer)
            mixer = stack.stack.mixer if kernel is None else f"{stack.stack.mixer} {kernel}"
            shared = f", {times} times" if times > 1 else ""
            _add(table, f"{side} block {number}: {mixer}{shared}", block.mixer, stack.mixer(layer, length))
        if stack.has_source:
            _add(table, f"{side} attention over the source, each", blocks[0].cross, stack.cross(length))
        _add(table, f"{side} feed-forward, each", blocks[0].feed_forward, stack.feed_forward())
        if getattr(backbone, side).stack.distances is not None:
            _add(table, f"{side} distances", getattr(backbone, side).stack.distances, Cost())
        _add(table, f"{side} embedding", getattr(backbone, side).embedding, cost.embedding())
    if backbone.structure is not None:
        _add(table, "structure predictor", backbone.structure, Cost())
    if hasattr(skeleton, "head"):
        _add(table, "head", skeleton.head, cost.head())
    table.add_section()
    total = cost.forward(length, length if config.is_encoder_decoder else 0)
    if config.decoder is None and hasattr(skeleton, "head"):
        total += cost.head() * length
    _add(table, "all", skeleton, Cost(total.flops // length))
    return table


def _beside_published(config: "DepthwiseConfig", published: int) -> str:
    """What the encoder has without distances and predictor, and with them, beside what its paper says."""
    import torch

    from depthwise.models.backbone import DepthwiseModel

    with torch.device("meta"):
        counts = {name: weight.numel() for name, weight in DepthwiseModel(config).named_parameters()}
    apart = sum(count for name, count in counts.items() if ".structure." in name or ".distances." in name)
    total = sum(counts.values())
    return (
        f"encoder and pooler: {(total - apart) / 1e6:.1f}M (published {published}M, with heads); "
        f"{total / 1e6:.1f}M with distances and predictor"
    )


def _skeleton(config: "DepthwiseConfig") -> Any:
    """The model without storage, to count its parameters: the one that was saved, else the one its stacks make."""
    import torch

    from depthwise.models.auto import MODELS

    by_name = {model_class.__name__: model_class for model_class in MODELS.values()}
    if config.architectures:
        name = config.architectures[0]
    elif config.is_encoder_decoder:
        name = "DepthwiseForSeq2SeqLM"
    else:
        name = "DepthwiseForMaskedLM" if config.decoder is None else "DepthwiseForCausalLM"
    if name not in by_name:
        raise InputError(f'config.json names the model "{name}"; Depthwise has {", ".join(by_name)}')
    with torch.device("meta"):
        return by_name[name](config)


def _add(table: Table, part: str, module: "nn.Module", cost: "Cost") -> None:
    parameters = sum(weight.numel() for weight in module.parameters())
    table.add_row(part, f"{parameters:,}", f"{cost.flops:,}")
