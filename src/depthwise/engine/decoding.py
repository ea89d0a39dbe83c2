"""Generating text fast: the tokens of Transformers' ``generate``, from a memory that is written in place.

decoding = Decoding(model)
decoding.generate(input_ids, max_new_tokens=50, num_beams=4).sequences
"""

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from depthwise.engine.beam import search_beam
from depthwise.engine.decoder_state import DecoderState
from depthwise.engine.drafting import NUM_DRAFTED, Drafting
from depthwise.engine.fills import FILLS, MAX_PENDING, Fill, NoFill, Recompute, check_fill
from depthwise.engine.live_batch import LiveBatch
from depthwise.engine.lossless import Drafts, Speculation, check_lossless
from depthwise.engine.lossless_search import search_lossless
from depthwise.engine.prepared import Model, Prepared, packed_like
from depthwise.engine.prompts import check_model, prompt_memories
from depthwise.engine.recorded import Graphs, RecordedDecoding, Searched, fixed_depth
from depthwise.engine.restrictions import Restrictions
from depthwise.engine.search import search_one
from depthwise.engine.search_options import SearchOptions
from depthwise.engine.static_state import StaticState
from depthwise.engine.stepping import Stepper
from depthwise.errors import InputError
from depthwise.memory import Memory
from depthwise.models.generation import left_padded
from depthwise.models.inputs import check_ids, valid_tokens
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
    that it took, of which ``encoder_seconds`` went to the source or the prompt. After ``num_steps`` all rows had ended.
    ``drafts`` says how drafting went where decoding was lossless. ``recorded`` says whether a GPU repeated steps by
    itself, or Python ran them kernel by kernel.
    """

    tokens: Int[Tensor, "B M"]
    scores: Float[Tensor, "..."]
    depths: Int[Tensor, "B M"]
    num_token_layers: int
    num_filled: int
    seconds: float
    encoder_seconds: float
    num_steps: int
    prompt: Int[Tensor, "_b _t"] = field(repr=False)
    drafts: Drafts | None = None
    recorded: bool = False

    @property
    def sequences(self) -> Int[Tensor, "B L"]:
        """Prompt and new tokens, as ``generate`` returns them."""
        prompt = self.prompt.repeat_interleave(len(self.tokens) // len(self.prompt), dim=0)
        return torch.cat([prompt, self.tokens], dim=1)


@dataclass(frozen=True)
class Start:
    """Where decoding begins: a source with the tokens that targets begin from, or prompts, padded left."""

    prompt: Int[Tensor, "B T"]
    valid: Bool[Tensor, "B T"] | None = None
    source: Source | None = None


def generate(model: Model, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Generated:
    """``Decoding.generate`` for once; a ``Decoding`` that is kept need not pack the weights again."""
    return Decoding(model).generate(input_ids, attention_mask, **options)


class Decoding:
    """Generates with one model. What is made ready of its weights is kept until they change.

    ``graphs`` says whether steps are recorded as CUDA graphs; see ``RecordedDecoding``.
    """

    def __init__(self, model: Model, graphs: Graphs = "auto") -> None:
        self.model, self._recorded = model, RecordedDecoding(graphs)
        self._prepared: dict[Hashable, Prepared] = {}

    @torch.no_grad()
    def generate(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Tensor | None = None,
        *,
        encoder_outputs: Any = None,
        fill: str = "deferred",
        max_pending: int = MAX_PENDING,
        lossless: int | None = None,
        num_drafted: int = NUM_DRAFTED,
        **options: Any,
    ) -> Generated:
        """Translate sources, or continue prompts (padded on either side), by the model's policy.

        ``options`` are those of ``SearchOptions``. Without a mask, tokens with the padding id are padding. ``fill``
        says how tokens that left early are remembered by the blocks they skipped: one of ``FILLS``. ``recompute``
        leaves at most ``max_pending`` of them behind, and runs prompts to the end of the stack.

        With ``lossless``, the depth of an exit, nobody leaves: up to ``num_drafted`` tokens at a time are drafted there
        and verified by the layers above it (see ``lossless``). Tokens are those of the whole stack.
        """
        check_fill(fill, max_pending)
        model = self.model
        check_model(model)
        begin, search = self._now(), SearchOptions.of(model.generation_config, options)
        if lossless is not None:
            check_lossless(model, lossless, num_drafted, search)
        is_recorded = self._recorded.serves(
            model.device, policy=model.policy, fill=fill, lossless=lossless, options=search
        )
        num_rows, beams = _num_rows(input_ids, encoder_outputs), search.num_beams
        drafting = None if lossless is None or is_recorded else Drafting(lossless, num_drafted)
        prepared = self._ready(num_rows * beams, drafting)
        start = self._start(input_ids, attention_mask, encoder_outputs, search, prepared if is_recorded else None)
        earlier = self._earlier(prepared, start, fill)
        encoded = self._now()
        with torch.inference_mode():
            num_steps, restrict = search.num_steps(start.prompt.shape[1]), Restrictions(search, start.prompt)
            first = start.prompt[:, -1].repeat_interleave(beams)
            if is_recorded:
                # A draft longer than the text would only be computed
                drafted = None if lossless is None else min(num_drafted, num_steps - 1)
                with self._recorded.one_at_a_time:
                    static = self._static_state(prepared, start, beams, earlier, drafted)
                    searched = self._recorded.search(static, first, restrict, search, num_steps, model.policy, lossless)
            elif lossless is None:
                slack = max_pending if fill == "recompute" else 0
                state = self._state(prepared, start, beams, earlier, slack)
                filling = self._filling(state, fill, max_pending)
                stepper, begun = Stepper(prepared, state, filling, model.policy), state.length
                found = (search_one if beams == 1 else search_beam)(stepper, first, restrict, search, num_steps)
                searched = Searched(found, state.length - begun, filling.num_run, filling.num_filled)
            else:
                # A row may fall behind others by as many columns as they can have
                slack = num_drafted + 1 + (num_steps if len(first) > 1 else 0)
                state = self._state(prepared, start, 1, earlier, slack, rewinds=True)
                speculation = Speculation(prepared, state, lossless)
                found, drafts = search_lossless(speculation, first, restrict, search, num_steps, num_drafted)
                searched = Searched(found, found.tokens.shape[1], speculation.num_run, 0, drafts)
        return Generated(
            tokens=searched.found.tokens.clone(),  # outside of inference mode, so that they serve in training too
            scores=searched.found.scores.clone(),
            depths=searched.found.depths.clone(),
            num_token_layers=searched.num_run,
            num_filled=searched.num_filled,
            seconds=self._now() - begin,
            encoder_seconds=encoded - begin,
            num_steps=searched.num_steps,
            prompt=start.prompt,
            drafts=searched.drafts,
            recorded=is_recorded,
        )

    def live_batch(self, max_rows: int, fill: str, max_pending: int) -> LiveBatch:
        """An empty batch whose rows come and go, ready for about so many."""
        return LiveBatch(self._ready(max_rows), fill, max_pending)

    def _now(self) -> float:
        """Seconds on a clock, once the device has done what it was given."""
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        return time.perf_counter()

    def _ready(self, num_rows: int, drafting: Drafting | None = None) -> Prepared:
        """Made when it is first needed and when weights have changed; the last two kinds are kept."""
        kind = packed_like(self.model, num_rows, drafting)
        known = self._prepared.pop(kind, None)
        if known is None or not known.is_current():
            known = Prepared(self.model, num_rows, drafting)
            self._prepared = {of: each for of, each in [*self._prepared.items()][-1:] if each.is_current()}
        self._prepared[kind] = known
        return known

    def _start(
        self,
        ids: Tensor | None,
        mask: Tensor | None,
        encoder_outputs: Any,
        search: SearchOptions,
        recorded: Prepared | None = None,
    ) -> Start:
        """Encode sources, as recorded work where what is prepared for that is given, or look at prompts."""
        model, padding = self.model, self.model.config.pad_token_id
        if isinstance(model, DepthwiseForSeq2SeqLM):
            states = self._encoded(ids, mask, recorded) if encoder_outputs is None else encoder_outputs[0]
            mask = ids != padding if mask is None and ids is not None else mask
            valid = valid_tokens(mask, states[..., 0], "attention_mask")
            valid = None if valid is None or bool(valid.all()) else valid
            return Start(search.first_tokens(len(states), states.device), source=Source(states, valid))
        assert ids is not None
        decoder = model.model.decoder
        assert decoder is not None
        check_ids(ids, "input_ids", decoder.embedding.num_types, decoder.max_positions)
        prompt, valid = left_padded(ids, ids != padding if mask is None else mask)
        return Start(prompt, None if valid is None or bool(valid.all()) else valid)

    def _encoded(self, ids: Tensor | None, mask: Tensor | None, recorded: Prepared | None) -> Float[Tensor, "B T D"]:
        encoder = self.model.model.encoder
        assert ids is not None
        assert encoder is not None
        if recorded is not None and ids.dim() == 2:
            with self._recorded.one_at_a_time:
                encode = self._recorded.begin(recorded).encoder
                if encode is not None and encode.serves(ids):
                    check_ids(ids, "input_ids", encoder.embedding.num_types, encoder.max_positions)
                    return encode(ids, valid_tokens(mask, ids, "attention_mask", encoder.padding))
        states: Tensor = encoder(ids, mask)[0]
        return states

    def _earlier(self, prepared: Prepared, start: Start, fill: str) -> Sequence[Memory]:
        """What prompts leave behind; they run all the way if what is skipped would be recomputed anyway."""
        return prompt_memories(
            prepared, start.prompt, start.valid, None if fill == "recompute" else self.model.leaving()
        )

    def _state(
        self,
        prepared: Prepared,
        start: Start,
        rows_each: int,
        earlier: Sequence[Memory],
        slack: int,
        *,
        rewinds: bool = False,
    ) -> DecoderState:
        num_rows, length = start.prompt.shape
        state = DecoderState(
            prepared.blocks,
            next(prepared.decoder.stack.parameters()).new_empty(num_rows * rows_each, 1, self.model.config.width),
            source=start.source,
            rows_each=rows_each,
            padding=None if start.valid is None else (~start.valid).sum(1).repeat_interleave(rows_each),
            keeps_states=self.model.policy is not None or rewinds,
            slack=slack,
            rewinds=rewinds,
        )
        if earlier:
            rows = torch.arange(num_rows, device=state.device).repeat_interleave(rows_each)
            state.load([past.keep(rows) for past in earlier], length - 1)
        return state

    def _static_state(
        self,
        prepared: Prepared,
        start: Start,
        rows_each: int,
        earlier: Sequence[Memory],
        num_drafted: int | None,
    ) -> StaticState:
        num_rows, length = start.prompt.shape
        state = StaticState(
            self._recorded.begin(prepared),
            num_rows * rows_each,
            source=start.source,
            rows_each=rows_each,
            padding=None if start.valid is None else (~start.valid).sum(1).repeat_interleave(rows_each),
            keeps_states=fixed_depth(prepared, self.model.policy) is None,
            length=length - 1,
            num_drafted=num_drafted,
        )
        if earlier:
            rows = torch.arange(num_rows, device=state.device).repeat_interleave(rows_each)
            state.load([past.keep(rows) for past in earlier])
        return state

    def _filling(self, state: DecoderState, fill: str, max_pending: int) -> Fill:
        if self.model.policy is None:
            return NoFill(state)
        return Recompute(state, max_pending) if fill == "recompute" else FILLS[fill](state)


def _num_rows(ids: Tensor | None, encoder_outputs: Any) -> int:
    """How many sources or prompts there are."""
    given = ids if ids is not None else None if encoder_outputs is None else encoder_outputs[0]
    if given is None:
        raise InputError("input_ids is missing; there is nothing to begin from")
    return len(given)
