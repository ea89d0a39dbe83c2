"""Loading a finished run, and what is said of one that cannot be loaded."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from depthwise.config import ModelConfig, StackConfig, load_recipe, recipe_yaml
from depthwise.depth import Plan
from depthwise.errors import CheckpointError, ConfigError, InputError
from depthwise.evaluation import load_model, load_run, open_run, pick_device
from depthwise.evaluation.runs import cut_to_depth
from depthwise.models.causal_lm import DepthwiseForCausalLM
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.models.token_classification import DepthwiseForTokenClassification

from .conftest import STACK, build_run, write_corpora

MakeRun = Callable[..., Path]


def test_a_run_is_loaded_for_evaluation(make_run: MakeRun) -> None:
    folder = make_run("translation", seed=3)
    run = load_run(folder, ["generation.num_beams=1"], device="cpu")
    assert not run.model.training
    assert run.task.kind == "translation"
    assert (run.recipe.seed, run.recipe.generation.num_beams, run.recipe.generation.max_extra) == (3, 1, 3)
    saved = load_file(folder / "model.safetensors")
    assert all(torch.equal(run.model.state_dict()[name], tensor) for name, tensor in saved.items())


@pytest.mark.parametrize(
    ("latent", "changes"), [({"gates": "sampled"}, []), ({"gates": "hard"}, ["evaluation.gates=sampled"])]
)
def test_sampled_gates_follow_the_seed_of_the_recipe(
    tmp_path: Path, latent: dict[str, str], changes: list[str]
) -> None:
    """Whether the model or the evaluation asks for them."""
    options = write_corpora(tmp_path)["text"]
    model = {**options["model"], "decoder": {**STACK, "norm": "pre"}, "latent": latent}
    folder = build_run(tmp_path / "run", {**options, "model": model}, 1)
    recipe = load_recipe(folder / "recipe.yaml")

    def drawn(seed: int) -> torch.Tensor:
        (folder / "recipe.yaml").write_text(recipe_yaml(replace(recipe, seed=seed)))
        weight = load_run(folder, changes, device="cpu").model.latent_layers()["decoder"](None, 1).weight
        assert weight is not None
        return weight

    assert torch.equal(drawn(77), drawn(77))
    assert not torch.equal(drawn(1), drawn(77))


def test_other_weights_of_a_run_have_its_gates(tmp_path: Path) -> None:
    """As means of checkpoints do, which are compared with what the run says."""
    options = write_corpora(tmp_path)["text"]
    model = {**options["model"], "decoder": {**STACK, "norm": "pre"}, "latent": {}}
    folder = build_run(tmp_path / "run", {**options, "model": model}, 1)
    run = load_run(folder, ["evaluation.gates=hard"], device="cpu")
    other = load_model(run.task, folder, run.device)
    assert [of.latent_layers()["decoder"].mode for of in (run.model, other)] == ["hard", "hard"]


def test_precision(make_run: MakeRun) -> None:
    run = load_run(make_run("classes"), device="cpu", precision="bf16")
    assert {weight.dtype for weight in run.model.parameters()} == {torch.bfloat16}
    with pytest.raises(InputError, match='there is no precision "fp8"; give one of fp32, bf16'):
        load_run(run.folder, device="cpu", precision="fp8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.width=8", "model.width  is fixed once a model is trained; changes are to data, generation, evaluation"),
        ("seed=8", "seed  is fixed once a model is trained"),
        ("generation.beams=1", "generation.beams  unknown option; did you mean generation.num_beams?"),
        ("generation.num_beams=0", "generation.num_beams  0 is too small"),
        ("evaluation.metrics=[bleau]", 'evaluation.metrics  "bleau" is none of sacrebleu'),
    ],
)
def test_changes_that_cannot_be(make_run: MakeRun, change: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        open_run(make_run("translation"), [change])
    assert message in str(raised.value)


def test_the_task_needs_no_weights(make_run: MakeRun) -> None:
    folder = make_run("classes")
    (folder / "model.safetensors").unlink()
    assert open_run(folder).kind == "text_classification"
    with pytest.raises(CheckpointError, match=f"the weights in {folder} cannot be loaded: .*no file named"):
        load_run(folder, device="cpu")


def test_damaged_weights(make_run: MakeRun) -> None:
    folder = make_run("classes")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(
        CheckpointError, match=f"the weights in {folder} cannot be loaded: .*; copy or train the run again"
    ) as raised:
        load_run(folder, device="cpu")
    assert "\n" not in str(raised.value)


def test_incomplete_weights(make_run: MakeRun) -> None:
    """Transformers would draw what is missing at random and only warn."""
    folder = make_run("classes")
    weights = load_file(folder / "model.safetensors")
    del weights["classifier.bias"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    message = f"the weights in {folder} are incomplete: classifier.bias is missing; copy or train the run again$"
    with pytest.raises(CheckpointError, match=message):
        load_run(folder, device="cpu")


@pytest.fixture
def log_of_transformers(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Which goes past the root of all loggers otherwise."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    return caplog


def test_weights_of_another_shape(make_run: MakeRun, log_of_transformers: pytest.LogCaptureFixture) -> None:
    """One sentence says so, and no table of Transformers beside it."""
    folder = make_run("classes")
    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"] = torch.zeros(7)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    sentence = (
        f"the weights in {folder} do not fit its config.json: classifier.bias is of shape (7,) and not (2,); "
        "restore its config.json, or copy or train the run again"
    )
    with pytest.raises(CheckpointError) as raised:
        load_run(folder, device="cpu")
    assert (str(raised.value), log_of_transformers.records) == (sentence, [])


@pytest.mark.parametrize("kind", ["text", "translation", "masked text"])
@pytest.mark.parametrize(("num_rows", "in_config"), [(0, 1), (1, 0)])
@pytest.mark.parametrize("is_sharded", [False, True])
def test_tied_weights_of_another_shape(
    make_run: MakeRun, kind: str, num_rows: int, in_config: int, is_sharded: bool
) -> None:
    """Both copies are in the file; Transformers fails before it says which of them does not fit."""
    folder = make_run(kind)
    weights, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    table = next(name for name in weights if name.endswith("embedding.tokens.weight"))
    size, width = weights[table].shape
    weights["head.weight"] = torch.zeros(size + num_rows, width)
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": size + in_config}))
    if is_sharded:
        (folder / "model.safetensors").unlink()
        names = {name: f"model-{1 + (name == table):05}-of-00002.safetensors" for name in weights}
        for shard in set(names.values()):
            content = {name: weights[name] for name in weights if names[name] == shard}
            save_file(content, folder / shard, metadata={"format": "pt"})
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    else:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    shapes = f"head.weight is of shape {(size + num_rows, width)} and not {(size + in_config, width)}"
    more = ", and 1 more do not fit" if in_config else ""
    with pytest.raises(CheckpointError) as raised:
        load_run(folder, device="cpu")
    remedy = "restore its config.json, or copy or train the run again"
    assert str(raised.value) == f"the weights in {folder} do not fit its config.json: {shapes}{more}; {remedy}"


@pytest.mark.parametrize(
    ("num_layers", "message"),
    [
        (1, r"do not fit its config\.json: there is no place for model\.encoder\.stack\.layers\.1\.\S+, and \d+ more"),
        (3, r"are incomplete: model\.encoder\.stack\.layers\.2\.\S+ is missing and so are \d+ more; copy"),
    ],
)
def test_a_configuration_with_other_layers(
    make_run: MakeRun, log_of_transformers: pytest.LogCaptureFixture, num_layers: int, message: str
) -> None:
    """Transformers would run one layer less, or one that was never trained, and only warn."""
    folder = make_run("classes")
    config = json.loads((folder / "config.json").read_text())
    config["encoder"]["num_layers"] = num_layers
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"^the weights in {folder} {message}"):
        load_run(folder, device="cpu")
    assert log_of_transformers.records == []


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    with pytest.raises(InputError, match="there is no GPU here that torch can use; ask for the device cpu, or auto"):
        pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device("auto") == torch.device("cuda")


@torch.no_grad()
def test_a_depth_is_that_of_a_plan(make_run: MakeRun) -> None:
    """For the encoder of a classifier and the decoder of a translator."""
    classifier, cut = (load_run(make_run("classes", name=name), device="cpu").model for name in ("a", "b"))
    cut_to_depth(cut, 1)
    ids = torch.tensor([[4, 5, 6, 2]])
    depths = torch.ones_like(ids)
    planned = classifier(ids, plan=Plan.of_depths(depths, 2))
    torch.testing.assert_close(cut(ids).logits, planned.logits)
    assert cut(ids).depths.tolist() == planned.depths.tolist() == [[1, 1, 1, 1]]
    assert not torch.allclose(classifier(ids).logits, planned.logits)

    translator, cut = (load_run(make_run("translation", name=name), device="cpu").model for name in ("c", "d"))
    cut_to_depth(cut, 1)
    planned = translator(ids, decoder_input_ids=ids, plan=Plan.of_depths(depths, 2))
    torch.testing.assert_close(cut(ids, decoder_input_ids=ids).logits, planned.logits)
    assert cut(ids, decoder_input_ids=ids).encoder_depths.tolist() == [[2, 2, 2, 2]]


@pytest.mark.parametrize("shared_layers", [None, (0,), (0, 1, 0)])
@pytest.mark.parametrize("model_class", [DepthwiseForCausalLM, DepthwiseForTokenClassification])
@torch.no_grad()
def test_a_depth_of_one_stack_alone(
    model_class: type[DepthwisePreTrainedModel], shared_layers: tuple[int, ...] | None
) -> None:
    """Also where layers share their blocks."""
    side = "decoder" if model_class is DepthwiseForCausalLM else "encoder"
    stack = StackConfig(num_layers=3, num_heads=2, ffn_width=16, shared_layers=shared_layers)
    options = ModelConfig(vocab_size=9, width=8, **{side: stack})
    model = model_class(DepthwiseConfig.from_options(options, pad_token_id=1, eos_token_id=2)).eval()
    ids = torch.tensor([[4, 5, 6, 2]])
    planned = model(ids, plan=Plan.of_depths(torch.full_like(ids, 2), 3))
    assert not torch.allclose(model(ids).logits, planned.logits)
    cut_to_depth(model, 2)
    torch.testing.assert_close(model(ids).logits, planned.logits)
    assert model(ids).depths.tolist() == [[2, 2, 2, 2]]


@pytest.mark.parametrize("depth", [0, 3])
def test_a_depth_that_there_is_not(make_run: MakeRun, depth: int) -> None:
    with pytest.raises(InputError, match="the decoder has 2 blocks; give a depth from 1 to 2"):
        load_run(make_run("translation"), device="cpu", depth=depth)
