"""The configuration class of all Depthwise models."""

from dataclasses import fields, replace
from typing import Any, ClassVar

import transformers
from packaging.version import Version
from transformers import GenerationConfig, PreTrainedConfig

from depthwise.config import ModelConfig, as_dict, nearest, parse_model, preset
from depthwise.errors import ConfigError, Problem

OPTIONS = tuple(option.name for option in fields(ModelConfig))


class DepthwiseConfig(PreTrainedConfig):
    """A Transformers configuration around the plain options of ``depthwise.config``.

    ``encoder`` and ``decoder`` are dictionaries of ``StackConfig`` options, ``adaptive`` of ``AdaptiveConfig``,
    ``exits`` of ``ExitsConfig``, ``latent`` of ``LatentConfig``, ``structure`` of ``StructureConfig`` and
    ``word_depths`` of ``WordDepthsConfig`` options; after construction they hold every option, defaults included. All
    problems are reported at once. ``policy`` stays a dictionary. Ids of special tokens default to fairseq's; an encoder
    alone needs none but that of padding.
    """

    model_type: ClassVar[str] = "depthwise"
    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        "past_key_values",
        "last_hidden_state",
        "hidden_by_depth",
        "depths",
        "encoder_last_hidden_state",
        "encoder_depths",
        "pooler_output",
        "sentence_order_logits",
        "exit_nll",
        "exit_items",
        "exit_correct",
        "policy_loss",
    ]
    attribute_map: ClassVar[dict[str, str]] = {"hidden_size": "width"}
    has_no_defaults_at_init: ClassVar[bool] = True

    vocab_size: int | None = None
    source_vocab_size: int | None = None
    width: int = 512
    encoder: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None
    tied_embeddings: str = "all"
    scale_embedding: bool = True
    position_offset: int = 0
    embedding_width: int | None = None
    embedding_norm: bool = False
    token_types: int = 0
    head_transform: str | None = None
    adaptive: dict[str, Any] | None = None
    pooling: str = "max_mean"
    classifier_dropout: float = 0.0
    sentence_order: bool = False
    exits: dict[str, Any] | None = None
    latent: dict[str, Any] | None = None
    structure: dict[str, Any] | None = None
    policy: dict[str, Any] | None = None
    word_depths: dict[str, Any] | None = None

    bos_token_id: int | None = 0
    pad_token_id: int = 1
    eos_token_id: int | None = 2
    decoder_start_token_id: int | None = 2
    use_cache: bool = True
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        given = {name: getattr(self, name) for name in OPTIONS if getattr(self, name) is not None}
        problems = [*self._unknown(kwargs), *self._bad_special_ids(), *self._bad_problem_type()]
        try:
            options = parse_model(given, source="DepthwiseConfig")
        except ConfigError as error:
            problems.extend(error.problems)
        else:
            problems.extend(_other_depth(options, kwargs.pop("num_hidden_layers", None)))
        if problems:
            raise ConfigError("DepthwiseConfig", problems)
        for name, value in as_dict(options).items():
            setattr(self, name, value)
        self.is_encoder_decoder = options.encoder is not None and options.decoder is not None
        self.tie_word_embeddings = options.tied_embeddings != "none"
        super().__post_init__(**kwargs)
        from depthwise.models.auto import register_models

        register_models()

    @classmethod
    def from_options(cls, options: ModelConfig, **kwargs: Any) -> "DepthwiseConfig":
        """A configuration from plain options; ``kwargs`` are Transformers' own, such as ``num_labels``."""
        return cls(**as_dict(options), **kwargs)

    @classmethod
    def from_preset(cls, name: str, **changes: Any) -> "DepthwiseConfig":
        """A named preset, with some of its options (or Transformers' own) changed."""
        options = {key: changes.pop(key) for key in OPTIONS if key in changes}
        return cls.from_options(replace(preset(name), **options), **changes)

    @property
    def options(self) -> ModelConfig:
        """The plain options this configuration holds."""
        return parse_model({name: getattr(self, name) for name in OPTIONS}, source="DepthwiseConfig")

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "DepthwiseConfig":
        """This configuration itself: ``encoder`` and ``decoder`` are stacks, not configurations of their own."""
        return self

    @property
    def num_hidden_layers(self) -> int:
        """Layers that run: those of the decoder, or of the encoder where there is no decoder.

        Transformers' ``generate(assistant_early_exit=n)`` sets it to n while it drafts; the model then stops after n.
        """
        return self.__dict__.get("_num_layers_drafting", self._last_stack["num_layers"])

    @num_hidden_layers.setter
    def num_hidden_layers(self, value: int) -> None:
        self.__dict__.pop("_num_layers_drafting", None)
        if value != self._last_stack["num_layers"]:
            self.__dict__["_num_layers_drafting"] = value

    @property
    def num_attention_heads(self) -> int:
        return self._last_stack["num_heads"]

    @property
    def _last_stack(self) -> dict[str, Any]:
        stack = self.encoder if self.decoder is None else self.decoder
        assert stack is not None
        return stack

    def _unknown(self, kwargs: dict[str, Any]) -> list[Problem]:
        """Keys that nobody knows, unless a later version of Transformers wrote them."""
        if self.transformers_version and Version(self.transformers_version) > Version(transformers.__version__):
            return []
        known = {*OPTIONS, *_transformers_keys(), *(option.name for option in fields(self))}
        problems = []
        for key in sorted(set(kwargs) - known):
            guess = nearest(key, known)
            hint = f"did you mean {guess}?" if guess else "options of a stack go into encoder={...} or decoder={...}"
            problems.append(Problem(key, f"unknown option; {hint}"))
        return problems

    def _bad_problem_type(self) -> list[Problem]:
        known = ("regression", "single_label_classification", "multi_label_classification")
        if self.problem_type is None or self.problem_type in known:
            return []
        return [Problem("problem_type", f'"{self.problem_type}" is none of {", ".join(known)}')]

    def _bad_special_ids(self) -> list[Problem]:
        """Special tokens that are missing or outside the vocabulary, or padding that is also the end of a sequence."""
        problems = []
        sizes = [size for size in (self.vocab_size, self.source_vocab_size) if isinstance(size, int)]
        for name in ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"):
            value = getattr(self, name)
            if value is None and name != "pad_token_id" and self.encoder is not None and self.decoder is None:
                continue
            if not isinstance(value, int):
                problems.append(Problem(name, f"every model needs this id; give a number instead of {value!r}"))
            elif sizes and not 0 <= value < min(sizes):
                problems.append(Problem(name, f"{value} is outside the vocabulary of {min(sizes)} types"))
        if self.pad_token_id is not None and self.pad_token_id == self.eos_token_id:
            problems.append(
                Problem("pad_token_id", f"{self.pad_token_id} is also eos_token_id; give padding its own id")
            )
        return problems


def _other_depth(options: ModelConfig, num_hidden_layers: int | None) -> list[Problem]:
    """Transformers' name for the number of layers, where it contradicts the stack."""
    stack = options.encoder if options.decoder is None else options.decoder
    if num_hidden_layers is None or stack is None or num_hidden_layers == stack.num_layers:
        return []
    side = "encoder" if options.decoder is None else "decoder"
    message = f"{num_hidden_layers} contradicts {side}.num_layers = {stack.num_layers}; set only the latter"
    return [Problem("num_hidden_layers", message)]


def _transformers_keys() -> set[str]:
    """Keys that Transformers itself passes to a configuration."""
    own = {"name_or_path", "_name_or_path", "torch_dtype", "num_labels", "output_attentions", "attn_implementation"}
    later = {"experts_implementation", "per_layer_config", "_commit_hash", "model_type", "num_hidden_layers"}
    return own | later | set(GenerationConfig().to_dict())
