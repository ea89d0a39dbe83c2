"""Running a task at a setting: loading runs, predicting, timing, scores, comparisons and the choice of a search."""

from depthwise.evaluation.comparing import Contest, Seeds, contest, opponent, over_runs
from depthwise.evaluation.evaluating import (
    aligned,
    evaluate_run,
    evaluation_of,
    mean_depth,
    read_examples,
    score_predictions,
)
from depthwise.evaluation.predicting import predict_all, predict_rows, score_rows
from depthwise.evaluation.results import (
    Evaluation,
    read_evaluation,
    read_predictions,
    replace_file,
    strict_json,
    write_evaluation,
)
from depthwise.evaluation.runs import Run, load_model, load_run, open_run, pick_device
from depthwise.evaluation.streaming import Line, Reply, predict_lines, read_chunks, score_lines
from depthwise.evaluation.timing import Timing, hardware, timed

__all__ = [
    "Contest",
    "Evaluation",
    "Line",
    "Reply",
    "Run",
    "Seeds",
    "Timing",
    "aligned",
    "contest",
    "evaluate_run",
    "evaluation_of",
    "hardware",
    "load_model",
    "load_run",
    "mean_depth",
    "open_run",
    "opponent",
    "over_runs",
    "pick_device",
    "predict_all",
    "predict_lines",
    "predict_rows",
    "read_chunks",
    "read_evaluation",
    "read_examples",
    "read_predictions",
    "replace_file",
    "score_lines",
    "score_predictions",
    "score_rows",
    "strict_json",
    "timed",
    "write_evaluation",
]
