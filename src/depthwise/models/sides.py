"""The two sides of a model: embedding and stack, looking both ways (encoder) or only back (decoder)."""

from collections.abc import Sequence

import torch
from torch import nn

from depthwise.config import ModelConfig
from depthwise.depth import LatentGates, LatentLayers, Plan, StructurePredictor
from depthwise.errors import InputError
from depthwise.memory import DecodeState
from depthwise.models.embedding import Embedding
from depthwise.models.executing import current_executor
from depthwise.models.inputs import check_ids, check_token_types, valid_tokens
from depthwise.models.masked import Leaving, run_leaving, run_masked, run_structured
from depthwise.models.outputs import DepthwiseOutput
from depthwise.models.stack import Gates, Source, Stack
from depthwise.shapes import Bool, Int, Tensor


class Encoder(nn.Module):
    """Token ids to states in which every position has seen every other."""

    main_input_name = "input_ids"

    def __init__(self, options: ModelConfig, padding: int | None) -> None:
        super().__init__()
        assert options.encoder is not None
        self.padding, self.max_positions = padding, options.encoder.max_positions
        self.num_token_types = options.token_types
        self.embedding = Embedding(options, options.encoder, options.source_vocab_size or options.vocab_size, padding)
        norms = _own_norms(options) if options.decoder is None else ()
        self.stack = Stack(options.encoder, width=options.width, causal=False, own_norms=norms)
        self.latent = _latent_layers(options, "encoder")
        self.structure: StructurePredictor | None = None
        if options.structure is not None:
            num_layers = options.encoder.num_layers
            self.structure = StructurePredictor(options.structure, width=options.width, num_layers=num_layers)

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        attention_mask: Tensor | None = None,
        plan: Plan | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        token_type_ids: Int[Tensor, "B T"] | None = None,
        leaving: Leaving | None = None,
        own_factors: Sequence[float] | None = None,
        source_languages: Int[Tensor, "B"] | None = None,
    ) -> DepthwiseOutput:
        """States of all tokens. Without a mask, tokens with the padding id are padding.

        They run what ``plan`` says, or leave where ``leaving`` lets them. Without either, latent layers weigh what they
        run; ``source_languages`` numbers the language of every row, where gates differ between languages. Where there
        is a ``structure``, static layers decide what runs, and nothing else does.

        Transformers' ``generate`` passes ``output_attentions`` and ``return_dict``; there are no attention weights to
        give, and the result is always one output.
        """
        if output_attentions:
            raise InputError("attention weights are not kept; leave output_attentions out")
        check_ids(input_ids, "input_ids", self.embedding.num_types, self.max_positions)
        check_token_types(token_type_ids, input_ids, self.num_token_types)
        valid = valid_tokens(attention_mask, input_ids, "attention_mask", self.padding)
        x = self.embedding(input_ids, valid, type_ids=token_type_ids)
        keep, executor = bool(output_hidden_states), current_executor()
        latent = None
        if plan is None and self.latent is not None:
            latent = self.latent(source_languages, len(input_ids))
        is_packed = executor is not None and not (keep or self.training) and self.stack.dense is None
        if latent is not None and is_packed and not latent.whole:
            plan, latent = latent.plan(self.stack.num_layers, *input_ids.shape), None
        structure = self.structure
        if structure is not None and (plan is not None or leaving is not None):
            raise InputError("this model says by itself how many layers it needs; leave plan and depths out")
        if executor is not None and is_packed and latent is None:
            steps = _steps(input_ids, valid, None)
            output, depths = executor(
                self.stack, x, valid=valid, plan=plan, leaving=leaving, steps=steps, structure=structure
            )
            return DepthwiseOutput(last_hidden_state=output.final, depths=depths)
        depths = depths_run(input_ids, valid, plan, self.stack.num_layers)
        if structure is not None:
            output, depths = run_structured(self.stack, x, structure, valid=valid, keep_hidden=keep)
        elif plan is not None:
            output = run_masked(self.stack, x, plan, valid=valid, keep_hidden=keep, own_factors=own_factors)
        elif latent is not None:
            depths = depths_gated(input_ids, valid, latent, self.stack.num_layers)
            output = self.stack.run_all(x, _gates(latent), valid=valid, keep_hidden=keep)
        elif leaving is not None:
            steps = _steps(input_ids, valid, None)
            output, depths = run_leaving(self.stack, x, leaving, steps, valid=valid, keep_hidden=keep)
        else:
            output = self.stack.run_all(x, valid=valid, keep_hidden=keep, own_factors=own_factors)
        return DepthwiseOutput(
            last_hidden_state=output.final,
            depths=depths,
            hidden_by_depth=output.hidden_by_depth,
        )


