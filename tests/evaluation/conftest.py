"""Tiny runs of each task with random weights, made once; tests that change one get a copy."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils.logging import disable_progress_bar

from depthwise.config import StructureExitConfig, parse_recipe, recipe_yaml
from depthwise.evaluation import Evaluation, Run, evaluation_of, load_run, read_examples
from depthwise.tasks import open_task

STACK: dict[str, Any] = {"num_layers": 2, "num_heads": 2, "ffn_width": 16, "max_positions": 24}
PAIRS = [("a b c", "c b a"), ("b", "b"), ("c c a b a", "a b a c c"), ("a", "a"), ("b a c a b c a", "a c b a c a b")]
LABELLED = [("good", "a b"), ("bad", "b c c"), ("good", "a a c"), ("bad", "c"), ("good", "a b c a b c")]
NUMBERED = [("0.5", "a b"), ("1.5", "b c c"), ("-2", "a a c"), ("3", "c")]
SIDES = {"translation": ("encoder", "decoder"), "language_modeling": ("decoder",)}

MakeRun = Callable[..., Path]
AtThresholds = Callable[[str], tuple[Run, dict[float | None, Evaluation]]]


def build_run(folder: Path, options: dict[str, Any], seed: int) -> Path:
    """A run as training leaves it, but for the training."""
    folder.mkdir(parents=True)
    recipe = parse_recipe({**options, "seed": seed, "training": {"max_updates": 1}})
    torch.manual_seed(seed)
    task = open_task(recipe, folder)
    model = task.new_model()
    with torch.no_grad():  # a fresh model ends every text at once
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.3)
    model.save_pretrained(folder)
    task.save(folder)
    (folder / "recipe.yaml").write_text(recipe_yaml(task.resolved()), encoding="utf-8")
    return folder


def write_corpora(root: Path) -> dict[str, dict[str, Any]]:
    """Corpora, and the options of a recipe for each task."""
    lines = {
        "pairs": [f"{source}\t{target}" for source, target in PAIRS],
        "labelled": [f"{label}\t{text}" for label, text in LABELLED],
        "doubled": [f"{label}\t{text}\tc a" for label, text in LABELLED],
        "numbered": [f"{label}\t{text}" for label, text in NUMBERED],
    }
    sentences = ["a X\nb O\n", "c X\n", "b O\na X\nc X\n"]
    (root / "tagged.txt").write_text("\n".join(sentences), encoding="utf-8")
    (root / "running.txt").write_text("a b c a\nb c\nc a b a b c\n", encoding="utf-8")
    for name, of in lines.items():
        (root / f"{name}.tsv").write_text("".join(f"{line}\n" for line in of), encoding="utf-8")

    def options(task: str, name: str, *, exits: bool = False, **data: Any) -> dict[str, Any]:
        file = root / (name if "." in name else f"{name}.tsv")
        files = {split: str(file) for split in ("train", "valid", "test")}
        stack = {**STACK, "num_layers": 4, "norm": "pre"} if exits else STACK
        sides = dict.fromkeys(SIDES.get(task, ("encoder",)), stack)
        if exits and len(sides) == 2:
            sides["encoder"] = STACK
        return {
            "task": task,
            "data": {**files, "cache": str(root / "cache"), **data},
            "tokenizer": {"kind": "word", "vocab_size": 20},
            "model": {"width": 16, **sides, **({"exits": {"heads": "separate"}} if exits else {})},
            "generation": {"num_beams": 2, "max_factor": 1.0, "max_extra": 3},
        }

    def structured(task: str, name: str, **data: Any) -> dict[str, Any]:
        made = options(task, name, **data)
        stack = {**STACK, "num_layers": 4, "norm": "pre"}
        return {**made, "model": {**made["model"], "encoder": stack, "structure": {"num_static": 1}}}

    both = structured("translation", "pairs")

    return {
        "structured classes": structured("text_classification", "labelled"),
        "structured numbers": structured("text_classification", "numbered", labels="number"),
        "structured tags": structured("tagging", "tagged.txt", tag_scheme="plain"),
        "structured text": structured("masked_language_modeling", "running.txt"),
        "structured translation": structured("translation", "pairs"),
        "structured translation with exits": {**both, "model": {**both["model"], "exits": {}}},
        "translation": options("translation", "pairs"),
        "classes": options("text_classification", "labelled"),
        "doubled": options("text_classification", "doubled"),
        "numbers": options("text_classification", "numbered", labels="number"),
        "leaving translation": options("translation", "pairs", exits=True),
        "leaving classes": options("text_classification", "labelled", exits=True),
        "leaving numbers": options("text_classification", "numbered", exits=True, labels="number"),
        "leaving tags": options("tagging", "tagged.txt", exits=True, tag_scheme="plain"),
        "leaving text": options("language_modeling", "running.txt", exits=True),
        "text": options("language_modeling", "running.txt"),
        "masked text": options("masked_language_modeling", "running.txt"),
    }


@pytest.fixture(scope="session", autouse=True)
def _no_bars() -> None:
    """Transformers draws bars of its own when it saves and loads."""
    disable_progress_bar()


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    root = tmp_path_factory.mktemp("runs")
    recipes = write_corpora(root)

    def of(kind: str, seed: int) -> Path:
        folder = root / f"{kind}-{seed}"
        return folder if folder.exists() else build_run(folder, recipes[kind], seed)

    return of


@pytest.fixture
def make_run(originals: Callable[[str, int], Path], tmp_path: Path) -> MakeRun:
    """A copy of a run of a kind (a key of ``write_corpora``; those that begin with ``leaving`` have exits) and seed."""

    def copied(kind: str, seed: int = 1, name: str | None = None) -> Path:
        folder = tmp_path / (name or f"{kind}-{seed}")
        shutil.copytree(originals(kind, seed), folder)
        return folder

    return copied


@pytest.fixture
def at_thresholds(make_run: MakeRun) -> AtThresholds:
    """A structured run with all its layers, and its evaluations: under no key with all of them, else by threshold."""

    def evaluated(kind: str) -> tuple[Run, dict[float | None, Evaluation]]:
        folder = make_run(kind)
        full = load_run(folder, device="cpu")
        examples = read_examples(full.task, "test")
        found: dict[float | None, Evaluation] = {None: evaluation_of(full, "test", examples)}
        for threshold in (0.0, 0.4, 1.0):
            run = load_run(folder, device="cpu", depth="policy", policy_changes=[f"policy.threshold={threshold}"])
            assert run.policy == StructureExitConfig(threshold=threshold)
            found[threshold] = evaluation_of(run, "test", examples)
        return full, found

    return evaluated
