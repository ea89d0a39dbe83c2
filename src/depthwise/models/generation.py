"""Transformers' own ``generate`` on top of our state of decoding."""

from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import GenerationMode
from transformers.utils import ModelOutput

from depthwise.errors import InputError
from depthwise.memory import DecodeState
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.inputs import valid_tokens
from depthwise.shapes import Bool, Int, Tensor


class DepthwiseGenerationMixin(GenerationMixin):
    """Greedy search, sampling, beam search and the rest, all of them Transformers'."""

    config: DepthwiseConfig

    def generate(self: Any, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in Transformers. Without a mask, tokens with the padding id are padding.

        Prompts of language models may be padded on either side; they come back padded left.
        """
        ids = kwargs.get("input_ids") if inputs is None else inputs
        if ids is not None and kwargs.get("past_key_values") is None and kwargs.get("encoder_outputs") is None:
            if kwargs.get("attention_mask") is None:
                kwargs["attention_mask"] = (ids != self.config.pad_token_id).long()
            if not self.config.is_encoder_decoder:
                inputs, kwargs["attention_mask"] = left_padded(ids, kwargs["attention_mask"])
                kwargs.pop("input_ids", None)
        return GenerationMixin.generate(self, inputs, *args, **kwargs)

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> Any:
        """Supply an empty state where the search uses one; searches that take steps back need all of it kept."""
        if generation_config.cache_implementation is not None:
            raise InputError(
                f'cache_implementation="{generation_config.cache_implementation}" has no meaning here; leave it out, '
                "the model brings a cache of its own"
            )
        given = model_kwargs.get("past_key_values")
        if given is not None and not isinstance(given, DecodeState):
            raise InputError(
                f"past_key_values must be a DecodeState, as this model returns it, not {type(given).__name__}"
            )
        if given is None and generation_config.use_cache is not False:
            assisted = generation_mode == GenerationMode.ASSISTED_GENERATION or generation_config.is_assistant
            model_kwargs["past_key_values"] = DecodeState(remembers_all=bool(assisted))

    def _reorder_cache(self, past_key_values: DecodeState, beam_idx: Int[Tensor, "R"]) -> DecodeState:
        return past_key_values.keep(beam_idx)


def generated_depths(output: ModelOutput) -> Int[Tensor, "B M"]:
    """How deep each generated token ran, from what ``generate(..., return_dict_in_generate=True)`` returned.

    Beam search moves rows around; ``beam_indices`` says which row a hypothesis was in when each of its tokens was made,
    and where it had ended there is 0. Other searches run rows that ended like any other until all have.
    """
    state = output.get("past_key_values")
    if not isinstance(state, DecodeState):
        raise InputError("depths are on record only with a cache; generate with use_cache=True")
    if state.remembers_all:
        raise InputError("depths of drafted tokens are not on record one by one; generate without an assistant")
    by_step = [depths[:, -1] for depths in state.depths]
    rows = output.get("beam_indices")
    if rows is None:
        return torch.stack(by_step, dim=1)
    columns = []
    for step in range(rows.shape[1]):
        row = rows[:, step]
        columns.append(by_step[step][row.clamp(min=0)].masked_fill(row < 0, 0))
    return torch.stack(columns, dim=1)


def left_padded(ids: Int[Tensor, "B T"], mask: Tensor | None) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"] | None]:
    """Roll each row so that its last real token stands last; what is read then does not depend on the padding."""
    if mask is None:
        return ids, None
    length, valid = ids.shape[1], valid_tokens(mask, ids, "attention_mask")
    if valid is None:
        return ids, mask.bool()
    steps = torch.arange(length, device=ids.device)
    last = (valid * steps).amax(1, keepdim=True)
    index = (steps + last + 1) % length
    return ids.gather(1, index), valid.gather(1, index)
