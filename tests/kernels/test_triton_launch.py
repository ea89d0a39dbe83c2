"""What Triton compiled, and what follows from the shapes of a call, is used again where it fits, and only there."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from depthwise.kernels import dynamic_conv, light_conv, tiles, triton_launch
from depthwise.kernels.call import Call, call_of, last_axis_dense
from depthwise.kernels.triton_launch import Launch, Plan, kind_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
X = torch.zeros(64)
KIND = (-1, torch.float32)
STREAM = 3


class Kernel:
    """Stands in for one of Triton's: counts how often it was compiled, and hears how it was launched."""

    def __init__(self, arg_names: tuple[str, ...] = (), *, interpreted: bool = False) -> None:
        self.arg_names = arg_names
        self.interpreted = interpreted
        self.num_compiled = 0
        self.launches: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **constants: Any) -> "Compiled | None":
            self.num_compiled += 1
            self.launches.append((grid, *arguments, constants))
            return None if self.interpreted else Compiled(self)

        return launch


class Compiled:
    """What Triton made of it, which is launched as it is, or with all that its launchers are told."""

    function, packed_metadata = "function", "metadata"

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments: self.kernel.launches.append((grid, *arguments))

    def run(self, x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
        assert stream == STREAM
        assert arguments[:5] == (self.function, self.packed_metadata, None, None, None)
        self.kernel.launches.append(((x, y, z), *arguments[5:]))


@pytest.fixture(autouse=True)
def _stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthwise.kernels.plan.current_stream", lambda _: STREAM)


def test_it_is_compiled_once_and_gets_its_constants_in_order() -> None:
    kernel = Kernel()
    plan = Plan(kernel, {"HEADS": 3, "TAPS": 7}, 4, 1, 1)
    for number in (5, 6):
        plan.launch(9, (X, X), (number, 32), 32)
    assert kernel.num_compiled == 1
    assert kernel.launches == [
        ((9,), X, X, 5, 32, {"HEADS": 3, "TAPS": 7, "num_warps": 4, "enable_fp_fusion": True}),
        ((9, 1, 1), X, X, 6, 32, 3, 7),
    ]


@pytest.mark.parametrize(
    ("tensors", "stride"),
    [
        ((X.half(), X), 32),
        ((X, X.half()), 32),
        ((X[1:], X), 32),
        ((X, X[1:]), 32),
        ((X[1:], X[1:]), 32),
        ((X, X), 33),
        ((X, X), 1),
        ((X[1:], X), 33),
    ],
)
def test_another_precision_or_alignment_is_compiled_by_itself(tensors: tuple[Any, ...], stride: int) -> None:
    kernel = Kernel()
    plan = Plan(kernel, {}, 4, 1, 1)
    plan.launch(1, (X, X), (32,), 32)
    for _ in range(2):
        plan.launch(1, tensors, (stride,), stride)
    assert kernel.num_compiled == 2
    plan.launch(1, (X[4:], X), (48,), 48)
    assert kernel.num_compiled == 2


def test_every_kind_of_misalignment_is_another() -> None:
    kernel = Kernel()
    plan = Plan(kernel, {}, 4, 1, 1)
    for tensors in ((X[1:], X), (X, X[1:]), (X[1:], X[1:])):
        for stride in (1, 32, 33):
            plan.launch(1, tensors, (stride,), stride)
    assert kernel.num_compiled == 9


# Launches


def test_a_known_kind_goes_straight_to_what_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    launch = Launch(Plan(kernel, {"HEADS": 3, "TAPS": 7}, 4, 1, 1), 9, (5, 32), (32,))
    launch.run(KIND, X, X)
    monkeypatch.delattr(Plan, "launch")
    launch.run(KIND, X, X)
    assert kernel.launches == [
        ((9,), X, X, 5, 32, {"HEADS": 3, "TAPS": 7, "num_warps": 4, "enable_fp_fusion": True}),
        ((9, 1, 1), X.data_ptr(), X.data_ptr(), 5, 32, 3, 7),  # the launcher need not ask about tensors
    ]


def test_launches_of_one_plan_share_what_was_compiled() -> None:
    kernel = Kernel()
    plan = Plan(kernel, {}, 4, 1, 1)
    for programs in (9, 8, 9):
        Launch(plan, programs, (32,), (32,)).run(KIND, X, X)
    assert kernel.num_compiled == 1
    assert [grid for grid, *_ in kernel.launches] == [(9,), (8, 1, 1), (9, 1, 1)]


def test_another_kind_is_compiled_by_itself() -> None:
    kernel = Kernel()
    launch = Launch(Plan(kernel, {}, 4, 1, 1), 9, (), ())
    for _ in range(2):
        launch.run(KIND, X)
        launch.run((-1, torch.float16), X.half())
    assert kernel.num_compiled == 2


def test_tensors_of_no_kind_are_looked_at_every_time() -> None:
    kernel = Kernel()
    launch = Launch(Plan(kernel, {}, 4, 1, 1), 9, (), ())
    for tensor in (X[1:], X, X[1:], X[1:].half(), X[1:]):
        launch.run(None, tensor)
    assert kernel.num_compiled == 3


def test_an_interpreter_gets_every_launch() -> None:
    kernel = Kernel(interpreted=True)
    launch = Launch(Plan(kernel, {}, 4, 1, 1), 9, (), ())
    for _ in range(3):
        launch.run(KIND, X)
    assert kernel.num_compiled == 3


def test_kinds() -> None:
    assert kind_of(X, None, X.half(), None) == (-1, torch.float32, torch.float16)
    assert kind_of(X[4:], X) == (-1, torch.float32, torch.float32)
    assert kind_of(X[1:], X) is None
    assert kind_of(X, None, X[1:]) is None


# Calls


def call(**changed: Any) -> Call:
    """The call of an ordinary convolution, but for what is changed."""
    given: dict[str, Any] = {"x": torch.zeros(2, 20, 32), "kernel": torch.zeros(2, 20, 2, 5)}
    optional = [changed.pop(name, None) for name in ("valid", "positions", "segments", "seed")]
    given |= {"left": 4, "num_readers": 20, "optional": tuple(optional)}
    given |= {"softmax": True, "renormalize": False, "dropconnect": 0.0, "dropconnect_shared": False}
    return call_of(**given | changed)


def test_equal_calls_are_one() -> None:
    assert call() is call()
    valid = torch.ones(2, 20, dtype=torch.bool)
    assert call(valid=valid) is call(valid=valid.clone())


@pytest.mark.parametrize(
    "changed",
    [
        {"x": torch.zeros(2, 21, 32)},
        {"x": torch.zeros(2, 20, 40)[..., :32]},
        {"x": torch.zeros(2, 20, 32, dtype=torch.bfloat16)},
        {"x": torch.zeros(2, 32, 20).transpose(1, 2)},
        {"kernel": torch.zeros(2, 5)},
        {"kernel": torch.zeros(2, 20, 2, 8)[..., :5]},
        {"valid": torch.ones(2, 20, dtype=torch.bool)},
        {"valid": torch.ones(2, 30, dtype=torch.bool)[:, :20]},
        {"positions": torch.zeros(2, 20, dtype=torch.long)},
        {"segments": torch.zeros(2, 20, dtype=torch.int32)},
        {"seed": torch.zeros(1, dtype=torch.long)},
        {"left": 3},
        {"num_readers": 19},
        {"softmax": False},
        {"renormalize": True},
        {"dropconnect": 0.1},
        {"dropconnect_shared": True},
    ],
    ids=str,
)
def test_other_calls_are_others(changed: dict[str, Any]) -> None:
    assert call(**changed) is call(**changed)
    assert call(**changed) is not call()


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
        lambda x: torch.cat((x, x), -1)[..., : x.shape[-1]],
        lambda x: torch.cat((x, x), -1)[..., ::2],
        lambda x: torch.cat((x, x), 1)[:, : x.shape[1]],
    ],
)
def test_a_call_tells_the_strides_of_what_is_launched(view: Any) -> None:
    x, kernel, valid = view(torch.zeros(2, 20, 32)), view(torch.zeros(2, 20, 2, 5)), view(torch.ones(2, 20).bool())
    found = call(x=x, kernel=kernel, valid=valid)
    assert found.x_strides == last_axis_dense(x).stride()
    assert found.kernel_strides == last_axis_dense(kernel).stride()
    assert found.valid_stride == last_axis_dense(valid).stride(0)
    assert found.is_dense == (last_axis_dense(x) is x and last_axis_dense(kernel) is kernel)


