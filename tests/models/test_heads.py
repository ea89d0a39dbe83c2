"""The six heads: what comes out, what the loss is, and how it is divided."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from depthwise.depth import Plan
from depthwise.models.outputs import DepthwiseOutput

ROWS, STEPS, WIDTH, VOCABULARY, START, PADDING, IGNORED = 3, 6, 8, 17, 2, 1, -100
SHAPES = {
    "seq2seq": (ROWS, 4, VOCABULARY),
    "causal_lm": (ROWS, STEPS, VOCABULARY),
    "masked_lm": (ROWS, STEPS, VOCABULARY),
    "sequence_classification": (ROWS, 2),
    "token_classification": (ROWS, STEPS, 2),
    "question_answering": (ROWS, STEPS, 2),
}
Model = Callable[..., Any]
Batch = Callable[..., dict[str, Tensor]]


def terms(head: str, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of every label that counts, from scores and labels alone."""
    if head == "causal_lm":
        logits, labels = logits[:, :-1], labels[:, 1:]
    if head == "question_answering":
        logits = logits.transpose(1, 2)
    counted = labels != IGNORED
    return F.cross_entropy(logits[counted], labels[counted], reduction="none")


def test_fields(build: Model, draw_batch: Batch, head: str) -> None:
    model, batch = build(head), draw_batch(head)
    output = model(**batch)
    assert isinstance(output, DepthwiseOutput)
    assert output.loss.shape == ()
    assert output.logits.shape == SHAPES[head]
    steps = 4 if head == "seq2seq" else STEPS
    assert output.last_hidden_state.shape == (ROWS, steps, WIDTH)
    lengths = batch["attention_mask"] * 2
    assert torch.equal(output.depths, torch.full((ROWS, 4), 2) if head == "seq2seq" else lengths)
    if head == "seq2seq":
        assert output.encoder_last_hidden_state.shape == (ROWS, STEPS, WIDTH)
        assert torch.equal(output.encoder_depths, lengths)
    else:
        assert output.encoder_last_hidden_state is None
        assert output.encoder_depths is None
    assert output.past_key_values is None
    assert (output.start_logits is not None) == (head == "question_answering")


def test_scores_come_from_the_last_states(build: Model, draw_batch: Batch, head: str) -> None:
    model, batch = build(head), draw_batch(head)
    del batch["labels"]
    if head == "seq2seq":
        batch["decoder_input_ids"] = torch.full((ROWS, 4), 5)
    output = model(**batch)
    assert output.loss is None
    if head in ("seq2seq", "causal_lm", "masked_lm"):
        assert torch.equal(output.logits, output.last_hidden_state @ model.head.weight.T)
    if head == "token_classification":
        assert torch.equal(output.logits, model.classifier(output.last_hidden_state))
    if head == "question_answering":
        real = batch["attention_mask"].bool()
        assert torch.equal(output.logits[real], model.pointers(output.last_hidden_state)[real])


def test_loss_without_a_count(build: Model, draw_batch: Batch, head: str) -> None:
    output = build(head)(**(batch := draw_batch(head)))
    torch.testing.assert_close(output.loss, terms(head, output.logits, batch["labels"]).mean())


@pytest.mark.parametrize("count", [13, torch.tensor(13)], ids=["number", "tensor"])
def test_loss_with_a_count(build: Model, draw_batch: Batch, head: str, count: Tensor | int) -> None:
    output = build(head)(**(batch := draw_batch(head)), num_items_in_batch=count)
    torch.testing.assert_close(output.loss, terms(head, output.logits, batch["labels"]).sum() / 13)


def test_loss_without_any_label(build: Model, draw_batch: Batch, head: str) -> None:
    model, batch = build(head), draw_batch(head)
    if head == "seq2seq":
        batch["decoder_input_ids"] = torch.full_like(batch["labels"], 5)
    batch["labels"] = torch.full_like(batch["labels"], IGNORED)
    loss = model(**batch).loss
    assert loss == 0
    loss.backward()
    assert not any(weight.grad.any() for weight in model.parameters() if weight.grad is not None)


def test_a_tuple_on_request(build: Model, draw_batch: Batch, head: str) -> None:
    model, batch = build(head), draw_batch(head)
    output = model(**batch)
    for loss, logits, *_ in (output.to_tuple(), model(**batch, return_dict=False)):
        assert torch.equal(loss, output.loss)
        assert torch.equal(logits, output.logits)
    model.config.return_dict = False
    assert torch.equal(model(**batch)[0], output.loss)


