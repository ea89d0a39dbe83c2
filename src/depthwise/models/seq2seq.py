"""Encoder, decoder and a head over the target vocabulary: translation, summarisation."""

import torch
from transformers.utils import can_return_tuple

from depthwise.depth import Plan
from depthwise.errors import InputError
from depthwise.losses import IGNORED, token_cross_entropy
from depthwise.memory import DecodeState
from depthwise.models.backbone import DepthwiseModel
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.exits import build_trained_policy
from depthwise.models.generation import DepthwiseGenerationMixin
from depthwise.models.language_head import HasLanguageHead, build_exit_heads, build_head, tied_weights
from depthwise.models.objective import ExitObjective
from depthwise.models.outputs import DepthwiseOutput
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.models.sides import Encoder
from depthwise.models.stack import Source
from depthwise.shapes import Int, Tensor


class DepthwiseForSeq2SeqLM(HasLanguageHead, DepthwisePreTrainedModel, DepthwiseGenerationMixin):
    """p(target | source), one token at a time."""

    needs = ("encoder", "decoder")

    def __init__(self, config: DepthwiseConfig) -> None:
        super().__init__(config)
        self.model = DepthwiseModel(config)
        self.head = build_head(config.options)
        self.exit_heads = build_exit_heads(config.options)
        self.trained_policy = build_trained_policy(config.options, config.width)
        side = "encoder" if config.tied_embeddings == "all" else "decoder"
        self._tied_weights_keys = tied_weights(config.options, "head", side)
        self.post_init()

    def get_encoder(self, modality: str | None = None) -> Encoder | None:
        return self.model.get_encoder()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B S"] | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Int[Tensor, "B T"] | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: DepthwiseOutput | None = None,
        past_key_values: DecodeState | None = None,
        labels: Int[Tensor, "B T"] | None = None,
        num_items_in_batch: Tensor | int | None = None,
        use_cache: bool | None = None,
        plan: Plan | None = None,
        encoder_plan: Plan | None = None,
        output_hidden_states: bool | None = None,
        objective: ExitObjective | None = None,
        source_languages: Int[Tensor, "B"] | None = None,
        target_languages: Int[Tensor, "B"] | None = None,
    ) -> DepthwiseOutput:
        """Scores of the next target token at every step; see ``DepthwiseModel.forward`` for what goes in.

        ``labels`` are the target; from them, moved one step to the right, follow ``decoder_input_ids`` where not given.
        """
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if objective is not None:
            encoded = self._encoded(input_ids, attention_mask, encoder_outputs, encoder_plan)
            if attention_mask is None and input_ids is not None:
                attention_mask = input_ids != self.config.pad_token_id
            targets = (decoder_input_ids, decoder_attention_mask, labels)
            return self._taught(encoded, attention_mask, targets, num_items_in_batch, objective)
        output = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            past_key_values,
            use_cache,
            plan,
            encoder_plan,
            output_hidden_states,
            leaving=self.leaving(),
            source_languages=source_languages,
            target_languages=target_languages,
            return_dict=True,
        )
        logits = self.scores_each(output.last_hidden_state, output.depths)
        loss = None if labels is None else token_cross_entropy(logits, labels, num_items_in_batch)
        return output.replaced(loss=loss, logits=logits)

    def _encoded(
        self, ids: Tensor | None, mask: Tensor | None, given: DepthwiseOutput | None, plan: Plan | None
    ) -> DepthwiseOutput:
        if given is not None:
            return given
        encoder = self.model.encoder
        assert encoder is not None
        if ids is None:
            raise InputError("input_ids is missing; this model cannot run without it")
        encoded: DepthwiseOutput = encoder(ids, mask, plan)
        return encoded

    def _taught(
        self,
        encoded: DepthwiseOutput,
        mask: Tensor | None,
        targets: tuple[Tensor | None, Tensor | None, Tensor | None],
        num_items: Tensor | int | None,
        objective: ExitObjective,
    ) -> DepthwiseOutput:
        """What all exits of the decoder learn from targets (ids, mask, labels); sources are encoded once."""
        ids, target_mask, labels = map(objective.repeated, targets)
        if ids is None or labels is None:
            raise InputError("exits learn from labels; give labels beside the objective")
        encoded = encoded.replaced(
            last_hidden_state=objective.repeated(encoded.last_hidden_state), depths=objective.repeated(encoded.depths)
        )
        mask = objective.repeated(mask)
        plan, chosen = objective.drawn(self.exit_depths, (len(ids), ids.shape[1]), ids.device, by_row=False)
        output = self.model(
            None,
            mask,
            ids,
            target_mask,
            encoder_outputs=encoded,
            plan=plan,
            output_hidden_states=True,
            own_factors=objective.own_factors,
            return_dict=True,
        )
        decoder, source = self.model.decoder, encoded.last_hidden_state
        assert decoder is not None
        assert source is not None
        states = self.states_at_exits(decoder.stack, output, is_mixed=objective.is_mixed)
        read = Source(source, None if mask is None else mask.bool())
        return self.taught_tokens(output, states, labels, num_items, objective, chosen, read)

    def prepare_decoder_input_ids_from_labels(self, labels: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
        """The target moved one step to the right behind the start token; ignored labels become padding."""
        assert self.config.decoder_start_token_id is not None
        start = labels.new_full((labels.shape[0], 1), self.config.decoder_start_token_id)
        earlier = labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, self.config.pad_token_id)
        return torch.cat([start, earlier], dim=1)
