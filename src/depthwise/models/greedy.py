"""Greedy decoding with the model's own memory: one step at a time, the most probable token each time."""

from typing import Any

import torch

from depthwise.errors import InputError
from depthwise.models.causal_lm import DepthwiseForCausalLM
from depthwise.models.generation import left_padded
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.shapes import Int, Tensor


@torch.no_grad()
def greedy_decode(
    model: DepthwiseForSeq2SeqLM | DepthwiseForCausalLM,
    input_ids: Int[Tensor, "B T"],
    attention_mask: Tensor | None = None,
    *,
    max_new_tokens: int,
    stop_at_eos: bool = True,
) -> Int[Tensor, "B M"]:
    """The tokens that follow: a translation of the source, or the continuation of a prompt.

    Rows that reached the end are filled with padding; decoding stops when all have. Prompts may be padded on
    either side.
    """
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens is {max_new_tokens}; ask for at least one token")
    config = model.config
    inputs: dict[str, Any]
    if isinstance(model, DepthwiseForSeq2SeqLM):
        assert model.model.encoder is not None
        mask = input_ids != config.pad_token_id if attention_mask is None else attention_mask
        assert config.decoder_start_token_id is not None
        start = input_ids.new_full((input_ids.shape[0], 1), config.decoder_start_token_id)
        inputs = {"encoder_outputs": model.model.encoder(input_ids, mask), "attention_mask": mask}
        inputs["decoder_input_ids"] = start
        fed = "decoder_input_ids"
    else:
        prompt, valid = left_padded(input_ids, attention_mask)
        inputs = {"input_ids": prompt, "attention_mask": valid}
        fed = "input_ids"
    tokens: list[Tensor] = []
    ended = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
    state = None
    for _ in range(max_new_tokens):
        output = model(**inputs, past_key_values=state, use_cache=True)
        state = output.past_key_values
        token = output.logits[:, -1].argmax(-1)
        if stop_at_eos:
            token = token.masked_fill(ended, config.pad_token_id)
            ended = ended | (token == config.eos_token_id)
        tokens.append(token)
        if bool(ended.all()):
            break
        inputs[fed] = token.unsqueeze(1)
        if fed == "input_ids":
            inputs["attention_mask"] = None
    return torch.stack(tokens, dim=1)
