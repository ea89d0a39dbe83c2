"""Runs that write text: translation, summarisation, language models.

Greedy and sampled texts go through queues of the engine, which keep their batches full. Beams are gathered into batches
of their own, on a view of the model that has the same weights.
"""

import copy
import secrets
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from depthwise.config import SearchConfig
from depthwise.engine import Answer, Engine, RequestQueue, Said, Ticket
from depthwise.engine.search_options import options_set_in, unknown_options
from depthwise.errors import InputError, LanguageError, QueueError
from depthwise.evaluation.policies import use_policy
from depthwise.evaluation.runs import Run
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.models.subnetworks import Gates, fixed_gates, subnetwork
from depthwise.serving.depth_choices import Asked, Setting
from depthwise.serving.gathering import Gathering
from depthwise.serving.options import ServingOptions
from depthwise.serving.pieces import TextStream, check_text, text_behind
from depthwise.serving.refusals import Refused
from depthwise.serving.served import Served
from depthwise.tasks.language_modeling import LanguageModeling
from depthwise.tasks.multilingual import MultilingualTranslation
from depthwise.tasks.searching import Search
from depthwise.tasks.sequence_to_sequence import SequenceToSequence

GREEDY_BELOW = 0.01
"""Temperatures at which nothing but the best token has a chance."""
LANGUAGE_SIDES = {"encoder": "source_languages", "decoder": "target_languages"}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How a text is to be written. ``temperature`` none is greedy."""

    depth: Asked | None = None
    to: str | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    num_beams: int = 1


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A text that is asked for, as ids. ``limit`` is where the task ends it; ``num_new`` are the most new tokens."""

    ids: tuple[int, ...]
    wanted: Wanted
    setting: Setting
    limit: int | None
    num_new: int
    start: int | None
    gates: tuple[Gates, ...]
    languages: dict[str, int] = field(default_factory=dict)

    @property
    def samples(self) -> bool:
        return self.wanted.temperature is not None and self.wanted.temperature >= GREEDY_BELOW


@dataclass(frozen=True)
class _Beams:
    """What searches have in common that run together; their lengths where one row's could change another's text."""

    setting: Setting
    num_beams: int
    num_new: int | None


