"""Whether a run can be decoded losslessly: drafted at an exit, and verified by the whole stack."""

from collections.abc import Sequence
from pathlib import Path

from depthwise.engine import Drafting, Engine
from depthwise.errors import InputError
from depthwise.tasks import Task


def check_nobody_leaves(depth: int | str | None, policy_changes: Sequence[str]) -> None:
    """``InputError`` where tokens are to leave early as well."""
    if policy_changes:
        name = policy_changes[0].partition("=")[0]
        raise InputError(f"{name} has no effect with --lossless, which lets nobody leave early; leave one of them out")
    if depth not in (None, "full"):
        raise InputError(
            f"--lossless says what the whole stack says, and --depth {depth} something else; leave one of them out"
        )


def check_drafting(task: Task, engine: Engine, name: str | Path, drafting: Drafting) -> None:
    """``InputError`` where a run has nothing to draft, or nowhere to do so."""
    config = engine.model.config
    if "decoder" not in task.model_class.needs:
        raise InputError(f"{name} generates no text, so that there is nothing to draft; leave out --lossless")
    exits = config.options.exit_depths[:-1] if config.exits is not None else ()
    if not exits:
        raise InputError(f"{name} has no exits to draft at; train a run with model.exits, or leave out --lossless")
    if drafting.depth not in exits:
        raise InputError(
            f"{name} has no exit at depth {drafting.depth} to draft at, below its last; "
            f"choose among {', '.join(map(str, exits))}"
        )
    if task.recipe.generation.num_beams > 1:
        raise InputError(
            f"lossless decoding has no beams, but {name} searches with {task.recipe.generation.num_beams}; "
            "add generation.num_beams=1"
        )
    if not engine.can_generate():
        raise InputError(f"{name} searches by itself, without the engine, which drafts; leave out --lossless")
