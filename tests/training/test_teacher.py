"""Learning from another run: what is learned, from whom, and whom nobody can learn from."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from depthwise.config import Recipe
from depthwise.errors import CheckpointError
from depthwise.evaluation import evaluation_of, load_run, read_examples
from depthwise.losses import IGNORED
from depthwise.shapes import Tensor
from depthwise.tasks import Losses, Task, open_task
from depthwise.tasks.teaching import TEACHER
from depthwise.training import graphs
from depthwise.training.run import train
from depthwise.training.teacher import TeacherSteps, open_teacher

from .conftest import recipe_of
from .recording import Recorder
from .test_encoder_tasks import write_tagged
from .test_gpu import assert_never_waits
from .test_graphs import losses_of
from .test_processes import train_together
from .test_recordable import MODELS, assert_learns_the_same, labelled, unmoved
from .test_resume import MIDDLE, assert_same_run, interrupted_at
from .test_trainer import metrics, weights, without_noise
from .watching import assert_recordable

CPU = torch.device("cpu")
LAYERS = 3


def taught(options: dict[str, Any], run: Path, weight: float = 0.5, **training: Any) -> Recipe:
    return recipe_of(options, **training, teacher={"run": str(run), "weight": weight})


def deep(options: dict[str, Any], **model: Any) -> dict[str, Any]:
    encoder = {**options["model"]["encoder"], "num_layers": LAYERS}
    return {**options, "model": {**options["model"], "encoder": encoder, **model}}


@pytest.fixture
def full(classification: dict[str, Any], tmp_path: Path) -> Path:
    """A model of full depth that has learned a little."""
    train(recipe_of({**deep(classification), "seed": 7}, max_updates=20), tmp_path / "full")
    return tmp_path / "full"


def tagging(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    for seed, split in enumerate(("train", "valid", "test")):
        write_tagged(folder / f"{split}.txt", 40, seed=seed)
    data = {split: str(folder / f"{split}.txt") for split in ("train", "valid", "test")}
    return {**options, "task": "tagging", "data": {**data, "cache": str(folder / "cache")}}


def mixed_by_hand(ours: Tensor, theirs: Tensor, labels: Tensor, weight: float, temperature: float) -> float:
    """(1 − w)·cross-entropy + w·T²·KL(teacher ‖ student), over the items with a label, in float64."""
    counted = labels != IGNORED
    ours, theirs, labels = (values[counted].detach() for values in (ours.double(), theirs.double(), labels))
    nll = torch.nn.functional.cross_entropy(ours, labels)
    p, q = ((scores / temperature).softmax(-1) for scores in (theirs, ours))
    divergence = (p * (p.log() - q.log())).sum(-1).mean()
    return float((1 - weight) * nll + weight * temperature**2 * divergence)


def batch_of(task: Task) -> dict[str, Tensor]:
    store = task.examples("train")
    return task.collate([store[index] for index in range(9)])


# What is learned


@pytest.mark.parametrize("kind", ["text_classification", "tagging"])
def test_a_batch_is_learned_from_labels_and_teacher(classification: dict[str, Any], tmp_path: Path, kind: str) -> None:
    options = without_noise(tagging(classification, tmp_path) if kind == "tagging" else classification)
    train(recipe_of(deep(options), max_updates=20), tmp_path / "full")
    teacher = {"run": str(tmp_path / "full"), "weight": 0.3, "temperature": 3.0}
    task = open_task(recipe_of(deep(options, word_depths={}), teacher=teacher), tmp_path / "new")
    model, named = task.new_model(), open_teacher(task)
    assert named is not None
    steps, batch = TeacherSteps(named, CPU), batch_of(task)
    beside = steps.beside(batch)
    assert beside.keys() - batch.keys() == {TEACHER}
    whole = {name: batch[name] for name in ("input_ids", "attention_mask")}
    torch.testing.assert_close(beside[TEACHER], load_run(tmp_path / "full", device="cpu").model(**whole).logits)
    found = task.losses(model, beside, None)
    ours = model(**whole, depths=batch["depths"]).logits
    expected = mixed_by_hand(ours, beside[TEACHER], batch["labels"], 0.3, 3.0)
    assert float(found.loss.detach()) == pytest.approx(expected, rel=1e-5)
    found.loss.backward()
    assert all(param.grad is not None for param in model.parameters())
    assert not any(param.requires_grad or param.grad is not None for param in named.parameters())
    plain = task.losses(model, batch, None)
    assert float(plain.loss.detach()) == pytest.approx(mixed_by_hand(ours, ours, batch["labels"], 0, 1), rel=1e-5)


@pytest.mark.parametrize("heads", ["tied", "separate"])
def test_all_exits_learn_from_the_teacher(
    classification: dict[str, Any], tmp_path: Path, full: Path, heads: str
) -> None:
    options = deep(without_noise(classification), exits={"heads": heads})
    recipe = taught(options, full, 0.3, exits={"weights": [1.0, 2.0, 5.0]})
    task = open_task(recipe, tmp_path / "new")
    model, batch = task.new_model().train(), batch_of(task)
    beside = TeacherSteps(open_teacher(task), CPU).beside(batch)
    found = task.losses(model, beside, None)
    whole = {name: batch[name] for name in ("input_ids", "attention_mask")}
    output = model(**whole, output_hidden_states=True)
    stack, expected = model.model.encoder.stack, 0.0
    for depth, share in ((1, 1 / 8), (2, 2 / 8), (3, 5 / 8)):
        states = stack.normalized(output.hidden_by_depth[depth], depth)
        scores = model.head_at(depth)(model.summary_of(states, batch["attention_mask"].bool()))[:, 0]
        expected += share * mixed_by_hand(scores, beside[TEACHER], batch["labels"], 0.3, 2.0)
    assert float(found.loss.detach()) == pytest.approx(expected, rel=1e-5)


def test_mixed_exits_learn_from_the_teacher_in_all_copies(
    classification: dict[str, Any], tmp_path: Path, full: Path
) -> None:
    """A teacher alone, which is the student: where it is not cut short, there is nothing to learn."""
    options = deep(without_noise(classification), **{"from": str(full)}, exits={})
    task = open_task(taught(options, full, 1.0, exits={"objective": "mixed", "paths": 2}), tmp_path / "new")
    model, batch = task.new_model().train(), batch_of(task)
    assert task.exits is not None
    beside = TeacherSteps(open_teacher(task), CPU).beside(batch)
    objective = task.exits.objective(is_training=True)
    found = []
    for index in (0, LAYERS - 1):
        chosen = torch.full((2 * len(batch["labels"]), 1), index)
        always = type(objective)(weights=None, paths=2, chosen=chosen)
        task.exits.objective = lambda *, is_training, always=always: always  # type: ignore[method-assign, misc]
        found.append(float(task.losses(model, beside, None).loss.detach()))
    assert found[1] == pytest.approx(0, abs=1e-6)
    assert found[0] > 0.01


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_shallow_model_learns_from_a_deep_one(classification: dict[str, Any], tmp_path: Path, precision: str) -> None:
    """By the teacher's word alone, and better than it could by itself in as few updates of no labels."""
    train(recipe_of(deep(classification), max_updates=80, validate_every=80), tmp_path / "full")
    before = weights(tmp_path / "full")
    options = deep(classification, word_depths={"estimator": "fixed", "depth": 1})
    recipe = taught(options, tmp_path / "full", 1.0, max_updates=80, validate_every=80, precision=precision)
    train(recipe, tmp_path / "run")
    run = load_run(tmp_path / "run", device="cpu")
    found = evaluation_of(run, "valid", read_examples(run.task, "valid"))
    assert found.value is not None
    assert found.value > 90
    assert found.mean_depth == 1
    lines = [line for line in metrics(tmp_path / "run") if "loss" in line]
    assert lines[-1]["loss"] < 0.3 * lines[0]["loss"]
    after = weights(tmp_path / "full")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert weights(tmp_path / "run").keys() == before.keys()  # nothing of the teacher is kept
    assert run.recipe.training.teacher == recipe.training.teacher


