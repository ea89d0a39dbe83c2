"""Generating with gates on layers: every language by the sub-network that it runs, on the weights that all share."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from depthwise.engine.decoding import Decoding, Generated
from depthwise.engine.prepared import Model
from depthwise.engine.recorded import Graphs
from depthwise.engine.regrouping import Room, generate_in_batches, joined, options_of, search_padding
from depthwise.errors import InputError
from depthwise.models.subnetworks import Gates, fixed_gates, subnetwork
from depthwise.shapes import Int, Tensor

NAMES = {"encoder": "source_languages", "decoder": "target_languages"}
"""Under which name rows say the language that the gates of a side ask for."""


class GatedDecoding:
    """Generates with one model that has gates. Rows of different languages are generated apart.

    A sub-network is kept until gates change; languages with the same gates have the same one.
    """

    def __init__(self, model: Model, graphs: Graphs = "auto") -> None:
        self.model, self._graphs = model, graphs
        self._gates: dict[str, list[Gates]] = {}
        self._known: dict[tuple[Gates, ...], Decoding] = {}

    @property
    def is_for_these_gates(self) -> bool:
        """Whether gates are as sub-networks have them: no new samples, no weight of whole layers, something open."""
        for side, layers in self.model.latent_layers().items():
            if layers.mode == "sampled" or (layers.mode == "soft" and layers.options.whole_layer):
                return False
            if layers.mode == "hard" and not bool(layers.is_open[:, : self._num_layers(side)].any(1).all()):
                return False
        return True

    @torch.no_grad()
    def generate(
        self,
        room: Room,
        input_ids: Int[Tensor, "B T"] | None,
        attention_mask: Tensor | None,
        languages: Mapping[str, Int[Tensor, "B"] | None],
        options: dict[str, Any],
    ) -> Generated:
        """What ``Decoding.generate`` gives of the sub-network of each row."""
        if not self.is_for_these_gates:
            raise InputError(
                "the engine runs gates that are soft by branches, or hard with an open layer in every language; use "
                "model.use_gates, or the model's own generate"
            )
        outputs = options.get("encoder_outputs")
        given = input_ids if outputs is None else outputs[0]
        if given is None:
            raise InputError("input_ids is missing; there is nothing to begin from")
        order: list[int] = []
        found: list[Generated] = []
        for gates, rows in self._parts(len(given), languages).items():
            order += rows
            index = torch.tensor(rows, device=given.device)
            own = options_of(rows, options)
            if outputs is not None:
                own["encoder_outputs"] = (outputs[0][index],)
            ids, mask = (None if part is None else part[index] for part in (input_ids, attention_mask))
            found.append(self._generated(gates, room, ids, mask, own))
        return found[0] if len(found) == 1 else joined(found, order, search_padding(self.model, options))

    def _generated(
        self, gates: tuple[Gates, ...], room: Room, ids: Tensor | None, mask: Tensor | None, options: dict[str, Any]
    ) -> Generated:
        if gates not in self._known:
            network = subnetwork(self.model, dict(zip(self._gates, gates, strict=True)))
            self._known[gates] = Decoding(network, self._graphs)
        decoding = self._known[gates]
        if ids is None or room == Room():
            return decoding.generate(ids, mask, **options)
        return generate_in_batches(decoding, room, ids, mask, options)

    def _num_layers(self, side: str) -> int:
        """How many layers the stack of a side still has, which may have been cut."""
        return int(getattr(self.model.model, side).stack.num_layers)

    def _parts(
        self, num_rows: int, languages: Mapping[str, Int[Tensor, "B"] | None]
    ) -> dict[tuple[Gates, ...], list[int]]:
        """The rows of each sub-network, which the gates of all gated sides name."""
        layers = self.model.latent_layers()
        gates = {side: fixed_gates(of_side, self._num_layers(side)) for side, of_side in layers.items()}
        if gates != self._gates:
            self._gates = gates
            self._known.clear()
        numbers: dict[str, Sequence[int]] = {}
        for side, of_side in layers.items():
            rows = of_side.rows_of(languages.get(NAMES[side]), num_rows)
            numbers[side] = [0] * num_rows if rows is None else rows.tolist()
        parts: dict[tuple[Gates, ...], list[int]] = {}
        for row in range(num_rows):
            parts.setdefault(tuple(gates[side][numbers[side][row]] for side in layers), []).append(row)
        return parts
