"""Checkpoints with latent depth: one Transformer under the name of every language pair, and the gates of its layers.

Languages share their weights, so that the file holds each weight once per pair, and the logits of the gates once more
for every layer. One copy is kept. The gates become a description of the policy for later use.
"""

import re
from collections.abc import Mapping
from typing import Any

from depthwise.errors import CheckpointError
from depthwise.shapes import Tensor

TEMPERATURE = 5.0
"""Of the samples, where the arguments say nothing."""

_OF_PAIR = re.compile(r"models\.([^.]+)\.(.+)")
_GATES = re.compile(r"(encoder|decoder)\.(?:layers\.\d+\.)?layer_select\.layer_logits")


def language_pairs(args: Mapping[str, Any], state: Mapping[str, Tensor]) -> list[str]:
    """The pairs such as ``de-en`` in the order of the arguments, which is that of the rows of the gates."""
    given = args.get("lang_pairs")
    if isinstance(given, str):
        return given.split(",")
    if given:
        return list(given)
    return list(dict.fromkeys(match[1] for key in state if (match := _OF_PAIR.fullmatch(key))))


def shared_copy(args: Mapping[str, Any], state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights under the names of a plain Transformer, and the policy of the gates as a plain dictionary.

    Row i of the logits belongs to the i-th language pair. Raises ``CheckpointError`` where the copies differ.
    """
    weights: dict[str, Tensor] = {}
    sources: dict[str, str] = {}
    gates: dict[str, Tensor] = {}
    for key, tensor in state.items():
        of_pair = _OF_PAIR.fullmatch(key)
        name = of_pair[2] if of_pair else key
        of_gates = _GATES.fullmatch(name)
        copies, name = (gates, of_gates[1]) if of_gates else (weights, name)
        if name in copies and not _same(copies[name], tensor):
            raise CheckpointError(
                f"{key} differs from {sources[name]}; only models whose languages share encoder and decoder can be "
                "imported"
            )
        copies.setdefault(name, tensor)
        sources.setdefault(name, key)
    policy = {
        "kind": "latent",
        **{f"{side}_logits": gates[side].tolist() if side in gates else None for side in ("encoder", "decoder")},
        "language_pairs": language_pairs(args, state),
        "tau": float(args.get("sampling_tau") or TEMPERATURE),
    }
    _check_gates(policy, weights)
    return weights, policy


def _check_gates(policy: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Every gate needs its layer and every row its pair."""
    num_pairs = len(policy["language_pairs"])
    for side in ("encoder", "decoder"):
        logits = policy[f"{side}_logits"]
        layers = {match[1] for key in weights if (match := re.match(rf"{side}\.layers\.(\d+)\.", key))}
        if logits is not None and (len(logits) != num_pairs or any(len(row) != len(layers) for row in logits)):
            found = f"{len(logits)} x {len(logits[0]) if logits else 0}"
            raise CheckpointError(
                f"the gates of the {side} are {found}, but there are {num_pairs} language pairs and {len(layers)} "
                "layers; check that lang_pairs in the arguments belongs to these weights"
            )


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two copies are equal, what is not a number included."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
