"""The model without a head: an encoder, a decoder, or both."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import nn
from transformers.utils import can_return_tuple

from depthwise.depth import Plan
from depthwise.errors import InputError
from depthwise.memory import DecodeState
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.executing import current_executor
from depthwise.models.exits import HasExits
from depthwise.models.inputs import valid_tokens
from depthwise.models.masked import Leaving
from depthwise.models.objective import ExitObjective
from depthwise.models.outputs import DepthwiseOutput
from depthwise.models.pooling import Pooler, first_token, max_and_mean
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.models.sides import Decoder, Encoder
from depthwise.models.stack import Source
from depthwise.shapes import Bool, Float, Int, Tensor


class DepthwiseModel(DepthwisePreTrainedModel):
    """Ids to states. With both sides the states are the decoder's, and the encoder's come along.

    An encoder alone with pooling ``first_tanh`` also sums up each sequence, unless ``pools`` is false: heads that have
    no use for it leave the pooler out.
    """

    def __init__(self, config: DepthwiseConfig, *, pools: bool = True) -> None:
        super().__init__(config)
        options, padding = config.options, config.pad_token_id
        self.encoder = Encoder(options, padding) if options.encoder is not None else None
        self.decoder = Decoder(options, padding) if options.decoder is not None else None
        has_pooler = pools and options.decoder is None and options.pooling == "first_tanh"
        self.pooler = Pooler(options.width) if has_pooler else None
        if self.encoder is not None and self.decoder is not None and options.tied_embeddings == "all":
            self._tied_weights_keys = {"decoder.embedding.tokens.weight": "encoder.embedding.tokens.weight"}
        self.post_init()

    def get_encoder(self, modality: str | None = None) -> Encoder | None:
        return self.encoder

    def get_decoder(self) -> Decoder | None:
        return self.decoder

    def get_input_embeddings(self) -> nn.Module:
        side = self.encoder if self.encoder is not None else self.decoder
        assert side is not None
        return side.embedding.tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the table; the other side, where there is one, gets a copy that is then tied."""
        assert isinstance(value, nn.Embedding)
        sides = [side for side in (self.encoder, self.decoder) if side is not None]
        for side, table in zip(sides, (value, copy.deepcopy(value)), strict=False):
            side.embedding.tokens = table

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B S"] | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Int[Tensor, "B T"] | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: DepthwiseOutput | None = None,
        past_key_values: DecodeState | None = None,
        use_cache: bool | None = None,
        plan: Plan | None = None,
        encoder_plan: Plan | None = None,
        output_hidden_states: bool | None = None,
        token_type_ids: Int[Tensor, "B S"] | None = None,
        leaving: Leaving | None = None,
        own_factors: Sequence[float] | None = None,
        source_languages: Int[Tensor, "B"] | None = None,
        target_languages: Int[Tensor, "B"] | None = None,
    ) -> DepthwiseOutput:
        """Run the encoder, the decoder, or one after the other.

        ``plan`` says which blocks each token runs: of the decoder where there is one (``encoder_plan`` is then the
        encoder's), else of the encoder. Without one, its tokens leave where ``leaving`` lets them. ``encoder_outputs``
        stands in for ``input_ids``. With ``use_cache`` the output carries the state of decoding, which the next call
        takes as ``past_key_values``; the source is then in the state and need not be given again. ``token_type_ids``
        serve an encoder alone. ``own_factors`` are those of ``Stack.run_all``, for the stack with the exits.
        Latent layers whose gates differ between languages want to know those of each row, by their numbers.
        """
        if token_type_ids is not None and self.decoder is not None:
            raise InputError("token_type_ids serve an encoder without a decoder; leave them out")
        state = DecodeState() if use_cache and past_key_values is None else past_key_values
        if self.encoder is None:
            assert self.decoder is not None
            ids = _given(input_ids, "input_ids")
            num_layers = self.config.num_hidden_layers
            keep = output_hidden_states
            return self.decoder(ids, attention_mask, None, state, plan, keep, num_layers, leaving, own_factors)
        if self.decoder is None:
            ids = _given(input_ids, "input_ids")
            encoded = self.encoder(
                ids,
                attention_mask,
                plan,
                output_hidden_states,
                token_type_ids=token_type_ids,
                leaving=leaving,
                own_factors=own_factors,
            )
            if self.pooler is None:
                return encoded
            valid = valid_tokens(attention_mask, ids, "attention_mask", self.config.pad_token_id)
            encoded.pooler_output = self.pooler(encoded.last_hidden_state, valid)  # a new output takes its time
            return encoded
        ids = _given(decoder_input_ids, "decoder_input_ids")
        if encoder_outputs is None and not (state is not None and state.memories):
            source_ids = _given(input_ids, "input_ids")
            encoder_outputs = self.encoder(source_ids, attention_mask, encoder_plan, source_languages=source_languages)
            if attention_mask is None:
                attention_mask = source_ids != self.config.pad_token_id
        source = None if encoder_outputs is None else _source(encoder_outputs[0], attention_mask, ids)
        output = self.decoder(
            ids,
            decoder_attention_mask,
            source,
            state,
            plan,
            output_hidden_states,
            leaving=leaving,
            own_factors=own_factors,
            target_languages=target_languages,
        )
        if encoder_outputs is None:
            return output
        return output.replaced(
            encoder_last_hidden_state=encoder_outputs[0], encoder_depths=getattr(encoder_outputs, "depths", None)
        )


