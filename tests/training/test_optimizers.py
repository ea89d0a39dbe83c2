"""Optimisers: every update against scalar arithmetic, resuming, convergence, edges."""

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from depthwise.errors import BackendUnavailable, ConfigError, InputError
from depthwise.training import LAMB, OPTIMIZERS, NesterovSGD, adam, adamw, build_optimizer
from depthwise.training.optimizers import trust_ratios

LEARNING_RATES = [0.1, 0.1, 0.05, 0.2, 0.0, 0.1, 0.3]


def tensors(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in shapes]


def gradients(params: list[nn.Parameter]) -> None:
    for param in params:
        param.grad = torch.randn_like(param)


def set_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


class ScalarNesterov:
    """fairseq's form of one number's update, as in the specification."""

    def __init__(self, value: float, momentum: float, decay: float) -> None:
        self.p, self.v, self.momentum, self.decay = value, 0.0, momentum, decay
        self.previous: float | None = None

    def step(self, g: float, lr: float) -> None:
        mu, c = self.momentum, lr / self.previous if self.previous else 1.0
        self.p = (1 - lr * self.decay) * self.p + mu * mu * c * self.v - (1 + mu) * lr * g
        self.v = mu * c * self.v - lr * g
        self.previous = lr


@pytest.mark.parametrize(("momentum", "decay"), [(0.99, 0.0), (0.9, 0.1), (0.0, 0.1)])
def test_nesterov_follows_its_equations(momentum: float, decay: float) -> None:
    """With a rate that changes, which is what the correction is for."""
    params = tensors((2, 3), (4,))
    optimizer = NesterovSGD(params, lr=1.0, momentum=momentum, weight_decay=decay)
    scalars = [[ScalarNesterov(value, momentum, decay) for value in param.flatten().tolist()] for param in params]
    for lr in LEARNING_RATES:
        gradients(params)
        set_rate(optimizer, lr)
        optimizer.step()
        for param, of_tensor in zip(params, scalars, strict=True):
            assert param.grad is not None
            for scalar, g in zip(of_tensor, param.grad.flatten().tolist(), strict=True):
                scalar.step(g, lr)
            torch.testing.assert_close(param.flatten().tolist(), [scalar.p for scalar in of_tensor])


def test_nesterov_at_a_constant_rate_is_that_of_torch() -> None:
    ours = tensors((3, 2))
    theirs = copy.deepcopy(ours)
    first, second = NesterovSGD(ours, lr=0.1, momentum=0.9), SGD(theirs, lr=0.1, momentum=0.9, nesterov=True)
    for _ in range(5):
        gradients(ours)
        theirs[0].grad = ours[0].grad
        first.step()
        second.step()
        torch.testing.assert_close(ours, theirs)


class ScalarLamb:
    """Algorithm 2 of You et al. for one tensor, number by number."""

    def __init__(self, values: list[float], betas: tuple[float, float], eps: float, decay: float) -> None:
        self.p, self.betas, self.eps, self.decay = values, betas, eps, decay
        self.m, self.v, self.t = [0.0] * len(values), [0.0] * len(values), 0

    def step(self, grads: list[float], lr: float, adapt: bool, bounds: tuple[float, float] | None) -> None:
        (beta1, beta2), self.t = self.betas, self.t + 1
        self.m = [beta1 * m + (1 - beta1) * g for m, g in zip(self.m, grads, strict=True)]
        self.v = [beta2 * v + (1 - beta2) * g * g for v, g in zip(self.v, grads, strict=True)]
        update = [
            (m / (1 - beta1**self.t)) / (math.sqrt(v / (1 - beta2**self.t)) + self.eps) + self.decay * p
            for m, v, p in zip(self.m, self.v, self.p, strict=True)
        ]
        ratio = math.hypot(*self.p) / math.hypot(*update) if adapt else 1.0
        ratio = min(max(ratio, bounds[0]), bounds[1]) if bounds and adapt else ratio
        self.p = [p - lr * ratio * u for p, u in zip(self.p, update, strict=True)]


@pytest.mark.parametrize("adapt", [True, False])
@pytest.mark.parametrize("bounds", [None, (0.8, 1.1)])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lamb_follows_its_equations(adapt: bool, bounds: tuple[float, float] | None, decay: float) -> None:
    params = tensors((2, 3), (4,), ())
    betas, eps = (0.9, 0.99), 1e-6
    optimizer = LAMB(params, lr=1.0, betas=betas, eps=eps, weight_decay=decay, trust_bounds=bounds, adapt=adapt)
    scalars = [ScalarLamb(param.flatten().tolist(), betas, eps, decay) for param in params]
    for update, lr in enumerate(LEARNING_RATES):
        gradients(params)
        if update == 2:
            params[1].grad = None  # counts its updates by itself
        set_rate(optimizer, lr)
        optimizer.step()
        for param, scalar in zip(params, scalars, strict=True):
            if param.grad is not None:
                scalar.step(param.grad.flatten().tolist(), lr, adapt, bounds)
            torch.testing.assert_close(param.flatten().tolist(), scalar.p)


