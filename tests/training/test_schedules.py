"""Schedules: at the points the published recipes name, by formula in between, and hung onto optimisers."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, Optimizer

from depthwise.errors import ConfigError
from depthwise.training import SCHEDULES, build_schedule
from depthwise.training.schedules import constant, cosine, inverse_sqrt, polynomial


def optimizer(*rates: float) -> Optimizer:
    return SGD([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates])


def rates(kind: str, peak: float, steps: list[int], **options: Any) -> list[float]:
    """The learning rates before the given updates, by walking through all of them."""
    sgd = optimizer(peak)
    schedule = build_schedule(kind, sgd, **options)
    found = []
    for _ in range(max(steps) + 1):
        found.append(sgd.param_groups[0]["lr"])
        sgd.step()
        schedule.step()
    return [found[step] for step in steps]


def test_iwslt_recipe() -> None:
    """Inverse square root, peak 5e-4 after 4,000 updates from 1e-7; half of it at 16,000."""
    factor = {"warmup": 4000, "init": 1e-7 / 5e-4}
    assert 5e-4 * inverse_sqrt(0, **factor) == pytest.approx(1e-7)
    assert 5e-4 * inverse_sqrt(2000, **factor) == pytest.approx((1e-7 + 5e-4) / 2)
    assert inverse_sqrt(4000, **factor) == 1
    assert inverse_sqrt(16_000, **factor) == 0.5
    assert 5e-4 * inverse_sqrt(50_000, **factor) == pytest.approx(5e-4 * math.sqrt(4000 / 50_000))
    walked = rates("inverse_sqrt", 5e-4, [0, 2, 4, 16, 36], warmup=4, init_lr=1e-7)
    assert walked == pytest.approx([1e-7, (1e-7 + 5e-4) / 2, 5e-4, 2.5e-4, 5e-4 / 3])


def test_wmt_recipe() -> None:
    """Cosine: 1e-7 to 1e-3 in 10,000 updates, then one cycle of 20,000 down to 1e-7."""
    factor = {"warmup": 10_000, "period": 20_000, "init": 1e-4, "low": 1e-4}
    assert 1e-3 * cosine(0, **factor) == pytest.approx(1e-7)
    assert cosine(5000, **factor) == pytest.approx((1 + 1e-4) / 2)
    assert cosine(10_000, **factor) == 1
    assert cosine(20_000, **factor) == pytest.approx((1 + 1e-4) / 2)
    quarter = 1e-4 + 0.5 * (1 - 1e-4) * (1 + math.sqrt(0.5))
    assert cosine(15_000, **factor) == pytest.approx(quarter)
    assert cosine(29_999, **factor) == pytest.approx(1e-4, rel=1e-3)
    assert cosine(30_000, **factor) == pytest.approx(1e-4)
    assert cosine(99_000, **factor) == pytest.approx(1e-4)
    options = {"warmup": 2, "period": 4, "init_lr": 1e-7, "min_lr": 1e-7}
    assert rates("cosine", 1e-3, [0, 1, 2, 4, 6, 9], **options) == pytest.approx(
        [1e-7, (1e-7 + 1e-3) / 2, 1e-3, (1e-7 + 1e-3) / 2, 1e-7, 1e-7]
    )


def closed_form(step: int, warmup: int, period: int, growth: float, shrink: float, low: float) -> float:
    """The cycle by a logarithm instead of by counting; steps are chosen off its edges."""
    since = step - warmup
    cycle = math.floor(math.log(1 - since / period * (1 - growth), growth))
    start = (1 - growth**cycle) / (1 - growth) * period
    angle = math.pi * (since - start) / (growth**cycle * period)
    return shrink**cycle * (low + 0.5 * (1 - low) * (1 + math.cos(angle)))


@pytest.mark.parametrize("step", [3, 5, 12, 14, 20, 33, 34, 50, 73, 75, 130])
def test_cycles_grow_and_shrink(step: int) -> None:
    """Cycles of 10, 20, 40, ... updates after 3 of warm-up, each at half the height."""
    found = cosine(step, warmup=3, period=10, low=0.1, period_growth=2.0, shrink=0.5, cycles=None)
    assert found == pytest.approx(closed_form(step, 3, 10, 2.0, 0.5, 0.1))


def test_cycles_restart_or_end() -> None:
    options: dict[str, Any] = {"warmup": 0, "period": 4, "low": 0.2, "shrink": 0.5}
    assert [cosine(step, cycles=None, **options) for step in (0, 2, 4, 6, 8)] == pytest.approx([1, 0.6, 0.5, 0.3, 0.25])
    assert [cosine(step, cycles=2, **options) for step in (4, 6, 8, 9, 80)] == pytest.approx([0.5, 0.3, 0.1, 0.1, 0.1])
    grown = {**options, "period_growth": 3.0, "cycles": 2}
    assert [cosine(step, **grown) for step in (4, 10, 16, 99)] == pytest.approx([0.5, 0.3, 0.1, 0.1])


def test_polynomial() -> None:
    options: dict[str, Any] = {"warmup": 10, "total": 110, "init": 0.5, "end": 0.1}
    assert [polynomial(step, power=2.0, **options) for step in (0, 5, 10, 60, 110, 200)] == pytest.approx(
        [0.5, 0.75, 1, 0.1 + 0.9 * 0.25, 0.1, 0.1]
    )
    walked = rates("polynomial", 2.0, [0, 1, 2, 3, 4, 9], warmup=2, total=4, power=2.0, init_lr=1.0, end_lr=0.4)
    assert walked == pytest.approx([1.0, 1.5, 2.0, 0.4 + 1.6 / 4, 0.4, 0.4])


def test_linear_and_constant() -> None:
    assert rates("linear", 2.0, [0, 1, 2, 3, 6, 9], warmup=2, total=6) == pytest.approx([0, 1, 2, 1.5, 0, 0])
    assert rates("linear", 2.0, [0, 2, 4], total=4, end_lr=1.0) == pytest.approx([2, 1.5, 1])
    assert rates("constant", 2.0, [0, 1, 2, 9], warmup=2, init_lr=1.0) == [1, 1.5, 2, 2]
    assert rates("constant", 2.0, [0, 5]) == [2, 2]


@pytest.mark.parametrize(
    "factor",
    [
        lambda step, warmup: constant(step, warmup=warmup, init=0.25),
        lambda step, warmup: inverse_sqrt(step, warmup=warmup, init=0.25),
        lambda step, warmup: polynomial(step, warmup=warmup, total=40, init=0.25),
        lambda step, warmup: cosine(step, warmup=warmup, period=30, init=0.25),
    ],
)
@pytest.mark.parametrize("warmup", [0, 1, 8])
def test_warm_up_is_a_straight_line_to_the_peak(factor: Callable[[int, int], float], warmup: int) -> None:
    for step in range(warmup):
        assert factor(step, warmup) == pytest.approx(0.25 + 0.75 * step / warmup)
    assert factor(warmup, warmup) == 1
    assert all(0 <= factor(step, warmup) <= 1 for step in range(200))


def test_groups_keep_their_ratio() -> None:
    sgd = optimizer(1.0, 0.1)
    build_schedule("inverse_sqrt", sgd, warmup=4, init_lr=0.5)
    assert [group["lr"] for group in sgd.param_groups] == pytest.approx([0.5, 0.05])


@pytest.mark.parametrize("after", [1, 7])
@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_schedule_resumes(kind: str, after: int) -> None:
    """Also where the optimiser's present rate is no longer its peak."""
    options = {"inverse_sqrt": {"warmup": 3}, "constant": {"warmup": 3}, "cosine": {"period": 9, "warmup": 3}}
    given = options.get(kind, {"total": 12, "warmup": 3})

    def walk(schedule: Any, sgd: Optimizer, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            sgd.step()
            schedule.step()
            found.append(sgd.param_groups[0]["lr"])
        return found

    sgd = optimizer(2.0)
    schedule = build_schedule(kind, sgd, init_lr=0.5, **given)
    walk(schedule, sgd, after)
    saved = schedule.state_dict(), sgd.state_dict()
    resumed = optimizer(2.0)
    resumed.load_state_dict(saved[1])
    again = build_schedule(kind, resumed, init_lr=0.5, **given)
    again.load_state_dict(saved[0])
    assert walk(again, resumed, 9) == walk(schedule, sgd, 9)


@pytest.mark.parametrize(
    ("kind", "options", "problems"),
    [
        (
            "cosin",
            {},
            {
                "kind": '"cosin" is none of constant, inverse_sqrt, polynomial, linear, cosine; did you mean cosine?',
            },
        ),
        (
            "xyz",
            {},
            {"kind": '"xyz" is none of constant, inverse_sqrt, polynomial, linear, cosine; choose one of these'},
        ),
        (
            "inverse_sqrt",
            {"warm_up": 3, "zzz": 1},
            {
                "warm_up": "unknown option; did you mean warmup?",
                "zzz": "unknown option; inverse_sqrt takes warmup, init_lr",
                "warmup": "missing; inverse_sqrt cannot do without it",
            },
        ),
        (
            "inverse_sqrt",
            {"warmup": -1, "init_lr": 3.0},
            {
                "warmup": "-1 is too small; give 0 updates or more",
                "init_lr": "3.0 is not between 0 and the optimiser's learning rate 1.0",
            },
        ),
        (
            "polynomial",
            {"warmup": 5, "total": 5, "power": 0, "end_lr": -1},
            {
                "total": "5 updates leave none after 5 of warm-up; give more",
                "power": "0 is too small; give a number above 0",
                "end_lr": "-1 is not between 0 and the optimiser's learning rate 1.0",
            },
        ),
        *(
            ("constant", {"warmup": warmup}, {"warmup": f"expected a whole number, got {shown}"})
            for warmup, shown in (("abc", '"abc"'), (None, "null"), (1.5, "1.5"), (0.1, "0.1"))
        ),
        (
            "polynomial",
            {"total": 9, "power": "z", "init_lr": math.inf},
            {"power": 'expected a number, got "z"', "init_lr": "inf is not finite; give a finite number"},
        ),
        (
            "cosine",
            {"cycles": "x", "totl": 3},
            {
                "cycles": 'expected a whole number or null, got "x"',
                "totl": ("unknown option; cosine takes period, warmup, init_lr, min_lr, period_growth, shrink, cycles"),
                "period": "missing; cosine cannot do without it",
            },
        ),
        ("linear", {"total": 0}, {"total": "0 updates leave none after 0 of warm-up; give more"}),
        ("constant", {"warmup": -2}, {"warmup": "-2 is too small; give 0 updates or more"}),
        (
            "cosine",
            {"period": 0, "period_growth": 0.5, "shrink": 0, "cycles": 0, "min_lr": 2.0},
            {
                "period": "0 is too small; give the number of updates of the first cycle",
                "period_growth": "0.5 is too small; give 1 or more",
                "shrink": "0 is no shrinkage; give a number above 0, at most 1",
                "cycles": "0 is too small; give 1 or more, or null for endless restarts",
                "min_lr": "2.0 is not between 0 and the optimiser's learning rate 1.0",
            },
        ),
    ],
)
def test_all_problems_are_reported(kind: str, options: dict[str, Any], problems: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as raised:
        build_schedule(kind, optimizer(1.0), **options)
    assert {problem.option: problem.message for problem in raised.value.problems} == problems
    assert raised.value.source in ("schedule", f"schedule {kind}")


def test_a_peak_of_zero() -> None:
    with pytest.raises(ConfigError, match=r"the optimiser's learning rate is 0.0; a schedule needs one above 0"):
        build_schedule("constant", optimizer(0.0))