def test_validation_knows_no_teacher(classification: dict[str, Any], tmp_path: Path, full: Path) -> None:
    """Its loss can be compared with that of other runs."""
    train(taught(without_noise(classification), full, max_updates=10), tmp_path / "run")
    (line,) = (line for line in metrics(tmp_path / "run") if "valid_loss" in line)
    assert line["valid_loss"] == pytest.approx(line["valid_nll"])


# The same run as ever, but for what is learned


def test_no_weight_is_no_teacher(classification: dict[str, Any], tmp_path: Path, full: Path) -> None:
    """Bit by bit: the teacher draws nothing, and neither does loading it."""
    train(recipe_of(classification), tmp_path / "plain")
    train(taught(classification, full, 0.0), tmp_path / "taught")
    assert_same_run(tmp_path / "taught", tmp_path / "plain")


@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_interrupted_run_goes_on_bit_by_bit(
    classification: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: Path, accumulate: int
) -> None:
    recipe = taught(classification, full, accumulate=accumulate, max_updates=12)
    train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupted_at(patch, MIDDLE, signal.SIGTERM)
        assert train(recipe, tmp_path / "parts").num_updates == MIDDLE
    train(recipe, tmp_path / "parts")
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    shutil.rmtree(full)
    assert train(recipe, tmp_path / "whole").num_updates == 12  # finished: nobody asks the teacher any more


