"""Models with gates on their layers: open ones change nothing, closed ones leave states alone (I27)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.engine import CompactEncoder
from depthwise.errors import InputError
from depthwise.models.executing import executed_by

BOTH = {"sides": ["encoder", "decoder"]}
LANGUAGES = {**BOTH, "per_language": True, "source_languages": ["en", "nl"], "target_languages": ["de", "fr"]}
TOLD = {"source_languages": torch.tensor([1, 0, 1]), "target_languages": torch.tensor([0, 1, 1])}
DEEP = {"num_layers": 4}


def set_gates(model: Any, gates: dict[str, list[list[float]]]) -> None:
    """Logits by side and language."""
    with torch.no_grad():
        for side, layers in model.latent_layers().items():
            layers.logits.copy_(torch.tensor(gates[side]))


@pytest.mark.parametrize("norm", ["pre", "none"])
@pytest.mark.parametrize("mode", ["soft", "hard", "training"])
def test_open_gates_are_a_plain_model(
    build: Callable[..., Any], draw_batch: Callable[..., Any], norm: str, mode: str
) -> None:
    model = build("seq2seq", norm=norm, latent=BOTH)
    plain = build("seq2seq", norm=norm)
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if ".latent." not in name})
    set_gates(model, {"encoder": [[60.0] * 2], "decoder": [[60.0] * 2]})
    for layers in model.latent_layers().values():
        layers.hardness.fill_(1.0)
    if mode == "training":
        model.train()
    else:
        model.use_gates(mode)
    batch = draw_batch("seq2seq")
    ours, theirs = model(**batch), plain(**batch)
    torch.testing.assert_close(ours.logits, theirs.logits, atol=1e-12, rtol=1e-12)
    assert torch.equal(ours.depths, theirs.depths)


@pytest.mark.parametrize("whole", [False, True])
def test_every_row_runs_the_layers_of_its_language(
    build: Callable[..., Any], draw_batch: Callable[..., Any], whole: bool
) -> None:
    """Gates of 0 and 1 are those of Eq. 2, whatever they weigh."""
    model = build("seq2seq", latent={**LANGUAGES, "whole_layer": whole}, stack=DEEP)
    open_layers = {"encoder": [[1, 0, 0, 1], [0, 1, 1, 1]], "decoder": [[0, 0, 1, 0], [1, 1, 0, 1]]}
    set_gates(model, {side: [[9.0 if z else -9.0 for z in row] for row in rows] for side, rows in open_layers.items()})
    model.use_gates("hard")
    batch = draw_batch("seq2seq")
    hard = model(**batch, **TOLD)
    assert hard.depths.tolist() == [[1] * 4, [3] * 4, [3] * 4]
    alone = [model(**{n: v[[row]] for n, v in {**batch, **TOLD}.items()}).logits[0] for row in range(3)]
    torch.testing.assert_close(hard.logits, torch.stack(alone))
    set_gates(
        model, {side: [[900.0 if z else -900.0 for z in row] for row in rows] for side, rows in open_layers.items()}
    )
    for layers in model.latent_layers().values():
        layers.hardness.fill_(1.0)
    model.use_gates("soft")
    torch.testing.assert_close(model(**batch, **TOLD).logits, hard.logits)


def test_a_whole_layer_is_weighed_by_what_it_adds(build: Callable[..., Any], draw_ids: Callable[..., Tensor]) -> None:
    model = build("masked_lm", latent={"sides": ["encoder"], "whole_layer": True}, stack={"num_layers": 1})
    plain = build("masked_lm", stack={"num_layers": 1})
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if ".latent." not in name})
    ids = draw_ids()
    x, after = plain(ids, output_hidden_states=True).hidden_by_depth
    z = model.latent_layers()["encoder"].expected()[0, 0]
    found = model(ids, output_hidden_states=True).hidden_by_depth[1]
    torch.testing.assert_close(found, x + z * (after - x))
    branches = build("masked_lm", latent={"sides": ["encoder"]}, stack={"num_layers": 1})
    branches.load_state_dict(model.state_dict())
    assert not torch.allclose(branches(ids, output_hidden_states=True).hidden_by_depth[1], found)


@pytest.mark.parametrize("mode", ["soft", "hard"])
@pytest.mark.parametrize("whole", [False, True])
def test_steps_of_decoding_are_the_whole(
    build: Callable[..., Any], draw_batch: Callable[..., Any], mode: str, whole: bool
) -> None:
    model = build("seq2seq", latent={**LANGUAGES, "whole_layer": whole}, stack=DEEP)
    model.use_gates(mode)
    batch = {**draw_batch("seq2seq"), **TOLD}
    ids = batch.pop("labels").clamp(min=4)
    whole_pass = model(**batch, decoder_input_ids=ids)
    state, steps, depths = None, [], []
    for step in range(ids.shape[1]):
        output = model(**batch, decoder_input_ids=ids[:, [step]], past_key_values=state, use_cache=True)
        state = output.past_key_values
        steps.append(output.logits)
        depths.append(output.depths)
    torch.testing.assert_close(torch.cat(steps, 1), whole_pass.logits)
    assert torch.equal(torch.cat(depths, 1), whole_pass.depths)


def test_beams_know_their_language(build: Callable[..., Any], draw_batch: Callable[..., Any]) -> None:
    model = build("seq2seq", latent=LANGUAGES, stack=DEEP)
    model.use_gates("hard")
    batch = draw_batch("seq2seq")
    batch.pop("labels")
    search = {"num_beams": 3, "max_length": 8}
    together = model.generate(**batch, **TOLD, **search)
    for row in range(3):
        alone = model.generate(**{n: v[[row]] for n, v in {**batch, **TOLD}.items()}, **search)
        length = min(alone.shape[1], together.shape[1])
        assert torch.equal(alone[0, :length], together[row, :length])


@pytest.mark.parametrize("mode", ["soft", "hard"])
@pytest.mark.parametrize("whole", [False, True])
def test_the_compact_executor_agrees(
    build: Callable[..., Any], draw_batch: Callable[..., Any], mode: str, whole: bool
) -> None:
    latent = {**LANGUAGES, "sides": ["encoder"], "whole_layer": whole}
    model = build("seq2seq", latent=latent, stack=DEEP)
    model.use_gates(mode)
    batch = {**draw_batch("seq2seq"), **TOLD}
    expected = model(**batch)
    with executed_by(CompactEncoder()):
        found = model(**batch)
    torch.testing.assert_close(found.logits, expected.logits)
    assert torch.equal(found.encoder_depths, expected.encoder_depths)


def test_a_model_without_gates_has_none_to_choose(build: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=r"no gates on its layers; train one with model.latent"):
        build("seq2seq").use_gates("hard")


def test_gates_are_saved_with_the_model(build: Callable[..., Any], tmp_path: Any) -> None:
    model = build("seq2seq", latent=LANGUAGES)
    layers = model.latent_layers()["decoder"]
    layers.hardness.fill_(1.0)
    layers.temperature.fill_(2.0)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).latent_layers()["decoder"]
    assert torch.equal(again.logits.double(), layers.logits.detach())
    assert (float(again.hardness), float(again.temperature)) == (1, 2)


def test_a_new_model_begins_as_its_options_say(config_of: Callable[..., Any], build: Callable[..., Any]) -> None:
    model = type(build("seq2seq"))(config_of("seq2seq", latent={"init": 1.5, "temperature": 3.0}))
    layers = model.latent_layers()["decoder"]
    assert layers.logits.tolist() == [[1.5, 1.5]]
    assert (float(layers.hardness), float(layers.temperature)) == (0, 3)


def test_sides_may_begin_elsewhere(config_of: Callable[..., Any], build: Callable[..., Any]) -> None:
    latent = {"sides": ["decoder", "encoder"], "init": [5, -4]}
    layers = type(build("seq2seq"))(config_of("seq2seq", latent=latent)).latent_layers()
    begins = {side: each.logits.unique().tolist() for side, each in layers.items()}
    assert begins == {"decoder": [5.0], "encoder": [-4.0]}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_languages_learn_from_their_own_rows_alone(
    build: Callable[..., Any], draw_batch: Callable[..., Any], checkpointing: bool
) -> None:
    """I28, and the gradient does not depend on whether blocks are run again."""
    model = build("seq2seq", latent=LANGUAGES, stack=DEEP).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    told = {"source_languages": torch.tensor([1, 1, 1]), "target_languages": torch.tensor([0, 0, 0])}
    model(**draw_batch("seq2seq"), **told).loss.backward()
    gradients = {side: layers.logits.grad for side, layers in model.latent_layers().items()}
    assert bool((gradients["encoder"][1] != 0).all())
    assert bool((gradients["decoder"][0] != 0).all())
    assert not gradients["encoder"][0].any()
    assert not gradients["decoder"][1].any()
