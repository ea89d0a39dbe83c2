"""How deep the tokens of some inputs of a run went, found by running it; kept as ``RUN/results/depths.json``.

    schema           1
    setting          by which tokens left, in words, and ``policy``, the same as options; none means all blocks
    asked            the same as arguments: the depth, and changes to the policy
    split, examples  which inputs, the first ones
    num_layers, exits, weights_digest
    sentences        some of them: what went in and came out, ``tokens`` with their ``depths``, and ``guesses``, what
                     every exit would have said at each token had all tokens run on (``guessing``)
    histograms       over all of them (``histograms``)
    structure        of models that say how many layers they need: expected and executed depths (``structures``)

Tokens are those of the output where one is generated (``of_output``), else those of the input.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from depthwise.config import policy_dict
from depthwise.data import Example, Row
from depthwise.data.tokenizers import BLANK
from depthwise.evaluation import Run, load_run, predict_rows, read_examples, replace_file, setting_of, strict_json
from depthwise.evaluation.predicting import run_by
from depthwise.evaluation.results import RESULTS, weights_digest
from depthwise.evaluation.validation import validate
from depthwise.report.frontiers import name_of
from depthwise.report.guessing import Guess, guesses_of
from depthwise.report.histograms import histograms
from depthwise.report.ranks import Ranks, training_ranks
from depthwise.report.structures import heard_structure, structure_content
from depthwise.tasks import LikelihoodTask, MultilingualTranslation, SequenceToSequence, Task, TextClassification
from depthwise.tasks.question_answering import QuestionRow
from depthwise.tasks.tagging import SentenceRow

SCHEMA = 1
FILE = "depths.json"
NUM_SHOWN = 24
"""Sentences that are kept token by token; the histograms are over all that were run."""
MOST_TOKENS = 400
"""Tokens of a sentence that are kept; the rest is counted, but not shown."""
END = "(end)"


@dataclass(frozen=True)
class Sample:
    """One input, what came of it, and the tokens whose depths are counted: those of the output where one is generated.

    ``row`` is as the model takes it. ``tags`` has one for every token, where the data has tags.
    """

    source: str
    reference: str | None
    output: str | None
    ids: tuple[int, ...]
    depths: tuple[int, ...]
    row: Row | None = None
    tags: tuple[str, ...] = ()


def depths_of(
    folder: Path, split: str, num_examples: int, depth: int | str | None, policy_changes: Sequence[str] = ()
) -> dict[str, Any]:
    """Run the first examples of a split at a setting (as for ``load_run``), and write what was found into the run."""
    run = load_run(folder, depth=depth, policy_changes=policy_changes)
    examples = read_examples(run.task, split)[:num_examples]
    with heard_structure(run.model) as heard:
        samples = samples_of(run, examples)
    content = {
        **content_of(run, split, samples, training_ranks(run.task)),
        "structure": structure_content(run.model, heard),
        "asked": [depth, list(policy_changes)],
    }
    replace_file(folder / RESULTS / FILE, strict_json(content) + "\n")
    return content


def samples_of(run: Run, examples: Sequence[Example]) -> list[Sample]:
    """What became of examples, in their order where every one is run by itself."""
    if isinstance(run.task, LikelihoodTask):
        return _read(run, run.task, examples)
    task = run.task
    rows = task.rows([task.inputs_of(example) for example in examples])
    found = predict_rows(task, run.engine, rows, shows_progress=False)
    samples = []
    for example, row, said in zip(examples, rows, found, strict=True):
        inputs, is_generated = task.inputs_of(example), isinstance(task, SequenceToSequence)
        ids = said.token_ids if is_generated else ids_of(task, row)
        reference = example.texts[1] if is_generated else example.label
        tags = tags_of(task, row, example, len(ids))
        samples.append(Sample(" / ".join(inputs), reference, said.text, ids, said.depths, row, tags))
    return samples


def ids_of(task: Task, row: Row) -> tuple[int, ...]:
    """The tokens of an input as the model reads them, in the order of its depths."""
    if isinstance(row, SentenceRow | QuestionRow):
        parts = row.parts if isinstance(row, SentenceRow) else row.windows
        return tuple(int(each) for part in parts for each in part.ids)
    batch = task.collate([row])
    return tuple(batch["input_ids"][batch["attention_mask"].bool()].tolist())


def tags_of(task: Task, row: Row, example: Example, num_tokens: int) -> tuple[str, ...]:
    """The right tag of the word that each piece belongs to; one for all tokens: a text's label, or its languages."""
    if isinstance(row, SentenceRow):
        tags = (example.label or "").split()
        return tuple(tags[word] if 0 <= word < len(tags) else "" for part in row.parts for word in part.words)
    if isinstance(task, TextClassification) and not task.is_regression:
        return (example.label or "",) * num_tokens
    if isinstance(task, MultilingualTranslation):
        return (task.inputs_of(example)[0],) * num_tokens
    return ()


