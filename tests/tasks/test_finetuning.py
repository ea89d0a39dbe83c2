"""Learning further from imported encoders: they see what they saw in pretraining, and keep their weights at first."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AddedToken,
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    RobertaConfig,
    RobertaForMaskedLM,
)

from depthwise.config import parse_recipe
from depthwise.errors import CheckpointError
from depthwise.interop.hf import convert_hf
from depthwise.tasks import (
    MaskedLanguageModeling,
    QuestionAnswering,
    Tagging,
    Task,
    TextClassification,
    load_task,
    open_task,
)

from ..interop.conftest import PIECES, SMALL, bert, roberta

PAIRS = [("abc de", "e"), ("a", "bad cab"), ("cab", "cab cab a")]


Maker = Callable[[Path], Path]
FAMILIES = [bert, roberta]


def task_of(tmp_path: Path, kind: str, files: str, **options: Any) -> Task:
    recipe = {
        "task": kind,
        "data": {"train": str(tmp_path / files), "cache": str(tmp_path / "cache")},
        "model": {"from": str(tmp_path / "run")},
        "training": {"max_updates": 1},
    }
    return open_task(parse_recipe({**recipe, **options}), tmp_path / "new")


def classification_of(tmp_path: Path, pairs: list[tuple[str, str]] = PAIRS, **options: Any) -> TextClassification:
    lines = [f"{place % 2}\t{first}\t{second}\n" for place, (first, second) in enumerate(pairs)]
    (tmp_path / "train.tsv").write_text("".join(lines))
    task = task_of(tmp_path, "text_classification", "train.tsv", **options)
    assert isinstance(task, TextClassification)
    return task


@pytest.mark.parametrize("make", FAMILIES)
def test_a_pair_is_what_the_tokenizer_makes_of_it(make: Maker, tmp_path: Path) -> None:
    folder = make(tmp_path / "theirs")
    convert_hf(folder, tmp_path / "run")
    task = classification_of(tmp_path)
    theirs = AutoTokenizer.from_pretrained(folder)(*zip(*PAIRS, strict=True), padding=True, return_tensors="pt")
    store = task.store("train")
    from_store = task.collate([store[index] for index in range(3)])
    from_text = task.collate(task.rows(PAIRS))
    for batch in (from_store, from_text):
        assert torch.equal(batch["input_ids"], theirs["input_ids"])
        assert torch.equal(batch["attention_mask"], theirs["attention_mask"])
        if make is bert:
            assert torch.equal(batch["token_type_ids"], theirs["token_type_ids"])
            assert batch["token_type_ids"].max() == 1
        else:
            assert "token_type_ids" not in batch  # RoBERTa knows one type only
    assert task.lengths(store).squeeze(1).tolist() == theirs["attention_mask"].sum(1).tolist()


@pytest.mark.parametrize("make", FAMILIES)
def test_a_single_text_is_what_the_tokenizer_makes_of_it(make: Maker, tmp_path: Path) -> None:
    folder = make(tmp_path / "theirs")
    convert_hf(folder, tmp_path / "run")
    (tmp_path / "train.tsv").write_text("x\tabc de\ny\te\n")
    task = task_of(tmp_path, "text_classification", "train.tsv")
    batch = task.collate(task.rows([("abc de",), ("e",)]))
    theirs = AutoTokenizer.from_pretrained(folder)(["abc de", "e"], padding=True, return_tensors="pt")
    assert torch.equal(batch["input_ids"], theirs["input_ids"])
    assert set(batch) == {"input_ids", "attention_mask"}


@pytest.mark.parametrize("make", FAMILIES)
def test_a_classifier_begins_with_encoder_and_pooler(make: Maker, tmp_path: Path) -> None:
    """Its first layers see types and pairs as Transformers' own model does."""
    folder = make(tmp_path / "theirs")
    convert_hf(folder, tmp_path / "run")
    task = classification_of(tmp_path)
    assert task.options.pooling == "first_tanh"
    model = task.new_model().eval()
    theirs = AutoModel.from_pretrained(folder).eval()
    text = AutoTokenizer.from_pretrained(folder)(*zip(*PAIRS, strict=True), padding=True, return_tensors="pt")
    batch = task.collate(task.rows(PAIRS))
    with torch.no_grad():
        expected = model.classifier(theirs(**text).pooler_output)  # type: ignore[operator]
        found = task.predict(model, batch)
        assert torch.allclose(model(**batch).logits, expected, atol=1e-5)
    names = [task.label_names[int(place)] for place in expected.argmax(-1)]
    assert [prediction.text for prediction in found] == names


