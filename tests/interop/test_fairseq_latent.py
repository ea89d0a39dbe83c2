"""Latent depth: one copy of what language pairs share, and the gates as a policy for later use."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from depthwise.errors import CheckpointError
from depthwise.interop.fairseq import convert_fairseq, shared_copy
from depthwise.shapes import Tensor

State = dict[str, Tensor]
PADDING = 1
PAIRS = ["eng-aze", "eng-bel", "eng-ces"]
LOGITS = {
    "encoder": torch.tensor([[0.1, -2.0, 3.5]] * 3),
    "decoder": torch.tensor([[1.5, 0.0], [-0.25, 2.0], [3.0, 7.0]]),
}


def latent(state: State, pairs: list[str], sides: tuple[str, ...] = ("encoder", "decoder")) -> State:
    """What the file of a model with gates in these stacks holds: everything again for every pair and layer."""
    found: State = {}
    for pair in pairs:
        for key, tensor in state.items():
            found[f"models.{pair}.{key}"] = tensor.clone()
        for side in sides:
            logits = LOGITS[side][: len(pairs)]
            found[f"models.{pair}.{side}.layer_select.layer_logits"] = logits
            for layer in range(logits.shape[1]):
                found[f"models.{pair}.{side}.layers.{layer}.layer_select.layer_logits"] = logits.clone()
    return found


@pytest.fixture
def golden_latent(golden_named: Callable[[str], Any]) -> Any:
    return golden_named("transformer_prenorm")


def args_of(golden: Any, **args: Any) -> dict[str, Any]:
    return {**golden.args, "arch": "latent_multilingual_transformer", "lang_pairs": PAIRS, **args}


def test_one_copy_is_kept(golden_latent: Any) -> None:
    weights, policy = shared_copy(args_of(golden_latent), latent(golden_latent.state, PAIRS))
    assert weights.keys() == golden_latent.state.keys()
    assert all(torch.equal(tensor, golden_latent.state[name]) for name, tensor in weights.items())
    assert policy == {
        "kind": "latent",
        "encoder_logits": LOGITS["encoder"].tolist(),
        "decoder_logits": LOGITS["decoder"].tolist(),
        "language_pairs": PAIRS,
        "tau": 5.0,
    }


def test_gates_of_the_decoder_alone(golden_latent: Any) -> None:
    args = args_of(golden_latent, sampling_tau=2, lang_pairs="eng-aze,eng-bel")
    _, policy = shared_copy(args, latent(golden_latent.state, PAIRS[:2], ("decoder",)))
    assert policy["encoder_logits"] is None
    assert policy["decoder_logits"] == LOGITS["decoder"][:2].tolist()
    assert (policy["tau"], policy["language_pairs"]) == (2.0, PAIRS[:2])


def test_pairs_that_only_the_weights_name(golden_latent: Any) -> None:
    _, policy = shared_copy(args_of(golden_latent, lang_pairs=None), latent(golden_latent.state, PAIRS))
    assert policy["language_pairs"] == PAIRS


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_copies_may_hold_what_is_no_number(golden_latent: Any, value: float) -> None:
    state = latent({**golden_latent.state, "decoder.layers.0.fc1.bias": torch.full((48,), value)}, PAIRS)
    shared_copy(args_of(golden_latent), state)


@pytest.mark.parametrize(
    ("key", "first"),
    [
        ("models.eng-ces.encoder.layers.1.fc1.weight", "models.eng-aze.encoder.layers.1.fc1.weight"),
        (
            "models.eng-bel.decoder.layers.1.layer_select.layer_logits",
            "models.eng-aze.decoder.layer_select.layer_logits",
        ),
    ],
)
def test_copies_that_differ(golden_latent: Any, key: str, first: str) -> None:
    state = latent(golden_latent.state, PAIRS)
    state[key] = state[key] + 1e-6
    with pytest.raises(CheckpointError) as caught:
        shared_copy(args_of(golden_latent), state)
    remedy = "only models whose languages share encoder and decoder can be imported"
    assert str(caught.value) == f"{key} differs from {first}; {remedy}"


def test_gates_that_do_not_fit(golden_latent: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        shared_copy(args_of(golden_latent, lang_pairs=PAIRS[:2]), latent(golden_latent.state, PAIRS))
    assert str(caught.value) == (
        "the gates of the encoder are 3 x 3, but there are 2 language pairs and 3 layers; check that lang_pairs in the "
        "arguments belongs to these weights"
    )


def languages(*names: str, size: int = 44) -> dict[str, int]:
    return {f"dict.{name}.txt": size for name in names}


@torch.no_grad()
def test_a_folder(golden_latent: Any, fairseq_folder: Callable[..., Path], tmp_path: Path) -> None:
    """The weights are a Transformer's; at full depth it gives what the plain one gives."""
    folder = fairseq_folder(
        args_of(golden_latent), latent(golden_latent.state, PAIRS), languages("eng", "aze", "bel", "ces")
    )
    convert_fairseq(folder, tmp_path / "run")
    policy = AutoConfig.from_pretrained(tmp_path / "run").policy
    assert policy["decoder_logits"] == LOGITS["decoder"].tolist()
    assert json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))["policy"] == policy
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run")
    logits = model(**golden_latent.batch).logits
    assert (logits - golden_latent.tensors["out.logits"])[golden_latent.target != PADDING].abs().max() < 1e-5


