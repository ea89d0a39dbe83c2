"""Passes in half precision: gradients near those of float32, on weights that nobody else ever sees."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from depthwise.mixers.attention import Projections
from depthwise.models.block import Block
from depthwise.tasks import Losses, open_task
from depthwise.training import graphs
from depthwise.training.half_states import PRECISIONS, HalfStates
from depthwise.training.run import train

from .conftest import recipe_of
from .recording import Recorder
from .test_graphs import losses_of, still

HALVES = (torch.bfloat16, torch.float16)
TOLERANCE = {torch.bfloat16: 0.05, torch.float16: 0.007}
SCALE = 2.0**12
"""What losses are multiplied by in float16, as a GradScaler does."""
MIXERS: dict[str, dict[str, Any]] = {
    "attention": {"mixer": "attention", "kernel_sizes": None},
    "lightconv": {"mixer": "lightconv", "kernel_sizes": 3},
    "dynamicconv": {"mixer": "dynamicconv", "kernel_sizes": 3, "glu": True},
}


def with_model(options: dict[str, Any], mixer: str = "attention", **model: Any) -> dict[str, Any]:
    """Two layers on each side, of a mixer, without anything drawn at random."""
    options = still(options)
    sides = {side: {**options["model"][side], "num_layers": 2, **MIXERS[mixer]} for side in ("encoder", "decoder")}
    return {**options, "model": {**options["model"], **sides, **model}}


class Trial:
    """A model with its recorded passes, in half precision or, without ``dtype``, in that of its weights."""

    def __init__(
        self,
        options: dict[str, Any],
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        dtype: torch.dtype | None,
        **training: Any,
    ) -> None:
        self.task = open_task(recipe_of(options, graphs=True, **training), folder)
        torch.manual_seed(0)
        self.model = self.task.new_model().train()
        self.params = list(self.model.parameters())
        self.scale = SCALE if dtype == torch.float16 else 1.0
        self.seen: list[Losses] = []
        half = None if dtype is None else HalfStates(self.model, dtype)
        self.recorder = Recorder(monkeypatch)
        self.passes = graphs.RecordedPasses(self.run, self.params, half)
        self.recorder.serve(self.passes)

    def run(self, batch: dict[str, torch.Tensor], num_items: torch.Tensor) -> Losses:
        losses = self.task.losses(self.model, batch, num_items)
        (losses.loss * self.scale).backward()
        self.seen.append(losses)
        return losses

    def batch(self, first: int = 0) -> dict[str, torch.Tensor]:
        """Of rows that are all of one length, so that shapes are the same."""
        store = self.task.examples("train")
        return self.task.padded(self.task.collate([store[index] for index in range(first, first + 5)]))

    def __call__(self, *batches: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The gradients of one update."""
        for param in self.params:
            param.grad = None
        num_items = torch.tensor(sum(self.task.num_items(batch) for batch in batches))
        for batch in batches:
            self.passes(batch, num_items)
        return {
            name: param.grad.clone() / self.scale
            for name, param in self.model.named_parameters()
            if param.grad is not None
        }


def assert_near(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], tolerance: float) -> None:
    """All gradients together, and each one by itself as far as it matters."""
    assert ours.keys() == theirs.keys()
    norm = torch.stack([gradient.norm() for gradient in theirs.values()]).norm()
    differences = {name: float((gradient - theirs[name]).norm() / norm) for name, gradient in ours.items()}
    assert sum(value**2 for value in differences.values()) ** 0.5 < tolerance
    for name, gradient in theirs.items():
        assert differences[name] < 3 * tolerance * (float(gradient.norm() / norm) + 0.1), name


@pytest.fixture
def prepared() -> Iterator[Callable[..., PreTrainedModel]]:
    """Lets Accelerate put autocast around a model, whatever state it has from earlier tests and later ones need."""

    def made(model: PreTrainedModel, **options: Any) -> PreTrainedModel:
        AcceleratorState._reset_state(reset_partial_state=True)
        around: PreTrainedModel = Accelerator(mixed_precision="bf16", **options).prepare_model(model)
        assert around is model
        return around

    yield made
    AcceleratorState._reset_state(reset_partial_state=True)