def test_types_of_tokens_make_a_difference(tmp_path: Path) -> None:
    """Both texts swapped in type give another loss: types reach the model in training too."""
    convert_hf(bert(tmp_path / "theirs"), tmp_path / "run")
    task = classification_of(tmp_path)
    model = task.new_model().eval()
    torch.nn.init.normal_(model.model.encoder.embedding.token_types.weight)  # type: ignore[union-attr, arg-type]
    store = task.store("train")
    batch = task.collate([store[index] for index in range(3)])
    without = {name: value for name, value in batch.items() if name != "token_type_ids"}
    one, other = (float(task.losses(model, some, 3).loss.detach()) for some in (batch, without))
    assert one != pytest.approx(other, rel=1e-6)
    rows = task.scored_rows(PAIRS, ["0", "1", "0"])
    assert -sum(task.log_probabilities(model, rows)) / 3 == pytest.approx(one, rel=1e-5)


@pytest.mark.parametrize("make", FAMILIES)
def test_long_pairs_fit(make: Maker, tmp_path: Path) -> None:
    convert_hf(make(tmp_path / "theirs"), tmp_path / "run")
    long = " ".join(["a"] * 40)
    task = classification_of(tmp_path, [(long, long), ("a", long)])
    limit = task.max_tokens
    assert limit is not None
    store = task.store("train")
    for rows in ([store[0], store[1]], task.rows([(long, long), ("a", long)])):
        batch = task.collate(rows)
        assert limit - 1 <= batch["input_ids"].shape[1] <= limit
        assert task.row_lengths(rows).max() == batch["input_ids"].shape[1]
        end = task.tokenizers.source.eos_token_id
        assert int(batch["input_ids"][0, -1]) == end
        assert len(task.predict(task.new_model().eval(), batch)) == 2


def test_a_masked_language_model_has_no_pooler_and_spare_types_are_kept(tmp_path: Path) -> None:
    """The tokenizer has 15 types, the model 30 embeddings."""
    BertForMaskedLM(BertConfig(**SMALL)).save_pretrained(tmp_path / "theirs")
    BertTokenizer(vocab={piece: index for index, piece in enumerate(PIECES)}).save_pretrained(tmp_path / "theirs")
    convert_hf(tmp_path / "theirs", tmp_path / "run")
    task = classification_of(tmp_path)
    assert task.options.vocab_size == 30
    model, theirs = task.new_model(), AutoModel.from_pretrained(tmp_path / "run")
    assert model.model.pooler is not None
    ours = model.model.encoder.state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(value, ours[name]) for name, value in theirs.encoder.state_dict().items())


@pytest.mark.parametrize("takes_blank", [False, True])
@pytest.mark.parametrize("make", FAMILIES)
def test_masks_are_set_as_before(make: Maker, tmp_path: Path, takes_blank: bool) -> None:
    """RoBERTa's own mask takes the blank before it, as the pieces do that it stands for."""
    folder = make(tmp_path / "theirs")
    model = BertForMaskedLM(BertConfig(**SMALL)) if make is bert else RobertaForMaskedLM(RobertaConfig(**SMALL))
    model.save_pretrained(folder)
    theirs = AutoTokenizer.from_pretrained(folder)
    theirs.add_special_tokens({"mask_token": AddedToken(theirs.mask_token, lstrip=takes_blank, special=True)})
    theirs.save_pretrained(folder)
    convert_hf(folder, tmp_path / "run")
    task = load_task(tmp_path / "run")
    assert isinstance(task, MaskedLanguageModeling)
    for text in ("a <mask> b", "ab<mask>e", "<mask> c", "a <mask> <mask>"):
        (row,) = task.rows([(text,)])
        assert row.texts[0].tolist() == theirs(text.replace("<mask>", theirs.mask_token))["input_ids"]


