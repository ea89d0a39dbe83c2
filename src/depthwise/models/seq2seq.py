"""Encoder, decoder and a head over the target vocabulary: translation, summarisation."""

import torch
from transformers.utils import can_return_tuple

from depthwise.depth import Plan
from depthwise.losses import IGNORED, token_cross_entropy
from depthwise.memory import DecodeState
from depthwise.models.backbone import DepthwiseModel
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.exits import build_trained_policy
from depthwise.models.generation import DepthwiseGenerationMixin
from depthwise.models.language_head import HasLanguageHead, build_exit_heads, build_head, tied_weights
from depthwise.models.outputs import DepthwiseOutput
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.models.sides import Encoder
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
    ) -> DepthwiseOutput:
        """Scores of the next target token at every step; see ``DepthwiseModel.forward`` for what goes in.

        ``labels`` are the target; from them, moved one step to the right, follow ``decoder_input_ids`` where not given.
        """
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
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
            return_dict=True,
        )
        logits = self.scores_each(output.last_hidden_state, output.depths)
        loss = None if labels is None else token_cross_entropy(logits, labels, num_items_in_batch)
        return output.replaced(loss=loss, logits=logits)

    def prepare_decoder_input_ids_from_labels(self, labels: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
        """The target moved one step to the right behind the start token; ignored labels become padding."""
        assert self.config.decoder_start_token_id is not None
        start = labels.new_full((labels.shape[0], 1), self.config.decoder_start_token_id)
        earlier = labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, self.config.pad_token_id)
        return torch.cat([start, earlier], dim=1)