class TextServed(Served):
    """A run that generates. Its queues have the model to themselves; there is one for each sub-network by language."""

    kind = "generate"

    def __init__(self, name: str, run: Run, options: ServingOptions) -> None:
        super().__init__(name, run, options)
        model = run.model
        if not run.engine.can_generate():
            raise InputError(f"{run.folder} cannot be decoded step by step by the engine: {_why_not(model)}")
        self._gates = {side: fixed_gates(layers) for side, layers in model.latent_layers().items()}
        self._engines: dict[tuple[Gates, ...], Engine] = {}
        self._queues: dict[tuple[Gates, ...], RequestQueue] = {}
        self._beams: Gathering[Prepared, Answer] | None = None
        self._beam_engine: Engine | None = None
        self._is_closed = False

    @property
    def tokenizer(self) -> Any:
        return self.task.tokenizers.target

    # Asking

    def prepared(self, text: str, wanted: Wanted) -> Prepared:
        """A request as ids, or why it cannot be one."""
        setting, task = self.setting(wanted.depth), self.task
        self._check(text, wanted)
        try:
            (row,) = task.whole_rows([self._columns(text, wanted.to)])
            batch = task.collate([row])
        except LanguageError as error:
            raise Refused(422, error.problem, f'give "to", one of {", ".join(self.languages or ())}') from None
        except InputError as error:
            raise Refused.because(error) from None
        ids = tuple(batch["input_ids"][0].tolist())
        languages = {name: int(batch[name][0]) for name in LANGUAGE_SIDES.values() if name in batch}
        starts = batch.get("decoder_input_ids")
        limit, num_new = self._lengths(ids, wanted.max_new_tokens)
        return Prepared(
            ids=ids,
            wanted=wanted,
            setting=setting,
            limit=limit,
            num_new=num_new,
            start=None if starts is None else int(starts[0, 0]),
            gates=tuple(of_side[languages.get(LANGUAGE_SIDES[side], 0)] for side, of_side in self._gates.items()),
            languages=languages,
        )

    def _columns(self, text: str, to: str | None) -> tuple[str, ...]:
        if to is None:
            return (text,)
        if not isinstance(self.task, MultilingualTranslation):
            raise Refused(422, "this model writes one language", "leave to out")
        return (to, text)

    def _check(self, text: str, wanted: Wanted) -> None:
        try:
            check_text(text, "input")
        except ValueError as error:
            raise Refused(422, *str(error).split("; ")) from None
        if not self.completes and not text.strip():
            raise Refused(422, "input is empty", "give a text")
        if wanted.num_beams > self.options.limits.beams:
            raise Refused(422, f"num_beams is {wanted.num_beams}, above {self.options.limits.beams}", "give fewer")
        if wanted.num_beams > 1 and any(
            value is not None for value in (wanted.temperature, wanted.top_k, wanted.top_p)
        ):
            raise Refused(422, "beams are not sampled", "leave out num_beams, or temperature, top_k and top_p")

    def _lengths(self, ids: Sequence[int], wanted: int | None) -> tuple[int | None, int]:
        """Where the rule of the task ends a text, and the most new tokens of this one."""
        task, most = self.task, self.options.limits.new_tokens
        if wanted is not None and wanted > most:
            raise Refused(422, f"max_new_tokens is {wanted:,}, above {most:,}", "give fewer")
        self.check_length(len(ids))
        if isinstance(task, SequenceToSequence):
            limit = min(most, int(task.target_limits(torch.tensor([len(ids)]))[0]))
            return limit, limit if wanted is None else min(wanted, limit)
        assert isinstance(task, LanguageModeling)
        room = most if task.max_tokens is None else task.max_tokens - len(ids)
        if wanted is not None and wanted > room:
            raise Refused(
                422,
                f"{wanted:,} tokens behind {len(ids):,} of the prompt are more than the {task.max_tokens:,} that the "
                "model can see",
                "give fewer max_new_tokens, or a shorter input",
                kind="input_too_long",
            )
        return None, min(task.num_new_tokens, room, most) if wanted is None else wanted

    @property
    def input_tokens(self) -> int:
        if not isinstance(self.task, LanguageModeling):
            return super().input_tokens
        most = self.task.max_tokens
        return self.options.limits.input_tokens if most is None else min(self.options.limits.input_tokens, most - 1)

    @property
    def new_tokens(self) -> int | None:
        return self.options.limits.new_tokens

    # Answering

    def submit(self, prepared: Prepared, on_token: Callable[[Said], None] | None = None) -> Ticket:
        """A place in the queue; ``QueueError`` where there is none."""
        if prepared.wanted.num_beams > 1:
            raise AssertionError("beams have no queue")
        return self._queue(prepared.gates).submit(
            prepared.ids, policy=prepared.setting.policy, on_token=on_token, **self._search_options(prepared)
        )

    def _search_options(self, prepared: Prepared) -> dict[str, Any]:
        wanted = prepared.wanted
        found = self._search(prepared, replace(self.task.recipe.generation, num_beams=1)).options
        found = {**found, "max_new_tokens": prepared.num_new, "max_length": None}
        found |= {} if prepared.limit is None else {"limits": [prepared.limit]}
        if prepared.samples:
            seed = secrets.randbits(63) if wanted.seed is None else wanted.seed
            found |= {
                "do_sample": True,
                "temperature": wanted.temperature,
                "top_k": wanted.top_k or 0,
                "top_p": 1.0 if wanted.top_p is None else wanted.top_p,
                "generators": [torch.Generator().manual_seed(seed)],
            }
        return found

    def _search(self, prepared: Prepared, how: SearchConfig) -> Search:
        ids = torch.tensor([prepared.ids])
        return Search(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            how=how,
            end_id=self.tokenizer.eos_token_id,
            max_length=prepared.num_new + 1,
            starts=None if prepared.start is None else [prepared.start],
        )

    def _queue(self, gates: tuple[Gates, ...]) -> RequestQueue:
        if self._is_closed:
            raise QueueError("this model takes no more requests; ask another server")
        if gates not in self._queues:
            limits = self.options.limits
            self._queues[gates] = self._engine(gates).queue(
                max_rows=self.options.max_rows, max_wait=self.options.max_wait, max_waiting=limits.waiting
            )
        return self._queues[gates]

    def _engine(self, gates: tuple[Gates, ...]) -> Engine:
        if not self._gates:
            return self.run.engine
        if gates not in self._engines:
            network = subnetwork(self.run.model, dict(zip(self._gates, gates, strict=True)))
            self._engines[gates] = Engine(network)
        return self._engines[gates]

    def finish_reason(self, prepared: Prepared, answer: Answer) -> str:
        is_whole = prepared.limit is None or len(answer.tokens) < prepared.limit
        return "stop" if answer.has_ended and is_whole else "length"

    def stream(self, prepared: Prepared) -> TextStream:
        return TextStream(self.tokenizer, prepared.ids if self.completes else ())

    def text(self, prepared: Prepared, tokens: Sequence[int]) -> str:
        return text_behind(self.tokenizer, prepared.ids if self.completes else (), tokens)

    # Beams

    def submit_beams(self, prepared: Prepared) -> "Future[Any]":
        if self._is_closed:
            raise QueueError("this model takes no more requests; ask another server")
        if self._beams is None:
            self._beam_engine = Engine(_view(self.run.model))
            self._beams = Gathering(
                self._searched,
                max_rows=max(1, self.options.max_rows // self.options.limits.beams),
                max_wait=self.options.max_wait,
                max_waiting=self.options.limits.waiting,
                max_size=self.task.recipe.evaluation.batch_tokens,
            )
        looks_ahead = self.task.recipe.generation.early_stopping not in (True, False)
        by_length = prepared.limit is None or looks_ahead
        group = _Beams(prepared.setting, prepared.wanted.num_beams, prepared.num_new if by_length else None)
        return self._beams.submit(group, prepared, len(prepared.ids))

    def _searched(self, group: Hashable, rows: list[Prepared]) -> list[Answer]:
        """Searches by beams, rows of any length together."""
        assert isinstance(group, _Beams)
        assert self._beam_engine is not None
        use_policy_of(self._beam_engine.model, group.setting)
        how = replace(self.task.recipe.generation, num_beams=group.num_beams)
        search = self._search(rows[0], how)
        device, longest = self.run.device, max(len(row.ids) for row in rows)
        ids = np.full((len(rows), longest), self.task.tokenizers.source.pad_token_id)
        mask = np.zeros((len(rows), longest), np.int64)
        for place, row in enumerate(rows):
            ids[place, : len(row.ids)], mask[place, : len(row.ids)] = row.ids, 1
        options = {**search.options, "max_length": None, "max_new_tokens": max(row.num_new for row in rows)}
        if rows[0].limit is not None:
            options["limits"] = [row.num_new for row in rows]
        if rows[0].start is not None:
            options["decoder_start_token_id"] = [row.start for row in rows]
        for name in rows[0].languages:
            options[name] = torch.tensor([row.languages[name] for row in rows], device=device)
        found = self._beam_engine.generate(
            torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device), **options
        )
        return [
            _answer_of(tokens, depths, self.tokenizer.eos_token_id)
            for tokens, depths in zip(found.tokens.tolist(), found.depths.tolist(), strict=True)
        ]

    # What it is

    @property
    def languages(self) -> list[str] | None:
        return list(self.task.choices) if isinstance(self.task, MultilingualTranslation) else None

    def example(self, texts: tuple[str, ...]) -> str:
        return texts[-1]  # a language before it is no part of the text

    @property
    def completes(self) -> bool:
        return isinstance(self.task, LanguageModeling)

    @property
    def num_waiting(self) -> int:
        beams = 0 if self._beams is None else self._beams.num_waiting
        return beams + sum(queue.num_waiting for queue in self._queues.values())

    @property
    def num_running(self) -> int:
        beams = 0 if self._beams is None else self._beams.num_running
        return beams + sum(queue.num_running for queue in self._queues.values())

    def warm_up(self) -> None:
        to = None if self.languages is None else self.languages[0]
        try:
            prepared = self.prepared("a", Wanted(to=to, max_new_tokens=1))
        except Refused:  # limits that leave no room even for this
            return
        self.submit(prepared).result()

    def close(self) -> None:
        super().close()
        self._is_closed = True
        for queue in self._queues.values():
            queue.close()
        if self._beams is not None:
            self._beams.close()


