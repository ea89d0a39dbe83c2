"""Language modelling: every token once, whatever the form; losses, probabilities and perplexities agree."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from depthwise.config import parse_recipe
from depthwise.data import LineReport
from depthwise.errors import ConfigError, DataError, InputError
from depthwise.evaluation.validation import likelihood_scores, validate
from depthwise.losses import IGNORED
from depthwise.tasks import LanguageModeling, open_task

LINES = ["the cat sat on the mat", "", "a dog ran", "the dog sat on the cat <unk> on the mat"]
STACK: dict[str, Any] = {"num_layers": 2, "num_heads": 2, "ffn_width": 16, "max_positions": 16, "dropout": 0.0}


def task_of(folder: Path, **changes: Any) -> LanguageModeling:
    (folder / "train.txt").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "test.txt").write_text("the dog sat on the mat\n\na bird ran\n")
    options: dict[str, Any] = {
        "task": "language_modeling",
        "data": {
            **{split: str(folder / f"{split}.txt") for split in ("train", "test")},
            "cache": str(folder / "cache"),
            "max_tokens": 6,
        },
        "tokenizer": {"kind": "word", "vocab_size": 40, "pretokenized": True},
        "model": {"width": 8, "decoder": STACK},
        "training": {"max_updates": 1},
        "generation": {"num_beams": 1, "max_extra": 3},
    }
    for name, value in changes.items():
        options[name] = {**options.get(name, {}), **value}
    task = open_task(parse_recipe(options), folder / "run")
    assert isinstance(task, LanguageModeling)
    return task


def model_of(task: LanguageModeling) -> Any:
    """In float64, with weights that make no two tokens alike."""
    model = task.new_model().eval().double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


FORMS = [{}, {"form": "lines"}, {"empty_lines": "skip"}]
MODELS = [{}, {"adaptive": {"cutoffs": [6], "factor": 2}}]


@pytest.mark.parametrize("data", FORMS)
@pytest.mark.parametrize("context", [1, 4])
def test_every_token_is_predicted_once(tmp_path: Path, data: dict[str, Any], context: int) -> None:
    task = task_of(tmp_path, data=data, evaluation={"context": context})
    texts = [example.texts[0] for example in task.corpus("test").examples(LineReport())]
    assert len(texts) == (2 if "empty_lines" in data else 3)
    wanted = [number for text in texts for number in task.tokenizers.source(text)["input_ids"]]
    for examples in (task.examples("test"), task.judged(list(task.corpus("test").examples(LineReport())))):
        rows = [examples[number] for number in range(len(examples))]
        labels = task.collate(rows)["labels"]
        assert labels[labels != IGNORED].tolist() == wanted
        assert max(len(row.ids) for row in rows) <= 6
    training = task.examples("train")
    assert all(training[number].num_context == 1 for number in range(len(training)))
    assert task.num_items(task.collate([training[0], training[~0]])) == len(training[0].ids) - 1


@pytest.mark.parametrize("model", MODELS)
def test_losses_are_likelihoods(tmp_path: Path, model: dict[str, Any]) -> None:
    """The loss of lines that fit into a block is the probability that --score gives them, and so is what logits say."""
    task = task_of(tmp_path, data={"form": "lines", "max_tokens": 16}, model=model)
    network = model_of(task)
    examples = list(task.corpus("test").examples(LineReport()))
    rows = task.judged(examples)
    batch = task.collate([rows[number] for number in range(len(rows))])
    losses = task.losses(network, batch, 12)
    texts = [example.texts[0] for example in examples]
    scored = task.log_probabilities(network, task.scored_rows([()] * 3, texts))
    assert float(losses.totals["nll"]) == pytest.approx(-sum(scored), rel=1e-10)
    assert float(losses.loss.detach()) == pytest.approx(-sum(scored) / 12, rel=1e-10)
    log_probs = network(batch["input_ids"], batch["attention_mask"]).logits.log_softmax(-1)[:, :-1]
    for row, text in enumerate(texts):
        ids = task.tokenizers.source(text)["input_ids"]
        assert scored[row] == pytest.approx(sum(float(log_probs[row, step, n].detach()) for step, n in enumerate(ids)))
    assert float(losses.totals["unknown"]) == 1  # "bird"
    assert float(losses.totals["depth"]) == 2 * float(losses.totals["depth_tokens"]) == 2 * (12 + 3)


def test_long_texts_are_scored_in_blocks(tmp_path: Path) -> None:
    task = task_of(tmp_path, evaluation={"context": 3})
    network, text = model_of(task), "the cat sat on the mat a dog ran"
    rows = [task.cut(row, 5) for row in task.scored_rows([(), ()], [text, "a dog"])]
    assert len(rows[0].texts[1]) == 10
    (found, _) = task.log_probabilities(network, rows)
    ids = [2, *task.tokenizers.source(text)["input_ids"]]
    expected = 0.0
    for step in range(1, len(ids)):  # blocks of six begin at every third token
        begin = 3 * max(0, -((step - 5) // -3))
        logits = network(torch.tensor([ids[begin:step]])).logits[0, -1]
        expected += float(logits.log_softmax(-1)[ids[step]].detach())
    assert found == pytest.approx(expected, rel=1e-10)


def test_more_context_changes_the_perplexity_and_its_signature(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    network = model_of(task)
    examples = list(task.corpus("test").examples(LineReport()))
    short = likelihood_scores(task, network, examples)
    wide = task_of(tmp_path, evaluation={"context": 5})
    long = likelihood_scores(wide, network, examples)
    assert short["perplexity"].value != pytest.approx(long["perplexity"].value, rel=1e-3)
    assert "blocks of 6 tokens, the first 1 of each" in short["perplexity"].signature
    assert "blocks of 6 tokens, the first 5 of each" in long["perplexity"].signature


def test_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthwise.tasks.likelihood.COUNTED_AT_ONCE", 7)
    names = ("word_perplexity", "perplexity", "bits_per_character", "unigram_perplexity")
    task = task_of(tmp_path, tokenizer={"kind": "char"}, evaluation={"metrics": names}, data={"max_tokens": 16})
    network = model_of(task)
    examples = list(task.corpus("test").examples(LineReport()))
    totals, num_items = validate(task, network, task.examples("test"), batch_tokens=64)
    scores = task.likelihood_scores(totals, num_items, examples)
    num_characters, num_words = len("the dog sat on the mat") + 1 + 1 + len("a bird ran") + 1, 7 + 1 + 4
    assert num_items == num_characters
    nll = totals["nll"]
    assert scores["perplexity"].value == pytest.approx(math.exp(nll / num_characters))
    assert scores["word_perplexity"].value == pytest.approx(math.exp(nll / num_words))
    assert scores["bits_per_character"].value == pytest.approx(nll / num_characters / math.log(2))
    assert f"words:{num_words}" in scores["word_perplexity"].signature
    train = "".join(f"{line}\n" for line in LINES)
    size = len(task.tokenizers.source)
    logs = [  # letters that training never saw are the unknown token, which training never saw either
        math.log((train.count(letter) + 1) / (len(train) + size)) for letter in "the dog sat on the mat\n\na bird ran\n"
    ]
    assert scores["unigram_perplexity"].value == pytest.approx(math.exp(-sum(logs) / num_characters))
    assert task.is_better("word_perplexity", 1.0, 2.0)
    assert task.validation_metrics(totals, num_items)["perplexity"] == pytest.approx(scores["perplexity"].value)


@pytest.mark.parametrize("num_beams", [1, 2])
def test_prompts_are_continued(tmp_path: Path, num_beams: int) -> None:
    task = task_of(tmp_path, generation={"num_beams": num_beams})
    network = model_of(task)
    rows = task.rows([("the cat",), ("a",)])
    assert [row.texts[0][0] for row in rows] == [2, 2]
    both = task.predict(network, task.collate(rows))
    for row, prompt, found in zip(rows, ("the cat", "a"), both, strict=True):
        (alone,) = task.predict(network, task.collate([row]))
        assert alone == found
        assert found.text.startswith(prompt)
        assert 1 <= len(found.depths) <= 3
        assert set(found.depths) == {2}
    if num_beams == 1:
        ids = rows[0].texts[0].tolist()
        for _ in range(3):
            best = int(network(torch.tensor([ids])).logits[0, -1].argmax())
            if best == 2:
                break
            ids.append(best)
        assert both[0].text == task.tokenizers.source.decode(ids, skip_special_tokens=True)


def test_the_end_of_a_long_prompt_is_kept(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    words = " ".join(["a", "dog"] * 20 + ["ran"])
    (row,) = task.rows([(words,)])
    names = task.tokenizers.source.convert_ids_to_tokens(row.texts[0].tolist())
    assert names == ["</s>", *(["dog", *["a", "dog"] * 5, "ran"])]  # 16 positions, three of them for what follows
    assert len(task.predict(model_of(task), task.collate([row]))) == 1
    assert len(task.cut(row, 4).texts[0]) == 4


def test_smoothing(tmp_path: Path) -> None:
    task = task_of(tmp_path, training={"label_smoothing": 0.1})
    network = model_of(task)
    plain = replace(task.recipe, training=replace(task.recipe.training, label_smoothing=0.0))
    batch = task.collate([task.examples("train")[0]])
    smoothed, exact = task.losses(network, batch, 5), LanguageModeling(plain, task.tokenizers).losses(network, batch, 5)
    assert float(smoothed.totals["nll"]) == pytest.approx(float(exact.totals["nll"]))
    assert float(smoothed.loss.detach()) != pytest.approx(float(exact.loss.detach()))


def test_what_does_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="6 is not between 1 and block - 1 = 5"):
        task_of(tmp_path, evaluation={"context": 6})
    with pytest.raises(ConfigError, match=r"label_smoothing +does not go with model\.adaptive"):
        task_of(tmp_path, training={"label_smoothing": 0.1}, model=MODELS[1])
    with pytest.raises(ConfigError, match='"bleu" is none of perplexity'):
        task_of(tmp_path, evaluation={"metrics": ["bleu"]})
    task = task_of(tmp_path)
    for ask in (
        lambda: task.score(["a"], []),
        lambda: task.compare([], [], []),
        lambda: task.compared_by,
        task.check_predictable,
    ):
        with pytest.raises(InputError, match="language_modeling is scored by likelihood and has no predictions"):
            ask()


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    (tmp_path / "train.txt").write_bytes(b"good\nb\xffd\n")
    with pytest.raises(DataError, match=r"train\.txt:2: byte 2 of the line is not UTF-8"):
        task.examples("train")


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(tmp_path)
    assert task.tokens_at_once == 8192
    monkeypatch.setattr("depthwise.tasks.base.SCORES_AT_ONCE", 10 * task.options.vocab_size)
    assert task.tokens_at_once == 10


def test_sizes(tmp_path: Path) -> None:
    task = task_of(tmp_path, model={"width": 16})
    recipe = replace(task.recipe, model={"size": "tiny", "adaptive": {"cutoffs": [6]}})
    sized = open_task(recipe, tmp_path / "other")
    assert sized.options.encoder is None
    assert sized.options.decoder is not None
    assert sized.options.adaptive is not None


def test_a_tokenizer_that_knows_every_word_has_no_unknown_ones(tmp_path: Path) -> None:
    """One has no token for what is unknown, the other has its end of sequence for that."""
    letters = ["</s>", "<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    for number, more in enumerate(({}, {"unk_token": "</s>"})):
        backend = Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        folder = tmp_path / f"tokenizer{number}"
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="<pad>", **more)
        tokenizer.save_pretrained(folder)
        task = task_of(tmp_path, tokenizer={"path": str(folder)})
        rows = task.examples("test")
        batch = task.collate([rows[place] for place in range(len(rows))])
        assert float(task.losses(model_of(task), batch, 1).totals["unknown"]) == 0


@pytest.mark.parametrize("num_beams", [1, 2])
def test_what_repeats_nothing_may_end(tmp_path: Path, num_beams: int) -> None:
    """The end of sequence stands before every prompt, and yet is none of the tokens that were said already."""
    task = task_of(tmp_path, generation={"num_beams": num_beams, "no_repeat_ngram": 1})
    network = model_of(task)
    scores = torch.zeros(task.options.vocab_size, dtype=torch.float64)
    scores[task.start_id], scores[task.tokenizers.source.convert_tokens_to_ids("cat")] = 3.0, 4.0
    network.head.forward = lambda hidden: scores.expand(*hidden.shape[:-1], -1).clone()
    found = task.predict(network, task.collate(task.rows([("the cat",), ("a dog ran",)])))
    assert [prediction.text for prediction in found] == ["the cat", "a dog ran cat"]