# Both passes


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Kernel]]:
    """Stand-ins for all of Triton's kernels, by name."""
    caches = [each for each in vars(triton_launch).values() if hasattr(each, "cache_clear")]
    names = ("convolve_band", "convolve_taps", "convolve_fixed", "kernel_gradient", "fixed_kernel_gradient")
    names += ("fixed_gradients", "finish_fixed_gradient")
    stand_ins = {name: Kernel(tuple(getattr(triton_launch, name).arg_names)) for name in names}
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(triton_launch, name, stand_in)
    for each in caches:
        each.cache_clear()
    yield stand_ins
    for each in caches:
        each.cache_clear()


def num_compiled(kernels: dict[str, Kernel]) -> int:
    return sum(kernel.num_compiled for kernel in kernels.values())


@pytest.mark.parametrize(("fixed", "at_once"), [(False, False), (True, False), (True, True)])
def test_what_is_compiled_for_a_model(
    kernels: dict[str, Kernel], fixed: bool, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing for another batch like one before; each kernel again for another precision or alignment."""
    if not at_once:
        monkeypatch.setattr(tiles, "BOTH_UP_TO", 0)

    def train(length: int = 20, dtype: torch.dtype = torch.float32, shifted: int = 0, columns: int = 64) -> None:
        x = torch.zeros(2 * length * 64 + shifted, dtype=dtype, device=DEVICE)[shifted:].view(2, length, 64)
        kernel = torch.zeros(*(() if fixed else (2, length)), 2, 5, dtype=dtype, device=DEVICE)
        x.requires_grad_(), kernel.requires_grad_()
        y = (light_conv if fixed else dynamic_conv)(x, kernel, left=4, backend="triton")
        y.backward(torch.zeros(2, length, columns, dtype=dtype, device=DEVICE)[..., :64])

    each = 4 if fixed and not at_once else 3
    train()
    assert num_compiled(kernels) == each
    with monkeypatch.context() as patched:
        patched.delattr(Plan, "launch")
        train()
    train(length=23)
    train(columns=80)
    assert num_compiled(kernels) == each
    assert sum(len(kernel.launches) for kernel in kernels.values()) == 4 * each
    train(dtype=torch.float16)
    assert num_compiled(kernels) == 2 * each
    for _ in range(2):
        train(shifted=1)
    assert num_compiled(kernels) == 2 * each + 2  # the output and the gradient of the kernel read x
    for _ in range(2):
        train(columns=65)
    gradients = 1 if at_once else 2
    assert num_compiled(kernels) == 2 * each + 2 + gradients  # they read that of the output
