"""Masked language modelling: masks that follow the epoch, fixed ones for judging, fillings, the order of segments."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from depthwise.config import parse_recipe
from depthwise.data import LineReport, Row
from depthwise.errors import ConfigError, DataError, InputError
from depthwise.evaluation.validation import validate
from depthwise.losses import IGNORED
from depthwise.tasks import MaskedLanguageModeling, open_task
from depthwise.tasks.base import GRAPH_LENGTHS

LINES = ["the cat sat on the mat", "a dog ran to the mat", "", "the dog sat", "on the cat", "a cat ran"] * 4
STACK: dict[str, Any] = {"num_layers": 2, "num_heads": 2, "ffn_width": 16, "max_positions": 20, "dropout": 0.0}


def task_of(folder: Path, **changes: Any) -> MaskedLanguageModeling:
    for split in ("train", "test"):
        (folder / f"{split}.txt").write_text("".join(f"{line}\n" for line in LINES))
    options: dict[str, Any] = {
        "task": "masked_language_modeling",
        "data": {
            **{split: str(folder / f"{split}.txt") for split in ("train", "test")},
            "cache": str(folder / "cache"),
        },
        "tokenizer": {"kind": "word", "vocab_size": 40},
        "model": {"width": 8, "encoder": STACK},
        "masking": {"rate": 0.4},
        "training": {"max_updates": 1},
    }
    for name, value in changes.items():
        options[name] = {**options.get(name, {}), **value}
    task = open_task(parse_recipe(options), folder / "run")
    assert isinstance(task, MaskedLanguageModeling)
    return task


def model_of(task: MaskedLanguageModeling) -> Any:
    model = task.new_model().eval().double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


def labels_of(task: MaskedLanguageModeling, split: str, epoch: int) -> list[list[int]]:
    examples = task.examples(split)
    task.set_epoch(examples, epoch)
    return [examples[number].texts[1].tolist() for number in range(len(examples))]


@pytest.mark.parametrize("order", [False, True])
def test_masks_follow_the_epoch_in_training_only(tmp_path: Path, order: bool) -> None:
    task = task_of(tmp_path, model={"sentence_order": order})
    assert labels_of(task, "train", 0) == labels_of(task, "train", 0) != labels_of(task, "train", 1)
    assert labels_of(task, "test", 0) == labels_of(task, "test", 1) != labels_of(task, "train", 0)
    static = task_of(tmp_path, model={"sentence_order": order}, masking={"dynamic": False})
    assert labels_of(static, "train", 0) == labels_of(static, "train", 1) != labels_of(static, "test", 0)
    judged = task.judged(list(task.corpus("test").examples(LineReport())))
    assert [judged[number].texts[1].tolist() for number in range(len(judged))] == labels_of(task, "test", 0)


def test_lines(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    assert len(task.examples("train")) == 20  # empty lines are passed over
    (tmp_path / "test.txt").write_text(" ".join(["cat"] * 50) + "\n")
    judged = task.judged(list(task.corpus("test").examples(LineReport())))
    assert judged.lengths().tolist() == task.examples("test").lengths().tolist() == [[20]]
    assert task.tokenizers.source.mask_token == "<mask>"


@pytest.mark.parametrize("units", ["words", "ngrams"])
def test_whole_words(tmp_path: Path, units: str) -> None:
    task = task_of(tmp_path, tokenizer={"kind": "bpe", "vocab_size": 35}, masking={"units": units})
    assert task.vocabulary.begins_word is not None
    examples = task.examples("train")
    begins = task.vocabulary.begins_word
    chosen = num_inside = 0
    for number in range(len(examples)):
        labels, whole = examples[number].texts[1], task.store("train")[number].texts[0]
        for place in range(1, len(whole) - 1):
            if not begins[whole[place]]:
                num_inside += 1
                assert (labels[place] == IGNORED) == (labels[place - 1] == IGNORED)
        chosen += int((labels != IGNORED).sum())
    assert chosen
    assert num_inside


@pytest.mark.parametrize("order", [False, True])
def test_losses(tmp_path: Path, order: bool) -> None:
    """Both losses from scores of every position, added up by a plain loop; the order weighs as its masked tokens do."""
    task = task_of(tmp_path, model={"sentence_order": order})
    network, examples = model_of(task), task.examples("train")
    batch = task.collate([examples[number] for number in range(5)])
    losses = task.losses(network, batch, 7)
    output = network(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    nll = order_nll = correct = ordered = 0.0
    for row in range(5):
        log_probs = output.logits[row].log_softmax(-1).detach()
        places = [step for step, label in enumerate(batch["labels"][row].tolist()) if label != IGNORED]
        for step in places:
            label = int(batch["labels"][row, step])
            nll -= float(log_probs[step, label])
            correct += int(log_probs[step].argmax()) == label
        if order:
            of_order = output.sentence_order_logits[row].log_softmax(-1).detach()
            label = int(batch["sentence_order_label"][row])
            order_nll -= len(places) * float(of_order[label])
            ordered += int(of_order.argmax()) == label
    assert task.num_items(batch) == int((batch["labels"] != IGNORED).sum())
    assert float(losses.totals["nll"]) == pytest.approx(nll, rel=1e-10)
    assert float(losses.totals["correct"]) == correct
    assert float(losses.loss.detach()) == pytest.approx((nll + order_nll) / 7, rel=1e-10)
    assert ("ordered" in losses.totals) == order
    assert float(losses.totals.get("ordered", 0)) == ordered
    if order:
        task.set_epoch(examples, 1)
        assert {examples[number].label for number in range(len(examples))} == {0, 1}


def test_it_does_not_matter_how_an_update_is_parted(tmp_path: Path) -> None:
    task = task_of(tmp_path, model={"sentence_order": True})
    network, examples = model_of(task), task.examples("train")
    rows = [examples[number] for number in range(4)]
    num_items = task.num_items(task.collate(rows))
    whole = task.losses(network, task.collate(rows), num_items).loss
    parts = sum(task.losses(network, task.collate(some), num_items).loss for some in (rows[:1], rows[1:]))
    ignored = task.collate([examples[~0]])
    assert task.num_items(ignored) == 0
    assert float(task.losses(network, ignored, num_items).loss.detach()) == 0
    torch.testing.assert_close(parts, whole)


PADDED: dict[str, dict[str, Any]] = {
    "plain": {},
    "order": {"model": {"sentence_order": True}},
    "exits": {"model": {"exits": {}}},
    "structure": {
        "model": {
            "encoder": {**STACK, "norm": "pre"},
            "structure": {"num_static": 1, "allow_zero": True},
            "sentence_order": True,
        }
    },
    "n-grams": {"masking": {"rate": 0.2, "units": "ngrams", "max_ngram": 5}},
}


@pytest.mark.parametrize("name", PADDED)
def test_batches_for_recorded_passes_lose_what_others_do(tmp_path: Path, name: str) -> None:
    """Longer rows and more places than labels change neither loss nor gradients nor what is counted."""
    task = task_of(tmp_path, **{**PADDED[name], "training": {"graphs": True}})
    network, examples = model_of(task).train(), task.examples("train")
    for some in (range(3), range(1, len(examples))):
        batch = task.collate([examples[number] for number in some])
        longer = task.padded(batch)
        assert longer["labels"].shape[1] % GRAPH_LENGTHS == 0
        assert task.num_items(longer) == task.num_items(batch) == len(batch["label_places"])
        assert len(longer["label_places"]) > len(batch["label_places"])
        found = []
        for given in (batch, longer):
            network.zero_grad()
            losses = task.losses(network, given, torch.tensor(7))
            losses.loss.backward()
            gradients = [param.grad.clone() for param in network.parameters()]
            found.append((losses, gradients))
        (plain, expected), (padded, gradients) = found
        torch.testing.assert_close(padded.loss, plain.loss, rtol=1e-12, atol=0)
        torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-14)
        assert {name: float(value) for name, value in padded.totals.items()} == pytest.approx(
            {name: float(value) for name, value in plain.totals.items()}, rel=1e-12
        )


def test_the_number_of_places_follows_from_the_shape(tmp_path: Path) -> None:
    task = task_of(tmp_path, training={"graphs": True})
    examples, found = task.examples("train"), set()
    for epoch in range(20):
        task.set_epoch(examples, epoch)
        batch = task.collate([examples[number] for number in range(5)])
        found.add((len(batch["label_places"]), len(task.padded(batch)["label_places"])))
    assert len({num_labels for num_labels, _ in found}) > 1
    assert len({num_places for _, num_places in found}) == 1


def test_more_labels_than_their_share_are_all_kept(tmp_path: Path) -> None:
    task = task_of(tmp_path, masking={"rate": 0.1}, training={"graphs": True})
    ids = np.arange(5, 13)
    row = Row(0, (ids, ids), None)
    batch = task.padded(task.collate([row, row]))
    assert sorted(batch["label_places"].tolist()) == list(range(16))
    assert task.num_items(batch) == 16


def test_scores(tmp_path: Path) -> None:
    names = ("perplexity", "accuracy", "order_accuracy", "unigram_perplexity", "unigram_accuracy")
    task = task_of(tmp_path, model={"sentence_order": True}, evaluation={"metrics": names})
    network = model_of(task)
    totals, num_items = validate(task, network, task.examples("test"), batch_tokens=64)
    examples = list(task.corpus("test").examples(LineReport()))
    scores = task.likelihood_scores(totals, num_items, examples)
    assert scores["perplexity"].value == pytest.approx(math.exp(totals["nll"] / num_items))
    assert scores["accuracy"].value == pytest.approx(100 * totals["correct"] / num_items)
    assert scores["order_accuracy"].value == pytest.approx(100 * totals["ordered"] / totals["pairs"])
    assert f"seed:0|masked:{num_items}" in scores["accuracy"].signature
    assert f"pairs:{len(task.examples('test'))}" in scores["order_accuracy"].signature
    rows = task.examples("test")
    masked = np.concatenate([rows[number].texts[1] for number in range(len(rows))])
    masked = masked[masked != IGNORED]
    stream = np.concatenate([task.store("train")[number].texts[0] for number in range(20)])
    counts = np.bincount(stream, minlength=len(task.tokenizers.source)) + 1
    assert scores["unigram_perplexity"].value == pytest.approx(math.exp(-np.log(counts[masked] / counts.sum()).mean()))
    the = task.tokenizers.source.convert_tokens_to_ids("the")
    assert scores["unigram_accuracy"].value == pytest.approx(100 * (masked == the).mean())
    plain = task_of(tmp_path)
    assert plain.default_metrics() == ("perplexity", "accuracy")
    with pytest.raises(ConfigError, match='"order_accuracy" is none of'):
        task_of(tmp_path, evaluation={"metrics": ["order_accuracy"]})


@pytest.mark.parametrize("kind", ["word", "bpe", "char"])
def test_masks_are_filled(tmp_path: Path, kind: str) -> None:
    task = task_of(tmp_path, tokenizer={"kind": kind, "vocab_size": 60})
    network = model_of(task)
    rows = task.rows([("the <mask> sat on <mask> mat",), ("a <mask>",)])
    mask = task.vocabulary.mask_id
    assert [(row.texts[0] == mask).sum() for row in rows] == [2, 1]
    found = task.predict(network, task.collate(rows))
    (alone,) = task.predict(network, task.collate(rows[1:]))
    assert alone.text == found[1].text
    assert alone.log_prob == pytest.approx(found[1].log_prob)
    logits = network(torch.tensor(rows[0].texts[0])[None]).logits[0].detach().float()
    ids, log_prob = rows[0].texts[0].copy(), 0.0
    special = task.tokenizers.source.all_special_ids
    for place in np.flatnonzero(ids == mask):
        log_probs = logits[place].log_softmax(-1)
        allowed = log_probs.clone()
        allowed[special] = -torch.inf
        ids[place] = int(allowed.argmax())
        log_prob += float(log_probs[ids[place]])
    assert found[0].text == task.tokenizers.source.decode(ids.tolist(), skip_special_tokens=True)
    assert found[0].log_prob == pytest.approx(log_prob, rel=1e-5)
    assert set(found[0].depths) == {2}
    assert len(found[0].depths) == len(ids)


def test_fillings_have_a_probability(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    network = model_of(task)
    text = ("the <mask> sat <mask> mat",)
    (row,) = task.rows([text])
    (best,) = task.predict(network, task.collate([row]))
    words = best.text.split()
    filling = f"{words[1]} {words[3]}"
    rows = task.scored_rows([text, ("a <mask>",)], [filling, "dog"])
    assert task.log_probabilities(network, rows)[0] == pytest.approx(best.log_prob, rel=1e-5)
    assert task.log_probabilities(network, task.scored_rows([text], ["a a"]))[0] <= best.log_prob
    with pytest.raises(InputError, match="there are 2 masks, but what is to fill them has 1 tokens"):
        task.scored_rows([text], ["cat"])
    with pytest.raises(InputError, match="there is nothing to guess; write <mask> in the place of a token"):
        task.rows([("the cat",)])


def test_what_cannot_be_masked(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not mark where words begin"):
        task_of(tmp_path, tokenizer={"kind": "char"}, masking={"units": "words"})
    with pytest.raises(ConfigError, match=r"masking\.mask_share +0\.9 and random_share 0\.2 are more than the whole"):
        task_of(tmp_path, masking={"mask_share": 0.9, "random_share": 0.2})
    with pytest.raises(ConfigError, match=r"training\.label_smoothing +has no part in masked language modelling"):
        task_of(tmp_path, training={"label_smoothing": 0.1})
    with pytest.raises(ConfigError, match=r"masking\.units +\"letters\" is none of tokens, words, ngrams"):
        task_of(tmp_path, masking={"units": "letters"})
    with pytest.raises(ConfigError, match=r"masking\.rate +1\.0 is no share of a text"):
        task_of(tmp_path, masking={"rate": 1.0})


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char"])
def test_text_behind_a_mask_is_what_it_was_in_training(tmp_path: Path, kind: str) -> None:
    """Tokenizers of pieces put a blank before any text, which is none of what follows a mask without one."""
    (tmp_path / "corpus.txt").write_text("a cat, (a cat) ran.\na dog, (a dog) ran.\n" * 9)
    task = task_of(tmp_path, data={"train": str(tmp_path / "corpus.txt")}, tokenizer={"kind": kind, "vocab_size": 60})
    for text in ("a <mask>, ran.", "(<mask>) ran <mask>.", "<mask>!"):
        (row,) = task.rows([(text,)])
        names = task.tokenizers.source.convert_ids_to_tokens(row.texts[0].tolist())
        behind = [name for before, name in pairwise(names) if before == "<mask>"]
        assert [name.replace("<unk>", "!") for name in behind] == [part[0] for part in text.split("<mask>")[1:]]
    (row,) = task.rows([("a <mask> ran",)])
    names = task.tokenizers.source.convert_ids_to_tokens(row.texts[0].tolist())
    assert names[names.index("<mask>") + 1].startswith({"word": "ran", "char": " "}.get(kind, "▁"))


@pytest.mark.parametrize("objective", ["aligned", "mixed"])
def test_exits(tmp_path: Path, objective: str) -> None:
    """All exits learn; validation measures each of them by what it would lose alone."""
    task = task_of(tmp_path, model={"exits": {}}, training={"exits": {"objective": objective}})
    model, examples = model_of(task), task.examples("test")
    batch = task.collate([examples[number] for number in range(len(examples))])
    count = task.num_items(batch)
    found = task.losses(model, batch, count)
    metrics = task.validation_metrics({"loss": found.loss.item() * count, **found.totals}, count)
    assert set(task.validation_names()) == set(metrics) >= {"nll_at_1", "nll_at_2", "accuracy"}
    assert float(metrics["nll_at_2"]) == pytest.approx(float(metrics["nll"]))
    assert float(metrics["loss"]) == pytest.approx((float(metrics["nll_at_1"]) + float(metrics["nll_at_2"])) / 2)
    plain = task_of(tmp_path)
    other = plain.new_model().eval().double()
    other.load_state_dict(model.state_dict(), strict=False)
    whole = plain.losses(other, batch, count)
    assert float(whole.totals["nll"]) == pytest.approx(float(found.totals["nll"]))
    assert float(whole.totals["correct"]) == float(found.totals["correct"])
    task.losses(model.train(), batch, count).loss.backward()
