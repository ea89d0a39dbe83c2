"""Generating for many rows in several batches: rows of similar depth together, where their depth is known in advance.

A policy that plans for whole sequences knows their depths as soon as the source is encoded. Sources are then encoded in
batches of similar length, and decoded in others: of similar depth. Their encoded states are kept in between.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from depthwise.depth import Context
from depthwise.engine.buckets import bucketed
from depthwise.engine.decoding import Decoding, Generated
from depthwise.engine.lossless import Drafts
from depthwise.engine.prepared import Model
from depthwise.engine.search import padding_of
from depthwise.engine.search_options import SearchOptions
from depthwise.errors import InputError
from depthwise.models.inputs import valid_tokens
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.shapes import Bool, Float, Int, Tensor

OF_ROWS = ("limits", "generators", "decoder_start_token_id")
"""Options that may have a value for each row."""
OF_RUNNING = ("fill", "max_pending", "lossless", "num_drafted", "encoder_outputs")
"""Options that have nothing to do with what is searched for."""


@dataclass(frozen=True)
class Room:
    """How much is computed at a time, at most: rows, and tokens of input with their padding."""

    rows: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("rows_at_once", self.rows), ("tokens_at_once", self.tokens)):
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}, which leaves no batch; give at least 1")

    def batches(self, lengths: Sequence[int], depths: Sequence[int]) -> list[list[int]]:
        return bucketed(lengths, depths, max_rows=self.rows, max_tokens=self.tokens)


def plans_sequences(model: Model) -> bool:
    """Whether the depth of a whole target is known once its source is encoded."""
    policy = model.policy
    return policy is not None and policy.plans and policy.by_sequence and isinstance(model, DepthwiseForSeq2SeqLM)


@torch.no_grad()
def generate_in_batches(
    decoding: Decoding,
    room: Room,
    input_ids: Int[Tensor, "B T"],
    attention_mask: Tensor | None,
    options: dict[str, Any],
) -> Generated:
    """What ``Decoding.generate`` gives for all rows, in batches that have room."""
    begin, model = time.perf_counter(), decoding.model
    valid = valid_tokens(attention_mask, input_ids, "attention_mask", model.config.pad_token_id)
    valid = torch.ones_like(input_ids, dtype=torch.bool) if valid is None else valid
    lengths: list[int] = ((valid * torch.arange(1, valid.shape[1] + 1, device=valid.device)).amax(1)).tolist()
    states, depths, encoded = None, [0] * len(lengths), 0.0
    if plans_sequences(model):
        states = _encoded(model, room, input_ids, valid, lengths)
        depths = _planned(model, states, valid)
        encoded = time.perf_counter() - begin
    order: list[int] = []
    found: list[Generated] = []
    for rows in room.batches(lengths, depths):
        order += rows
        index = torch.tensor(rows, device=input_ids.device)
        width = max(lengths[row] for row in rows) if model.config.is_encoder_decoder else valid.shape[1]
        given: dict[str, Any] = {"input_ids": input_ids[index, :width], "attention_mask": valid[index, :width]}
        if states is not None:
            given |= {"input_ids": None, "encoder_outputs": (states[index, :width],)}
        found.append(decoding.generate(**given, **options_of(rows, options)))
    whole = joined(found, order, search_padding(model, options))
    return replace(whole, seconds=time.perf_counter() - begin, encoder_seconds=encoded + whole.encoder_seconds)


def search_padding(model: Model, options: dict[str, Any]) -> int:
    """What stands behind the end of a text."""
    search = {name: value for name, value in options.items() if name not in OF_RUNNING}
    return padding_of(SearchOptions.of(model.generation_config, search))


def _encoded(
    model: Model, room: Room, ids: Int[Tensor, "B S"], valid: Bool[Tensor, "B S"], lengths: Sequence[int]
) -> Float[Tensor, "B S D"]:
    """The states of all sources, 0 behind the longest of each batch."""
    encoder = model.model.encoder
    assert encoder is not None
    states: Tensor | None = None
    for rows in room.batches(lengths, [0] * len(lengths)):
        index, width = torch.tensor(rows, device=ids.device), max(lengths[row] for row in rows)
        found = encoder(ids[index, :width], valid[index, :width])[0]
        if states is None:
            states = found.new_zeros(*ids.shape, found.shape[-1])
        states[index, :width] = found
    assert states is not None, "there are rows"
    return states


def _planned(model: Model, states: Float[Tensor, "B S D"], valid: Bool[Tensor, "B S"]) -> list[int]:
    """The depth of each row, asked of the policy all at once. Waits for the device, once."""
    assert model.policy is not None
    shape = (len(states), 1)
    steps = torch.zeros(shape, dtype=torch.long, device=states.device)
    context = Context(shape=shape, exits=model.exit_depths, steps=steps, source=states, source_valid=valid)
    depths: list[int] = model.policy.plan(context).expand(shape).squeeze(1).tolist()
    return depths


def options_of(rows: list[int], options: dict[str, Any]) -> dict[str, Any]:
    """The options, of those that have a value for each row only the values of these."""
    found = dict(options)
    for name in OF_ROWS:
        if isinstance(options.get(name), Sequence):
            found[name] = [options[name][row] for row in rows]
    return found


def joined(parts: list[Generated], order: list[int], padding: int) -> Generated:
    """What was generated for all rows, in their own order and not that of the batches."""
    each = len(parts[0].tokens) // len(parts[0].prompt)
    places = torch.tensor(order, device=parts[0].tokens.device).argsort()
    of_sequences = (places.unsqueeze(1) * each + torch.arange(each, device=places.device)).flatten()
    tokens, depths = (
        _stacked([getattr(part, name) for part in parts], filler)[of_sequences]
        for name, filler in (("tokens", padding), ("depths", 0))
    )
    return Generated(
        tokens=tokens,
        scores=_stacked([part.scores for part in parts], 0)[of_sequences],
        depths=depths,
        num_token_layers=sum(part.num_token_layers for part in parts),
        num_filled=sum(part.num_filled for part in parts),
        seconds=sum(part.seconds for part in parts),
        encoder_seconds=sum(part.encoder_seconds for part in parts),
        num_steps=max(part.num_steps for part in parts),
        prompt=torch.cat([part.prompt for part in parts])[places],
        drafts=_summed([part.drafts for part in parts if part.drafts is not None]),
        recorded=all(part.recorded for part in parts),
    )


def _summed(parts: list[Drafts]) -> Drafts | None:
    """How drafting went in all batches; none where nothing was drafted."""
    return sum(parts, Drafts()) if parts else None


def _stacked(parts: list[Tensor], filler: int) -> Tensor:
    """Rows of all parts, made as wide as the widest."""
    if parts[0].dim() == 1:
        return torch.cat(parts)
    width = max(part.shape[1] for part in parts)
    return torch.cat([torch.nn.functional.pad(part, (0, width - part.shape[1]), value=filler) for part in parts])
