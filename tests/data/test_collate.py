"""Rows become padded tensors that the models take."""

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from depthwise.data import (
    BatchOptions,
    ClassificationCollator,
    ParallelText,
    Row,
    Seq2SeqCollator,
    StoreOptions,
    TokenBatches,
    build_store,
)
from depthwise.data.collate import IGNORED, lengthened
from depthwise.data.templates import PairForm, Template
from depthwise.losses import IGNORED as IGNORED_BY_LOSSES


def row(*texts: list[int], label: int | float | None = None, ignored: bool = False) -> Row:
    return Row(0, tuple(np.array(text, np.uint16) for text in texts), label, ignored)


def test_source_and_target() -> None:
    rows = [row([5, 6, 2], [7, 2]), row([5, 2], [7, 8, 9, 2]), row([4, 2], [4, 2], ignored=True)]
    batch = Seq2SeqCollator(pad_id=1)(rows)
    assert batch["input_ids"].tolist() == [[5, 6, 2], [5, 2, 1], [4, 2, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0], [1, 1, 0]]
    assert batch["labels"].tolist() == [[7, 2, -100, -100], [7, 8, 9, 2], [-100] * 4]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    assert IGNORED == IGNORED_BY_LOSSES


def test_source_alone() -> None:
    assert set(Seq2SeqCollator(pad_id=1)([row([5, 2])])) == {"input_ids", "attention_mask"}


def test_an_id_that_equals_padding_is_still_text() -> None:
    batch = Seq2SeqCollator(pad_id=1)([row([1, 2], [1, 2])])
    assert (batch["attention_mask"].tolist(), batch["labels"].tolist()) == ([[1, 1]], [[1, 2]])


def test_lengthened() -> None:
    batch = Seq2SeqCollator(pad_id=1)([row([5, 6, 7, 8, 2], [3, 2])])
    fillers = {"input_ids": 1, "attention_mask": 0, "labels": IGNORED, "elsewhere": 3}
    longer = lengthened({**batch, "classes": torch.ones(1)}, fillers, 4)
    assert longer["input_ids"].tolist() == [[5, 6, 7, 8, 2, 1, 1, 1]]
    assert longer["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 0, 0, 0]]
    assert longer["labels"].tolist() == [[3, 2, IGNORED, IGNORED]]
    assert longer["classes"].tolist() == [1]
    shapes = {name: value.shape for name, value in lengthened(batch, fillers, 4, most=6).items()}
    assert shapes == {"input_ids": (1, 6), "attention_mask": (1, 6), "labels": (1, 4)}
    assert lengthened(batch, fillers, 4, most=3)["input_ids"].shape == (1, 5)


def test_classes_and_pairs() -> None:
    batch = ClassificationCollator(pad_id=1)(
        [row([5, 2], [6, 7, 2], label=3), row([5, 2], [6, 2], label=0, ignored=True)]
    )
    assert batch["input_ids"].tolist() == [[5, 2, 6, 7, 2], [5, 2, 6, 2, 1]]
    assert (batch["labels"].tolist(), batch["labels"].dtype) == ([3, IGNORED], torch.int64)
    assert set(ClassificationCollator(1)([row([5, 2])])) == {"input_ids", "attention_mask"}


BERT = PairForm(Template((8,), (), (9,)), Template((8,), (9,), (9,)))
ROBERTA = PairForm(Template((8,), (), (9,)), Template((8,), (9, 9), (9,)))


def test_pairs_in_the_form_of_their_tokenizer() -> None:
    rows = [row([8, 5, 9], [8, 6, 7, 9]), row([8, 5, 5, 9], [8, 9])]
    batch = ClassificationCollator(pad_id=1, pair=BERT, token_types=True)(rows)
    assert batch["input_ids"].tolist() == [[8, 5, 9, 6, 7, 9], [8, 5, 5, 9, 9, 1]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 0]]
    other = ClassificationCollator(pad_id=1, pair=ROBERTA)(rows)
    assert other["input_ids"].tolist() == [[8, 5, 9, 9, 6, 7, 9], [8, 5, 5, 9, 9, 9, 1]]
    assert "token_type_ids" not in other
    alone = ClassificationCollator(1, pair=BERT, token_types=True)([row([8, 5, 9])])
    assert (alone["input_ids"].tolist(), alone["token_type_ids"].tolist()) == ([[8, 5, 9]], [[0, 0, 0]])
    assert (BERT.num_more, ROBERTA.num_more) == (-1, 0)


def test_any_two_texts_that_keep_to_their_share_fit() -> None:
    for form in (BERT, ROBERTA):
        for most in (12, 13):
            share = form.room(most)
            text = np.array([8, *[5] * (share - 2), 9])
            assert most - 1 <= len(form.joined(text, text)) <= most


def test_numbers() -> None:
    labels = ClassificationCollator(1)([row([5, 2], label=2.5), row([5, 2], label=1.0, ignored=True)])["labels"]
    assert labels.dtype == torch.float32
    assert labels[0] == 2.5
    assert labels[1].isnan()


def test_through_a_data_loader(corpus: ParallelText, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """Everything together: three processes see each target once, though the last step has one example for them."""
    store = build_store(corpus, [tokenizer] * 2, StoreOptions(), tmp_path / "cache")
    seen = []
    for rank in range(3):
        batches = TokenBatches(store.lengths(), BatchOptions(max_rows=3, order="given"), rank=rank, world_size=3)
        for batch in DataLoader(store, batch_sampler=batches, collate_fn=Seq2SeqCollator(pad_id=1)):
            assert batch["input_ids"].shape[0] <= 3
            seen += [tuple(labels[labels != IGNORED].tolist()) for labels in batch["labels"]]
    targets = [tuple(store[index].texts[1].tolist()) for index in range(100)]
    assert sorted(seen) == sorted([(), (), *targets])
