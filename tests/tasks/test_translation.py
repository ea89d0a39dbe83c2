"""Translation: losses, search, scores."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from depthwise.data import Example, LineReport, Row
from depthwise.errors import ConfigError, DataError
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.tasks import Translation
from depthwise.tasks.search import EndAtLimit
from depthwise.tasks.sequence_to_sequence import shifted

INPUTS = [("a b c",), ("b",), ("c c a b a",), ("a",), ("",)]


@pytest.fixture
def model(translation: Translation) -> DepthwiseForSeq2SeqLM:
    model = translation.new_model().eval().double()
    assert isinstance(model, DepthwiseForSeq2SeqLM)
    return model


def test_targets_move_right_behind_the_end_of_a_sequence() -> None:
    labels = torch.tensor([[5, 6, 2], [7, 2, -100]])
    assert shifted(labels, start=2, padding=1).tolist() == [[2, 5, 6], [2, 7, 2]]


def test_the_loss_is_smoothed_and_its_nll_is_that_of_the_model(
    translation: Translation, model: DepthwiseForSeq2SeqLM
) -> None:
    rows = translation.scored_rows(INPUTS[:4], ["c b a", "b", "a b a c c", "a"])
    batch = translation.collate(rows)
    num_items = translation.num_items(batch)
    assert num_items == 4 + 2 + 6 + 2  # words and the end of each
    losses = translation.losses(model, batch, num_items)
    plain = model(**batch).loss
    torch.testing.assert_close(losses.totals["nll"] / num_items, plain)
    logits = model(**batch).logits.float()
    smooth = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1)
    torch.testing.assert_close(losses.loss.float(), smooth)
    metrics = translation.validation_metrics({"loss": 7.0, "nll": 14.0}, 7)
    assert metrics == {"loss": 1.0, "nll": 2.0, "perplexity": pytest.approx(math.exp(2))}


def test_log_probabilities_are_the_models(translation: Translation, model: DepthwiseForSeq2SeqLM) -> None:
    rows = translation.scored_rows(INPUTS[:2], ["c b a", "b"])
    together = translation.log_probabilities(model, rows)
    for row, found in zip(rows, together, strict=True):
        batch = translation.collate([row])
        nll = model(**batch).loss * translation.num_items(batch)
        assert found == pytest.approx(-nll.item(), rel=1e-5)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_what_a_row_becomes_does_not_depend_on_its_companions(
    translation: Translation, model: DepthwiseForSeq2SeqLM, num_beams: int
) -> None:
    translation.recipe = replace(
        translation.recipe, generation=replace(translation.recipe.generation, num_beams=num_beams)
    )
    rows = translation.rows(INPUTS)
    together = translation.predict(model, translation.collate(rows))
    alone = [translation.predict(model, translation.collate([row]))[0] for row in rows]
    assert [found.text for found in together] == [found.text for found in alone]
    assert [found.depths for found in together] == [found.depths for found in alone]
    for row, found in zip(rows, together, strict=True):
        assert len(found.depths) <= len(row.texts[0]) + 2
        assert set(found.depths) <= {1}
        assert len(found.token_ids) == len(found.depths)
        assert found.token_ids[-1] == translation.tokenizers.target.eos_token_id
        assert translation.tokenizers.target.decode(found.token_ids, skip_special_tokens=True) == found.text


def test_every_row_ends_at_its_own_limit() -> None:
    processor = EndAtLimit(torch.tensor([2, 3]), eos_id=0)
    scores = torch.zeros(4, 3)
    after_two = processor(torch.zeros(4, 2, dtype=torch.long), scores)
    assert after_two.isneginf().any(1).tolist() == [True, True, False, False]
    after_three = processor(torch.zeros(4, 3, dtype=torch.long), scores)
    assert after_three.isneginf().sum(1).tolist() == [2, 2, 2, 2]
    assert not after_three[:, 0].isneginf().any()


def test_long_inputs_are_cut_before_their_end(translation: Translation) -> None:
    (row,) = translation.rows([(" ".join("a" for _ in range(50)),)])
    assert len(row.texts[0]) == 12
    assert row.texts[0][-1] == translation.tokenizers.source.eos_token_id


def test_ignored_rows_carry_no_loss(translation: Translation) -> None:
    row = Row(0, (np.array([4, 2]), np.array([5, 2])), None, ignored=True)
    assert translation.num_items(translation.collate([row])) == 0


def test_scores_and_comparison(translation: Translation) -> None:
    examples = list(translation.corpus("test").examples(LineReport()))
    right = [example.texts[1] for example in examples]
    wrong = ["b" for _ in examples]
    scores = translation.score(right, examples)
    assert list(scores) == ["sacrebleu", "chrf"]
    assert scores["chrf"].value == pytest.approx(100)
    compared = translation.compare(right, wrong, examples)
    assert compared.difference > 0
    exact = replace(translation.recipe, evaluation=replace(translation.recipe.evaluation, metrics=("exact_match",)))
    task = Translation(exact, translation.tokenizers)
    half = [*right[:2], "no", "no"]
    assert task.score(half, examples)["exact_match"].value == 50.0
    assert task.inputs_of(Example(("x", "y"), None, "f", 1)) == ("x",)


def test_unknown_metrics(translation: Translation) -> None:
    recipe = replace(translation.recipe, evaluation=replace(translation.recipe.evaluation, metrics=("blue",)))
    with pytest.raises(ConfigError, match='"blue" is none of sacrebleu, bleu'):
        Translation(recipe, translation.tokenizers)


def test_a_split_that_the_recipe_does_not_name(translation: Translation) -> None:
    with pytest.raises(DataError, match=r"names no valid data; add data\.valid=FILE"):
        translation.corpus("valid")