class Encoded(NamedTuple):
    """``states`` as the heads of exits see them, of all copies of a batch, and the exits that they have drawn."""

    output: DepthwiseOutput
    states: tuple[Float[Tensor, "B T D"], ...]
    chosen: Int[Tensor, "B _p"] | None
    valid: Bool[Tensor, "B T"] | None


class EncoderHead(DepthwisePreTrainedModel):
    """What heads on an encoder share: the encoder, with its pooler where the head has a use for it (``pools``)."""

    needs = ("encoder",)
    _keys_to_ignore_on_load_unexpected = [r"(^|\.)pooler\."]

    def __init__(self, config: DepthwiseConfig, *, pools: bool = False) -> None:
        super().__init__(config)
        self.model = DepthwiseModel(config, pools=pools)

    def planned(
        self,
        plan: Plan | None,
        depths: Int[Tensor, "B T"] | None,
        input_ids: Int[Tensor, "B T"] | None,
        attention_mask: Tensor | None = None,
    ) -> Plan | None:
        """The plan that was given, or the one by which every token runs as many blocks as its depth says.

        Depths and mask may lie on the host while ids are on a device; so does the plan then, where an executor runs it
        that plans on the host.
        """
        if depths is None:
            return plan
        if plan is not None:
            raise InputError("depths and a plan both say which blocks run; give one of them")
        ids = _given(input_ids, "input_ids")
        if depths.shape != ids.shape:
            raise InputError(f"depths has shape {tuple(depths.shape)} but its ids have shape {tuple(ids.shape)}")
        encoder = self.model.encoder
        assert encoder is not None
        found = Plan.of_depths(depths, encoder.stack.num_layers)
        if depths.device == ids.device:
            return found
        if self.training or current_executor() is None:
            return found.to(ids.device)
        is_known = attention_mask is not None and attention_mask.device == depths.device
        return replace(found, real=attention_mask.bool()) if is_known and attention_mask is not None else found

    def encode(
        self,
        input_ids: Int[Tensor, "B T"] | None,
        attention_mask: Tensor | None,
        plan: Plan | None,
        output_hidden_states: bool | None,
        token_type_ids: Int[Tensor, "B T"] | None = None,
        leaving: Leaving | None = None,
        own_factors: Sequence[float] | None = None,
    ) -> DepthwiseOutput:
        """The states of all tokens."""
        output: DepthwiseOutput = self.model(
            input_ids,
            attention_mask,
            plan=plan,
            output_hidden_states=output_hidden_states,
            token_type_ids=token_type_ids,
            leaving=leaving,
            own_factors=own_factors,
            return_dict=True,
        )
        return output

    def encode_exits(
        self,
        objective: ExitObjective,
        input_ids: Int[Tensor, "B T"] | None,
        attention_mask: Tensor | None,
        token_type_ids: Int[Tensor, "B T"] | None,
    ) -> Encoded:
        """All that exits learn from, but the labels."""
        assert isinstance(self, HasExits)
        ids, mask, types = map(objective.repeated, (input_ids, attention_mask, token_type_ids))
        ids = _given(ids, "input_ids")
        shape = (len(ids), ids.shape[1])
        plan, chosen = objective.drawn(self.exit_depths, shape, ids.device, by_row=self.leaves_by_rows)
        output = self.encode(ids, mask, plan, True, types, own_factors=objective.own_factors)
        encoder = self.model.encoder
        assert encoder is not None
        states = self.states_at_exits(encoder.stack, output, is_mixed=objective.is_mixed)
        valid = valid_tokens(mask, ids, "attention_mask", self.config.pad_token_id)
        return Encoded(output, states, chosen, valid)

    def summary(
        self, output: DepthwiseOutput, input_ids: Int[Tensor, "B T"] | None, attention_mask: Tensor | None
    ) -> Float[Tensor, "B _e"]:
        """One vector for each sequence, by the pooling that the configuration asks for."""
        if output.pooler_output is not None:
            return output.pooler_output
        assert input_ids is not None
        assert output.last_hidden_state is not None
        valid = valid_tokens(attention_mask, input_ids, "attention_mask", self.config.pad_token_id)
        return self.pooled(output.last_hidden_state, valid)

    def pooled(self, states: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B _e"]:
        """One vector for the states of each sequence."""
        if self.model.pooler is not None:
            return self.model.pooler(states, valid)
        return (max_and_mean if self.config.pooling == "max_mean" else first_token)(states, valid)


def summary_width(config: DepthwiseConfig) -> int:
    """How wide the vector of a sequence is."""
    return config.width * (2 if config.pooling == "max_mean" else 1)


def _source(states: Tensor, mask: Tensor | None, target: Tensor) -> Source:
    """What the decoder attends to, one row for each row of the target."""
    if target.dim() == 2 and len(states) != len(target):
        raise InputError(f"decoder_input_ids has {len(target)} rows but the source has {len(states)}")
    return Source(states, valid_tokens(mask, states[..., 0], "attention_mask"))


def _given(ids: Tensor | None, name: str) -> Tensor:
    if ids is None:
        raise InputError(f"{name} is missing; this model cannot run without it")
    return ids
