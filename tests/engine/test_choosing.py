"""The rule of who runs an encoder: what it chooses, and that nobody can tell from the results."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.config import FixedDepthConfig
from depthwise.depth import Plan, build_policy
from depthwise.engine import ChosenEncoder, CompactEncoder, Engine, choosing
from depthwise.engine.choosing import Constants
from depthwise.engine.recorded_walk import RecordedWalks
from depthwise.engine.recorder import Rehearsal
from depthwise.errors import InputError
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.token_classification import DepthwiseForTokenClassification

Model = Callable[..., Any]
Batch = Callable[..., dict[str, Tensor]]
KINDS = {
    "cpu": Constants(16e6),
    "cpu packed": Constants(16e6, 0.75),
    "cuda": Constants(20e9),
    "cuda half": Constants(150e9),
    "cuda recorded": Constants(0.0),
}
"""As measured, or much like it."""
LAYERS = 4


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule as it is outside of these tests."""
    monkeypatch.setattr(choosing, "KINDS", KINDS)


def stack_of(width: int) -> Any:
    """The stack of an encoder, of which only the shapes are looked at."""
    options = {"num_layers": LAYERS, "num_heads": 2, "ffn_width": 4 * width, "max_positions": None}
    with torch.device("meta"):
        model = DepthwiseForTokenClassification(DepthwiseConfig(vocab_size=9, width=width, encoder=options))
    assert model.model.encoder is not None
    return model.model.encoder.stack


def chooses_compact(width: int, shape: tuple[int, int], dtype: torch.dtype = torch.float64, **known: Any) -> bool:
    given = {"valid": None, "plan": None, "leaving": None, **known}
    return choosing.saves_time(stack_of(width), torch.empty(*shape, width, dtype=dtype), **given)


@pytest.mark.usefixtures("measured")
def test_large_savings_are_taken_and_small_ones_are_not() -> None:
    """A block of width 256 does about 1.6 million operations for a token."""
    wide, narrow = 256, 16
    first_alone = Plan.of_depths(torch.ones(16, 64, dtype=torch.long), LAYERS)
    spread = Plan.of_depths(torch.arange(16 * 64).view(16, 64) % LAYERS + 1, LAYERS)
    most = Plan.of_depths(torch.full((16, 64), LAYERS), LAYERS)
    assert chooses_compact(wide, (16, 64), plan=spread)
    assert not chooses_compact(narrow, (16, 64), plan=spread)
    assert not chooses_compact(wide, (16, 64), plan=most)
    assert not chooses_compact(wide, (16, 64), plan=first_alone), "later blocks run for nobody"
    assert not chooses_compact(wide, (1, 4), plan=Plan(spread.run[:, :1, :4]))


@pytest.mark.usefixtures("measured")
def test_padding_counts_as_saved() -> None:
    half = torch.arange(64).expand(16, 64) < 32
    assert chooses_compact(256, (16, 64), valid=half)
    assert not chooses_compact(256, (16, 64), valid=torch.ones(16, 64, dtype=torch.bool))
    assert not chooses_compact(16, (16, 64), valid=half)
    all_of_half = Plan.of_depths(torch.full((16, 64), LAYERS), LAYERS)
    assert chooses_compact(256, (16, 64), valid=half, plan=all_of_half)


@pytest.mark.usefixtures("measured")
def test_a_policy_that_decides_on_the_way_is_expected_to_save_half() -> None:
    leaving: Any = object()
    assert chooses_compact(256, (16, 64), leaving=leaving)
    assert not chooses_compact(256, (1, 16), leaving=leaving)
    assert not chooses_compact(16, (16, 64), leaving=leaving)


def test_nothing_to_run_is_nothing_to_save() -> None:
    nobody = Plan(torch.zeros(LAYERS, 2, 3, dtype=torch.bool))
    assert not chooses_compact(256, (2, 3), plan=nobody)


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(
    ("device", "dtype", "kind"),
    [
        ("cpu", torch.float32, "cpu packed" if torch.backends.mkldnn.is_available() else "cpu"),
        ("cpu", torch.bfloat16, "cpu"),
        ("cuda", torch.float32, "cuda"),
        ("cuda", torch.float16, "cuda half"),
        ("mps", torch.float32, "cuda"),
    ],
)
def test_every_kind_of_device_has_its_own_constant(device: str, dtype: torch.dtype, kind: str) -> None:
    assert choosing.constants(torch.device(device), dtype) == KINDS[kind]


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recorded_blocks_have_the_same_constant_in_any_precision(dtype: torch.dtype) -> None:
    assert choosing.constants(torch.device("cuda"), dtype, is_recorded=True) == KINDS["cuda recorded"]


