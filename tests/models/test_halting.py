"""The halting unit of texts that are classified: every token guesses at the first exit how deep it will run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from depthwise.engine import Engine
from depthwise.errors import ConfigError
from depthwise.models.executing import executed_by
from depthwise.models.objective import ExitObjective

Model = Callable[..., Any]
Batch = Callable[..., dict[str, Tensor]]
LAYERS = 4
HALTING = {"kind": "token", "never_correct": "last", "each_token": True}


@pytest.fixture
def model(build: Model) -> Any:
    torch.manual_seed(3)
    found = build(
        "sequence_classification", "attention", "post", stack={"num_layers": LAYERS}, exits={}, policy=HALTING
    )
    found.trained_policy.classifier.weight.data *= 20
    return found


def test_tokens_leave_each_by_itself(model: Any, draw_batch: Batch) -> None:
    batch = draw_batch("sequence_classification")
    model.use_policy(model.trained_policy)
    output = model(**batch)
    first = model(**{name: batch[name] for name in ("input_ids", "attention_mask")}, output_hidden_states=True)
    guessed = model.trained_policy.classifier(first.hidden_by_depth[1]).argmax(-1) + 1
    assert torch.equal(output.depths, guessed * batch["attention_mask"])
    assert len(set(output.depths[0].tolist())) > 1
    packed = Engine(model)(**batch)
    assert torch.equal(packed.depths, output.depths)
    torch.testing.assert_close(packed.logits, output.logits)
    compact = Engine(model).executor.compact
    with executed_by(compact), torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, output.logits)
    assert compact.token_layers == int(output.depths.sum())


def test_all_tokens_learn_the_depth_of_their_text(model: Any, draw_batch: Batch) -> None:
    batch, weights = draw_batch("sequence_classification"), (1.0,) * LAYERS
    model.train()
    objective = ExitObjective(weights=weights)
    output = model(**batch, objective=objective, num_items_in_batch=3)
    alone = model(**batch, objective=ExitObjective(weights=weights, policy_weight=0.0), num_items_in_batch=3)
    states = model.eval()(**batch, output_hidden_states=True).hidden_by_depth
    valid = batch["attention_mask"].bool()
    right = torch.stack(
        [
            model.scores_at(depth, states[depth], valid)[:, 0].argmax(-1) == batch["labels"]
            for depth in range(1, LAYERS + 1)
        ]
    )
    first_right = torch.where(right.any(0), right.int().argmax(0), LAYERS - 1)
    nll = F.cross_entropy(
        model.trained_policy.classifier(states[1])[valid], first_right.repeat_interleave(valid.sum(1)), reduction="mean"
    )
    torch.testing.assert_close(output.loss - alone.loss, nll)


def test_answers_have_no_such_unit(build: Model) -> None:
    with pytest.raises(ConfigError, match="is for text classification; remove it"):
        build("question_answering", stack={"num_layers": LAYERS}, exits={}, policy=HALTING)
