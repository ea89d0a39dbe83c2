"""What a run is made of, as plain data: task, data, tokenizer, model, masking, training, search and evaluation.

A recipe is a YAML file with these sections (``recipes`` finds and reads it). What it leaves out has the default that
stands here; where that is none, the task, the data or the machine decides, and the run's own ``recipe.yaml`` says how.
"""

from dataclasses import dataclass, field
from typing import Any

from depthwise.config.exit_training import ExitTrainingConfig
from depthwise.config.latent import LatentTrainingConfig
from depthwise.config.masking import MaskingConfig
from depthwise.config.teacher import TeacherConfig

TASKS = (
    *("translation", "multilingual_translation", "summarization"),
    *("text_classification", "tagging", "question_answering"),
    *("language_modeling", "masked_language_modeling"),
)
OF_MANY_FILES = ("tagging", "question_answering")
"""Tasks whose splits may be any number of files, one behind the other."""
TAG_SCHEMES = ("auto", "iob1", "iob2", "bioes", "plain")
LABEL_KINDS = ("class", "number")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
DEVICES = ("auto", "cpu", "cuda")
SELECTIONS = ("last", "best")
REPORTS = ("tensorboard", "wandb")
LANGUAGE_TOKENS = ("source", "decoder", "none")
SEVERAL_REFERENCES = ("best", "mean")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where examples come from, and what becomes of those that are not as they should be.

    A split is one file (``.tsv``, ``.jsonl``, plain text), the common beginning of two files that end in ``.source``
    and ``.target``, two files, or, with ``hub``, the name of a split. Of tagged words (columns) and of questions (the
    JSON of SQuAD) it is one file or several.
    """

    train: tuple[str, ...] | None = None
    valid: tuple[str, ...] | None = None
    test: tuple[str, ...] | None = None
    source: str | None = None
    """Language that is translated from: the ending of plain text, or the field of jsonl and of ``hub``."""
    target: str | None = None
    pairs: tuple[str, ...] | None = None
    """Directions of one multilingual model, such as ``en-de``.

    In ``train``, ``valid``, ``test``, ``source``, ``target``, ``hub`` and ``hub_config``, ``{pair}``, ``{source}`` and
    ``{target}`` stand for a pair and its languages. Where endings or fields tell languages apart, ``{pair}`` may also
    be the same pair the other way round.
    """
    temperature: float = 1.0
    """T of the shares n^(1/T) by which pairs of n examples are drawn: 1 as the data are, ``.inf`` all the same."""
    rounds: bool = False
    """Whether batches of training come in rounds with one of each pair. With as many ``training.accumulate`` as there
    are pairs, every update has all of them."""
    mixed: bool = False
    """Whether batches of training hold examples of all pairs, where else each is of one."""
    text: tuple[str, ...] = ("text",)
    """Fields of jsonl and of ``hub`` that hold the text to classify, or both texts of a pair."""
    num_texts: int | None = None
    """How many texts a line of ``.tsv`` has behind its label; none means as many as the training data has."""
    label: str = "label"
    """Field of jsonl and of ``hub`` that holds the label."""
    labels: str = "class"
    """What labels are: names of a ``class``, or a ``number`` to be estimated."""
    word_column: int = 0
    """Column of the words of tagged text, counted from 0, or from the end with -1 for the last."""
    tag_column: int = -1
    tag_scheme: str = "auto"
    """How entities are tagged: ``iob1``, ``iob2``, ``bioes``, what ``auto`` makes of them, or ``plain`` for tags that
    mark no entities."""
    stride: int = 128
    """How many tokens a window on the context of a question begins behind the one before."""
    max_question_tokens: int = 64
    unanswerable: bool | None = None
    """Whether a question may have no answer; none means: if the training data has such questions."""
    form: str = "blocks"
    """How a language model reads text: in ``blocks`` of all lines one behind the other, or ``lines`` by themselves."""
    empty_lines: str | None = None
    """Whether empty lines of plain text are ends of lines like others (``keep``) or passed over (``skip``); none means
    kept by language models and passed over by masked ones."""
    hub: str | None = None
    """Name of a data set of the ``datasets`` library; needs the extra ``data``."""
    hub_config: str | None = None
    hub_revision: str | None = None
    on_bad_line: str = "fail"
    """Whether a malformed line is an error (``fail``), or left out and counted (``skip``)."""
    max_chars: int = 100_000
    max_tokens: int | None = None
    """The most tokens of a text (of both texts of a pair) in training, or of a window on the context of a question;
    none means what the model can take. For language models: how many tokens they see at a time, none meaning 512 or, if
    that is less, what the model can take."""
    max_source_tokens: int | None = None
    """The same for sources alone; those that a trained model is given are cut to it too."""
    max_target_tokens: int | None = None
    """The same for targets alone, in training."""
    too_long: str | None = None
    """Whether longer examples are left out (``skip``), shortened (``cut``) or, with tags, ``split`` between words; none
    means what suits the task."""
    cache: str | None = None
    """Where tokenised corpora are kept; none means ``$DEPTHWISE_CACHE``, or ``~/.cache/depthwise``."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How text becomes tokens: by a tokenizer that is trained on the training data, or by an existing one."""

    kind: str | None = None
    """``bpe``, ``unigram``, ``word``, ``char`` or ``byte``; none means ``word`` for a classifier whose model has a
    ``size``, if blanks separate its words, and else ``bpe``."""
    vocab_size: int | None = None
    """The most types; none means by the size of the training data."""
    joint: bool = True
    """One tokenizer for both sides of a translation, or one for each."""
    byte_fallback: bool = False
    pretokenized: bool = False
    lowercase: bool = False
    normalization: str = "nfc"
    first_token: bool = False
    """Begin every text with ``<s>``, for encoders that sum it up there (``pooling: first``, ``structure``)."""
    path: str | None = None
    """A folder with a tokenizer that Transformers saved, instead of training one."""
    codes: str | None = None
    """A file of byte-pair codes of subword-nmt, instead of training them."""
    language_token: str = "source"
    """Where the token stands that tells a multilingual model the language to write: before the ``source``, or in the
    place of what the ``decoder`` starts from; ``none`` is for a single target language."""
    languages: tuple[str, ...] | None = None
    """The languages that it may be told to write, where these are not all that there are tokens for: those that
    ``depthwise prune --language`` has left."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long, in which steps and in which precision a model is trained, and what is kept of it."""

    optimizer: dict[str, Any] = field(default_factory=lambda: {"kind": "adam", "lr": 5e-4})
    """``kind`` (adam, adamw, nesterov, lamb), ``lr`` and the other options of that optimiser."""
    schedule: dict[str, Any] = field(default_factory=lambda: {"kind": "inverse_sqrt", "warmup": 4000})
    """``kind`` (constant, inverse_sqrt, polynomial, linear, cosine) and its options; totals follow from the length."""
    label_smoothing: float = 0.0
    smoothing_over_others: bool = False
    """Spread the smoothed mass over the other types only, as fairseq does since 2020, and not over all."""
    exits: ExitTrainingConfig | None = None
    """How exits are trained, where the model has any; none means by the defaults of these options."""
    latent: LatentTrainingConfig | None = None
    """How gates of layers are trained, where the model has any; none means by the defaults of these options."""
    teacher: TeacherConfig | None = None
    """Another run whose scores of the same batches are learned beside labels; none means from labels alone."""
    depth_cost: float = 0.0
    """Price of a layer that an input is expected to need, beside the loss of a token or label; for models with
    ``structure``, which else use as many as help."""
    depth_target: float | None = None
    """How many layers the inputs of a batch are to expect in the mean, static ones included; ``depth_cost`` is then the
    price of a layer more or less than that."""
    depth_information: float = 0.0
    """Weight of the information that the number of layers has of an input, which is to be large: inputs then differ in
    depth, and each is certain of its own. For models with ``structure``, which else may treat all alike."""
    max_updates: int | None = None
    max_epochs: float | None = None
    batch_tokens: int | None = None
    """Rows times longest text of a batch, at most; with no ``batch_rows`` either, 4,096."""
    batch_rows: int | None = None
    accumulate: int = 1
    """Batches per update."""
    clip_norm: float = 0.0
    """Largest norm of all gradients together; 0 means no limit."""
    precision: str = "auto"
    """``auto`` is bf16 where a GPU has it (fp16 with ``half_states``), else fp32."""
    device: str = "auto"
    compile: bool = False
    """Compile the model with ``torch.compile``."""
    graphs: bool = False
    """Let a GPU repeat what it was told once for every shape of batch (CUDA graphs); lengths are padded to multiples of
    4 for that. On a CPU only the padding remains."""
    half_states: bool = False
    """Run recorded passes in half precision throughout, on copies of the float32 weights, instead of by autocast. On a
    CPU, where nothing is recorded, it changes nothing."""
    shard: bool = False
    """Split weights, gradients and optimiser over the GPUs of torchrun's processes (FSDP); else each has all (DDP)."""
    log_every: int = 100
    """Updates between two lines of ``metrics.jsonl``."""
    validate_every: int | None = None
    """Updates between two validations with checkpoints; none means once per epoch."""
    save_every: int | None = None
    """Updates between two checkpoints that only serve to go on after an interruption, besides those of validations."""
    metric: str | None = None
    """Metric of the validation data that decides what is best; none means the task's own."""
    patience: int | None = None
    """Stop after so many validations without a better one."""
    select: str = "last"
    """Which checkpoints become the model: the ``last`` or the ``best`` ones."""
    average: int = 1
    """How many of them are averaged."""
    gradient_norms: bool = False
    """Log the norm of the gradients of every layer."""
    report: tuple[str, ...] = ()
    """Where metrics go besides ``metrics.jsonl``: ``tensorboard``, ``wandb``."""
    workers: int | None = None
    """Processes that prepare batches; none means 0 on a CPU and 2 beside a GPU."""
    threads: int | None = None
    """Threads on a CPU; none means torch's choice."""


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """How text is searched for. A source of S tokens may have ``max_factor``·S + ``max_extra`` target tokens; to a
    prompt of a language model come ``max_extra``."""

    num_beams: int = 5
    length_penalty: float = 1.0
    """Exponent α of the length that a hypothesis' log-probability is divided by."""
    max_factor: float = 1.5
    max_extra: int = 20
    no_repeat_ngram: int = 0
    """Forbid any n-gram of tokens of this size to occur twice in a text; 0 forbids nothing."""
    early_stopping: bool = False
    """Stop at as many finished hypotheses as there are beams, even if a better one might follow."""
    target: str | None = None
    """Language that a multilingual model writes in ``depthwise predict``; without it, lines are language<tab>text."""
    max_answer_tokens: int = 30
    """The most tokens of an answer that is taken from a context."""
    null_threshold: float = 0.0
    """A question has no answer where the score of none exceeds that of the best answer by more than this."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How a model is judged."""

    metrics: tuple[str, ...] | None = None
    """Names of metrics, the first being the one that is quoted; none means the task's own."""
    batch_tokens: int = 8192
    """Rows times longest source of a batch, at most."""
    batch_rows: int | None = None
    """Inputs that are answered at a time, at most; none means as many as ``batch_tokens`` allows."""
    turns: int = 1
    """How often everything is predicted for its time: of several turns the first is not counted, since much is done in
    it for the first time, and the others count by their median."""
    lead_sentences: int = 3
    """How many first sentences of the source are the trivial summary that stands beside the scores of a model."""
    several_references: str = "best"
    """What several references of a summary give: their ``best`` or their ``mean`` score."""
    context: int = 1
    """How many tokens at the beginning of a block a language model only sees, since the block before ended in them."""
    gates: str | None = None
    """What stands for the gates of latent layers: ``soft``, ``hard`` or ``sampled``; none means what the model's own
    ``latent.gates`` says."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides a run.

    ``model`` is a ``preset``, a ``size`` or ``from`` another run, whose weights and tokenizer are then the beginning,
    and any options of the model over it.
    """

    task: str
    seed: int = 1
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: dict[str, Any] = field(default_factory=lambda: {"size": "auto"})
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    generation: SearchConfig = field(default_factory=SearchConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


SIZES = ("auto", "tiny", "small", "base")
PRETRAINED = "from"
ORIGINS = ("preset", "size", PRETRAINED)
"""What the options of a model are based on: one of these, or nothing."""
