"""The engine with gates on layers: the tokens of the model's own ``generate``, each language by its own layers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from depthwise.engine import Engine
from depthwise.errors import InputError
from depthwise.evaluation.runs import cut_to_depth

from ..models.test_latent import BOTH, DEEP, LANGUAGES, TOLD, set_gates

Build = Callable[..., Any]
GATES = {
    "encoder": [[2.0, -1.0, -3.0, 1.0], [-0.5, 1.0, 2.0, 0.3]],
    "decoder": [[-2.0, -1.0, 3.0, -0.2], [1.0, 2.0, -1.0, 0.4]],
}


def gated(build: Build, mode: str, mixer: str = "attention", norm: str = "pre", **latent: Any) -> Any:
    model = build("seq2seq", mixer, norm, latent={**LANGUAGES, **latent}, stack=DEEP)
    set_gates(model, GATES)
    model.use_gates(mode)
    return model


def assert_same_tokens(model: Any, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """But for padding behind them."""
    width = max(ours.shape[1], theirs.shape[1])
    first, second = (
        torch.nn.functional.pad(tokens, (0, width - tokens.shape[1]), value=model.config.pad_token_id)
        for tokens in (ours, theirs)
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize("mode", ["soft", "hard"])
@pytest.mark.parametrize("norm", ["pre", "none"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_tokens_are_those_of_the_model(
    build: Build, draw_batch: Build, mixer: str, norm: str, mode: str, num_beams: int
) -> None:
    model, batch = gated(build, mode, mixer, norm), draw_batch("seq2seq")
    del batch["labels"]
    search = {"num_beams": num_beams, "max_length": 9}
    expected = model.generate(**batch, **TOLD, **search)
    engine = Engine(model)
    assert engine.can_generate([*search])
    found = engine.generate(**batch, **TOLD, **search)
    assert_same_tokens(model, found.sequences, expected)
    most = {"soft": [4, 4, 4], "hard": [1, 3, 3]}[mode]
    assert found.depths.amax(1).tolist() == most
    assert found.prompt.shape == (3, 1)


@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_a_stack_may_be_cut(build: Build, draw_batch: Build, mode: str) -> None:
    """``--depth 3``: the gates of the first three layers, of which at least one is open in every language."""
    model, batch = gated(build, mode), draw_batch("seq2seq")
    del batch["labels"]
    cut_to_depth(model, 3)
    engine, search = Engine(model), {"max_length": 9}
    assert engine.can_generate([*search])
    found = engine.generate(**batch, **TOLD, **search)
    expected = model.generate(**batch, **TOLD, **search)
    assert_same_tokens(model, found.sequences, expected)
    assert found.depths.amax(1).tolist() == {"soft": [3, 3, 3], "hard": [1, 2, 2]}[mode]
    cut_to_depth(model, 2)
    assert Engine(model).can_generate() == (mode == "soft")


@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_rows_find_their_languages_in_any_batch(build: Build, draw_batch: Build, mode: str) -> None:
    """Whether all are given at once or not, with starts and limits of their own."""
    model, batch = gated(build, mode), draw_batch("seq2seq")
    del batch["labels"]
    engine, search = Engine(model), {"max_length": 9, "decoder_start_token_id": [4, 5, 6], "limits": [3, 4, 5]}
    whole = engine.generate(**batch, **TOLD, **search)
    parts = engine.generate(**batch, **TOLD, **search, rows_at_once=1)
    assert torch.equal(whole.tokens, parts.tokens)
    assert whole.prompt.flatten().tolist() == [4, 5, 6]
    for row in range(3):
        own = {name: value[[row]] for name, value in {**batch, **TOLD}.items()}
        own |= {"decoder_start_token_id": [4 + row], "limits": [3 + row], "max_length": 9}
        alone = engine.generate(**own)
        assert torch.equal(alone.tokens[0], whole.tokens[row, : alone.tokens.shape[1]])


def test_sources_may_be_encoded_before(build: Build, draw_batch: Build) -> None:
    model, batch = gated(build, "hard"), draw_batch("seq2seq")
    del batch["labels"]
    states = model.model.encoder(**batch, source_languages=TOLD["source_languages"])
    expected = Engine(model).generate(**batch, **TOLD, max_length=7)
    mask = {"attention_mask": batch["attention_mask"]}
    found = Engine(model).generate(**mask, **TOLD, encoder_outputs=states, max_length=7)
    assert torch.equal(found.tokens, expected.tokens)


def test_languages_with_the_same_gates_share_a_subnetwork(build: Build, draw_batch: Build) -> None:
    model, batch = gated(build, "hard"), draw_batch("seq2seq")
    del batch["labels"]
    engine = Engine(model)
    engine.generate(**batch, **TOLD, max_length=5)
    assert len(engine._gated._known) == 3
    set_gates(model, {side: [rows[0]] * 2 for side, rows in GATES.items()})
    engine.generate(**batch, **TOLD, max_length=5)
    assert len(engine._gated._known) == 1


def test_gates_that_changed_are_noticed(build: Build, draw_batch: Build) -> None:
    model, batch = build("seq2seq", latent=BOTH, stack=DEEP), draw_batch("seq2seq")
    del batch["labels"]
    engine = Engine(model)
    for mode, logits in (("soft", [3.0, -3, 1, 1]), ("soft", [-3.0, 3, 1, 1]), ("hard", [-3.0, 3, 1, 1])):
        set_gates(model, {side: [logits] for side in ("encoder", "decoder")})
        model.use_gates(mode)
        found = engine.generate(**batch, max_length=8).sequences
        assert torch.equal(found, model.generate(**batch, max_length=8)[:, : found.shape[1]])


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["soft", "hard"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_tokens_on_a_gpu(build: Build, draw_batch: Build, mode: str, num_beams: int) -> None:
    model, batch = gated(build, mode), draw_batch("seq2seq")
    del batch["labels"]
    search = {"num_beams": num_beams, "max_length": 9}
    expected = Engine(model).generate(**batch, **TOLD, **search)
    there = {name: value.cuda() for name, value in {**batch, **TOLD}.items()}
    found = Engine(model.cuda()).generate(**there, **search)
    assert torch.equal(found.tokens.cpu(), expected.tokens)
    assert torch.equal(found.depths.cpu(), expected.depths)


def test_what_it_cannot_run(build: Build, draw_batch: Build) -> None:
    batch = draw_batch("seq2seq")
    del batch["labels"]
    assert not Engine(gated(build, "sampled")).can_generate()
    assert not Engine(gated(build, "soft", whole_layer=True)).can_generate()
    assert Engine(gated(build, "hard", whole_layer=True)).can_generate()
    closed = gated(build, "hard")
    set_gates(closed, {side: [[-1.0] * 4] * 2 for side in GATES})
    assert not Engine(closed).can_generate()
    with pytest.raises(InputError, match="gates that are soft by branches, or hard"):
        Engine(closed).generate(**batch, **TOLD)
    with pytest.raises(InputError, match="target_languages is missing"):
        Engine(gated(build, "hard")).generate(**batch, source_languages=TOLD["source_languages"])
    with pytest.raises(InputError, match="no gates that ask for languages"):
        Engine(build("seq2seq")).generate(**batch, **TOLD)
    with pytest.raises(InputError, match="nothing to begin from"):
        Engine(gated(build, "hard")).generate(**TOLD)
    dense = build("seq2seq", stack={"connections": "dense"})
    assert not Engine(dense).can_generate()
    with pytest.raises(InputError, match="no steps for dense connections"):
        Engine(dense).generate(**batch)
