"""Optimisers: Adam and AdamW of torch, Nesterov SGD in fairseq's form, LAMB.

Those that are written here work on lists of tensors at once (torch's ``_foreach`` operations) and never wait for the
device. All state lies in ``state_dict``: a run that saves and loads it continues bit for bit.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.optimizer import ParamsT

from depthwise.depth import LatentLayers
from depthwise.errors import BackendUnavailable, ConfigError, InputError, Problem
from depthwise.shapes import Tensor
from depthwise.training.builders import checked_builder

AdamKind = TypeVar("AdamKind", bound=Adam)
_FUSED_DEVICES = ("cuda", "cpu", "mps", "xpu", "hpu", "mtia")
_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)


class NesterovSGD(Optimizer):
    """Nesterov's accelerated gradient with decoupled weight decay, in the form of fairseq's ``nag``.

        v' = μ·c·v − η·g
        p' = (1 − η·λ)·p + μ²·c·v − (1 + μ)·η·g   =   (1 − η·λ)·p + μ·v' − η·g

    Ours -> symbols: lr -> η, momentum -> μ, weight_decay -> λ. The velocity v is a displacement and so carries the
    learning rate of its time; c = η/η_previous brings it to the present one. With a constant rate and λ = 0 this is
    torch's SGD with ``nesterov=True``. An update with rate 0 erases the velocity, as the formula says.
    """

    def __init__(self, params: ParamsT, *, lr: float, momentum: float = 0.99, weight_decay: float = 0.0) -> None:
        problems = _rate_problems(lr, weight_decay)
        if not 0 <= momentum < 1:
            problems.append(Problem("momentum", f"{momentum} is not between 0 and 1"))
        _check("nesterov", problems)
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "previous_lr": None})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = _reevaluated(closure)
        for group in self.param_groups:
            lr, momentum = float(group["lr"]), group["momentum"]
            previous = group["previous_lr"]
            correction = lr / previous if previous else 1.0
            group["previous_lr"] = lr
            for params, grads in _batches(group["params"]):
                velocities = [self._velocity(param) for param in params]
                if group["weight_decay"]:
                    torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
                torch._foreach_add_(params, velocities, alpha=momentum * momentum * correction)
                torch._foreach_add_(params, grads, alpha=-(1 + momentum) * lr)
                torch._foreach_mul_(velocities, momentum * correction)
                torch._foreach_add_(velocities, grads, alpha=-lr)
        return loss

    def _velocity(self, param: Tensor) -> Tensor:
        state = self.state[param]
        if not state:
            state["velocity"] = torch.zeros_like(param)
        return cast(Tensor, state["velocity"])


class LAMB(Optimizer):
    """Adam whose step on each tensor is as long as the tensor itself, for large batches (You et al. 2020, alg. 2).

        m = β₁·m + (1 − β₁)·g      v = β₂·v + (1 − β₂)·g²      r = m/(1 − β₁ᵗ) / (√(v/(1 − β₂ᵗ)) + ε)
        u = r + λ·p                p' = p − η·(‖p‖/‖u‖)·u

    The trust ratio ‖p‖/‖u‖ is 1 where either norm is 0, so that tensors that start at zero move at all.
    ``trust_bounds`` keeps it within a range. A parameter group with ``adapt=False`` has ratio 1 throughout, which makes
    it AdamW. The count of updates t is each tensor's own: one that got no gradient for a while is not over-corrected.
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        trust_bounds: tuple[float, float] | None = None,
        adapt: bool = True,
    ) -> None:
        problems = _rate_problems(lr, weight_decay) + _moment_problems(betas, eps)
        if trust_bounds is not None and not 0 <= trust_bounds[0] <= trust_bounds[1]:
            problems.append(Problem("trust_bounds", f"{list(trust_bounds)} is no range; give a lower and an upper end"))
        _check("lamb", problems)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "trust_bounds": trust_bounds, "adapt": adapt})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = _reevaluated(closure)
        for group in self.param_groups:
            for params, grads in _batches(group["params"]):
                self._update(group, params, grads)
        return loss

    def _update(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        (beta1, beta2), lr = group["betas"], float(group["lr"])
        states = [self._state(param) for param in params]
        means, squares = [state["mean"] for state in states], [state["square"] for state in states]
        for state in states:
            state["step"] += 1
        steps = [state["step"] for state in states]
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)

        denominators = torch._foreach_div(squares, [1 - beta2**step for step in steps])
        torch._foreach_sqrt_(denominators)
        torch._foreach_add_(denominators, group["eps"])
        updates = torch._foreach_div(means, [1 - beta1**step for step in steps])
        torch._foreach_div_(updates, denominators)
        if group["weight_decay"]:
            torch._foreach_add_(updates, params, alpha=group["weight_decay"])
        if group["adapt"]:
            torch._foreach_mul_(updates, trust_ratios(params, updates, group["trust_bounds"]))
        torch._foreach_add_(params, updates, alpha=-lr)

    def _state(self, param: Tensor) -> dict[str, Any]:
        state = cast(dict[str, Any], self.state[param])
        if not state:
            state["step"] = 0
            state["mean"] = torch.zeros_like(param)
            state["square"] = torch.zeros_like(param)
        return state


