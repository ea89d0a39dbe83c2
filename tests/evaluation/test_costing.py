"""FLOPs of sequences, by the table of the module (multiply-add = 2)."""

from typing import Any

import pytest

from depthwise.config import (
    ConfidenceConfig,
    FixedDepthConfig,
    LearnedConfidenceConfig,
    ModelConfig,
    PatienceConfig,
    PoissonBinomialConfig,
    PolicyConfig,
    SequenceExitConfig,
    StackConfig,
    TokenExitConfig,
    UniformExitConfig,
)
from depthwise.config.model import ExitsConfig
from depthwise.evaluation.costing import SequenceCosts
from depthwise.models.causal_lm import DepthwiseForCausalLM
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.cost import ModelCost
from depthwise.models.question_answering import DepthwiseForQuestionAnswering
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.models.sequence_classification import DepthwiseForSequenceClassification
from depthwise.models.token_classification import DepthwiseForTokenClassification

WIDTH, TYPES, LAYERS, SOURCE = 8, 40, 4, 7
STACK = StackConfig(num_layers=LAYERS, num_heads=2, ffn_width=16)
HEAD = 2 * WIDTH * TYPES
NEVER = ConfidenceConfig(threshold=(2.0,))


def costs(
    model_class: Any, policy: PolicyConfig | None, *sides: str, exits: tuple[int, ...] | None = None
) -> SequenceCosts:
    options = ModelConfig(vocab_size=TYPES, width=WIDTH, exits=ExitsConfig(depths=exits), **dict.fromkeys(sides, STACK))
    config = DepthwiseConfig.from_options(options, pad_token_id=1, eos_token_id=2, num_labels=3)
    return SequenceCosts(model_class(config), policy)


def translator(policy: PolicyConfig | None, exits: tuple[int, ...] | None = None) -> SequenceCosts:
    return costs(DepthwiseForSeq2SeqLM, policy, "encoder", "decoder", exits=exits)


def plain(depths: tuple[int, ...], num_layers: int | None = None) -> int:
    """Without what deciding costs."""
    return ModelCost(translator(None).cost.options).decode(depths, SOURCE, num_layers).flops


@pytest.mark.parametrize(
    ("policy", "more"),
    [
        (NEVER, 0),
        (TokenExitConfig(), 3 * 2 * WIDTH * LAYERS),
        (PoissonBinomialConfig(), 2 * WIDTH * (1 + 3 + 3)),
        (LearnedConfidenceConfig(), 2 * WIDTH * (1 + 3 + 3)),
        (ConfidenceConfig(threshold=(0.5,)), HEAD * (0 + 2 + 3)),
        (ConfidenceConfig(threshold=(2.0, 0.5, 0.5)), HEAD * (0 + 1 + 2)),
        (ConfidenceConfig(threshold=(0.5,), measure="saturation"), 6 * WIDTH * (0 + 2 + 2)),
        (PatienceConfig(patience=1), HEAD * (0 + 2 + 3)),
        (UniformExitConfig(), 0),
    ],
)
def test_deciding(policy: PolicyConfig, more: int) -> None:
    """One token leaves at each of the depths 1, 3 and 4."""
    assert translator(policy).generated((1, 3, 4), SOURCE) == plain((1, 3, 4)) + more


def test_blocks_that_nobody_runs() -> None:
    """Nothing is written for them, also not of the source; for those that somebody runs, all tokens are."""
    two, three, all_four = plain((2, 1, 2), 2), plain((2, 1, 3), 3), plain((2, 1, 2))
    assert all_four - two == 2 * (3 * 4 * WIDTH**2 + 4 * SOURCE * WIDTH**2)
    for policy in (None, FixedDepthConfig(depth=2)):
        assert translator(policy).generated((2, 2, 2), SOURCE) == plain((2, 2, 2), 2)
    assert translator(SequenceExitConfig()).generated((2, 2, 2), SOURCE) == plain((2, 2, 2), 2) + 2 * WIDTH * LAYERS
    assert translator(NEVER).generated((2, 1, 2), SOURCE) == two
    assert translator(NEVER).generated((2, 1, 3), SOURCE) == three
    learned = translator(LearnedConfidenceConfig())
    assert learned.generated((2, 1, 3), SOURCE) == three + 2 * WIDTH * (2 + 1 + 3)


def test_some_exits() -> None:
    found = translator(PatienceConfig(patience=1), exits=(2, 3)).generated((2, 3, 4), SOURCE)
    assert found == plain((2, 3, 4)) + HEAD * (0 + 1 + 2)


def test_full_depth_is_what_the_model_costs() -> None:
    for policy in (None, FixedDepthConfig(depth=LAYERS), NEVER):
        assert translator(policy).generated((4,) * 5, SOURCE) == plain((4,) * 5)
        text = costs(DepthwiseForCausalLM, policy, "decoder")
        assert text.read((4,) * 5) == text.cost.forward(5).flops


def test_nothing_costs_nothing() -> None:
    assert costs(DepthwiseForTokenClassification, PatienceConfig(patience=1), "encoder").read(()) == 0


def test_tokens_that_read_pay_for_themselves() -> None:
    tags = costs(DepthwiseForTokenClassification, PatienceConfig(patience=1), "encoder")
    assert tags.read((1, 3)) == tags.stack.plan((1, 3)).flops + 2 * WIDTH * 3 * (1 + 3)


def test_rows_that_leave_together_decide_once() -> None:
    """A classifier scores its summary, of twice the width; pointers score every position."""
    classes = costs(DepthwiseForSequenceClassification, PatienceConfig(patience=1), "encoder")
    assert classes.scores((3, 3, 3, 3, 3)) == 3 * 2 * (2 * WIDTH) * 3
    learned = costs(DepthwiseForSequenceClassification, PoissonBinomialConfig(), "encoder")
    assert learned.scores((3, 3, 3, 3, 3)) == 2 * (2 * WIDTH) * 3 + 3 * 2 * (2 * WIDTH)
    pointers = costs(DepthwiseForQuestionAnswering, PatienceConfig(patience=1), "encoder")
    assert pointers.scores((3, 3, 3, 3, 3)) == 3 * 5 * 2 * WIDTH * 2
