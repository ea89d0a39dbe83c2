"""Depths of words before anything is trained, and of two runs on the same words.

``faster.py depths`` prints the first, ``faster.py compare`` the second: mutual information against reconstruction, say.
``faster.py amortised`` sets what stands in for reconstruction beside it.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from depthwise.config import read_recipe
from depthwise.evaluation import open_run, read_evaluation
from depthwise.evaluation.evaluating import read_examples
from depthwise.tasks import open_task

SHOWN = 3
"""Texts that are shown word by word."""


def compared(first: str, second: str, most: int) -> Iterator[str]:
    """How many words have each pair of depths, how alike both orders are, and some texts with both."""
    tasks: list[Any] = [open_run(name) for name in (first, second)]
    examples = read_examples(tasks[0], "test")[:most]
    texts = [tasks[0].inputs_of(example) for example in examples]
    words = [[task.words_with_depths(text) for text in texts] for task in tasks]
    depths = np.array([[depth for of_text in of_task for _, depth in of_text] for of_task in words])
    deepest = int(depths.max())
    yield f"{depths.shape[1]:,} words of {len(texts):,} texts: {first} across, {second} down"
    yield f"| | {' | '.join(map(str, range(1, deepest + 1)))} | mean |"
    yield f"| {' | '.join(['---'] * (deepest + 2))} |"
    for below in range(1, deepest + 1):
        here = depths[0][depths[1] == below]
        counts = np.bincount(here, minlength=deepest + 1)[1:]
        mean = f"{here.mean():.2f}" if len(here) else "–"
        yield f"| {below} | {' | '.join(map(str, counts))} | {mean} |"
    yield f"mean depths {depths[0].mean():.2f} and {depths[1].mean():.2f}, rank correlation {_ranks_alike(depths):.3f}"
    for number in range(min(SHOWN, len(texts))):
        pairs = zip(words[0][number], words[1][number], strict=True)
        yield " ".join(f"{word}:{one}/{other}" for (word, one), (_, other) in pairs)


def amortised(exact: str, others: Sequence[str], most: int) -> Iterator[str]:
    """Depths of test words by other runs beside exact ones, what finding them takes, and what each run scores.

    Texts come one by one, and nothing is taken from a cache, so that each is timed as if it were never seen. The last
    row is that of the depth that most words have, for all of them.
    """
    yield "| run | depths by | score | mean depth | agreement (%) | mean absolute error | finding them (ms per text) |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    texts: list[Any] = []
    wanted = np.empty(0)
    for name in (exact, *others):
        with tempfile.TemporaryDirectory() as cache:
            task: Any = open_run(name, [f"data.cache={cache}"])
            if not texts:
                texts = [task.inputs_of(example) for example in read_examples(task, "test")[:most]]
            task.words_with_depths(texts[0])  # what is loaded once is not timed
            started = time.perf_counter()
            pairs = [pair for text in texts for pair in task.words_with_depths(text)]
            milliseconds = 1000 * (time.perf_counter() - started) / len(texts)
        depths = np.array([depth for _, depth in pairs])
        wanted = depths if name == exact else wanted
        cells = (task.word_options.estimator, _score(Path(name)), *_beside(depths, wanted), f"{milliseconds:.2f}")
        yield f"| {name} | {' | '.join(cells)} |"
    commonest = np.full_like(wanted, np.bincount(wanted).argmax())
    yield f"| – | one for all | – | {' | '.join(_beside(commonest, wanted))} | 0.00 |"


def _beside(depths: np.ndarray, wanted: np.ndarray) -> tuple[str, str, str]:
    """Mean depth, agreement and mean absolute error."""
    return f"{depths.mean():.2f}", f"{100 * (depths == wanted).mean():.1f}", f"{np.abs(depths - wanted).mean():.3f}"


def _score(folder: Path) -> str:
    """That of the test data, where the run was evaluated on it."""
    path = folder / "results" / "test.json"
    value = read_evaluation(path).value if path.exists() else None
    return "–" if value is None else f"{value:.2f}"


def tabled(recipes: Sequence[str], estimators: Sequence[str], most: int, changes: Sequence[str]) -> Iterator[str]:
    """Mean depth of tokens of test texts, and the mean of the deepest of each text (n_max), by tables of words."""
    yield "| recipe | estimator | mean depth | n_max | words never seen | share of tokens with each depth (%) |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for recipe in recipes:
        for estimator in estimators:
            asked = read_recipe(recipe, [f"model.word_depths.estimator={estimator}", *changes])
            with tempfile.TemporaryDirectory() as folder:
                task: Any = open_task(asked, Path(folder, "run"))
                store = task.store("test")
            rows = [store[number] for number in range(min(most, len(store)))]
            depths = task.collate(rows)["depths"]
            counts = np.bincount(depths[depths > 0].numpy(), minlength=task.options.encoder.num_layers + 1)[1:]
            mean = (counts * np.arange(1, len(counts) + 1)).sum() / counts.sum()
            shares = " ".join(f"{share:.1f}" for share in 100 * counts / counts.sum())
            deepest = depths.amax(1).double().mean().item()
            yield f"| {recipe} | {estimator} | {mean:.2f} | {deepest:.2f} | {task.word_table.unseen_depth} | {shares} |"


def _ranks_alike(depths: np.ndarray) -> float:
    """Spearman's: the correlation of ranks, equal depths sharing theirs."""
    ranks = []
    for of_run in depths:
        counts = np.bincount(of_run)
        middle = np.cumsum(counts) - (counts - 1) / 2
        ranks.append(middle[of_run])
    spread = [ranks_of.std() for ranks_of in ranks]
    return float(np.corrcoef(*ranks)[0, 1]) if all(spread) else float("nan")
