"""Special tokens around texts, read off tokenizers of several families, and pieces with their characters."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from depthwise.data.templates import Template, fast_tokenizer, pair_form, pair_template, pieces_of, text_template
from depthwise.data.tokenizers import TokenizerOptions, load_tokenizer, train_tokenizer
from depthwise.errors import DataError

NAMES = ["<pad>", "<s>", "</s>", "<unk>", "a", "b"]


def words(post_processor: processors.PostProcessor | None) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({name: n for n, name in enumerate(NAMES)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if post_processor is not None:
        tokenizer.post_processor = post_processor
    specials = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **specials)


BERT = processors.BertProcessing(("</s>", 2), ("<s>", 1))
ROBERTA = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))


@pytest.mark.parametrize(
    ("post_processor", "single", "pair"),
    [
        (BERT, Template((1,), (), (2,)), Template((1,), (2,), (2,))),
        (ROBERTA, Template((1,), (), (2,)), Template((1,), (2, 2), (2,))),
        (None, Template((), (), ()), Template((), (), ())),
    ],
)
def test_families(post_processor: processors.PostProcessor | None, single: Template, pair: Template) -> None:
    tokenizer = words(post_processor)
    assert text_template(tokenizer) == single
    assert pair_template(tokenizer) == pair
    first, second = pieces_of("a b", tokenizer).ids, pieces_of("b", tokenizer).ids
    assert single.joined(first).tolist() == tokenizer("a b")["input_ids"]
    assert pair.joined(first, second).tolist() == tokenizer("a b", "b")["input_ids"]
    assert pair.num_special == len(pair.joined(first, second)) - 3
    form = pair_form(tokenizer)
    alone = [np.array(tokenizer(text)["input_ids"]) for text in ("a b", "b")]
    together = form.joined(*alone)
    assert together.tolist() == tokenizer("a b", "b")["input_ids"]
    assert form.num_more == len(together) - sum(map(len, alone))
    assert form.second_from(alone[0]) == tokenizer("a b", "b").sequence_ids(0).index(1)


def test_a_tokenizer_that_was_made_to_end_its_sequences(tmp_path: Path) -> None:
    words(None).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert text_template(tokenizer) == Template((), (), (2,))
    assert pair_template(tokenizer) == Template((), (2,), (2,))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char", "byte"])
def test_ours(kind: str) -> None:
    tokenizer = train_tokenizer(["a b größe"], TokenizerOptions(kind, 40))
    assert text_template(tokenizer) == Template((), (), (2,))
    assert pair_template(tokenizer) == Template((), (2,), (2,))
    pieces = pieces_of("b größe", tokenizer)
    assert text_template(tokenizer).joined(pieces.ids).tolist() == tokenizer("b größe")["input_ids"]
    assert pieces.offsets[-1, 1] == len("b größe")
    assert (np.diff(pieces.offsets[:, 0]) >= 0).all()


def test_nothing() -> None:
    pieces = pieces_of("", words(BERT))
    assert (pieces.ids.shape, pieces.offsets.shape) == ((0,), (0, 2))


def test_truncation_that_was_set_before_does_not_last() -> None:
    tokenizer = words(BERT)
    tokenizer("a b a b", truncation=True, max_length=3)
    assert len(pieces_of("a b a b", tokenizer).ids) == 4


def test_a_tokenizer_that_makes_nothing_of_a_letter(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE({"字": 0, "</s>": 1}, []))
    specials = {"pad_token": "</s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **specials).save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded("字")["input_ids"] == [0, 1]
    for template in (text_template, pair_template):
        with pytest.raises(DataError, match="knows neither the letter a nor unknown ones; use one that has an unknown"):
            template(loaded)


def test_slow_tokenizers_are_refused() -> None:
    slow = object.__new__(type("SlowTokenizer", (PreTrainedTokenizerBase,), {}))
    with pytest.raises(DataError, match=r"^SlowTokenizer does not say where in the text its pieces stand; use a fast"):
        fast_tokenizer(slow)