def test_accumulated_batches_are_one_batch(classification: dict[str, Any], tmp_path: Path, full: Path) -> None:
    plain: dict[str, Any] = {
        "optimizer": {"kind": "nesterov", "lr": 0.1},
        "schedule": {"kind": "constant"},
        "log_every": 1,
    }
    sizes: dict[str, Any] = {"batch_tokens": None, "max_updates": 1, "validate_every": 1}
    for name, rows in (("whole", {"batch_rows": 120}), ("parts", {"batch_rows": 17, "accumulate": 8})):
        train(taught(without_noise(classification), full, **plain, **sizes, **rows), tmp_path / name)
    ours, theirs = weights(tmp_path / "parts"), weights(tmp_path / "whole")
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-6)


def test_two_processes_are_one_with_twice_the_batches(
    classification: dict[str, Any], tmp_path: Path, full: Path
) -> None:
    options = without_noise(classification)
    rows: dict[str, Any] = {
        "batch_tokens": None,
        "batch_rows": 15,
        "log_every": 1,
        "max_updates": 8,
        "validate_every": 8,
    }
    train_together(taught(options, full, **rows), tmp_path / "two")
    train(taught(options, full, **rows, accumulate=2), tmp_path / "one")
    two, one = losses_of(tmp_path / "two"), losses_of(tmp_path / "one")
    assert len(two) == 8
    assert two == pytest.approx(one, rel=1e-4)


# Recorded passes


def finished(folder: Path, task: str, model: dict[str, Any]) -> Path:
    """A run with such a model, hardly trained."""
    train(recipe_of(labelled(folder, task, model), validate_every=1), folder / "full")
    return folder / "full"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("task", ["text_classification", "tagging"])
def test_passes_with_a_teacher_can_be_recorded(tmp_path: Path, task: str, name: str) -> None:
    """Any model may teach, and any may learn."""
    model, training = MODELS[name]
    run = finished(tmp_path, task, model)
    assert_recordable(taught(labelled(tmp_path, task, model), run, graphs=True, **training), tmp_path / "new")


def test_repeated_passes_ask_the_teacher_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = labelled(tmp_path, "text_classification", unmoved({}))
    run = finished(tmp_path, "text_classification", {})
    task = open_task(taught(options, run, graphs=True), tmp_path / "new")
    model, steps, recorder, seen = task.new_model(), TeacherSteps(open_teacher(task), CPU), Recorder(monkeypatch), []

    def run_pass(batch: dict[str, Tensor], num_items: Tensor) -> Losses:
        losses = task.losses(model, steps.beside(batch), num_items)
        losses.loss.backward()
        seen.append(float(losses.loss.detach()))
        return losses

    passes = graphs.RecordedPasses(run_pass, list(model.parameters()))
    recorder.serve(passes)
    store = task.examples("train")
    for first in range(5):
        model.zero_grad()
        batch = task.padded(task.collate([store[index] for index in range(first, first + 5)]))
        batch = {name: value[:, :4] if value.dim() == 2 else value for name, value in batch.items()}
        passes(batch, torch.tensor(5))
        found = [param.grad.clone() for param in model.parameters() if param.grad is not None]
        model.zero_grad()
        expected = task.losses(model, steps.beside(batch), 5)
        expected.loss.backward()
        assert seen[-1] == pytest.approx(float(expected.loss.detach()))
        wanted = [param.grad for param in model.parameters() if param.grad is not None]
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)
    assert recorder.num_recorded == 1