def trust_ratios(
    params: Sequence[Tensor], updates: Sequence[Tensor], bounds: tuple[float, float] | None = None
) -> list[Tensor]:
    """‖p‖/‖u‖ for every pair of tensors, within ``bounds``; 1 where either norm is 0. Stays on the device."""
    param_norms, update_norms = (torch.stack(list(torch._foreach_norm(list(each)))) for each in (params, updates))
    ratios = param_norms / update_norms
    ratios = ratios if bounds is None else ratios.clamp(*bounds)
    return list(torch.where((param_norms > 0) & (update_norms > 0), ratios, 1.0).unbind())


def parameter_groups(
    model: nn.Module, logits_lr: float | None = None, *, weight_decay: float, decay_biases_and_norms: bool = True
) -> list[dict[str, Any]]:
    """The trainable parameters of a model, each once, in groups that differ in weight decay.

    With ``decay_biases_and_norms=False`` a second group without decay takes biases, the weights of norms and all other
    parameters of fewer than two axes. It is marked ``adapt=False``: LAMB as its authors released it gives these the
    plain step of Adam. The logits of latent layers are a last group without decay, at ``logits_lr`` where that is
    given.
    """
    trainable = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    if not trainable:
        raise ConfigError("optimiser", [Problem("model", "no parameter is trainable; unfreeze some")])
    of_gates = {id(module.logits) for module in model.modules() if isinstance(module, LatentLayers)}
    logits = [param for _, param in trainable if id(param) in of_gates]
    trainable = [(name, param) for name, param in trainable if id(param) not in of_gates]
    rate = {} if logits_lr is None else {"lr": logits_lr}
    last = [{"params": logits, "weight_decay": 0.0, "adapt": False, **rate}] if logits else []
    if decay_biases_and_norms:
        return [{"params": [param for _, param in trainable], "weight_decay": weight_decay}, *last]
    of_norms = {
        id(param) for module in model.modules() if isinstance(module, _NORMS) for param in module.parameters(False)
    }
    decayed: list[Tensor] = []
    spared: list[Tensor] = []
    for name, param in trainable:
        is_spared = param.ndim < 2 or name.rsplit(".", 1)[-1].endswith("bias") or id(param) in of_norms
        (spared if is_spared else decayed).append(param)
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": spared, "weight_decay": 0.0, "adapt": False},
    ]
    return [*(group for group in groups if group["params"]), *last]


def adam(
    params: ParamsT,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    fused: bool | None = True,
) -> Adam:
    """Adam (Kingma & Ba 2015); weight decay is added to the gradient.

    fairseq's ``adam`` decays the weights themselves: recipes of its that have a weight decay want ``adamw``.
    ``fused=True`` is one kernel for the whole step, on GPU and CPU; ``None`` leaves the choice to torch.
    """
    _check("adam", _rate_problems(lr, weight_decay) + _moment_problems(betas, eps))
    return _torch_adam(Adam, params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused)


def adamw(
    params: ParamsT,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    fused: bool | None = True,
) -> AdamW:
    """Adam with decoupled weight decay, p ← (1 − η·λ)·p (Loshchilov & Hutter 2019); ``fused`` as for ``adam``."""
    _check("adamw", _rate_problems(lr, weight_decay) + _moment_problems(betas, eps))
    return _torch_adam(AdamW, params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": adam,
    "adamw": adamw,
    "nesterov": NesterovSGD,
    "lamb": LAMB,
}


def build_optimizer(
    kind: str,
    model: nn.Module,
    *,
    weight_decay: float = 0.0,
    decay_biases_and_norms: bool = True,
    logits_lr: float | None = None,
    **options: Any,
) -> Optimizer:
    """An optimiser of all trainable parameters by its name in ``OPTIMIZERS``; bad options are reported together."""
    grouping: dict[str, Any] = {"weight_decay": weight_decay, "decay_biases_and_norms": decay_biases_and_norms}
    builder = checked_builder("optimiser", kind, OPTIMIZERS, {**grouping, **options}, parameter_groups)
    optimizer: Optimizer = builder(parameter_groups(model, logits_lr, **grouping))
    return optimizer


def _torch_adam(kind: type[AdamKind], params: ParamsT, *, fused: bool | None, **options: Any) -> AdamKind:
    optimizer = kind(params, fused=fused, **options)
    if fused:  # torch itself would notice at the first update only
        for param in (param for group in optimizer.param_groups for param in group["params"]):
            if param.device.type not in _FUSED_DEVICES or not param.is_floating_point():
                raise BackendUnavailable(
                    f"the fused optimiser cannot update {param.dtype} on {param.device.type}; set fused to null"
                )
    return optimizer


def _reevaluated(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _batches(params: Iterable[Tensor]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Parameters that have gradients, with these, in lists of one device and one type."""
    batches: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for param in params:
        if param.grad is None:
            continue
        if param.grad.is_sparse:
            raise InputError("sparse gradients are not supported; build embeddings with sparse=False")
        batch = batches.setdefault((param.device, param.dtype), ([], []))
        batch[0].append(param)
        batch[1].append(param.grad)
    yield from batches.values()


def _rate_problems(lr: float, weight_decay: float) -> list[Problem]:
    rates = {"lr": lr, "weight_decay": weight_decay}
    return [Problem(name, f"{rate} is below 0") for name, rate in rates.items() if not rate >= 0]


def _moment_problems(betas: tuple[float, float], eps: float) -> list[Problem]:
    problems = []
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        problems.append(Problem("betas", f"{list(betas)} are not two numbers from 0 up to, but not including, 1"))
    if not eps > 0:
        problems.append(Problem("eps", f"{eps} is not above 0"))
    return problems


def _check(kind: str, problems: list[Problem]) -> None:
    if problems:
        raise ConfigError(f"optimiser {kind}", problems)
