"""What an evaluation found, as a value and as files of its run.

    RUN/results/<split>.json               the numbers, and what they are numbers of
    RUN/results/<split>.predictions.txt    one prediction on each line, where predictions were scored

Those at another depth than the full one have names of their own, such as ``test-depth-2`` and ``test-confidence-0.9``.
Digests of the examples and of the weights stand beside the numbers, so that predictions are never taken for those of
other data or of another model.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from depthwise.config import parse_policy
from depthwise.data import Example
from depthwise.errors import CheckpointError, DataError
from depthwise.evaluation.policies import in_file_names

RESULTS = "results"
DIGEST = "predictions_digest"
_LINE_BREAKS = re.compile(r"[\n\r\t\v\f\x1c\x1d\x1e\x85\u2028\u2029]")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How good a model is on a split, how deep it ran for that, and what it cost.

    ``mean_depth`` is over the tokens that were generated, or over those of the input where none are or where
    ``depth_of`` says so; what was not measured is none. ``settings`` are what predictions depend on beside weights and
    examples.
    """

    task: str
    split: str
    metric: str
    """Name of the metric that is quoted."""
    metrics: dict[str, float | None]
    """None where the value is not finite."""
    signatures: dict[str, str]
    """How each metric was computed."""
    examples: int
    mean_depth: float | None = None
    depth_of: str | None = None
    """``encoder`` where depth and token-layers are those of sources, which a model with a structure decides on."""
    token_layers: int | None = None
    """Blocks that all these tokens ran together, and drafts that were rejected with them."""
    flops: int | None = None
    """Operations that they took, deciding on their depth included (``costing``); none where some were drafted."""
    acceptance_rate: float | None = None
    """With lossless decoding, tokens that were kept among those drafted."""
    seconds: float
    examples_per_second: float | None = None
    tokens_per_second: float | None = None
    peak_memory_bytes: int | None = None
    hardware: str
    seed: int
    scored_by: str = "predictions"
    """Whether ``predictions`` were scored or the ``likelihood`` of the text; then there are no predictions."""
    settings: dict[str, Any] = field(default_factory=dict)
    examples_digest: str
    weights_digest: str | None = None
    predictions: tuple[str, ...] = field(default=(), repr=False)

    def as_dict(self) -> dict[str, Any]:
        """As plain data for a JSON file, without the predictions."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "predictions"}

    @property
    def value(self) -> float | None:
        """The metric that is quoted."""
        return self.metrics[self.metric]


def result_path(folder: Path, name: str) -> Path:
    """Where the numbers of an evaluation stand in a run."""
    return folder / RESULTS / f"{name}.json"


def result_name(split: str, settings: Mapping[str, Any]) -> str:
    """What results are called unless somebody says otherwise: by their split, their gates where they were chosen,
    and their depth where it is not full. Those of lossless decoding, whose depth is full, say so.
    """
    policy, depth, lossless = settings.get("policy"), settings.get("depth"), settings.get("lossless")
    if lossless is not None:
        return f"{split}-lossless-{lossless['depth']}"
    if policy is not None:
        return f"{split}-{in_file_names(parse_policy(policy))}"
    if settings.get("gates") is not None:
        split = f"{split}-{settings['gates']}"
    return split if depth is None else f"{split}-depth-{depth}"


def write_evaluation(folder: Path, evaluation: Evaluation, name: str | None = None) -> Path:
    """Write both files into a run, under the name of the split and depth or another one.

    The numbers come last, so that where they stand their predictions do too.
    """
    path = result_path(folder, name or result_name(evaluation.split, evaluation.settings))
    lines = "".join(f"{one_line(text)}\n" for text in evaluation.predictions)
    if evaluation.scored_by == "predictions":
        replace_file(path.with_name(f"{path.stem}.predictions.txt"), lines)
    content = {**evaluation.as_dict(), DIGEST: text_digest(lines)}
    replace_file(path, strict_json(content) + "\n")
    return path


def read_evaluation(path: Path) -> Evaluation | None:
    """What ``write_evaluation`` wrote, or nothing where there is nothing, something else, or half of it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        known = {item.name for item in fields(Evaluation)}
        text = ""
        if content.get("scored_by", "predictions") == "predictions":
            text = path.with_name(f"{path.stem}.predictions.txt").read_text(encoding="utf-8")
        predictions = tuple(text.split("\n")[:-1])
        found = Evaluation(**{name: value for name, value in content.items() if name in known}, predictions=predictions)
        is_whole = content[DIGEST] == text_digest(text) and found.metric in found.metrics
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None
    return found if is_whole else None


def read_predictions(path: Path) -> list[str]:
    """One prediction on each line; a line may be empty."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; give a file with one prediction on each line") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; give a file of predictions") from None
    if lines[-1] == b"":
        lines.pop()
    texts = []
    for number, line in enumerate(lines, start=1):
        try:
            texts.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{number}: byte {error.start + 1} of the line is not UTF-8; mend it") from None
    return texts


def one_line(text: str) -> str:
    """A text with blanks in the place of line breaks and tabs."""
    return _LINE_BREAKS.sub(" ", text)


def examples_digest(examples: Sequence[Example]) -> str:
    """Tells whether two evaluations are of the same inputs and references, in the same order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(json.dumps([example.texts, example.label]).encode())
    return digest.hexdigest()


def weights_digest(folder: Path) -> str | None:
    """Tells whether two evaluations are of the same weights; none where the folder has none."""
    digest, paths = hashlib.sha256(), sorted(folder.glob("*.safetensors"))
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest() if paths else None


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def finite(value: float) -> float | None:
    """JSON has no word for infinity."""
    return value if math.isfinite(value) else None


def strict_json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2)


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file so that it holds either what it held before or all of the content, whatever interrupts it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}; what it held before is unchanged") from None