def test_which_blocks_are_recorded() -> None:
    """Those of a stack that recordings serve, where no plan weighs them; a policy that decides on the way has none."""
    stack, x = stack_of(16).eval(), torch.empty(2, 5, 16)
    run = torch.ones(LAYERS, 2, 5, dtype=torch.bool)
    recording = CompactEncoder(RecordedWalks(lambda _: Rehearsal(), "cpu"))
    assert recording.records(stack, x, None)
    assert recording.records(stack, x, Plan(run))
    assert not recording.records(stack, x, Plan(run, torch.ones(LAYERS, 2, 5)))
    assert not recording.records(stack.train(), x, None)
    assert not CompactEncoder().records(stack.eval(), x, None)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_what_is_recorded_is_taken_where_it_saves_anything(is_recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def constants(device: torch.device, dtype: torch.dtype, *, is_recorded: bool) -> Constants:
        asked.append(is_recorded)
        return KINDS["cuda recorded" if is_recorded else "cuda"]

    monkeypatch.setattr(choosing, "constants", constants)
    known: Any = {"is_recorded": is_recorded}
    spread = Plan.of_depths(torch.arange(8).view(1, 8) % LAYERS + 1, LAYERS)
    whole = Plan.of_depths(torch.full((1, 8), LAYERS), LAYERS)
    assert chooses_compact(16, (1, 8), plan=spread, **known) == is_recorded
    assert not chooses_compact(16, (1, 8), plan=whole, **known)
    assert not chooses_compact(16, (1, 8), leaving=object(), **known)
    assert asked == [is_recorded, is_recorded, False], "who decides on the way was not measured"


@pytest.mark.parametrize("worth", [-1.0, 1e30])
@pytest.mark.parametrize("is_planned", [True, False])
def test_results_do_not_tell_who_ran(
    build: Model, draw_batch: Batch, monkeypatch: pytest.MonkeyPatch, is_planned: bool, worth: float
) -> None:
    model = build("token_classification", stack={"num_layers": LAYERS}, exits={"heads": "separate"}, num_labels=3)
    policy = build_policy(FixedDepthConfig(depth=2), width=8, exits=(1, 2, 3, 4), has_source=False)
    batch = {name: value for name, value in draw_batch("token_classification").items() if name != "labels"}
    if is_planned:
        depths = torch.randint(1, LAYERS + 1, batch["input_ids"].shape)
        batch["plan"] = Plan.of_depths(depths, LAYERS)  # type: ignore[assignment]
    else:
        model.use_policy(policy)
    expected = model(**batch)
    monkeypatch.setattr(choosing, "KINDS", dict.fromkeys(KINDS, Constants(worth)))
    engine = Engine(model)
    found = engine(**batch)
    assert isinstance(engine.executor, ChosenEncoder)
    chosen, other = engine.executor.compact, engine.executor.masked
    chosen, other = (other, chosen) if worth > 0 else (chosen, other)  # type: ignore[assignment]
    assert chosen.token_layers == engine.token_layers == int(expected.depths.sum())
    assert other.token_layers == 0
    valid = batch["attention_mask"].bool()
    assert torch.equal(found.depths, expected.depths)
    torch.testing.assert_close(found.logits[valid], expected.logits[valid], rtol=1e-10, atol=1e-12)


def test_a_sharded_stack_is_run_as_it_is(build: Model, draw_batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = build("token_classification"), draw_batch("token_classification")
    monkeypatch.setattr(choosing, "FSDPModule", type(model.model.encoder.stack.layers[0]))
    engine = Engine(model)
    engine(**batch)
    assert engine.executor.compact.token_layers == 0
    assert engine.token_layers == 2 * int(batch["attention_mask"].sum())


def test_a_plan_for_another_batch(build: Model, draw_batch: Batch) -> None:
    model, batch = build("token_classification"), draw_batch("token_classification")
    with pytest.raises(InputError, match=r"the plan is for \(layers, rows, steps\) = \(2, 1, 1\), the input has"):
        Engine(model)(**batch, plan=Plan(torch.ones(2, 1, 1, dtype=torch.bool)))
