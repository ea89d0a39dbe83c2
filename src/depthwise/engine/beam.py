"""Beam search, with the scores, limits and ways of stopping of Transformers."""

from dataclasses import dataclass, fields

import torch

from depthwise.engine.restrictions import Restrictions
from depthwise.engine.rows import on_device
from depthwise.engine.search import Found, padding_of
from depthwise.engine.search_options import SearchOptions
from depthwise.engine.stepping import Steps
from depthwise.shapes import Bool, Float, Int, Tensor

NEVER = -1.0e9
"""The score of what must not be chosen."""


@dataclass
class Beams:
    """K hypotheses that go on and the K best that have ended, for each of G inputs."""

    running: Int[Tensor, "G K M"]
    running_depths: Int[Tensor, "G K M"]
    running_scores: Float[Tensor, "G K"]
    ended: Int[Tensor, "G K M"]
    ended_depths: Int[Tensor, "G K M"]
    ended_scores: Float[Tensor, "G K"]
    has_ended: Bool[Tensor, "G K"]
    can_improve: Bool[Tensor, "G 1"]

    @classmethod
    def empty(cls, num_inputs: int, num_beams: int, num_steps: int, padding: int, device: torch.device) -> "Beams":
        tokens = torch.full((num_inputs, num_beams, num_steps), padding, device=device)
        scores = torch.full((num_inputs, num_beams), NEVER, device=device)
        first_alone = scores.clone()
        first_alone[:, 0] = 0  # all hypotheses are the same at first: only one of them counts
        return cls(
            running=tokens,
            running_depths=torch.zeros_like(tokens),
            running_scores=first_alone,
            ended=tokens.clone(),
            ended_depths=torch.zeros_like(tokens),
            ended_scores=scores,
            has_ended=torch.zeros_like(scores, dtype=torch.bool),
            can_improve=torch.ones(num_inputs, 1, dtype=torch.bool, device=device),
        )

    def of(self, inputs: Int[Tensor, "_g"]) -> "Beams":
        """Those of some inputs."""
        return Beams(**{part.name: getattr(self, part.name).index_select(0, inputs) for part in fields(self)})


def search_beam(
    stepper: Steps, first: Int[Tensor, "B"], restrict: Restrictions, options: SearchOptions, num_steps: int
) -> Found:
    """The best sequences of each input that a beam of hypotheses comes to.

    ``first`` holds a token for every hypothesis, those of one input side by side. Inputs leave the batch as soon as
    nothing better can come.
    """
    num_beams, device = options.num_beams, first.device
    num_inputs = len(first) // num_beams
    beams = Beams.empty(num_inputs, num_beams, num_steps, padding_of(options), device)
    done = Beams.empty(num_inputs, num_beams, num_steps, padding_of(options), device)
    of_input, fed = torch.arange(num_inputs, device=device), first
    for step in range(num_steps):
        made = stepper.step(fed)
        log_probs = made.logits.float().log_softmax(-1)
        of_prompt = of_input.repeat_interleave(num_beams)
        log_probs = restrict(log_probs, beams.running.flatten(0, 1)[:, :step], of_prompt)
        depths = on_device(made.depths, device)
        is_last = step + 1 == num_steps
        parents = _extend(beams, log_probs, depths, restrict.ends, options, step, is_last)
        is_done = _is_done(beams, options, step + 1, num_steps)
        if is_last:
            break
        moved, left = torch.cat([parents.flatten(), is_done.long()]).cpu().split([parents.numel(), len(is_done)])
        stepper.state.reorder(moved.numpy())
        if bool(left.any()):
            done = _kept(done, of_input, beams)
            if bool(left.all()):
                return _found(done, options)
            order = on_device(stepper.state.drop(left.bool().numpy()), device)
            beams, of_input = beams.of(order), of_input[order]
        fed = beams.running[:, :, step].flatten()
    return _found(_kept(done, of_input, beams), options)