@pytest.mark.gpu
@pytest.mark.parametrize("training", [{"precision": "fp32"}, {"precision": "bf16"}, {"half_states": True}])
def test_recorded_students_learn_what_others_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, training: dict[str, Any]
) -> None:
    run = finished(tmp_path, "text_classification", {"exits": {"heads": "separate"}})
    options = labelled(tmp_path, "text_classification", unmoved({"word_depths": {}}))
    rates = {"max_updates": 60, "log_every": 1, "validate_every": 60}
    assert_learns_the_same(taught(options, run, graphs=True, **training, **rates), tmp_path, monkeypatch)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_teacher_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished(tmp_path, "text_classification", {"exits": {"heads": "separate"}})
    options = labelled(tmp_path, "text_classification", {})
    assert_never_waits(options, tmp_path, monkeypatch, precision="bf16", teacher={"run": str(run)})


# Who cannot teach


def refusal(recipe: Recipe, folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        train(recipe, folder)
    return str(caught.value)


def test_a_run_that_is_not_there(classification: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "nowhere"
    assert refusal(taught(classification, run), tmp_path / "run") == f"{run} is no folder; give the folder of a run"


def test_a_run_that_is_not_finished(
    classification: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        interrupted_at(patch, MIDDLE, signal.SIGTERM)
        train(recipe_of(classification), tmp_path / "full")
    found = refusal(taught(classification, tmp_path / "full"), tmp_path / "run")
    assert "holds no trained model; run its depthwise train command again to finish it" in found


def test_another_task(classification: dict[str, Any], tmp_path: Path) -> None:
    train(recipe_of(tagging(classification, tmp_path), max_updates=1, validate_every=1), tmp_path / "full")
    found = refusal(taught(classification, tmp_path / "full"), tmp_path / "run")
    assert found.endswith(
        "has learned tagging and cannot teach text_classification; give training.teacher.run a run of that"
    )


def test_another_tokenizer(classification: dict[str, Any], tmp_path: Path, full: Path) -> None:
    other = {**classification, "tokenizer": {"kind": "char"}}
    found = refusal(taught(other, full), tmp_path / "run")
    assert found == f"{full} has another tokenizer than the model it is to teach; set tokenizer.path={full}"
    train(taught({**classification, "tokenizer": {"path": str(full)}}, full, max_updates=1), tmp_path / "run")


def test_other_labels(classification: dict[str, Any], tmp_path: Path, full: Path) -> None:
    text = (tmp_path / "train.tsv").read_text().replace("green\t", "purple\t")
    (tmp_path / "other.tsv").write_text(text)
    other = {**classification, "data": {"train": str(tmp_path / "other.tsv"), "cache": str(tmp_path / "cache")}}
    found = refusal(taught(other, full), tmp_path / "run")
    assert found == (
        f'{full} has learned the labels ["blue", "green", "red"], but the training data has ["blue", "purple", "red"]; '
        "give training.teacher.run a run with the same labels in the same order"
    )


def test_words_with_depths_of_their_own(classification: dict[str, Any], tmp_path: Path) -> None:
    options = deep(classification, word_depths={})
    train(recipe_of(options, max_updates=1, validate_every=1), tmp_path / "full")
    assert "have depths of their own" in refusal(taught(options, tmp_path / "full"), tmp_path / "run")


def test_texts_that_are_too_long_for_the_teacher(classification: dict[str, Any], tmp_path: Path) -> None:
    short = deep(classification)
    short["model"]["encoder"]["max_positions"] = 10
    train(recipe_of(short, max_updates=1, validate_every=1), tmp_path / "full")
    found = refusal(taught(classification, tmp_path / "full", graphs=True), tmp_path / "run")
    assert found.endswith("can take 10 tokens of a text, and batches may have more; set data.max_tokens=8")
    cut = {**classification, "data": {**classification["data"], "max_tokens": 8}}
    train(taught(cut, tmp_path / "full", graphs=True, max_updates=1), tmp_path / "run")


def test_pairs_that_one_of_both_tells_apart(classification: dict[str, Any], tmp_path: Path) -> None:
    lines = (tmp_path / "train.tsv").read_text().splitlines()
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\twarm\n" for line in lines))
    data = {"train": str(tmp_path / "pairs.tsv"), "cache": str(tmp_path / "cache")}
    options = {**classification, "data": data}
    train(recipe_of(options, max_updates=1), tmp_path / "full")
    typed = {**options, "model": {**options["model"], "token_types": 2}}
    assert "give both the same model.token_types" in refusal(taught(typed, tmp_path / "full"), tmp_path / "run")
