"""Text found by the engine, on behalf of tasks, which do not know it."""

from transformers import PreTrainedModel

from depthwise.data import BatchOptions
from depthwise.engine import Engine
from depthwise.tasks.searching import Found, Search, search_by_model


class EngineSearch:
    """A searcher (``tasks.searching``) for one model.

    The engine searches wherever ``Engine.can_generate`` says so. That leaves models that are sharded over processes,
    those with dense connections or sampled gates, and those whose generation config sets an option that the engine does
    not know: they search by themselves.

    With ``room``, more rows are given at once than fit: the engine parts them into batches of similar depth.
    """

    def __init__(self, engine: Engine, room: BatchOptions | None = None) -> None:
        self.engine = engine
        self._can_generate: bool | None = None
        self._room = {} if room is None else {"rows_at_once": room.max_rows, "tokens_at_once": room.max_tokens}

    def __call__(self, model: PreTrainedModel, search: Search) -> Found:
        assert model is self.engine.model, "an engine searches with its own model"
        options = search.options if search.limits is None else {**search.options, "limits": search.limits.tolist()}
        if self._can_generate is None:  # the same for all searches of a task
            self._can_generate = self.engine.can_generate(options)
        if not self._can_generate:
            assert self.engine.drafting is None, "whoever drafts has been checked"
            return search_by_model(model, search)
        options = {**options, **self._room, **search.languages}
        found = self.engine.generate(search.input_ids, search.attention_mask, **options)
        return Found(found.sequences, found.tokens, found.depths, found.num_steps)
