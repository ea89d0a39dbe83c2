"""Which passes can be recorded: those of all tasks with an encoder alone, with whatever decides how deep they run.

Without a GPU it is found out what passes ask of a device (``watching``), and what stands for a graph repeats them.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from depthwise.config import Recipe
from depthwise.tasks import Losses
from depthwise.training import graphs
from depthwise.training.run import train
from depthwise.training.stream import BatchStream, EpochRows

from .conftest import WORDS, recipe_of, write_labelled
from .test_encoder_tasks import write_questions, write_tagged
from .test_gpu import assert_never_waits
from .test_graphs import losses_of
from .test_half_states import Trial
from .watching import META, assert_recordable, work_of

STACK: dict[str, Any] = {
    **{"num_layers": 3, "num_heads": 2, "ffn_width": 32, "norm": "pre", "max_positions": 64},
    "dropout": 0.1,
}
CONVOLUTION: dict[str, Any] = {"mixer": "dynamicconv", "kernel_sizes": 3, "dropconnect": 0.1}
ATTENTION = {
    "attention_dropout": 0.1,
    "relative": {"max_distance": 4},
    "positions": "learned",
    "groups": 2,
    "num_layers": 4,
}


TRAINING: dict[str, Any] = {
    "optimizer": {"kind": "adam", "lr": 1e-2},
    "schedule": {"kind": "inverse_sqrt", "warmup": 5},
    "batch_tokens": 96,
    "max_updates": 1,
}


def splits(path: Path) -> dict[str, Any]:
    """The same data to learn from and to be judged by."""
    return {**dict.fromkeys(("train", "valid", "test"), str(path)), "cache": str(path.parent / "cache")}


def masked(folder: Path, model: dict[str, Any], masking: dict[str, Any] | None = None) -> dict[str, Any]:
    """Lines of words, and an empty one between documents."""
    lines = [" ".join(WORDS[number % 7 : number % 7 + 3] * (1 + number % 3)) for number in range(60)]
    text = "".join(f"{line}\n" + "\n" * (number % 8 == 7) for number, line in enumerate(lines))
    (folder / "train.txt").write_text(text)
    return {
        "task": "masked_language_modeling",
        "data": {**splits(folder / "train.txt"), "max_tokens": 24},
        "tokenizer": {"kind": "word", "vocab_size": 40, "first_token": True},
        "model": {"width": 16, "encoder": STACK, **model},
        "masking": masking or {},
        "training": TRAINING,
    }


def labelled(folder: Path, task: str, model: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = splits(folder / "train.tsv")
    if task == "tagging":
        write_tagged(folder / "train.tsv", 40, seed=0)
    elif task == "question_answering":
        data = {**splits(folder / "train.json"), "max_tokens": 10, "stride": 3, "max_question_tokens": 4}
        write_questions(folder / "train.json", 40, seed=0)
    elif task == "regression":
        data["labels"] = "number"
        text = "".join(f"{number % 5}.5\t{' '.join(WORDS[: 1 + number % 6])}\n" for number in range(40))
        (folder / "train.tsv").write_text(text)
    else:
        write_labelled(folder / "train.tsv", 40, seed=0)
    return {
        "task": "text_classification" if task == "regression" else task,
        "data": data,
        "tokenizer": {"kind": "word", "vocab_size": 50},
        "model": {"width": 16, "encoder": STACK, **model},
        "training": TRAINING,
    }


MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "attention": ({}, {}),
    "convolution": ({"encoder": {**STACK, **CONVOLUTION}}, {}),
    "layer dropout": ({"encoder": {**STACK, "layer_dropout": 0.5}}, {}),
    "latent": (
        {"latent": {"sides": ["encoder"]}},
        {"latent": {"soft_updates": 2, "anneal_updates": 3, "target_depth": 2, "final_temperature": 1.0}},
    ),
    "structure": (
        {"encoder": {**STACK, **ATTENTION}, "structure": {"num_static": 1}, "pooling": "first_tanh"},
        {"depth_cost": 0.1},
    ),
    "exits": ({"exits": {"heads": "tied"}}, {"exits": {"curriculum": "gradual"}}),
    "exits with heads": ({"exits": {"heads": "separate"}}, {"exits": {"curriculum": "rotational", "distill": 0.5}}),
    "mixed exits": (
        {"exits": {}},
        {"exits": {"objective": "mixed", "paths": 2, "layer_dropout": "layerskip", "layer_dropout_grows": True}},
    ),
    "one path": ({"exits": {}}, {"exits": {"objective": "mixed", "layer_dropout": "layerdrop"}}),
}
"""Options of the model, and of training."""
POLICIES: dict[str, dict[str, Any]] = {
    "token": {"kind": "token", "smoothing": 2.0},
    "poisson": {"kind": "poisson_binomial"},
    "ponder": {"kind": "poisson_binomial", "objective": "expected_loss"},
    "confidence": {"kind": "learned_confidence"},
}
TASKS = ("text_classification", "tagging", "question_answering")


@pytest.mark.parametrize("name", MODELS)
def test_masked_language_models(tmp_path: Path, name: str) -> None:
    model, training = MODELS[name]
    assert_recordable(recipe_of(masked(tmp_path, model), graphs=True, **training), tmp_path)


@pytest.mark.parametrize("name", ["attention", "structure", "latent"])
def test_masked_language_models_that_learn_the_order(tmp_path: Path, name: str) -> None:
    model, training = MODELS[name]
    options = masked(tmp_path, {**model, "sentence_order": True}, {"units": "ngrams"})
    assert_recordable(recipe_of(options, graphs=True, **training), tmp_path)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("task", [*TASKS, "regression"])
def test_labelled_texts(tmp_path: Path, task: str, name: str) -> None:
    model, training = MODELS[name]
    if task == "regression" and "exits" in training:
        training = {"exits": {key: value for key, value in training["exits"].items() if key != "distill"}}
    assert_recordable(recipe_of(labelled(tmp_path, task, model), graphs=True, **training), tmp_path)


@pytest.mark.parametrize("task", TASKS)
def test_depths_of_words(tmp_path: Path, task: str) -> None:
    """Plans differ from token to token and are values of a batch, of which a pass knows the shape alone."""
    words = {"estimator": "mutual_information"}
    assert_recordable(recipe_of(labelled(tmp_path, task, {"word_depths": words}), graphs=True), tmp_path)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("task", TASKS)
def test_policies(tmp_path: Path, task: str, name: str) -> None:
    options = labelled(tmp_path, task, {"exits": {}, "policy": POLICIES[name]})
    assert_recordable(recipe_of(options, graphs=True), tmp_path)


@pytest.mark.parametrize("kind", ["token", "poisson_binomial"])
def test_policies_of_numbers(tmp_path: Path, kind: str) -> None:
    options = labelled(tmp_path, "regression", {"exits": {}, "policy": {"kind": kind, "oracle": "likelihood"}})
    assert_recordable(recipe_of(options, graphs=True), tmp_path)


@pytest.mark.parametrize(
    ("waits", "message"),
    [
        (lambda x: x * float(x.sum()), "item"),
        (lambda x: x[x > 0], "nonzero|meta"),
        (lambda x: x + torch.tensor([1.0, 2.0]).to(META), "reads from the host"),
        (lambda x: x * x.new_tensor(3.0), "is copied to the device"),
        (lambda x: x * torch.as_tensor(3.0, device=x.device), "is copied to the device"),
        (lambda x: x[[0, 1]], "is copied to the device"),
    ],
)
def test_what_waits_is_found(waits: Any, message: str) -> None:
    x = torch.ones(2, device=META, requires_grad=True)
    with pytest.raises((AssertionError, RuntimeError, NotImplementedError), match=message):
        work_of(lambda: Losses(waits(x).sum(), {}))


# Repeated


def unmoved(model: dict[str, Any]) -> dict[str, Any]:
    """The same without anything drawn at random, as far as gates do not draw it."""
    encoder = {**model.get("encoder", STACK), "dropout": 0.0}
    for name in ("dropconnect", "attention_dropout"):
        if name in encoder:
            encoder[name] = 0.0
    return {**model, "encoder": encoder}


@pytest.mark.parametrize("dtype", [None, torch.float16])
@pytest.mark.parametrize("name", ["attention", "convolution", "structure", "exits"])
def test_repeated_passes_lose_what_plain_ones_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype | None
) -> None:
    """Batches as they come, in three epochs with masks of their own, against the same without padding.

    Rounding to half precision may turn a unit on or off, which few rows feel.
    """
    options = masked(tmp_path, unmoved(MODELS[name][0]), {"rate": 0.3, "units": "ngrams"})
    trial, near = Trial(options, tmp_path, monkeypatch, dtype), 1e-5 if dtype is None else 0.05
    task, model = trial.task, trial.model
    examples = task.examples("train")
    batches = task.batches(examples)
    rows, stream = EpochRows(examples, task), iter(BatchStream(batches))
    for _ in range(3 * batches.num_batches):
        chosen = [rows[key] for key in next(stream)]
        plain = task.collate([row for _, row in chosen])
        num_items = torch.tensor(task.num_items(plain))
        model.zero_grad()
        expected = task.losses(model, plain, num_items)
        expected.loss.backward()
        wanted = torch.cat([param.grad.flatten() for param in trial.params if param.grad is not None])
        model.zero_grad()
        trial.passes(rows.collate(chosen), num_items)
        found = torch.cat([param.grad.flatten() for param in trial.params if param.grad is not None])
        assert float(trial.seen[-1].loss.detach()) == pytest.approx(float(expected.loss.detach()), rel=near)
        assert float((found / trial.scale - wanted).norm() / wanted.norm()) < near
    assert trial.recorder.num_recorded >= 2


RATES = {"precision": "fp32", "max_updates": 60, "log_every": 1, "validate_every": 60}
DRAWN = ("layer dropout", "mixed exits", "one path")
ON_GPU = {
    **{name: ("masked", name) for name in MODELS},
    "order": ("order", "structure"),
    **{f"{task} {name}": (task, name) for task in (*TASKS, "regression") for name in ("attention", "structure")},
    **{f"{task} words": (task, "words") for task in TASKS},
}


def options_of(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    task, kind = ON_GPU[name]
    model, training = MODELS.get(kind, ({"word_depths": {"estimator": "mutual_information"}}, {}))
    model = unmoved(model)
    if task in ("masked", "order"):
        return masked(folder, {**model, "sentence_order": task == "order"}, {"units": "ngrams"}), training
    return labelled(folder, task, model), training


def assert_learns_the_same(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses of 60 updates are the same, pass by pass or from records."""
    found = []
    for num_plain in (10**9, graphs.NUM_PLAIN):
        monkeypatch.setattr(graphs, "NUM_PLAIN", num_plain)
        train(recipe, tmp_path / f"run{num_plain}")
        found.append(losses_of(tmp_path / f"run{num_plain}"))
    assert len(found[0]) == 60
    assert found[1] == pytest.approx(found[0], rel=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in ON_GPU if name not in DRAWN])
def test_recorded_encoders_learn_what_others_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    options, training = options_of(tmp_path, name)
    assert_learns_the_same(recipe_of(options, graphs=True, **training, **RATES), tmp_path, monkeypatch)


@pytest.mark.gpu
@pytest.mark.parametrize("name", DRAWN)
def test_recorded_encoders_draw_anew(tmp_path: Path, name: str) -> None:
    """The same batch every time: what is lost changes with what is drawn, and with nothing else."""
    options, training = options_of(tmp_path, name)
    options = {**options, "masking": {"dynamic": False}}
    still = {"optimizer": {"kind": "adam", "lr": 1e-9}, "batch_tokens": 10**6}
    train(recipe_of(options, graphs=True, **training, **{**RATES, **still}), tmp_path / "run")
    assert len({round(loss, 4) for loss in losses_of(tmp_path / "run")[5:]}) > 3


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name", ON_GPU)
def test_encoders_wait_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    options, training = options_of(tmp_path, name)
    assert_never_waits(options, tmp_path, monkeypatch, precision="bf16", **training)
