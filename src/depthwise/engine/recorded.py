"""Decoding from recorded steps: which searches it serves, and what it keeps for the next one."""

import threading
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from depthwise.depth import FixedDepth, Policy
from depthwise.engine.beam import search_beam
from depthwise.engine.lossless import Drafts
from depthwise.engine.prepared import Prepared
from depthwise.engine.recorded_lossless import search_rounds
from depthwise.engine.recorder import GraphRecorder, Recorder
from depthwise.engine.restrictions import Restrictions
from depthwise.engine.search import Found, search_one
from depthwise.engine.search_options import SearchOptions
from depthwise.engine.static_greedy import search_greedy
from depthwise.engine.static_state import Recording, StaticState
from depthwise.engine.static_stepper import StaticStepper, WholeStepper
from depthwise.engine.static_walk import AdaptiveStepper
from depthwise.engine.stepping import check_plan
from depthwise.errors import InputError
from depthwise.shapes import Int, Tensor

Graphs = bool | Literal["auto"]


@dataclass(frozen=True)
class Searched:
    """What a search found, after how many steps, and what was done for it."""

    found: Found
    num_steps: int
    num_run: int
    num_filled: int
    drafts: Drafts | None = None


class RecordedDecoding:
    """Searches from steps that a GPU repeats by itself.

    ``graphs`` says whether they are recorded as CUDA graphs: where there is a GPU and they can be ("auto"), always
    (else that is an error), or never. Tables and graphs are kept until weights change.
    """

    def __init__(self, graphs: Graphs) -> None:
        if graphs not in ("auto", True, False):
            raise InputError(f'graphs is {graphs!r}, but may be "auto", True or False')
        self.graphs = graphs
        self.one_at_a_time = threading.Lock()
        self._recording: Recording | None = None

    def serves(
        self, device: torch.device, *, policy: Policy | None, fill: str, lossless: int | None, options: SearchOptions
    ) -> bool:
        """Whether this search is done from recorded steps; an error where it has to be and cannot."""
        is_lossless, looks_back = lossless is not None, bool(options.no_repeat_ngram_size or options.logits_processor)
        others = {
            "a model on a CPU; move it to a GPU": device.type != "cuda",
            "lossless decoding that samples; leave out do_sample": is_lossless and options.do_sample,
            "lossless decoding that looks back; leave out no_repeat_ngram_size and logits_processor": is_lossless
            and looks_back,
            f'the fill "{fill}"; use "deferred"': policy is not None and fill != "deferred",
        }
        found = [other for other, is_asked in others.items() if is_asked]
        if found and self.graphs is True:
            raise InputError(f'CUDA graphs do not serve {found[0]}, or set graphs to "auto"')
        return not found and self.graphs is not False

    def recorder(self, device: torch.device) -> Recorder:
        return GraphRecorder(device)

    def begin(self, prepared: Prepared) -> Recording:
        """What was recorded for these weights."""
        if self._recording is None or self._recording.prepared is not prepared:
            self._recording = Recording(prepared, self.recorder(prepared.model.device))
        return self._recording

    def search(
        self,
        state: StaticState,
        first: Int[Tensor, "B"],
        restrict: Restrictions,
        options: SearchOptions,
        num_steps: int,
        policy: Policy | None,
        lossless: int | None,
    ) -> Searched:
        if lossless is not None:
            found, drafts, num_run = search_rounds(state, first, restrict, options, num_steps, lossless)
            return Searched(found, found.tokens.shape[1], num_run, 0, drafts)
        begun, stepper = state.length, _stepper(state, policy)
        if options.num_beams == 1 and not options.do_sample and not restrict.looks_back:
            found = search_greedy(stepper, first, restrict, options, num_steps)
            return Searched(found, found.tokens.shape[1], int(found.depths.sum()), stepper.num_filled)
        search = search_one if options.num_beams == 1 else search_beam
        found = search(stepper, first, restrict, options, num_steps)
        return Searched(found, state.length - begun, stepper.num_run, stepper.num_filled)


def fixed_depth(prepared: Prepared, policy: Policy | None) -> int | None:
    """The depth that every token runs to; none where a policy decides that."""
    if policy is None:
        return prepared.decoder.stack.num_layers
    return policy.options.depth if type(policy) is FixedDepth else None


def _stepper(state: StaticState, policy: Policy | None) -> StaticStepper:
    prepared = state.recording.prepared
    depth = fixed_depth(prepared, policy)
    if depth is not None:
        check_plan(np.array([depth]), prepared.decoder.stack.num_layers)
        return WholeStepper(prepared, state, depth)
    assert policy is not None
    return AdaptiveStepper(prepared, state, policy)
