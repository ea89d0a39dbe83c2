"""Generating text fast: the tokens of Transformers' ``generate`` with a memory that is written in place.

decoding = Decoding(model)
decoding.generate(input_ids, max_new_tokens=50, num_beams=4).sequences
"""

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from depthwise.depth import Policy
from depthwise.engine.beam import search_beam
from depthwise.engine.decoder_state import DecoderState
from depthwise.engine.fills import FILLS, MAX_PENDING, Fill, NoFill, Recompute, check_fill
from depthwise.engine.prepared import Model, Prepared
from depthwise.engine.restrictions import Restrictions
from depthwise.engine.search import search_one
from depthwise.engine.search_options import SearchOptions
from depthwise.engine.step_block import without_needless_mask
from depthwise.engine.stepping import Stepper
from depthwise.errors import InputError
from depthwise.memory import DecodeState
from depthwise.models.generation import left_padded
from depthwise.models.inputs import check_ids, valid_tokens
from depthwise.models.masked import run_leaving
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.models.stack import Source
from depthwise.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Generated:
    """What was generated.

    ``tokens`` are the new ones, padding behind their end; ``depths`` says how many blocks ran for each (0 for padding).
    ``scores`` are the log-probabilities that the model gives these tokens or, from a beam, the scores of sequences.
    ``num_token_layers`` counts the blocks that ran for single tokens while these were made, the prompt aside, and
    ``num_filled`` what was done apart from that for tokens that had left (see ``fills``). ``seconds`` is all the time
    that it took, of which ``encoder_seconds`` went to the source or the prompt.
    """

    tokens: Int[Tensor, "B M"]
    scores: Float[Tensor, "..."]
    depths: Int[Tensor, "B M"]
    num_token_layers: int
    num_filled: int
    seconds: float
    encoder_seconds: float
    prompt: Int[Tensor, "_b _t"] = field(repr=False)

    @property
    def sequences(self) -> Int[Tensor, "B L"]:
        """Prompt and new tokens, as ``generate`` returns them."""
        prompt = self.prompt.repeat_interleave(len(self.tokens) // len(self.prompt), dim=0)
        return torch.cat([prompt, self.tokens], dim=1)


@dataclass(frozen=True)
class Start:
    """Where decoding begins: tokens of which all but the last have been run, and what they and the source left."""

    prompt: Int[Tensor, "B T"]
    valid: Bool[Tensor, "B T"] | None
    source: Source | None


class Decoding:
    """Generates with one model. What is made ready of its weights is kept until they change."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._prepared: Prepared | None = None

    @torch.no_grad()
    def generate(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Tensor | None = None,
        *,
        encoder_outputs: Any = None,
        fill: str = "deferred",
        max_pending: int = MAX_PENDING,
        **options: Any,
    ) -> Generated:
        """Translate sources, or continue prompts (padded on either side), by the model's policy.

        ``options`` are those of ``SearchOptions``. Without a mask, tokens with the padding id are padding. ``fill``
        says how tokens that left early are remembered by the blocks they skipped: one of ``FILLS``.
        """
        check_fill(fill)
        if self.model.training:
            raise InputError("in training nobody leaves and units are dropped; call model.eval() first")
        begin, search = time.perf_counter(), SearchOptions.of(self.model.generation_config, options)
        start = self._start(input_ids, attention_mask, encoder_outputs, search)
        policy = self.model.policy
        num_rows = len(start.prompt) * search.num_beams
        prepared = self._ready(num_rows)
        state = self._state(prepared, start, search.num_beams, policy, fill, max_pending)
        filling = _filling(state, policy, fill, max_pending)
        encoded = time.perf_counter()
        found = (search_one if search.num_beams == 1 else search_beam)(
            Stepper(prepared, state, filling, policy),
            start.prompt[:, -1].repeat_interleave(search.num_beams),
            Restrictions(search, start.prompt),
            search,
            search.num_steps(start.prompt.shape[1]),
        )
        return Generated(
            tokens=found.tokens,
            scores=found.scores,
            depths=found.depths,
            num_token_layers=filling.num_run,
            num_filled=filling.num_filled,
            seconds=time.perf_counter() - begin,
            encoder_seconds=encoded - begin,
            prompt=start.prompt,
        )

    def _ready(self, num_rows: int) -> Prepared:
        if self._prepared is None or not self._prepared.is_current(self.model, num_rows):
            self._prepared = Prepared(self.model, num_rows)
        return self._prepared

    def _start(self, ids: Tensor | None, mask: Tensor | None, encoder_outputs: Any, search: SearchOptions) -> Start:
        model, padding = self.model, self.model.config.pad_token_id
        if isinstance(model, DepthwiseForSeq2SeqLM):
            if encoder_outputs is None:
                encoder_outputs = model.model.encoder(_given(ids), mask)
            if mask is None and ids is not None:
                mask = ids != padding
            states = encoder_outputs[0]
            valid = valid_tokens(mask, states[..., 0], "attention_mask")
            start = search.decoder_start_token_id
            if start is None:
                raise InputError("decoder_start_token_id is missing; say from which token a target begins")
            starts = [start] * len(states) if isinstance(start, int) else list(start)
            if len(starts) != len(states):
                raise InputError(f"there are {len(starts)} start tokens for {len(states)} sources; give one for each")
            return Start(
                torch.tensor(starts, device=states.device).unsqueeze(1), None, without_needless_mask(states, valid)
            )
        ids = _given(ids)
        check_ids(ids, "input_ids", model.model.decoder.embedding.num_types, model.model.decoder.max_positions)
        prompt, valid = left_padded(ids, ids != padding if mask is None else mask)
        return Start(prompt, None if valid is None or bool(valid.all()) else valid, None)

    def _state(
        self, prepared: Prepared, start: Start, rows_each: int, policy: Policy | None, fill: str, max_pending: int
    ) -> DecoderState:
        """All but the last token of the prompt, run by the masked executor; a source is there already."""
        model, decoder = self.model, prepared.decoder
        padding = None if start.valid is None else (~start.valid).sum(1).repeat_interleave(rows_each)
        num_rows = len(start.prompt) * rows_each
        state = DecoderState(
            prepared.blocks,
            next(decoder.stack.parameters()).new_zeros(num_rows, 1, model.config.width),
            source=start.source,
            rows_each=rows_each,
            padding=padding,
            keeps_states=policy is not None,
            slack=max_pending if fill == "recompute" else 0,
        )
        earlier = start.prompt[:, :-1]
        if earlier.shape[1] == 0:
            return state
        valid = None if start.valid is None else start.valid[:, :-1]
        x = decoder.embedding(earlier, valid)
        leaving = model.leaving() if fill != "recompute" else None
        if leaving is None:
            output = decoder.stack.run_all(x, valid=valid, state=DecodeState())
        else:
            real = torch.ones_like(earlier) if valid is None else valid.long()
            output, _ = run_leaving(decoder.stack, x, leaving, real.cumsum(1) - 1, valid=valid, state=DecodeState())
        assert output.memories is not None
        rows = torch.arange(len(earlier), device=x.device).repeat_interleave(rows_each)
        state.load([layer.past.keep(rows) for layer in output.memories], earlier.shape[1])
        return state


def _filling(state: DecoderState, policy: Policy | None, fill: str, max_pending: int) -> Fill:
    if policy is None:
        return NoFill(state)
    return Recompute(state, max_pending) if fill == "recompute" else FILLS[fill](state)


def _given(ids: Tensor | None) -> Tensor:
    if ids is None:
        raise InputError("input_ids is missing; this model cannot run without it")
    return ids
