"""The engine: a model that computes only what is asked of it."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from depthwise.engine.choosing import ChosenEncoder
from depthwise.engine.decoding import Decoding, Generated
from depthwise.engine.drafting import Drafting
from depthwise.engine.gated import GatedDecoding
from depthwise.engine.lossless import Drafts
from depthwise.engine.prompts import check_model
from depthwise.engine.recorded import Graphs
from depthwise.engine.recorded_walk import RecordedWalks
from depthwise.engine.recorder import GraphRecorder
from depthwise.engine.regrouping import Room, generate_in_batches, plans_sequences
from depthwise.engine.request_queue import QueueOptions, RequestQueue
from depthwise.engine.search_options import options_set_in, unknown_options
from depthwise.errors import InputError
from depthwise.models.causal_lm import DepthwiseForCausalLM
from depthwise.models.executing import executed_by
from depthwise.models.outputs import DepthwiseOutput
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.shapes import Int, Tensor


class Engine:
    """Runs a model for prediction so that depth saved is time saved, at any batch size.

    Calling it gives what the model itself says of the same inputs (classification, tagging, answers, filling in masks);
    its encoder computes neither padding nor tokens that have left, where that saves time (``choosing``). ``generate``
    gives the tokens of the model's own ``generate`` from a memory that is written in place. ``token_layers`` counts the
    blocks that tokens of encoders have run so far. ``executor`` is what runs encoders: within
    ``executed_by(engine.executor)``, those of any call. ``graphs`` says whether text is generated from CUDA graphs:
    "auto" (where there is a GPU and steps can be recorded), True (else that is an error) or False. Unless it is False,
    blocks of adaptive encoders on a GPU are recorded as well, where they can be.

    With ``drafting``, whatever is generated is decoded losslessly (see ``lossless``); ``drafts`` says how that went so
    far, and ``generated_layers`` how many blocks new tokens ran, rejected ones included.
    """

    def __init__(
        self, model: DepthwisePreTrainedModel, graphs: Graphs = "auto", drafting: Drafting | None = None
    ) -> None:
        self.model, self.drafting = model.eval(), drafting
        self.drafts, self.generated_layers = Drafts(), 0
        self.executor = ChosenEncoder(None if graphs is False else RecordedWalks(GraphRecorder))
        self._decoding: Decoding | None = None
        self._gated: GatedDecoding | None = None
        if isinstance(model, DepthwiseForSeq2SeqLM | DepthwiseForCausalLM):
            self._decoding = Decoding(model, graphs)
            self._gated = GatedDecoding(model, graphs) if model.latent_layers() else None

    @property
    def token_layers(self) -> int:
        return self.executor.token_layers

    @torch.inference_mode()
    def __call__(self, *arguments: Any, **options: Any) -> DepthwiseOutput:
        """What the model itself says of the same inputs."""
        with executed_by(self.executor):
            output: DepthwiseOutput = self.model(*arguments, **options)
        return output

    def generate(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Tensor | None = None,
        *,
        rows_at_once: int | None = None,
        tokens_at_once: int | None = None,
        source_languages: Int[Tensor, "B"] | None = None,
        target_languages: Int[Tensor, "B"] | None = None,
        **options: Any,
    ) -> Generated:
        """Translations of sources, or continuations of prompts; see ``Decoding.generate`` for the options.

        With ``rows_at_once`` or ``tokens_at_once`` they are made in batches of at most so many rows, or tokens of input
        with their padding: rows of similar depth together, where the policy plans for sequences, and of similar length.
        Where layers have gates that differ between languages, these are numbered for each row as in ``forward``, and
        every row runs the sub-network of its own.
        """
        if self._decoding is None:
            raise InputError(f"a {type(self.model).__name__} generates nothing; call the engine itself")
        room = Room(rows_at_once, tokens_at_once)
        if self.drafting is not None:
            options = {"lossless": self.drafting.depth, "num_drafted": self.drafting.num_drafted, **options}
        with executed_by(self.executor):
            if self._gated is not None:
                languages = {"source_languages": source_languages, "target_languages": target_languages}
                found = self._gated.generate(room, input_ids, attention_mask, languages, options)
            elif source_languages is not None or target_languages is not None:
                raise InputError("this model has no gates that ask for languages; leave them out")
            elif input_ids is None or room == Room():
                found = self._decoding.generate(input_ids, attention_mask, **options)
            elif options.get("encoder_outputs") is not None:
                raise InputError("encoder_outputs are of one batch; leave out rows_at_once and tokens_at_once")
            else:
                found = generate_in_batches(self._decoding, room, input_ids, attention_mask, options)
        self.generated_layers += found.num_token_layers
        self.drafts += Drafts() if found.drafts is None else found.drafts
        return found

    def queue(self, **options: Any) -> RequestQueue:
        """Answers requests of many threads together, each as if it were alone; see ``QueueOptions`` and ``submit``.

        Until it is closed, it has the model to itself.
        """
        if self._decoding is None:
            raise InputError(f"a {type(self.model).__name__} generates nothing; call the engine itself")
        check_model(self._decoding.model)
        if self.drafting is not None:
            raise InputError("a queue drafts nothing; open that of an engine without drafting")
        known, make = QueueOptions(**options), self._decoding.live_batch
        return RequestQueue(lambda: make(known.max_rows, known.fill, known.max_pending), self.executor, known)

    def forget_counts(self) -> None:
        """Count drafts and the blocks of new tokens from here on."""
        self.drafts, self.generated_layers = Drafts(), 0

    @property
    def plans_sequences(self) -> bool:
        """Whether the depth of a whole text is known before it is generated, so that batches can be made by it."""
        return self._decoding is not None and self.can_generate() and plans_sequences(self._decoding.model)

    def can_generate(self, options: Iterable[str] = ()) -> bool:
        """Whether ``generate`` is for this model and knows these options, and those that its generation config sets.

        It is not for models without a decoder, nor for those with dense connections there, with gates that are drawn
        anew at every call or weigh whole layers, nor for those that are sharded over several processes, whose weights
        are together only while the model itself runs.
        """
        if self._decoding is None:
            return False
        decoder = self._decoding.model.model.decoder
        assert decoder is not None
        is_sharded = any(isinstance(module, FSDPModule) for module in self.model.modules())
        return (
            not is_sharded
            and decoder.stack.dense is None
            and (self._gated is None or self._gated.is_for_these_gates)
            and not unknown_options(options_set_in(self._decoding.model.generation_config), options)
        )
