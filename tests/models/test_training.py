"""Plain ``transformers.Trainer`` on every head: the loss falls, and how a batch is cut up does not matter."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, Trainer, TrainingArguments

Model = Callable[..., Any]
Batch = Callable[..., dict[str, Tensor]]


def examples(batch: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The rows of a batch, as a data set."""
    return [{name: values[row] for name, values in batch.items()} for row in range(len(batch["input_ids"]))]


def train(model: PreTrainedModel, batch: dict[str, Tensor], folder: Path, **options: Any) -> list[float]:
    """Trains a model on the rows of a batch; the losses as the Trainer logs them."""
    defaults = {
        "max_steps": 20,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
    }
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **{**defaults, **options},
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=examples(batch))
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("mixer", ["dynamicconv"])
def test_the_loss_falls(build: Model, draw_batch: Batch, tmp_path: Path, head: str, mixer: str) -> None:
    """From a new model's loss, over 20 steps."""
    model = type(build(head, mixer))(build(head, mixer, stack={"dropout": 0.1}).config)
    losses = train(model, draw_batch(head, lengths=(6, 3, 5, 4, 6, 2, 5, 6)), tmp_path)
    assert len(losses) == 20
    assert all(0 < loss < 10 for loss in losses)
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])


def test_the_loss_of_an_adaptive_softmax_falls(build: Model, draw_batch: Batch, tmp_path: Path) -> None:
    example = build("causal_lm", adaptive={"cutoffs": [6, 11], "factor": 2})
    losses = train(type(example)(example.config), draw_batch("causal_lm", lengths=(6, 3, 5, 4)), tmp_path)
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])


def test_accumulated_micro_batches_are_one_batch(build: Model, draw_batch: Batch, tmp_path: Path, head: str) -> None:
    """Though they hold different numbers of labels: each row counts by its labels, not by its micro-batch."""
    batch = draw_batch(head, lengths=(6, 2, 3, 2))
    whole = build(head)
    parts = copy.deepcopy(whole)
    options = {"max_steps": 2, "optim": "sgd", "learning_rate": 0.5, "max_grad_norm": 0.0}
    loss = train(whole, batch, tmp_path, **options)
    by_parts = train(parts, batch, tmp_path, per_device_train_batch_size=1, gradient_accumulation_steps=4, **options)
    assert by_parts == pytest.approx(loss, rel=1e-4)
    for name, weight in parts.named_parameters():
        torch.testing.assert_close(weight, whole.get_parameter(name), rtol=1e-9, atol=1e-12)


def test_the_logged_loss_is_the_mean_over_labels(build: Model, draw_batch: Batch, tmp_path: Path, head: str) -> None:
    """The Trainer's count of labels and the labels that the head counts are the same."""
    model, batch = build(head), draw_batch(head, lengths=(6, 2, 3, 2))
    expected = model(**batch).loss.item()
    (loss,) = train(model, batch, tmp_path, max_steps=1, learning_rate=0.0)
    assert loss == pytest.approx(expected, rel=1e-4)


def test_evaluation_keeps_scores_and_nothing_else(build: Model, draw_batch: Batch, tmp_path: Path, head: str) -> None:
    model, batch = build(head).float(), draw_batch(head)
    arguments = TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, label_names=["labels"]
    )
    result = Trainer(model=model, args=arguments).predict(examples(batch))
    output = model(**batch)
    predictions = result.predictions[0] if head == "question_answering" else result.predictions
    torch.testing.assert_close(torch.from_numpy(predictions), output.logits)
    assert result.metrics["test_loss"] == pytest.approx(output.loss.item(), rel=1e-4)


# Gradient checkpointing


def gradients(model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    torch.manual_seed(3)
    model(**batch).loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def assert_checkpointing_changes_nothing(model: Any, batch: dict[str, Tensor]) -> None:
    plain = gradients(model.train(), batch)
    model.gradient_checkpointing_enable()
    calls = []
    block = next(module for module in model.modules() if type(module).__name__ == "Block")
    block.register_forward_pre_hook(lambda *_: calls.append(1))
    checkpointed = gradients(model, batch)
    assert len(calls) == 2  # forward, and once more on the way back
    assert plain.keys() == checkpointed.keys()
    assert all(torch.equal(plain[name], checkpointed[name]) for name in plain)


def test_checkpointing(build: Model, draw_batch: Batch, head: str) -> None:
    assert_checkpointing_changes_nothing(build(head, stack={"dropout": 0.3}), draw_batch(head))


def test_checkpointing_with_every_mixer(build: Model, draw_batch: Batch, mixer: str) -> None:
    dropout = {"dropconnect": 0.3} if "conv" in mixer else {}
    model = build("seq2seq", mixer, stack={"dropout": 0.1, **dropout})
    assert_checkpointing_changes_nothing(model, draw_batch("seq2seq"))


def test_checkpointing_through_the_trainer(build: Model, draw_batch: Batch, tmp_path: Path) -> None:
    model, batch = build("seq2seq", "lightconv"), draw_batch("seq2seq")
    other = copy.deepcopy(model)
    plain = train(model, batch, tmp_path, max_steps=3)
    assert train(other, batch, tmp_path, max_steps=3, gradient_checkpointing=True) == plain
