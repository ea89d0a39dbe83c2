"""Running a task at a setting: loading runs, predicting, timing, scores, comparisons and the choice of a search."""

from depthwise.evaluation.calibrated import CalibratedSetting, read_settings, setting_named, write_setting
from depthwise.evaluation.calibrating import Goal, calibrate
from depthwise.evaluation.comparing import Contest, Seeds, contest, opponent, over_runs
from depthwise.evaluation.evaluating import (
    Outcome,
    aligned,
    evaluate_run,
    evaluation_of,
    outcome_of,
    read_examples,
    score_predictions,
)
from depthwise.evaluation.frontier import Frontier, Point, policies_to_try, sweep, write_frontier
from depthwise.evaluation.policies import chosen_policy, in_words, own_policy, parted, setting_of
from depthwise.evaluation.predicting import predict_all, predict_rows, score_rows
from depthwise.evaluation.results import (
    Evaluation,
    read_evaluation,
    read_predictions,
    replace_file,
    strict_json,
    write_evaluation,
)
from depthwise.evaluation.runs import Run, by_policy, load_model, load_run, open_run, pick_device
from depthwise.evaluation.streaming import Line, Reply, predict_lines, read_chunks, score_lines
from depthwise.evaluation.temperatures import fitted_temperatures
from depthwise.evaluation.thresholds import policy_asked_for, strict_to_bold
from depthwise.evaluation.timing import Timing, hardware, timed
from depthwise.evaluation.trials import Trial, Trials

__all__ = [
    "CalibratedSetting",
    "Contest",
    "Evaluation",
    "Frontier",
    "Goal",
    "Line",
    "Outcome",
    "Point",
    "Reply",
    "Run",
    "Seeds",
    "Timing",
    "Trial",
    "Trials",
    "aligned",
    "by_policy",
    "calibrate",
    "chosen_policy",
    "contest",
    "evaluate_run",
    "evaluation_of",
    "fitted_temperatures",
    "hardware",
    "in_words",
    "load_model",
    "load_run",
    "open_run",
    "opponent",
    "outcome_of",
    "over_runs",
    "own_policy",
    "parted",
    "pick_device",
    "policies_to_try",
    "policy_asked_for",
    "predict_all",
    "predict_lines",
    "predict_rows",
    "read_chunks",
    "read_evaluation",
    "read_examples",
    "read_predictions",
    "read_settings",
    "replace_file",
    "score_lines",
    "score_predictions",
    "score_rows",
    "setting_named",
    "setting_of",
    "strict_json",
    "strict_to_bold",
    "sweep",
    "timed",
    "write_evaluation",
    "write_frontier",
    "write_setting",
]