def test_lamb_without_adaptation_is_adamw() -> None:
    ours = tensors((3, 2))
    theirs = copy.deepcopy(ours)
    first = LAMB(ours, lr=0.1, weight_decay=0.1, eps=1e-8, adapt=False)
    second = AdamW(theirs, lr=0.1, weight_decay=0.1, eps=1e-8)
    for _ in range(5):
        gradients(ours)
        theirs[0].grad = ours[0].grad
        first.step()
        second.step()
        torch.testing.assert_close(ours, theirs)


def test_a_lamb_step_is_as_long_as_the_tensor() -> None:
    params = tensors((5, 4))
    before = params[0].detach().clone()
    gradients(params)
    LAMB(params, lr=0.01).step()
    torch.testing.assert_close((params[0] - before).norm(), 0.01 * before.norm())


def test_trust_ratios_at_their_edges() -> None:
    params = [torch.tensor([3.0, 4.0]), torch.zeros(2), torch.ones(1), torch.zeros(1), torch.zeros(0)]
    updates = [torch.tensor([0.0, 2.0]), torch.ones(2), torch.zeros(1), torch.zeros(1), torch.zeros(0)]
    assert torch.stack(trust_ratios(params, updates)).tolist() == [2.5, 1, 1, 1, 1]
    assert torch.stack(trust_ratios(params, updates, (0.0, 2.0))).tolist() == [2, 1, 1, 1, 1]
    assert torch.stack(trust_ratios(params, updates, (3.0, 4.0))).tolist() == [3, 1, 1, 1, 1]


def test_lamb_moves_what_starts_at_zero_and_rests_without_gradient() -> None:
    zero, still = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))
    zero.grad, still.grad = torch.ones(3), torch.zeros(3)
    LAMB([zero, still], lr=0.1).step()
    torch.testing.assert_close(zero, torch.full((3,), -0.1), check_dtype=False)
    assert torch.equal(still, torch.ones(3))


