"""Which policy a run follows, and what is said where it cannot."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from depthwise.config import (
    POLICIES,
    ConfidenceConfig,
    FixedDepthConfig,
    LearnedConfidenceConfig,
    PatienceConfig,
    PoissonBinomialConfig,
    PolicyConfig,
    SequenceExitConfig,
    StructureExitConfig,
    TokenExitConfig,
    UniformExitConfig,
)
from depthwise.depth import Policy, build_policy
from depthwise.errors import ConfigError, DepthwiseError, InputError
from depthwise.evaluation import Run, chosen_policy, in_words, load_run, own_policy, parted, predict_all, setting_of
from depthwise.evaluation.policies import UNTRAINED, in_file_names
from depthwise.evaluation.runs import by_policy

MakeRun = Callable[..., Path]
EVERY = {
    "fixed": FixedDepthConfig(depth=2),
    "sequence": SequenceExitConfig(),
    "token": TokenExitConfig(),
    "poisson_binomial": PoissonBinomialConfig(),
    "confidence": ConfidenceConfig(threshold=(0.5,)),
    "patience": PatienceConfig(patience=1),
    "learned_confidence": LearnedConfidenceConfig(),
    "structure": StructureExitConfig(),
    "uniform": UniformExitConfig(),
}
TEXTS = [("a b c",), ("b",), ("c c a b a",)]


def trained(run: Run, options: PolicyConfig) -> Policy:
    """Leave a policy in the model as training does."""
    sizes = run.model.config.options
    width = 2 * sizes.width if run.task.kind == "text_classification" else sizes.width
    policy = build_policy(options, width=width, exits=sizes.exit_depths)
    run.model.trained_policy = policy
    return policy


@pytest.fixture
def run(make_run: MakeRun) -> Run:
    return load_run(make_run("leaving translation"), ["generation.num_beams=1"], device="cpu")


def test_untrained_policies_are_those_without_weights() -> None:
    assert EVERY.keys() == POLICIES.keys()
    for options in EVERY.values():
        policy = build_policy(options, width=4, exits=(1, 2, 3))
        has_weights = not isinstance(options, (*UNTRAINED, StructureExitConfig))  # whose weights are the encoder's
        assert policy.needs_training == has_weights == bool(list(policy.parameters()))


def test_changes_are_parted() -> None:
    changes = ["policy.threshold=1", "data.test=policy.tsv", "policy.kind=token", "policyx.a=1"]
    assert parted(changes) == (["data.test=policy.tsv", "policyx.a=1"], ["policy.threshold=1", "policy.kind=token"])


def test_the_own_policy(run: Run) -> None:
    """What was trained counts, then what the configuration names, if it needs no training."""
    assert own_policy(run.model) is None
    run.model.config.policy = {"kind": "patience", "patience": 2}
    assert own_policy(run.model) == PatienceConfig(patience=2)
    assert chosen_policy(run.model, "RUN") == PatienceConfig(patience=2)
    run.model.config.policy = {"kind": "token"}
    assert own_policy(run.model) is None
    trained(run, PoissonBinomialConfig(penalty=0.1))
    assert own_policy(run.model) == PoissonBinomialConfig(penalty=0.1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], PoissonBinomialConfig(penalty=0.1)),
        (["policy.threshold=0.8"], PoissonBinomialConfig(penalty=0.1, threshold=0.8)),
        (
            ["policy.decision=quantile", "policy.threshold=5e-1", "policy.kind=poisson_binomial"],
            PoissonBinomialConfig(penalty=0.1, decision="quantile"),
        ),
        (["policy.threshold=0.9", "policy.kind=confidence"], ConfidenceConfig(threshold=(0.9,))),
        (["policy.kind=confidence", "policy.threshold=[0.9,0.8,2]"], ConfidenceConfig(threshold=(0.9, 0.8, 2))),
        (["policy.kind=patience", "policy.patience=2"], PatienceConfig(patience=2)),
        (["policy.kind=fixed", "policy.depth=3"], FixedDepthConfig(depth=3)),
        (["policy.kind=uniform", "policy.seed=7"], UniformExitConfig(seed=7)),
    ],
)
def test_changes(run: Run, changes: list[str], expected: PolicyConfig) -> None:
    trained(run, PoissonBinomialConfig(penalty=0.1))
    assert chosen_policy(run.model, "RUN", changes) == expected


def test_a_learned_policy_keeps_its_weights(run: Run) -> None:
    """Its weights decide, under the options of now, and those that it was trained with are not changed."""
    policy = trained(run, PoissonBinomialConfig())
    with torch.no_grad():
        for classifier, bias in zip(policy.classifiers, (-1.0, 0.0, 1.0), strict=True):  # type: ignore[arg-type]
            classifier.weight.zero_()
            classifier.bias.fill_(bias)

    def depths(*changes: str) -> set[int]:
        changed = by_policy(run, chosen_policy(run.model, "RUN", changes))
        return {depth for prediction in predict_all(changed, TEXTS) for depth in prediction.depths}

    assert depths() == {3}  # chances of 0.27, 0.5 and 0.73
    assert depths("policy.threshold=0.2") == {1}
    assert depths("policy.threshold=0.45") == {2}
    assert depths("policy.threshold=0.8") == {4}
    assert depths("policy.threshold=0.8", "policy.decision=quantile") == {3}
    assert policy.options == PoissonBinomialConfig()


@pytest.mark.parametrize(
    ("own", "changes", "message"),
    [
        (None, [], "RUN was trained with no policy; choose one that needs no training, such as policy.kind=confidence"),
        (None, ["policy.threshold=0.9"], "RUN was trained with no policy"),
        (
            None,
            ["policy.kind=token"],
            "RUN was not trained for the policy token: it has no policy of its own, and takes",
        ),
        (
            TokenExitConfig(),
            ["policy.kind=learned_confidence", "policy.threshold=7"],
            "RUN was not trained for the policy learned_confidence: it has the policy token, and takes those that "
            "need no training, such as policy.kind=confidence policy.threshold=0.9 or policy.kind=patience "
            "policy.patience=2",
        ),
        (None, ["policy.kind=confidense"], 'policy.kind  "confidense" is none of fixed, sequence, token'),
        (None, ["policy.kind.x=1"], "policy.kind  expected"),
        (
            None,
            ["policy.kind=confidence", "policy.threshold=3"],
            "policy.threshold  3 is out of range of max_probability",
        ),
        (None, ["policy.kind=confidence"], "policy.threshold  required but missing; give one number for all exits"),
        (
            None,
            ["policy.kind=confidence", "policy.threshold=[0.5,0.6]"],
            "policy.threshold  2 thresholds for the 3 exits below the last; give one number for all or exactly 3",
        ),
        (
            None,
            ["policy.kind=fixed", "policy.depth=9"],
            "policy.depth  there is no exit at depth 9; choose among 1, 2, 3, 4",
        ),
        (None, ["policy.kind=patience", "policy.patience=0"], "policy.patience  0 is too small"),
        (None, ["policy.kind=uniform", "policy.seed=1.5"], "policy.seed  expected a whole number, got 1.5"),
        (None, ["policy.kind=uniform", "policy.depth=2"], "policy.depth  unknown option; choose from seed"),
        (
            PoissonBinomialConfig(),
            ["policy.threshold=1.5"],
            "policy.threshold  1.5 is out of range; give a number from 0",
        ),
        (
            PoissonBinomialConfig(),
            ["policy.penalty=0.5"],
            "policy.penalty  is fixed once a policy is trained; changes are to decision, threshold",
        ),
        (
            TokenExitConfig(),
            ["policy.smoothing=1"],
            "policy.smoothing  is fixed once a policy is trained; token decides by",
        ),
        (PoissonBinomialConfig(), ["policy.treshold=0.5"], "policy.treshold  unknown option; did you mean threshold?"),
    ],
)
def test_policies_that_cannot_be(run: Run, own: PolicyConfig | None, changes: list[str], message: str) -> None:
    if own is not None:
        trained(run, own)
    with pytest.raises(DepthwiseError) as raised:
        chosen_policy(run.model, "RUN", changes)
    assert message in str(raised.value)
    if isinstance(raised.value, ConfigError):
        assert str(raised.value).startswith("command line: 1 problem\n")


def test_a_policy_is_no_single_value(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"policy  write its options one by one, such as policy.threshold=0.9"):
        chosen_policy(run.model, "RUN", ["policy=confidence"])


def test_a_model_without_exits(make_run: MakeRun) -> None:
    message = r"has no exits to leave at; train a run with model.exits, or use --depth full"
    with pytest.raises(InputError, match=message):
        load_run(make_run("classes"), device="cpu", depth="policy", policy_changes=["policy.kind=token"])


def test_a_policy_without_a_say(make_run: MakeRun) -> None:
    for depth in (None, 2):
        with pytest.raises(InputError, match=r"policy.kind has no effect where no policy decides; add --depth policy"):
            load_run(make_run("leaving classes", name=f"a{depth}"), depth=depth, policy_changes=["policy.kind=token"])


def test_a_depth_is_an_exit(make_run: MakeRun) -> None:
    run = load_run(make_run("leaving classes"), device="cpu", depth=2)
    assert (run.depth, run.policy) == (2, FixedDepthConfig(depth=2))
    assert {depth for prediction in predict_all(run, TEXTS) for depth in prediction.depths} == {2}
    with pytest.raises(InputError, match=r"leaving classes-1 has no exit at depth 5; choose among 1, 2, 3, 4$"):
        load_run(run.folder, device="cpu", depth=5)


@pytest.mark.parametrize(
    ("options", "setting", "words", "file"),
    [
        (FixedDepthConfig(depth=2), {"depth": 2}, "depth 2", "depth-2"),
        (TokenExitConfig(penalty=0.1), {}, "", "token"),
        (
            ConfidenceConfig(threshold=(0.9,)),
            {"measure": "max_probability", "threshold": 0.9},
            "measure max_probability, threshold 0.9",
            "confidence-0.9",
        ),
        (
            ConfidenceConfig(threshold=(0.9, 0.5), measure="margin", decay="code", max_length=30),
            {"measure": "margin", "threshold": [0.9, 0.5], "decay": "code", "max_length": 30},
            "measure margin, threshold 0.9 0.5, decay code, max_length 30",
            "confidence-margin-0.9-0.5-code-30",
        ),
        (PoissonBinomialConfig(beta=0.1), {"threshold": 0.5}, "threshold 0.5", "poisson_binomial-0.5"),
        (
            PoissonBinomialConfig(decision="sample"),
            {"decision": "sample"},
            "decision sample",
            "poisson_binomial-sample",
        ),
        (UniformExitConfig(), {}, "", "uniform"),
        (UniformExitConfig(seed=2), {"seed": 2}, "seed 2", "uniform-2"),
        (PatienceConfig(patience=2), {"patience": 2}, "patience 2", "patience-2"),
        (
            PatienceConfig(patience=2, tolerance=0.5),
            {"patience": 2, "tolerance": 0.5},
            "patience 2, tolerance 0.5",
            None,
        ),
    ],
)
def test_settings(options: PolicyConfig, setting: dict[str, Any], words: str, file: str | None) -> None:
    assert setting_of(options) == setting
    assert in_words(setting) == words
    assert in_file_names(options) == (file or "patience-2-0.5")


def test_names_of_files_stay_short() -> None:
    names = {in_file_names(ConfidenceConfig(threshold=(0.123456,) * 47 + (last,))) for last in (0.5, 0.6)}
    assert len(names) == 2
    assert max(map(len, names)) <= 30