def test_tokens_of_languages(golden_latent: Any, fairseq_folder: Callable[..., Path], tmp_path: Path) -> None:
    """They stand behind the dictionary in alphabetical order; a single target language starts its targets."""
    args, state = args_of(golden_latent, decoder_langtok=True), latent(golden_latent.state, PAIRS)
    folder = fairseq_folder(args, state, languages("eng", "aze", "bel", "ces", size=40))
    done = convert_fairseq(folder, tmp_path / "run")
    assert done.remarks[-1] == (
        "Start decoding from the target's language: decoder_start_token_id is 40 for aze, 41 for bel, 42 for ces."
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert tokenizer.convert_tokens_to_ids(["__aze__", "__bel__", "__ces__", "__eng__"]) == [40, 41, 42, 43]
    assert AutoConfig.from_pretrained(tmp_path / "run").decoder_start_token_id == 2


def test_one_target_language(golden_latent: Any, fairseq_folder: Callable[..., Path], tmp_path: Path) -> None:
    pairs = ["aze-eng", "bel-eng", "ces-eng"]
    args = args_of(golden_latent, decoder_langtok=True, encoder_langtok="tgt", lang_pairs=pairs)
    folder = fairseq_folder(args, latent(golden_latent.state, pairs), languages("eng", "aze", "bel", "ces", size=40))
    done = convert_fairseq(folder, tmp_path / "run")
    assert AutoConfig.from_pretrained(tmp_path / "run").decoder_start_token_id == 43
    assert done.remarks[-1].startswith("Sources end in the token of a language")


def test_dictionaries_that_differ(golden_latent: Any, fairseq_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = fairseq_folder(
        args_of(golden_latent), latent(golden_latent.state, PAIRS), languages("eng", "aze", "bel", "ces")
    )
    (folder / "dict.bel.txt").write_text("".join(f"v{number} 1\n" for number in range(40)), encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        convert_fairseq(folder, tmp_path / "run")
    remedy = "languages of one decoder share a dictionary"
    assert str(caught.value) == f"{folder / 'dict.bel.txt'} differs from dict.aze.txt; {remedy}"


def test_what_is_no_pair(golden_latent: Any, fairseq_folder: Callable[..., Path], tmp_path: Path) -> None:
    args = args_of(golden_latent, lang_pairs=["eng"])
    folder = fairseq_folder(args, latent(golden_latent.state, ["eng"]), languages("eng"))
    with pytest.raises(CheckpointError) as caught:
        convert_fairseq(folder, tmp_path / "run")
    assert str(caught.value) == ('"eng" in lang_pairs is no pair of languages such as de-en; correct the arguments')