BUILD: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "nesterov": lambda params: NesterovSGD(params, lr=0.01, momentum=0.9, weight_decay=0.01),
    "lamb": lambda params: LAMB(params, lr=0.03, weight_decay=0.01),
    "adam": lambda params: adam(params, lr=0.05, weight_decay=0.01),
    "adamw": lambda params: adamw(params, lr=0.05, weight_decay=0.01),
}


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    """Through a file, as checkpoints are."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("kind", BUILD)
def test_resuming_changes_no_bit(kind: str) -> None:
    straight = tensors((4, 3), (3,))
    optimizer = BUILD[kind](straight)
    resumed: list[nn.Parameter] = []
    for update, lr in enumerate(LEARNING_RATES):
        gradients(straight)
        if update == 1:
            straight[1].grad = None
        if update == 3:
            resumed = copy.deepcopy(straight)
            second = BUILD[kind](resumed)
            second.load_state_dict(saved_and_loaded(optimizer.state_dict()))
        set_rate(optimizer, lr)
        optimizer.step()
        if update >= 3:
            for param, other in zip(straight, resumed, strict=True):
                other.grad = param.grad
            set_rate(second, lr)
            second.step()
            assert all(torch.equal(*pair) for pair in zip(straight, resumed, strict=True))


@pytest.mark.parametrize("kind", BUILD)
def test_they_fit_a_linear_map(kind: str) -> None:
    model, source = nn.Linear(4, 2), torch.randn(64, 4)
    wanted = source @ torch.randn(4, 2) + 1.0
    options: dict[str, Any] = {"lr": {"nesterov": 0.02, "lamb": 0.02}.get(kind, 0.05)}
    if kind == "nesterov":
        options["momentum"] = 0.9
    optimizer = build_optimizer(kind, model, **options)

    def loss() -> Tensor:
        optimizer.zero_grad()
        error = (model(source) - wanted).square().mean()
        error.backward()
        return error.detach()

    before = float(loss())
    for _ in range(300):
        after = float(optimizer.step(loss))
    assert after < 0.01 * before


def test_tensors_on_several_devices_in_one_group() -> None:
    params = [nn.Parameter(torch.ones(3, device=device)) for device in ("cpu", "meta", "cpu")]
    for param in params:
        param.grad = torch.ones_like(param)
    for optimizer in (NesterovSGD(params, lr=0.1), LAMB(params, lr=0.1)):
        optimizer.step()
    assert torch.equal(params[0], params[2])


def test_tensors_of_several_types_in_one_group() -> None:
    params = [nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in (torch.float32, torch.float64, torch.float32)]
    for optimizer in (NesterovSGD(params, lr=0.1), LAMB(params, lr=0.1)):
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
    torch.testing.assert_close(params[0].double(), params[1])
    assert torch.equal(params[0], params[2])


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("kind", BUILD)
def test_on_a_gpu_nothing_waits_and_the_result_is_that_of_the_cpu(kind: str) -> None:
    here = tensors((4, 3), (3,), ())
    there = [nn.Parameter(param.detach().cuda()) for param in here]
    optimizers = BUILD[kind](here), BUILD[kind](there)
    for lr in LEARNING_RATES:
        gradients(here)
        for param, other in zip(here, there, strict=True):
            assert param.grad is not None
            other.grad = param.grad.cuda()
        for optimizer in optimizers:
            set_rate(optimizer, lr)
        optimizers[0].step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            optimizers[1].step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.testing.assert_close([param.cpu() for param in there], here)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_built_by_name(kind: str) -> None:
    model = nn.Linear(3, 2)
    optimizer = build_optimizer(kind, model, lr=0.5, weight_decay=0.2, decay_biases_and_norms=False)
    assert isinstance(optimizer, {"adam": Adam, "adamw": AdamW, "nesterov": NesterovSGD, "lamb": LAMB}[kind])
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(1.0)
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    optimizer.step()
    assert (model.weight < 1).all()
    assert (model.bias == 1).all()


def test_fused_is_a_choice() -> None:
    params = tensors((2, 2))
    assert adamw(params, lr=0.1).defaults["fused"] is True
    assert adamw(params, lr=0.1, fused=None).defaults["fused"] is None
    assert adam(params, lr=0.1, fused=False).defaults["fused"] is False


def test_fused_where_it_cannot_be() -> None:
    on_meta = [nn.Parameter(torch.zeros(2, device="meta"))]
    with pytest.raises(
        BackendUnavailable, match=r"^the fused optimiser cannot update torch.float32 on meta; set fused to null$"
    ):
        adamw(on_meta, lr=0.1)
    with pytest.raises(BackendUnavailable, match=r"cannot update torch.complex64 on cpu"):
        adam([nn.Parameter(torch.zeros(2, dtype=torch.complex64))], lr=0.1)
    assert adamw(on_meta, lr=0.1, fused=None)


@pytest.mark.parametrize("kind", ["nesterov", "lamb"])
def test_sparse_gradients(kind: str) -> None:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(InputError, match=r"^sparse gradients are not supported; build embeddings with sparse=False$"):
        build_optimizer(kind, table, lr=0.1).step()


@pytest.mark.parametrize(
    ("kind", "options", "problems"),
    [
        ("adam_w", {}, {"kind": '"adam_w" is none of adam, adamw, nesterov, lamb; did you mean adamw?'}),
        ([1], {}, {"kind": "expected text, got [1]"}),
        (
            "lamb",
            {"trust_bound": 1},
            {
                "trust_bound": "unknown option; did you mean trust_bounds?",
                "lr": "missing; lamb cannot do without it",
            },
        ),
        (
            "nesterov",
            {"lr": -1.0, "weight_decay": -0.5, "momentum": 1.0},
            {
                "lr": "-1.0 is below 0",
                "weight_decay": "-0.5 is below 0",
                "momentum": "1.0 is not between 0 and 1",
            },
        ),
        (
            "adamw",
            {"lr": 0.1, "betas": (0.9, 1.0), "eps": 0.0},
            {
                "betas": "[0.9, 1.0] are not two numbers from 0 up to, but not including, 1",
                "eps": "0.0 is not above 0",
            },
        ),
        ("adam", {"lr": math.nan}, {"lr": "nan is not finite; give a finite number"}),
        (
            "adam",
            {"lr": "abc", "betas": 0.9, "eps": "x", "weight_decay": None, "decay_biases_and_norms": "maybe"},
            {
                "lr": 'expected a number, got "abc"',
                "betas": "expected a list of 2 numbers, got 0.9",
                "eps": 'expected a number, got "x"',
                "weight_decay": "expected a number, got null",
                "decay_biases_and_norms": 'expected a boolean (true or false), got "maybe"',
            },
        ),
        (
            "adamw",
            {"lr": True, "betas": ["a", "b"], "fused": 1},
            {
                "lr": "expected a number, got true",
                "betas": 'expected a list of 2 numbers, got ["a", "b"]',
                "fused": "expected a boolean (true or false) or null, got 1",
            },
        ),
        ("lamb", {"lr": 1, "trust_bounds": 3}, {"trust_bounds": "expected a list of 2 numbers or null, got 3"}),
        ("lamb", {"lr": 1, "trust_bounds": [1]}, {"trust_bounds": "expected a list of 2 numbers or null, got [1]"}),
        ("lamb", {"lr": 1, "betas": [0.1] * 3}, {"betas": "expected a list of 2 numbers, got [0.1, 0.1, 0.1]"}),
        (
            "lamb",
            {"lr": 0.1, "trust_bounds": (2.0, 1.0)},
            {"trust_bounds": "[2.0, 1.0] is no range; give a lower and an upper end"},
        ),
    ],
)
def test_all_problems_are_reported(kind: str, options: dict[str, Any], problems: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as raised:
        build_optimizer(kind, nn.Linear(2, 2), **options)
    assert {problem.option: problem.message for problem in raised.value.problems} == problems


def test_lists_serve_as_tuples() -> None:
    options = {"betas": [0.5, 0.6], "trust_bounds": [0, math.inf]}
    (group,) = build_optimizer("lamb", nn.Linear(2, 2), lr=1, **options).param_groups
    assert (group["betas"], group["trust_bounds"]) == ((0.5, 0.6), (0, math.inf))
