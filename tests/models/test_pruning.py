"""Models without the layers that their gates close: the same numbers from less (I27)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from depthwise.config import StackConfig
from depthwise.errors import InputError
from depthwise.models.pruning import imported_pairs, layer_probabilities, layers_to_keep, pairs_translated, pruned

LATENT = {"sides": ["encoder", "decoder"], "per_language": True}
LATENT |= {"source_languages": ["en", "nl"], "target_languages": ["de", "fr"]}
DEEP = {"num_layers": 4}
GATES = {
    "encoder": [[2.0, -1.0, 3.0, -2.0], [1.0, -1.0, 3.0, -2.0]],
    "decoder": [[-1.0, 2.0, -3.0, 0.5], [3.0, 2.5, -1.0, -0.5]],
}
TOLD = {"source_languages": torch.tensor([1, 0, 1]), "target_languages": torch.tensor([0, 1, 1])}


def gated(build: Callable[..., Any], *arguments: Any, **changes: Any) -> Any:
    model = build("seq2seq", *arguments, **{"latent": LATENT, "stack": DEEP, **changes})
    with torch.no_grad():
        for side, layers in model.latent_layers().items():
            layers.logits.copy_(torch.tensor(GATES[side])[: len(layers.logits)])
    model.use_gates("hard")
    return model


@pytest.mark.parametrize("norm", ["pre", "none"])
def test_a_language_of_its_own(
    build: Callable[..., Any], draw_batch: Callable[..., Any], mixer: str, norm: str
) -> None:
    """Also step by step, without the memories of layers that are gone."""
    model = gated(build, mixer, norm)
    kept = layers_to_keep(layer_probabilities(model), "nl-de")
    assert kept.layers == {"encoder": (0, 2), "decoder": (1, 3)}
    smaller = pruned(model, kept)
    assert smaller.config.latent is None
    assert smaller.latent_layers() == {}
    assert smaller.config.num_hidden_layers == 2
    batch = draw_batch("seq2seq")
    told = {"source_languages": torch.tensor([1] * 3), "target_languages": torch.tensor([0] * 3)}
    ours, theirs = smaller(**batch), model(**batch, **told)
    torch.testing.assert_close(ours.logits, theirs.logits, atol=1e-12, rtol=1e-12)
    assert torch.equal(ours.depths, theirs.depths)
    ids = batch.pop("labels").clamp(min=4)
    state, steps = None, []
    for step in range(ids.shape[1]):
        output = smaller(**batch, decoder_input_ids=ids[:, [step]], past_key_values=state, use_cache=True)
        state = output.past_key_values
        steps.append(output.logits)
    assert len(state.memories) == 2
    torch.testing.assert_close(torch.cat(steps, 1), model(**batch, decoder_input_ids=ids, **told).logits)


def test_gates_that_are_barely_open_or_closed(build: Callable[..., Any]) -> None:
    """Hard gates and pruning agree where a probability of single precision would be one half."""
    model = gated(build, "attention", latent={"sides": ["decoder"]})
    with torch.no_grad():
        model.latent_layers()["decoder"].logits.copy_(torch.tensor([[1e-8, -1e-8, 0.0, 2.0]]))
    model.float()
    kept = layers_to_keep(layer_probabilities(model)).layers["decoder"]
    assert kept == (0, 3)
    assert tuple(model.latent_layers()["decoder"].is_open[0].nonzero().flatten().tolist()) == kept


def test_what_any_language_uses(build: Callable[..., Any], draw_batch: Callable[..., Any], tmp_path: Any) -> None:
    """Languages agree on the encoder, which loses its gates; those of the decoder stay and are hard."""
    model = gated(build)
    kept = layers_to_keep(layer_probabilities(model))
    assert (kept.layers, kept.gated) == ({"encoder": (0, 2), "decoder": (0, 1, 3)}, ("decoder",))
    smaller = pruned(model, kept)
    batch = draw_batch("seq2seq")
    expected = model(**batch, **TOLD)
    found = smaller(**batch, **TOLD)
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-12, rtol=1e-12)
    assert torch.equal(found.depths, expected.depths)
    smaller.save_pretrained(tmp_path)
    again = type(smaller).from_pretrained(tmp_path).double().eval()
    torch.testing.assert_close(again(**batch, **TOLD).logits, expected.logits)


def test_sides_whose_gates_began_elsewhere(build: Callable[..., Any], draw_batch: Callable[..., Any]) -> None:
    """The side that keeps its gates keeps the logit that they began with, too."""
    model = gated(build, latent={**LATENT, "init": [-4.0, 5.0]})
    smaller = pruned(model, layers_to_keep(layer_probabilities(model)))
    assert (smaller.config.latent["sides"], smaller.config.latent["init"]) == (["decoder"], [5.0])
    batch = draw_batch("seq2seq")
    torch.testing.assert_close(smaller(**batch, **TOLD).logits, model(**batch, **TOLD).logits)


def test_the_likeliest_layers(build: Callable[..., Any]) -> None:
    probabilities = layer_probabilities(gated(build))
    assert layers_to_keep(probabilities, keep=2).layers == {"encoder": (0, 2), "decoder": (0, 1)}
    assert layers_to_keep(probabilities, "de", keep=3).layers == {"encoder": (0, 1, 2), "decoder": (0, 1, 3)}
    assert layers_to_keep(probabilities, "nl-fr", keep=1).layers == {"encoder": (2,), "decoder": (0,)}
    assert not layers_to_keep(probabilities, keep=2).gated


def test_layers_that_share_blocks(build: Callable[..., Any], draw_batch: Callable[..., Any]) -> None:
    stack = {**DEEP, "shared_layers": [0, 0, 1, 2], "kernel_sizes": [3, 3, 5, 1]}
    model = gated(build, stack=stack)
    smaller = pruned(model, layers_to_keep(layer_probabilities(model), "en-de"))
    assert smaller.config.decoder["shared_layers"] == [0, 1]
    assert smaller.config.decoder["kernel_sizes"] == [3, 1]
    batch = draw_batch("seq2seq")
    told = {"source_languages": torch.tensor([0] * 3), "target_languages": torch.tensor([0] * 3)}
    torch.testing.assert_close(smaller(**batch).logits, model(**batch, **told).logits)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_imported_gates(build: Callable[..., Any], draw_batch: Callable[..., Any], norm: str) -> None:
    policy = {"kind": "latent", "encoder_logits": None, "decoder_logits": GATES["decoder"]}
    policy |= {"language_pairs": ["en-de", "en-fr"], "tau": 5.0}
    model = build("seq2seq", norm=norm, policy=policy, stack=DEEP)
    kept = layers_to_keep(layer_probabilities(model), "de")
    assert kept.layers == {"decoder": (1, 3)}
    assert imported_pairs(model) == ("en-de", "en-fr")
    if norm == "post":
        with pytest.raises(InputError, match=r"the decoder is post-norm.*can be removed"):
            pruned(model, kept)
        return
    smaller = pruned(model, kept)
    assert smaller.config.policy is None
    twin = gated(build, latent={**LATENT, "sides": ["decoder"]})
    twin.load_state_dict(model.state_dict(), strict=False)
    batch = draw_batch("seq2seq")
    told = {"target_languages": torch.tensor([0] * 3)}
    torch.testing.assert_close(smaller(**batch).logits, twin(**batch, **told).logits)
    with pytest.raises(InputError, match="an imported model cannot tell apart; name one"):
        pruned(model, layers_to_keep(layer_probabilities(model)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "xx"}, "xx is no language of these gates; the encoder has layers for en, nl; the decoder"),
        ({"language": "xx-de"}, "xx-de is no language"),
        ({"language": ""}, '"" is no language of these gates; the encoder has layers for en, nl; the decoder'),
        ({"keep": 5}, "the encoder has 4 layers; keep 1 to 4 of them, not 5"),
        ({"keep": 0}, "not 0"),
    ],
)
def test_what_cannot_be_kept(build: Callable[..., Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        layers_to_keep(layer_probabilities(gated(build)), **options)


@pytest.mark.parametrize(
    ("sides", "language", "pairs"),
    [
        (["decoder"], "de", ["en-de", "nl-de"]),
        (["encoder"], "de", ["de-fr"]),
        (["encoder", "decoder"], "nl", ["nl-de"]),
        (["encoder", "decoder"], "en-fr", ["en-fr"]),
        (["decoder"], "nl-de", ["nl-de"]),
        (["encoder", "decoder"], "nl-fr", None),
        (["encoder", "decoder"], "de", None),
        (["decoder"], "xx-de", None),
    ],
)
def test_pairs_that_are_left(
    build: Callable[..., Any], sides: list[str], language: str, pairs: list[str] | None
) -> None:
    """Those with the source and the target whose layers are kept; German is one of both here."""
    known = ["en-de", "en-fr", "nl-de", "de-fr"]
    latent = {**LATENT, "sides": sides, "source_languages": ["en", "nl", "de"]}
    probabilities = layer_probabilities(build("seq2seq", latent=latent, stack=DEEP))
    if pairs is None:
        with pytest.raises(InputError, match=f"this run does not translate {language}; it knows en-de, .*: name one"):
            pairs_translated(known, probabilities, language)
    else:
        assert pairs_translated(known, probabilities, language) == tuple(pairs)


def test_nothing_would_be_left(build: Callable[..., Any]) -> None:
    model = gated(build)
    with torch.no_grad():
        model.latent_layers()["decoder"].logits[1].fill_(-1.0)
    message = r"the decoder is more likely used than not by fr \(.* has 0.27\), so that nothing would be left for fr;"
    for language in (None, "fr", "en-fr"):
        with pytest.raises(InputError, match=message):
            layers_to_keep(layer_probabilities(model), language)
    assert layers_to_keep(layer_probabilities(model), "de").layers["decoder"] == (1, 3)
    with torch.no_grad():
        model.latent_layers()["encoder"].logits.fill_(-2.0)
    with pytest.raises(InputError, match=r"the encoder .* not by en, nl \(.* 0.12\), so that nothing .* for en, nl;"):
        layers_to_keep(layer_probabilities(model))


def test_nothing_would_be_left_for_anybody(build: Callable[..., Any]) -> None:
    """Where languages share their layers, none is named."""
    model = gated(build, latent={"sides": ["decoder"]})
    with torch.no_grad():
        model.latent_layers()["decoder"].logits.fill_(-1.0)
    with pytest.raises(
        InputError, match=r"likely used than not \(the .* has 0.27\), so that nothing would be left; say"
    ):
        layers_to_keep(layer_probabilities(model))


def test_languages_that_share_all_layers(build: Callable[..., Any]) -> None:
    model = gated(build, latent={"sides": ["decoder"]})
    assert layers_to_keep(layer_probabilities(model)).layers == {"decoder": (1, 3)}
    with pytest.raises(InputError, match="all languages share the layers of this model; leave --language out"):
        layers_to_keep(layer_probabilities(model), "de")


def test_a_model_without_gates(build: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="has no gates that say which layers can go"):
        layer_probabilities(build("seq2seq"))


def test_groups_become_a_list_of_blocks() -> None:
    stack = StackConfig(num_layers=6, groups=3, norm="pre")
    shortened = stack.of_layers((0, 3, 4, 5))
    assert (shortened.groups, shortened.shared_layers, shortened.num_layers) == (None, (0, 1, 2, 2), 4)