def _extend(
    beams: Beams,
    log_probs: Float[Tensor, "R V"],
    depths: Int[Tensor, "R"],
    ends: Int[Tensor, "_n"],
    options: SearchOptions,
    step: int,
    is_last: bool,
) -> Int[Tensor, "G K"]:
    """Every hypothesis by one token. Returns the row that each one that goes on was in."""
    num_inputs, num_beams = beams.running_scores.shape
    vocabulary, num_kept = log_probs.shape[-1], max(2, 1 + len(ends)) * num_beams
    summed = log_probs.view(num_inputs, num_beams, -1) + beams.running_scores.unsqueeze(-1)
    scores, places = summed.flatten(1).topk(num_kept)
    parents, tokens = places // vocabulary, places % vocabulary
    sequences, their_depths = _beams_of(beams.running, parents), _beams_of(beams.running_depths, parents)
    rows = parents + torch.arange(num_inputs, device=parents.device).unsqueeze(1) * num_beams
    sequences[:, :, step], their_depths[:, :, step] = tokens, depths[rows]
    ends_here = torch.isin(tokens, ends) if not is_last else torch.ones_like(tokens, dtype=torch.bool)

    # The best that have ended: only the first K candidates may join them, and only where that is still of use.
    joins = ends_here & (torch.arange(num_kept, device=tokens.device) < num_beams)
    is_full = beams.has_ended.all(-1, keepdim=True) & (options.early_stopping is True)
    penalized = scores / (step + 1) ** options.length_penalty
    penalized = penalized + (is_full.float() + (~beams.can_improve).float() + (~joins).float()) * NEVER
    best = torch.cat([beams.ended_scores, penalized], dim=1).topk(num_beams).indices
    beams.ended = _beams_of(torch.cat([beams.ended, sequences], dim=1), best)
    beams.ended_depths = _beams_of(torch.cat([beams.ended_depths, their_depths], dim=1), best)
    beams.ended_scores = _beams_of(torch.cat([beams.ended_scores, penalized], dim=1), best)
    beams.has_ended = _beams_of(torch.cat([beams.has_ended, joins], dim=1), best)

    # Those that go on
    going_on = scores + ends_here.float() * NEVER
    chosen = going_on.topk(num_beams).indices
    beams.running, beams.running_depths = _beams_of(sequences, chosen), _beams_of(their_depths, chosen)
    beams.running_scores = _beams_of(going_on, chosen)
    return _beams_of(rows, chosen)


def _is_done(beams: Beams, options: SearchOptions, num_made: int, num_steps: int) -> Bool[Tensor, "G"]:
    """Which inputs can stop: nothing that still runs could be better than what has ended, by the rule asked for."""
    reaches_end = options.early_stopping == "never" and options.length_penalty > 0
    length = num_steps if reaches_end else num_made
    best = beams.running_scores[:, :1] / length**options.length_penalty
    worst = torch.where(beams.has_ended, beams.ended_scores.amin(1, keepdim=True), NEVER)
    beams.can_improve = beams.can_improve & (best > worst).any(-1, keepdim=True)
    is_full = beams.has_ended.all(-1) & (options.early_stopping is True)
    return is_full | ~beams.can_improve.squeeze(1)


def _beams_of(tensor: Tensor, chosen: Int[Tensor, "G _k"]) -> Tensor:
    """These beams of each input."""
    return torch.take_along_dim(tensor, chosen.view(*chosen.shape, *(1,) * (tensor.dim() - 2)), dim=1)


def _kept(done: Beams, of_input: Int[Tensor, "G"], beams: Beams) -> Beams:
    """What inputs have come to so far, in the places of those inputs."""
    parts = {
        part.name: getattr(done, part.name).index_copy(0, of_input, getattr(beams, part.name)) for part in fields(Beams)
    }
    return Beams(**parts)


def _found(beams: Beams, options: SearchOptions) -> Found:
    count = options.num_return_sequences
    depths = beams.ended_depths[:, :count].flatten(0, 1)
    longest = int((depths > 0).sum(1).max())
    return Found(
        beams.ended[:, :count].flatten(0, 1)[:, :longest],
        depths[:, :longest],
        beams.ended_scores[:, :count].flatten(),
    )
