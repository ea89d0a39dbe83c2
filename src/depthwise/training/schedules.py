"""How the learning rate goes with the number of updates.

Each schedule is a pure function from the number of updates made so far to a factor of the peak learning rate, and a
builder that hangs it onto an optimiser. An optimiser's own learning rate is the peak. Builders take the other rates
(``init_lr``, ``min_lr``, ``end_lr``) as they stand in recipes, absolute and for the first parameter group; further
groups keep their ratio to it.

All of them warm up over ``warmup`` updates, from ``init`` in a straight line to 1, which update number ``warmup`` has.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from depthwise.errors import ConfigError, Problem
from depthwise.training.builders import checked_builder


def constant(step: int, *, warmup: int = 0, init: float = 0.0) -> float:
    """1 after the warm-up."""
    return _warmed_up(step, warmup, init) if step < warmup else 1.0


def inverse_sqrt(step: int, *, warmup: int, init: float = 0.0) -> float:
    """√(w/t) after the warm-up of w updates (Vaswani et al. 2017); a half at four times the warm-up."""
    if step < warmup:
        return _warmed_up(step, warmup, init)
    return math.sqrt(max(warmup, 1) / max(step, 1))


def polynomial(step: int, *, warmup: int, total: int, power: float = 1.0, init: float = 0.0, end: float = 0.0) -> float:
    """end + (1 − end)·((T − t)/(T − w))^power after the warm-up; ``end`` from update T = ``total`` on."""
    if step < warmup:
        return _warmed_up(step, warmup, init)
    remaining = max(0.0, (total - step) / (total - warmup))
    return end + (1.0 - end) * remaining**power


def cosine(
    step: int,
    *,
    warmup: int,
    period: int,
    init: float = 0.0,
    low: float = 0.0,
    period_growth: float = 1.0,
    shrink: float = 1.0,
    cycles: int | None = 1,
) -> float:
    """sⁱ·(low + ½(1 − low)(1 + cos(π·tᵢ/Pᵢ))) at update tᵢ of cycle i, after the warm-up (Loshchilov & Hutter 2017).

    The first cycle lasts P₀ = ``period`` updates and each one ``period_growth`` times as long as the one before;
    ``shrink`` is s. After the last of ``cycles`` the factor stays where that one ended; None means endless restarts.
    """
    if step < warmup:
        return _warmed_up(step, warmup, init)
    cycle, since, length = _cycle_at(step - warmup, period, period_growth)
    if cycles is not None and cycle >= cycles:
        cycle, since, length = cycles - 1, 1.0, 1.0
    return shrink**cycle * (low + 0.5 * (1.0 - low) * (1.0 + math.cos(math.pi * since / length)))


def _warmed_up(step: int, warmup: int, init: float) -> float:
    return init + (1.0 - init) * step / warmup


def _cycle_at(since: float, length: float, growth: float) -> tuple[int, float, float]:
    """Index of the cycle, updates since its start, its length."""
    if growth == 1:
        return int(since // length), since % length, length
    cycle = 0
    while since >= length:
        cycle, since, length = cycle + 1, since - length, length * growth
    return cycle, since, length


def constant_schedule(optimizer: Optimizer, *, warmup: int = 0, init_lr: float = 0.0) -> LambdaLR:
    """The peak, after a warm-up from ``init_lr``."""
    peak = _checked_peak("constant", optimizer, _warmup_problems(warmup), init_lr=init_lr)
    return LambdaLR(optimizer, partial(constant, warmup=warmup, init=init_lr / peak))


def inverse_sqrt_schedule(optimizer: Optimizer, *, warmup: int, init_lr: float = 0.0) -> LambdaLR:
    """Falls with the inverse square root of the number of updates; needs no total."""
    peak = _checked_peak("inverse_sqrt", optimizer, _warmup_problems(warmup), init_lr=init_lr)
    return LambdaLR(optimizer, partial(inverse_sqrt, warmup=warmup, init=init_lr / peak))


def polynomial_schedule(
    optimizer: Optimizer,
    *,
    total: int,
    warmup: int = 0,
    power: float = 1.0,
    init_lr: float = 0.0,
    end_lr: float = 0.0,
) -> LambdaLR:
    """Falls to ``end_lr`` at update ``total``; the greater ``power``, the sooner."""
    problems = [*_warmup_problems(warmup), *_total_problems(total, warmup)]
    if not power > 0:
        problems.append(Problem("power", f"{power} is too small; give a number above 0"))
    peak = _checked_peak("polynomial", optimizer, problems, init_lr=init_lr, end_lr=end_lr)
    end = end_lr / peak
    return LambdaLR(
        optimizer, partial(polynomial, warmup=warmup, total=total, power=power, init=init_lr / peak, end=end)
    )


def linear_schedule(
    optimizer: Optimizer, *, total: int, warmup: int = 0, init_lr: float = 0.0, end_lr: float = 0.0
) -> LambdaLR:
    """Falls to ``end_lr`` at update ``total`` in a straight line."""
    problems = [*_warmup_problems(warmup), *_total_problems(total, warmup)]
    peak = _checked_peak("linear", optimizer, problems, init_lr=init_lr, end_lr=end_lr)
    return LambdaLR(optimizer, partial(polynomial, warmup=warmup, total=total, init=init_lr / peak, end=end_lr / peak))


def cosine_schedule(
    optimizer: Optimizer,
    *,
    period: int,
    warmup: int = 0,
    init_lr: float = 0.0,
    min_lr: float = 0.0,
    period_growth: float = 1.0,
    shrink: float = 1.0,
    cycles: int | None = 1,
) -> LambdaLR:
    """Falls to ``min_lr`` in ``period`` updates after the warm-up along half a cosine, then restarts or stays."""
    problems = _warmup_problems(warmup)
    if period < 1:
        problems.append(Problem("period", f"{period} is too small; give the number of updates of the first cycle"))
    if not period_growth >= 1:
        problems.append(Problem("period_growth", f"{period_growth} is too small; give 1 or more"))
    if not 0 < shrink <= 1:
        problems.append(Problem("shrink", f"{shrink} is no shrinkage; give a number above 0, at most 1"))
    if cycles is not None and cycles < 1:
        problems.append(Problem("cycles", f"{cycles} is too small; give 1 or more, or null for endless restarts"))
    peak = _checked_peak("cosine", optimizer, problems, init_lr=init_lr, min_lr=min_lr)
    factor = partial(
        cosine,
        warmup=warmup,
        period=period,
        init=init_lr / peak,
        low=min_lr / peak,
        period_growth=period_growth,
        shrink=shrink,
        cycles=cycles,
    )
    return LambdaLR(optimizer, factor)


SCHEDULES: dict[str, Callable[..., LambdaLR]] = {
    "constant": constant_schedule,
    "inverse_sqrt": inverse_sqrt_schedule,
    "polynomial": polynomial_schedule,
    "linear": linear_schedule,
    "cosine": cosine_schedule,
}


def build_schedule(kind: str, optimizer: Optimizer, **options: Any) -> LambdaLR:
    """A schedule by its name in ``SCHEDULES``. Unknown, missing and impossible options are reported together."""
    schedule: LambdaLR = checked_builder("schedule", kind, SCHEDULES, options)(optimizer)
    return schedule


def set_rates(schedule: LambdaLR) -> None:
    """Give the next update the rate of this schedule, whatever rate a checkpoint of another schedule had."""
    rates = [
        peak * factor(schedule.last_epoch) for peak, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
    ]
    for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    schedule._last_lr = rates


def _checked_peak(kind: str, optimizer: Optimizer, problems: list[Problem], **rates: float) -> float:
    """The peak learning rate, once nothing is wrong: absolute ``rates`` lie between 0 and it."""
    group = optimizer.param_groups[0]
    peak = float(group.get("initial_lr", group["lr"]))
    if not peak > 0:
        problems = [*problems, Problem("lr", f"the optimiser's learning rate is {peak}; a schedule needs one above 0")]
    else:
        problems = [
            *problems,
            *(
                Problem(name, f"{rate} is not between 0 and the optimiser's learning rate {peak}")
                for name, rate in rates.items()
                if not 0 <= rate <= peak
            ),
        ]
    if problems:
        raise ConfigError(f"schedule {kind}", problems)
    return peak


def _warmup_problems(warmup: int) -> list[Problem]:
    return [Problem("warmup", f"{warmup} is too small; give 0 updates or more")] if warmup < 0 else []


def _total_problems(total: int, warmup: int) -> list[Problem]:
    if total > warmup:
        return []
    return [Problem("total", f"{total} updates leave none after {warmup} of warm-up; give more")]


def schedule_options(given: dict[str, Any], num_updates: int) -> dict[str, Any]:
    """Options of a schedule with what follows from the length of training.

    A warm-up below 1 is a share of all updates.
    """
    options = dict(given)
    warmup = options.get("warmup", 0)
    if isinstance(warmup, float) and 0 < warmup < 1:
        warmup = options["warmup"] = round(warmup * num_updates)
    if options["kind"] in ("linear", "polynomial"):
        options.setdefault("total", max(num_updates, warmup + 1))
    if options["kind"] == "cosine":
        options.setdefault("period", max(1, num_updates - warmup))
    return options