def test_another_model_is_refused(tmp_path: Path) -> None:
    convert_hf(bert(tmp_path / "theirs"), tmp_path / "run")
    task = classification_of(tmp_path, model={"from": str(tmp_path / "run"), "width": 16})
    with pytest.raises(CheckpointError, match=r"run holds another model: model\.\S+ is missing or has another shape"):
        task.new_model()


@pytest.mark.parametrize("content", [None, b"half of a file"])
def test_weights_that_are_not_there_or_damaged(tmp_path: Path, content: bytes | None) -> None:
    convert_hf(bert(tmp_path / "theirs"), tmp_path / "run")
    task, weights = classification_of(tmp_path), tmp_path / "run" / "model.safetensors"
    weights.unlink() if content is None else weights.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"run cannot be trained further: .*; give a folder with all files"):
        task.new_model()


@pytest.mark.parametrize("make", FAMILIES)
def test_tagging_sees_a_text_as_before(make: Maker, tmp_path: Path) -> None:
    folder = make(tmp_path / "theirs")
    convert_hf(folder, tmp_path / "run")
    (tmp_path / "train.txt").write_text("abc B-X\nde O\n\ne O\n")
    task = task_of(tmp_path, "tagging", "train.txt")
    assert isinstance(task, Tagging)
    batch = task.collate(task.examples("train").rows)
    theirs = AutoTokenizer.from_pretrained(folder)(["abc de", "e"], padding=True, return_tensors="pt")
    assert torch.equal(batch["input_ids"], theirs["input_ids"])
    assert (batch["labels"] >= 0).sum(1).tolist() == [2, 1]
    assert task.new_model().model.pooler is None


@pytest.mark.parametrize("make", FAMILIES)
def test_a_question_and_its_context_are_a_pair(make: Maker, tmp_path: Path) -> None:
    folder = make(tmp_path / "theirs")
    convert_hf(folder, tmp_path / "run")
    paragraphs = [
        {
            "context": context,
            "qas": [{"id": str(n), "question": asked, "answers": [{"text": context[:1], "answer_start": 0}]}],
        }
        for n, (asked, context) in enumerate(PAIRS)
    ]
    (tmp_path / "train.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    data = {"train": str(tmp_path / "train.json"), "max_question_tokens": 10}
    task = task_of(tmp_path, "question_answering", "train.json", data=data)
    assert isinstance(task, QuestionAnswering)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    theirs = tokenizer(*zip(*PAIRS, strict=True), padding=True, return_tensors="pt")
    rows = task.examples("train").rows
    batch = task.collate(rows)
    assert torch.equal(batch["input_ids"], theirs["input_ids"])
    if make is bert:
        assert torch.equal(batch["token_type_ids"], theirs["token_type_ids"])
    assert {row.null for row in rows} == {0}
    found = task.predictions(task.new_model().eval(), task.rows(PAIRS))
    assert all(answer.text in context for answer, (_, context) in zip(found, PAIRS, strict=True))
    always = replace(task.recipe, data=replace(task.recipe.data, unanswerable=False))
    assert QuestionAnswering(always, task.tokenizers).predictions(task.new_model().eval(), task.rows(PAIRS))[0].text


def test_weights_in_half_precision_are_trained_in_single(tmp_path: Path) -> None:
    convert_hf(bert(tmp_path / "theirs"), tmp_path / "run")
    AutoModel.from_pretrained(tmp_path / "run").bfloat16().save_pretrained(tmp_path / "run")
    model = classification_of(tmp_path).new_model()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