Trials = Callable[..., tuple[Trial, Trial]]


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trials:
    """The same model in half precision and in float32."""

    def made(options: dict[str, Any], dtype: torch.dtype, **training: Any) -> tuple[Trial, Trial]:
        ours, theirs = (Trial(options, tmp_path, monkeypatch, kind, **training) for kind in (dtype, None))
        return ours, theirs

    return made


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("tied", ["all", "none"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_gradients_are_those_of_float32(
    translation: dict[str, Any], trials: Trials, mixer: str, tied: str, dtype: torch.dtype
) -> None:
    ours, theirs = trials(with_model(translation, mixer, tied_embeddings=tied), dtype)
    expected = theirs(theirs.batch())
    for _ in range(4):  # two plain ones, one that is recorded, one that is repeated
        assert_near(ours(ours.batch()), expected, TOLERANCE[dtype])
    assert ours.recorder.num_recorded == 1
    assert all(gradient.dtype == torch.float32 for gradient in ours(ours.batch()).values())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("objective", ["aligned", "mixed"])
@pytest.mark.parametrize("heads", ["tied", "separate"])
def test_exits_learn_so_too(
    translation: dict[str, Any], trials: Trials, objective: str, heads: str, dtype: torch.dtype
) -> None:
    policy = {"kind": "poisson_binomial", "detach_features": False}
    options = with_model(translation, exits={"heads": heads}, policy=policy if objective == "aligned" else None)
    for side in ("encoder", "decoder"):
        options["model"][side]["norm"] = "pre"
    ours, theirs = trials(options, dtype, exits={"objective": objective})
    for _ in range(3):
        found = []
        for trial in (ours, theirs):
            torch.manual_seed(1)  # for the exits that tokens draw
            found.append(trial(trial.batch()))
        assert_near(found[0], found[1], 2 * TOLERANCE[dtype])
    assert ours.recorder.num_recorded == 1
    assert all(losses.loss.dtype == torch.float32 for losses in ours.seen)


@pytest.mark.parametrize("dtype", HALVES)
def test_gates_learn_in_float32(translation: dict[str, Any], trials: Trials, dtype: torch.dtype) -> None:
    options = with_model(translation, latent={"sides": ["encoder", "decoder"]})
    for side in ("encoder", "decoder"):
        options["model"][side]["norm"] = "pre"
    ours, theirs = trials(options, dtype)
    for trial in (ours, theirs):
        assert trial.task.latent is not None
        trial.task.latent.attach(trial.model)  # type: ignore[arg-type]
        trial.task.latent.advance(0, torch.device("cpu"))
    expected = theirs(theirs.batch())
    for _ in range(4):
        assert_near(ours(ours.batch()), expected, 2 * TOLERANCE[dtype])
    assert ours.recorder.num_recorded == 1
    logits = [name for name in expected if name.endswith("latent.logits")]
    assert len(logits) == 2
    for name in logits:
        assert bool(expected[name].all())
        torch.testing.assert_close(
            ours(ours.batch())[name], expected[name], rtol=0.2, atol=float(expected[name].abs().max()) / 10
        )
    twins = ours.passes._learners
    assert sum(twin.dtype == torch.float32 for twin in twins) == 2


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_states_are_halves_and_losses_are_not(
    translation: dict[str, Any], trials: Trials, norm: str, dtype: torch.dtype
) -> None:
    options = with_model(translation)
    for side in ("encoder", "decoder"):
        options["model"][side]["norm"] = norm
    ours, _ = trials(options, dtype)
    dtypes: list[torch.dtype] = []

    def note(module: torch.nn.Module, given: tuple[Any, ...], kept: dict[str, Any], output: Any) -> None:
        hidden, memory = output
        source = kept.get("source")
        dtypes.extend([given[0].dtype, hidden.dtype, memory.keys.dtype, memory.values.dtype])
        if source is not None:
            dtypes.append(source.states.dtype)

    blocks = [module for module in ours.model.modules() if isinstance(module, Block)]
    for block in blocks:
        block.register_forward_hook(note, with_kwargs=True)
    losses = ours.passes(ours.batch(), torch.tensor(7))
    assert len(dtypes) == len(blocks) * 4 + 2
    assert set(dtypes) == {dtype}
    assert losses.loss.dtype == torch.float32
    assert all(total.dtype == torch.float32 for total in losses.totals.values())


class Count(TorchDispatchMode):
    """How often torch was asked for what."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_nothing_is_cast_one_by_one(translation: dict[str, Any], trials: Trials) -> None:
    """All weights are copied at once, all gradients too, and queries, keys and values come from one product."""
    ours, _ = trials(with_model(translation), torch.bfloat16)
    ours(ours.batch())
    with Count() as count:
        ours(ours.batch())
    assert count.calls["_foreach_copy_"] == 2
    assert count.calls["_to_copy"] < 15
    joint_out_and_feed_forward, cross = 2 + 2, 3
    assert count.calls["addmm"] == 4 * joint_out_and_feed_forward + 2 * cross
    assert all(module.joint is None for module in ours.model.modules() if isinstance(module, Projections))


def test_others_see_float32(translation: dict[str, Any], trials: Trials) -> None:
    """Weights are untouched by a pass, are what a model has between passes, and tied ones stay tied."""
    ours, _ = trials(with_model(translation, tied_embeddings="all"), torch.bfloat16)
    before = {name: value.clone() for name, value in ours.model.state_dict().items()}
    for _ in range(4):
        ours(ours.batch())
        assert [id(param) for param in ours.model.parameters()] == [id(param) for param in ours.params]
        assert all(param.dtype == torch.float32 for param in ours.params)
    after = ours.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert ours.model.head.weight is ours.model.get_input_embeddings().weight
    with torch.no_grad():
        assert ours.model(**ours.task._inputs(ours.batch())).logits.dtype == torch.float32  # type: ignore[attr-defined]


def test_weights_are_restored_after_an_error(translation: dict[str, Any], trials: Trials) -> None:
    ours, _ = trials(with_model(translation), torch.bfloat16)
    batch = ours.batch()
    with pytest.raises(KeyError):
        ours.passes({"input_ids": batch["input_ids"]}, torch.tensor(1))
    assert all(param.dtype == torch.float32 for param in ours.model.parameters())


def test_every_pass_has_the_weights_of_its_update(translation: dict[str, Any], trials: Trials) -> None:
    ours, theirs = trials(with_model(translation), torch.bfloat16)
    for _ in range(5):
        assert_near(ours(ours.batch()), theirs(theirs.batch()), TOLERANCE[torch.bfloat16])
        with torch.no_grad():
            for mine, its in zip(ours.params, theirs.params, strict=True):
                change = 0.1 * torch.randn_like(mine)
                mine.add_(change)
                its.add_(change)


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_of_an_update_add_up_in_float32(
    translation: dict[str, Any], trials: Trials, dtype: torch.dtype
) -> None:
    ours, theirs = trials(with_model(translation), dtype)
    batches = [ours.batch(first) for first in (0, 5, 10)]
    expected = theirs(*batches)
    for _ in range(4):
        places = [param.grad for param in ours.params]
        assert_near(ours(*batches), expected, TOLERANCE[dtype])
        if places[0] is not None:
            assert all(param.grad is place for param, place in zip(ours.params, places, strict=True))
    assert ours.recorder.num_recorded >= 2  # one that begins an update and one that adds


def test_sums_are_as_precise_as_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = torch.nn.Linear(1, 1, bias=False)

    def run(batch: dict[str, torch.Tensor], num_items: torch.Tensor) -> Losses:
        loss = layer(batch["x"].to(layer.weight.dtype)).float().sum()
        loss.backward()
        return Losses(loss, {})

    recorder = Recorder(monkeypatch)
    passes = graphs.RecordedPasses(run, [layer.weight], HalfStates(layer, torch.bfloat16))
    recorder.serve(passes)
    for _ in range(4):
        layer.weight.grad = None
        for value in (1.0, 2.0**-12):  # whose sum no bfloat16 can hold
            passes({"x": torch.tensor([[value]])}, torch.tensor(1))
        assert layer.weight.grad is not None
        assert float(layer.weight.grad) == 1 + 2.0**-12


def test_frozen_parameters_have_no_gradient(translation: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    ours = Trial(with_model(translation, tied_embeddings="none"), tmp_path, monkeypatch, None)
    frozen = ours.model.model.encoder.embedding.requires_grad_(False)
    half = HalfStates(ours.model, torch.bfloat16)
    ours.passes = graphs.RecordedPasses(ours.run, ours.params, half)
    ours.recorder.serve(ours.passes)
    for _ in range(4):
        found = ours(ours.batch())
        assert all(param.grad is None for param in frozen.parameters())
        assert len(found) == len(ours.params) - 1
    assert ours.recorder.num_recorded == 1


def test_parameters_that_join_later_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not when a pass is recorded: gradients of their twins would get nowhere."""
    layer, uses_bias = torch.nn.Linear(2, 1), False

    def run(batch: dict[str, torch.Tensor], num_items: torch.Tensor) -> Losses:
        x = batch["x"].to(layer.weight.dtype)
        loss = torch.nn.functional.linear(x, layer.weight, layer.bias if uses_bias else None).float().sum()
        loss.backward()
        return Losses(loss, {})

    recorder = Recorder(monkeypatch)
    passes = graphs.RecordedPasses(run, list(layer.parameters()), HalfStates(layer, torch.bfloat16))
    recorder.serve(passes)
    passes({"x": torch.ones(3, 2)}, torch.tensor(1))
    assert layer.bias.grad is None
    uses_bias = True
    with pytest.raises(AssertionError, match="all batches"):
        passes({"x": torch.ones(3, 2)}, torch.tensor(1))


def test_autocast_that_accelerate_adds_is_left_out(
    translation: dict[str, Any], trials: Trials, prepared: Callable[..., PreTrainedModel]
) -> None:
    """Also that it is there again between passes."""
    ours, _ = trials(with_model(translation), torch.bfloat16)
    prepared(ours.model, cpu=True)
    entered: list[bool] = []
    for block in ours.model.modules():
        if isinstance(block, Block):
            block.register_forward_pre_hook(lambda *_: entered.append(torch.is_autocast_enabled("cpu")))
    ours.passes(ours.batch(), torch.tensor(7))
    assert entered == [False] * 4
    with torch.no_grad():
        ours.task.losses(ours.model, ours.batch(), 7)
    assert entered[4:] == [True] * 4


def losses_on_gpu(options: dict[str, Any], run: Path, **training: Any) -> list[float]:
    rates = {"max_updates": 40, "log_every": 1, "clip_norm": 1.0, "graphs": True}
    train(recipe_of(options, **rates, **training), run)
    return losses_of(run)


@pytest.mark.gpu
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_repeated_passes_are_plain_passes(
    translation: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, accumulate: int
) -> None:
    training = {"precision": precision, "accumulate": accumulate, "half_states": True}
    recorded = losses_on_gpu(with_model(translation), tmp_path / "recorded", **training)
    monkeypatch.setattr(graphs, "NUM_PLAIN", 10**9)
    plain = losses_on_gpu(with_model(translation), tmp_path / "plain", **training)
    assert recorded == pytest.approx(plain, rel=5e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mixer", MIXERS)
def test_models_learn_as_by_autocast(translation: dict[str, Any], tmp_path: Path, mixer: str, precision: str) -> None:
    options = with_model(translation, mixer)
    ours, theirs = (
        losses_on_gpu(options, tmp_path / str(half), precision=precision, half_states=half) for half in (True, False)
    )
    assert ours == pytest.approx(theirs, rel=5e-2)
    assert ours[-1] < 0.9 * ours[0]


@pytest.mark.gpu
@pytest.mark.parametrize("objective", ["aligned", "mixed"])
def test_exits_learn_on_a_gpu(translation: dict[str, Any], tmp_path: Path, objective: str) -> None:
    options = with_model(translation, exits={}, policy={"kind": "poisson_binomial"} if objective == "aligned" else None)
    training = {"precision": "bf16", "exits": {"objective": objective}, "half_states": True}
    found = losses_on_gpu(options, tmp_path / "run", **training)
    assert found[-1] < 0.9 * found[0]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
def test_gates_learn_on_a_gpu(
    translation: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """Recorded passes draw what plain ones draw, soft and hard, and logits learn with every second update alone."""
    options = with_model(translation, latent={"sides": ["encoder", "decoder"]})
    for side in ("encoder", "decoder"):
        options["model"][side] |= {"norm": "pre", "num_layers": 3}
    latent = {"soft_updates": 10, "anneal_updates": 5, "target_depth": 2, "inner_updates": 2, "lr": 0.05}
    training = {"precision": precision, "half_states": True, "gradient_norms": True, "latent": latent}
    recorded = losses_on_gpu(options, tmp_path / "recorded", **training)
    monkeypatch.setattr(graphs, "NUM_PLAIN", 10**9)
    plain = losses_on_gpu(options, tmp_path / "plain", **training)
    assert recorded == pytest.approx(plain, rel=5e-2)
    ours, theirs = (
        [json.loads(line) for line in (tmp_path / run / "layers.jsonl").read_text().splitlines()]
        for run in ("recorded", "plain")
    )
    for one, other in zip(ours, theirs, strict=True):
        for side in ("encoder", "decoder"):
            expected = other[side]["all"]["probabilities"]
            assert one[side]["all"]["probabilities"] == pytest.approx(expected, abs=0.05)
    assert ours[0]["decoder"]["all"]["probabilities"] == [0.5] * 3
    assert ours[1]["decoder"] != ours[0]["decoder"]


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", MIXERS)
def test_a_pass_takes_fewer_kernels(
    translation: dict[str, Any], tmp_path: Path, prepared: Callable[..., PreTrainedModel], mixer: str
) -> None:
    counts = []
    for half in (True, False):
        task = open_task(recipe_of(with_model(translation, mixer), graphs=True), tmp_path)
        model = prepared(task.new_model().cuda().train())
        store, twins = task.examples("train"), HalfStates(model, torch.bfloat16)
        batch = {name: value.cuda() for name, value in task.collate([store[index] for index in range(5)]).items()}
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
            with twins.worn() if half else nullcontext():
                task.losses(model, batch, torch.tensor(7, device="cuda")).loss.backward()
            torch.cuda.synchronize()
        counts.append(sum(event.count for event in seen.key_averages() if event.device_type.name == "CUDA"))
    assert counts[0] < 0.8 * counts[1]