def test_every_head_takes_a_plan(build: Model, draw_batch: Batch, head: str) -> None:
    model, batch = build(head), draw_batch(head)
    steps = 4 if head == "seq2seq" else STEPS
    depths = torch.randint(0, 2, (ROWS, steps))
    output = model(**batch, plan=Plan.of_depths(depths, 2))
    real = torch.ones_like(depths) if head == "seq2seq" else batch["attention_mask"]
    assert torch.equal(output.depths, depths * real)
    assert not torch.allclose(output.logits, model(**batch).logits)


def test_half_precision(build: Model, draw_batch: Batch, head: str) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        output = build(head, "dynamicconv").to(dtype)(**draw_batch(head))
        assert output.logits.dtype == dtype
        assert output.loss.isfinite()


# Labels of the two decoders


def test_a_language_model_predicts_the_next_token(build: Model, draw_batch: Batch) -> None:
    """The loss of step t is that of the label at t + 1; the first label is never predicted."""
    model, batch = build("causal_lm"), draw_batch("causal_lm", lengths=(6, 6))
    labels = torch.full_like(batch["labels"], IGNORED)
    labels[0, 3] = batch["labels"][0, 3]
    loss = model(batch["input_ids"], labels=labels).loss
    expected = -model(batch["input_ids"]).logits[0, 2].log_softmax(-1)[labels[0, 3]]
    torch.testing.assert_close(loss, expected)
    labels[0, 3], labels[:, 0] = IGNORED, 5
    assert model(batch["input_ids"], labels=labels).loss == 0


def test_a_single_token_has_no_next_one(build: Model) -> None:
    ids = torch.tensor([[5], [6]])
    assert build("causal_lm")(ids, labels=ids).loss == 0


def test_targets_are_moved_behind_the_start_token(build: Model, draw_batch: Batch) -> None:
    model, batch = build("seq2seq"), draw_batch("seq2seq")
    labels = torch.tensor([[5, 6, 7, 2], [8, 2, IGNORED, IGNORED], [9, 10, 2, IGNORED]])
    inputs = torch.tensor([[START, 5, 6, 7], [START, 8, 2, PADDING], [START, 9, 10, 2]])
    assert torch.equal(model.prepare_decoder_input_ids_from_labels(labels), inputs)
    source = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    moved, given = model(**source, labels=labels), model(**source, labels=labels, decoder_input_ids=inputs)
    assert torch.equal(moved.loss, given.loss)
    assert torch.equal(moved.logits, given.logits)


def test_another_start_token(build: Model) -> None:
    labels = torch.tensor([[5, 6]])
    model = build("seq2seq", decoder_start_token_id=3)
    assert model.prepare_decoder_input_ids_from_labels(labels).tolist() == [[3, 5]]


def test_padding_behind_the_target_changes_nothing(build: Model, draw_batch: Batch, mixer: str) -> None:
    """Ignored labels follow the target, where a causal decoder cannot see them."""
    model, batch = build("seq2seq", mixer), draw_batch("seq2seq")
    batch["labels"] = torch.tensor([[5, 6, 2]] * 3)
    short = model(**batch)
    batch["labels"] = F.pad(batch["labels"], (0, 2), value=IGNORED)
    long = model(**batch)
    torch.testing.assert_close(long.logits[:, :3], short.logits, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(long.loss, short.loss, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("tied", ["decoder", "none"])
def test_vocabularies_of_their_own(build: Model, tied: str) -> None:
    model = build("seq2seq", source_vocab_size=23, tied_embeddings=tied)
    output = model(torch.tensor([[22, 18]]), decoder_input_ids=torch.tensor([[2, 16]]))
    assert output.logits.shape == (1, 2, VOCABULARY)


# What the head over a vocabulary offers


def test_scores_of_a_plain_softmax(build: Model) -> None:
    head, hidden = build("causal_lm").head, torch.randn(5, WIDTH, dtype=torch.float64)
    log_prob = head.log_prob(hidden)
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(5, dtype=torch.float64))
    labels = torch.randint(0, VOCABULARY, (5,))
    torch.testing.assert_close(head.nll(hidden, labels), -log_prob[range(5), labels])
    values, types = head.top(hidden, 3)
    assert torch.equal(types, log_prob.argsort(-1, descending=True)[:, :3])
    assert torch.equal(values, log_prob.gather(1, types))


def test_a_plain_softmax_is_precise_in_half_precision(build: Model) -> None:
    head, hidden = build("causal_lm").head.bfloat16(), torch.randn(5, WIDTH).bfloat16()
    assert head.log_prob(hidden).dtype == torch.float32
    assert head.nll(hidden, torch.arange(5)).dtype == torch.float32