def _read(run: Run, task: LikelihoodTask, examples: Sequence[Example]) -> list[Sample]:
    """Rows of running text as they are judged."""
    with run_by(run.engine), _listened(run.model) as heard:
        validate(task, run.model, task.judged(examples), batch_tokens=task.tokens_at_once)
    samples = []
    for ids, depths in heard:
        text = str(task.tokenizers.source.decode(list(ids), skip_special_tokens=True))
        samples.append(Sample(text, None, None, ids, depths))
    return samples


@contextmanager
def _listened(model: PreTrainedModel) -> Iterator[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Ids and depths of every row that a model is given meanwhile."""
    heard: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def keep(_: Any, __: Any, given: dict[str, Any], output: Any) -> None:
        for ids, depths in zip(given["input_ids"].tolist(), output.depths.tolist(), strict=True):
            there = [pair for pair in zip(ids, depths, strict=True) if pair[1]]
            heard.append((tuple(each for each, _ in there), tuple(depth for _, depth in there)))

    hook = model.register_forward_hook(keep, with_kwargs=True)
    try:
        yield heard
    finally:
        hook.remove()


def content_of(run: Run, split: str, samples: Sequence[Sample], ranks: Ranks | None) -> dict[str, Any]:
    """What the file holds."""
    options = run.model.config.options
    side = options.decoder or options.encoder
    assert side is not None
    if run.policy is not None:
        told = name_of({"policy": run.policy.kind, "setting": setting_of(run.policy)})
    else:
        told = "as trained, without a policy" if run.depth is None else f"depth {run.depth}"
    return {
        "schema": SCHEMA,
        "task": run.task.kind,
        "setting": told,
        "policy": None if run.policy is None else policy_dict(run.policy),
        "split": split,
        "examples": len(samples),
        "num_layers": side.num_layers,
        "exits": list(options.exit_depths) if run.model.config.exits is not None else [],
        "weights_digest": weights_digest(run.folder),
        "of_output": isinstance(run.task, SequenceToSequence),
        "sentences": [_sentence(run, sample) for sample in samples[:NUM_SHOWN]],
        "histograms": histograms([(s.ids, s.depths, s.tags) for s in samples], side.num_layers, ranks),
    }


def _sentence(run: Run, sample: Sample) -> dict[str, Any]:
    tokenizer = run.task.tokenizers.target if isinstance(run.task, SequenceToSequence) else run.task.tokenizers.source
    some = replace(sample, ids=sample.ids[:MOST_TOKENS], depths=sample.depths[:MOST_TOKENS])
    guesses = guesses_of(run, sample.row, sample.ids)
    return {
        "source": sample.source,
        "reference": sample.reference,
        "output": sample.output,
        "tokens": pieces(tokenizer, some.ids),
        "depths": list(some.depths),
        "left_out": len(sample.ids) - len(some.ids),
        "guesses": [[_guess(each) for each in of_exit[:MOST_TOKENS]] for of_exit in guesses],
    }


def _guess(guess: Guess) -> list[Any]:
    """Text and probability, in few characters."""
    return [guess.text, round(guess.probability, 3)]


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Tokens as people read them; a blank in front says that a word begins there."""
    names = tokenizer.convert_ids_to_tokens(list(ids))
    return [END if name == tokenizer.eos_token else readable(str(name)) for name in names]


def readable(name: str) -> str:
    for blank in (BLANK, "Ġ"):
        if name.startswith(blank):
            return f" {name[len(blank) :] or blank}"
    return name