class Decoder(nn.Module):
    """Token ids to states in which every position has seen those before it, and a source where there is one."""

    main_input_name = "input_ids"

    def __init__(self, options: ModelConfig, padding: int | None) -> None:
        super().__init__()
        assert options.decoder is not None
        self.max_positions = options.decoder.max_positions
        self.name = "input_ids" if options.encoder is None else "decoder_input_ids"
        self.embedding = Embedding(options, options.decoder, options.vocab_size, padding)
        self.stack = Stack(
            options.decoder,
            width=options.width,
            causal=True,
            has_source=options.encoder is not None,
            own_norms=_own_norms(options),
        )
        self.latent = _latent_layers(options, "decoder")

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        attention_mask: Tensor | None = None,
        source: Source | None = None,
        state: DecodeState | None = None,
        plan: Plan | None = None,
        output_hidden_states: bool | None = None,
        num_layers: int | None = None,
        leaving: Leaving | None = None,
        own_factors: Sequence[float] | None = None,
        target_languages: Int[Tensor, "B"] | None = None,
    ) -> DepthwiseOutput:
        """States of all tokens, or of the next ones after those that ``state`` remembers.

        They run what ``plan`` says, or leave where ``leaving`` lets them; ``num_layers`` cuts the stack there. Without
        a plan, latent layers weigh what they run; ``target_languages`` numbers the language of every row, where gates
        differ between languages.

        ``attention_mask`` covers these tokens alone, or all since the first. Without a mask no token is padding: the
        padding id may be the first token of a target.
        """
        earlier = 0 if state is None else state.length
        check_ids(input_ids, self.name, self.embedding.num_types, self.max_positions, earlier)
        if state is not None and state.num_real is not None and len(state.num_real) != len(input_ids):
            raise InputError(f"{self.name} has {len(input_ids)} rows but past_key_values has {len(state.num_real)}")
        if attention_mask is not None and attention_mask.dim() == 2 and attention_mask.shape[1] > input_ids.shape[1]:
            attention_mask = attention_mask[:, earlier:]
        valid = valid_tokens(attention_mask, input_ids, f"the mask of {self.name}", may_be_empty=earlier > 0)
        num_earlier = None if state is None else state.num_real
        x = self.embedding(input_ids, valid, num_earlier)
        keep = bool(output_hidden_states)
        depths = depths_run(input_ids, valid, plan, num_layers or self.stack.num_layers)
        if plan is not None:
            output = run_masked(
                self.stack,
                x,
                plan,
                valid=valid,
                source=source,
                state=state,
                keep_hidden=keep,
                own_factors=own_factors,
            )
        elif self.latent is not None:
            latent = self.latent(target_languages, len(input_ids))
            depths = depths_gated(input_ids, valid, latent, num_layers or self.stack.num_layers)
            output = self.stack.run_all(
                x, _gates(latent), valid=valid, source=source, state=state, num_layers=num_layers, keep_hidden=keep
            )
        elif leaving is not None and num_layers in (None, self.stack.num_layers):
            steps = _steps(input_ids, valid, num_earlier)
            output, depths = run_leaving(
                self.stack, x, leaving, steps, valid=valid, source=source, state=state, keep_hidden=keep
            )
        else:
            output = self.stack.run_all(
                x,
                valid=valid,
                source=source,
                state=state,
                num_layers=num_layers,
                keep_hidden=keep,
                own_factors=own_factors,
            )
        if state is not None and output.memories is not None:
            num_real = input_ids.new_full(input_ids.shape[:1], input_ids.shape[1]) if valid is None else valid.sum(1)
            state = state.advanced(output.memories, input_ids.shape[1], num_real, depths)
        return DepthwiseOutput(
            last_hidden_state=output.final,
            depths=depths,
            hidden_by_depth=output.hidden_by_depth,
            past_key_values=state,
        )


def _own_norms(options: ModelConfig) -> tuple[int, ...]:
    """The depths of exits that have a norm of their own."""
    return options.exit_depths[:-1] if options.exits is not None and options.exits.norms == "separate" else ()


def _latent_layers(options: ModelConfig, side: str) -> LatentLayers | None:
    """The gates of a side, where its layers are latent."""
    if options.latent is None or side not in options.latent.sides:
        return None
    stack = getattr(options, side)
    return LatentLayers(options.latent, stack.num_layers, side)


def _gates(latent: LatentGates) -> Gates:
    return lambda layer, _: latent.gate(layer)


def depths_gated(
    ids: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None, latent: LatentGates, num_layers: int
) -> Int[Tensor, "B T"]:
    """How many blocks each token ran under these gates, and none on padding."""
    found = latent.depths(num_layers)
    depths = ids.new_zeros(ids.shape) + (found.view(-1, 1) if isinstance(found, Tensor) else found)
    return depths if valid is None else depths * valid


def _steps(
    ids: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None, num_earlier: Int[Tensor, "B"] | None
) -> Int[Tensor, "B T"]:
    """Which token of its sequence each is, counted from 0; those of padding mean nothing."""
    steps = torch.ones_like(ids) if valid is None else valid.long()
    steps = steps.cumsum(1) - 1
    return steps if num_earlier is None else steps + num_earlier.unsqueeze(1)


def depths_run(
    ids: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None, plan: Plan | None, num_layers: int
) -> Int[Tensor, "B T"]:
    """How many blocks each token ran: what the plan says or all of them, and none on padding."""
    depths = ids.new_full(ids.shape, num_layers) if plan is None else plan.depths
    return depths if valid is None else depths * valid