def _why_not(model: DepthwisePreTrainedModel) -> str:
    """What of this model the engine has no steps for, and what can be done about it."""
    assert model.model.decoder is not None
    if model.model.decoder.stack.dense is not None:
        return "its decoder has dense connections; serve another run"
    for side, layers in model.latent_layers().items():
        if layers.mode == "sampled":
            return f"gates of its {side} are drawn anew at every call; serve what depthwise prune makes of it"
        if layers.mode == "soft" and layers.options.whole_layer:
            return f"soft gates of its {side} weigh whole layers; serve what depthwise prune makes of it"
        if layers.mode == "hard" and not bool(layers.is_open.any(1).all()):
            return f"hard gates of its {side} close all layers; serve what depthwise prune --keep K makes of it"
    unknown = ", ".join(unknown_options(options_set_in(model.generation_config), ()))
    return f"its generation_config.json sets {unknown}, which the engine does not know; remove that"


def use_policy_of(model: DepthwisePreTrainedModel, setting: Setting) -> None:
    """Let tokens leave by a setting from now on; models without exits have but one."""
    if model.config.options.leaves_early:
        use_policy(model, setting.options)


def _view(model: DepthwisePreTrainedModel) -> DepthwisePreTrainedModel:
    """A model with the same weights and a policy of its own."""
    view: Any = copy.copy(model)
    view._modules = dict(model._modules)
    found: DepthwisePreTrainedModel = view
    return found


def _answer_of(tokens: list[int], depths: list[int], end: int) -> Answer:
    """A row without what only fills it up; a beam scores sequences, not tokens."""
    made = [(token, depth) for token, depth in zip(tokens, depths, strict=True) if depth]
    ids, ran = tuple(token for token, _ in made), tuple(depth for _, depth in made)
    return Answer(ids, ran, (), bool(ids) and ids[-1] == end, 0.0, 0.0)
