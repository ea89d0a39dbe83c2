"""A recipe made so small that it trains in less than a second, with everything that it is about kept."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from depthwise.config import PRETRAINED, Recipe, as_dict, model_options, parse_recipe, with_vocabulary
from depthwise.config import recipe_dict as options_of

MOST_LAYERS = 3
KEPT = ("exits", "policy", "latent", "structure", "word_depths", "pooling", "classifier_dropout", PRETRAINED)
"""Options of a model from another run that mean the same for a small one."""
UPDATES = 2
STACK: dict[str, Any] = {
    "num_heads": 2,
    "ffn_width": 16,
    "kernel_heads": None,
    "conv_width": None,
    "max_positions": 64,
}
TRAINING: dict[str, Any] = {
    **{"max_updates": UPDATES, "max_epochs": None, "batch_tokens": 512, "batch_rows": None, "accumulate": 1},
    **{"validate_every": None, "save_every": None, "patience": None, "log_every": 1, "average": 1},
    **{"precision": "fp32", "graphs": False, "half_states": False, "compile": False, "shard": False, "threads": None},
}


def miniature(recipe: Recipe, data: Mapping[str, Any], cache: str) -> Recipe:
    """The recipe with a tiny model, two updates and these data."""
    options = options_of(recipe)
    options["data"] = {**options["data"], **data, "cache": cache}
    options["training"] = {**options["training"], **TRAINING}
    if not has_tokenizer_of_run(recipe):
        options["tokenizer"] = {**options["tokenizer"], "codes": None, "path": None}
    if options["tokenizer"]["vocab_size"] is not None:
        options["tokenizer"]["vocab_size"] = 200
    options["generation"] |= {"num_beams": min(2, recipe.generation.num_beams), "max_factor": 1.0, "max_extra": 2}
    options["model"] = small_model(recipe.model)
    latent = options["training"]["latent"]
    if latent is not None and latent["target_depth"] is not None:
        latent["target_depth"] = [depth and min(depth, 2) for depth in latent["target_depth"]]
    if recipe.training.depth_target is not None:
        options["training"]["depth_target"] = min(recipe.training.depth_target, MOST_LAYERS)
    return parse_recipe(options, source="miniature")


def has_tokenizer_of_run(recipe: Recipe) -> bool:
    """Whether the tokenizer is that of another run, and not that of a data set."""
    return (recipe.tokenizer.path or "").startswith("runs/")


def small_model(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a tiny model of the same kind: from the same run, of the least size, or with narrow stacks."""
    if PRETRAINED in given:
        return {name: value for name, value in given.items() if name in KEPT}
    if "size" in given:
        most = 2 * MOST_LAYERS if given.get("structure") else MOST_LAYERS
        sides = {side: fewer_layers(given[side], most) for side in ("encoder", "decoder") if side in given}
        return {**given, **sides, "size": "tiny"}
    model = with_vocabulary(model_options(given), 100, 100)
    most = MOST_LAYERS if model.structure is None else 2 * MOST_LAYERS
    has_plain_source = model.decoder is not None and (model.latent is None or "encoder" not in model.latent.sides)
    sides = {
        side: replace(
            stack,
            num_layers=1 if side == "encoder" and has_plain_source else min(stack.num_layers, most),
            kernel_sizes=None if stack.kernel_sizes is None else (3,),
            shared_layers=None,
            groups=None if stack.groups is None else 2,
            **STACK,
        )
        for side in ("encoder", "decoder")
        if (stack := getattr(model, side)) is not None
    }
    exits = model.exits
    if exits is not None and exits.depths is not None:
        exits = replace(exits, depths=tuple(depth for depth in exits.depths if depth <= most) or None)
    structure = model.structure and replace(model.structure, num_static=1, hidden_width=None)
    latent = model.latent and replace(model.latent, init=(0.5,))  # two updates close no layer, on whichever machine
    narrow: dict[str, Any] = {"width": 16, "embedding_width": None, "adaptive": None, **sides}
    options = as_dict(replace(model, exits=exits, structure=structure, latent=latent, **narrow))
    return {name: value for name, value in options.items() if name not in ("vocab_size", "source_vocab_size")}


def fewer_layers(stack: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Options of a stack, which has no more layers than that where they are given."""
    return {name: min(value, most) if name == "num_layers" else value for name, value in stack.items()}
