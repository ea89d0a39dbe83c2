"""The options of a model as plain data: no torch, no behaviour.

A model is a width, a vocabulary and one or two stacks. An encoder alone classifies, tags, answers or fills masks; a
decoder alone is a language model; both together translate. Everything here can be written in YAML or JSON.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from depthwise.config.latent import LatentConfig
from depthwise.config.relative import RelativeConfig
from depthwise.config.structure import StructureConfig
from depthwise.config.word_depths import WordDepthsConfig

MIXERS = ("attention", "lightconv", "dynamicconv", "cnn", "depthwise", "average")
KERNEL_NORMALIZATIONS = (
    "none",
    "softmax",
    "sigmoid",
    "tanh",
    "l1",
    "l2",
    "square",
    "abs",
    "abs_l1",
    "abs_l2",
)
NORMS = ("pre", "post", "none")
CONNECTIONS = ("residual", "rezero", "dense")
FFN_INITS = ("xavier", "torch")
ACTIVATIONS = ("relu", "gelu", "gelu_new", "silu", "tanh")
"""``gelu_new`` is the approximation of ``gelu`` by a hyperbolic tangent, under the name that checkpoints give it."""
POSITIONS = ("sinusoidal", "learned", "none")
KERNEL_SOURCES = ("conv_input", "layer_input")
TIED_EMBEDDINGS = ("all", "decoder", "none")
POOLINGS = ("max_mean", "first", "first_tanh")
EXIT_HEADS = ("tied", "separate")
EXIT_NORMS = ("separate", "shared")


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """A stack of blocks on one side of a model. An encoder looks both ways (centred), a decoder only back (causal)."""

    num_layers: int = 6
    shared_layers: tuple[int, ...] | None = None
    """Which block each layer runs, counted from 0: ``[0, 0, 1, 1]`` is two blocks, each run twice; a single 0 is one
    block for all layers. None means that every layer has its own."""
    groups: int | None = None
    """The same in short (ALBERT): this many blocks, each of which serves as many neighbouring layers as the others."""
    mixer: str = "attention"
    """What moves information between positions: one of ``MIXERS``."""
    num_heads: int = 8
    """Heads of self- and cross-attention, and of the convolution unless ``kernel_heads`` says otherwise."""
    kept_heads: tuple[int, ...] | None = None
    """How many of these heads self-attention of each block of an encoder still has after pruning; a single number
    serves all. None means all. A head is as wide as it was."""
    ffn_width: int = 2048
    """Inner width of the feed-forward sub-block (and of the one inside average attention)."""
    kernel_sizes: tuple[int, ...] | None = None
    """Kernel width of each layer; a single number serves all. For attention: the window, none means unlimited."""
    kernel_heads: int | None = None
    """Heads that share a convolution kernel (H); none means ``num_heads``."""
    conv_width: int | None = None
    """Channels of the convolution (C); none means the model's width."""
    glu: bool = False
    """Gate the in-projection of a convolution: ``a * sigmoid(b)``."""
    kernel_normalization: str = "softmax"
    """How kernel weights are normalised over their taps: one of ``KERNEL_NORMALIZATIONS`` (Wu et al. 2019, Table 6)."""
    dropconnect: float = 0.0
    """Probability of dropping an entry of the normalised kernel in training."""
    dropconnect_shared: bool = False
    """Draw one DropConnect mask per head and tap instead of one per row, position, head and tap."""
    renormalize_padding: bool = False
    """Divide the output of a convolution by the kernel mass that fell on real tokens."""
    conv_bias: bool = False
    """Add a bias per channel after the convolution."""
    kernel_from: str = "conv_input"
    """What predicts dynamic kernels: the projected convolution input (as published) or the input of the layer."""
    norm: str = "post"
    """Where layer norm sits: ``post`` (after the residual sum), ``pre`` (before the branch) or ``none``."""
    connections: str = "residual"
    """How layers are connected: x + f(x) (``residual``); x + a·f(x) with one learned a for each layer, 0 at first
    (``rezero``, Bachlechner et al. 2021, with norm ``none``); or each layer reads a learned combination of all before
    it (``dense``, the DLCL of Wang et al. 2019, with norm ``pre``)."""
    final_norm: bool | None = None
    """A last norm after the stack; none means: where ``norm`` is ``pre``."""
    out_gain: float | None = None
    """Xavier gain of the last linear map of every branch in a new model; none means 0.25 where ``norm`` is ``post``
    and else 1. Post-norm stacks learn sooner, and at rates that would ruin them otherwise, if branches start small."""
    ffn_init: str = "xavier"
    """How the feed-forward branch of a new model starts: ``xavier`` (the last map times the gain above) or ``torch``,
    within 1/sqrt(inputs), as in Transformers of fairseq since 2019."""
    norm_epsilon: float = 1e-5
    """What every norm of this side adds to the variance, those of its embedding and its head too."""
    activation: str = "relu"
    positions: str = "sinusoidal"
    relative: RelativeConfig | None = None
    """Distances between tokens as a part of the scores of attention; none means that they have no part in them."""
    max_positions: int | None = 1024
    """Longest sequence; none means no limit (not with learned positions)."""
    dropout: float = 0.1
    """Dropout on embeddings and on every residual branch."""
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    input_dropout: float = 0.0
    """Dropout before the in-projection of a convolution."""
    layer_dropout: float = 0.0
    """Chance of every layer of being left out in training, for a whole batch (LayerDrop, Fan et al. 2020)."""

    def kernel_size(self, layer: int) -> int | None:
        """Kernel width (or attention window) of a layer; none where there is no limit."""
        if self.kernel_sizes is None:
            return None
        return self.kernel_sizes[0 if len(self.kernel_sizes) == 1 else layer]

    def block_of(self, layer: int) -> int:
        """Which block a layer runs: its own, unless layers share."""
        if self.groups is not None:
            return layer * self.groups // self.num_layers
        if self.shared_layers is None:
            return layer
        return self.shared_layers[0 if len(self.shared_layers) == 1 else layer]

    def heads_of(self, layer: int) -> int:
        """Heads of self-attention of a layer: all, unless some were pruned."""
        if self.kept_heads is None:
            return self.num_heads
        return self.kept_heads[0 if len(self.kept_heads) == 1 else self.block_of(layer)]

    def of_layers(self, layers: Sequence[int]) -> "StackConfig":
        """The same stack with these of its layers alone."""
        sizes, shared, heads = self.kernel_sizes, self.shared_layers, self.kept_heads
        if sizes is not None and len(sizes) > 1:
            sizes = tuple(sizes[layer] for layer in layers)
        blocks = [*map(self.block_of, layers)]
        if heads is not None and len(heads) > 1:
            heads = tuple(heads[block] for block in dict.fromkeys(blocks))
        if self.has_shared_layers:
            shared = tuple([*dict.fromkeys(blocks)].index(block) for block in blocks)
        changed = replace(self, num_layers=len(layers), kernel_sizes=sizes, shared_layers=shared, groups=None)
        return replace(changed, kept_heads=heads)

    @property
    def has_shared_layers(self) -> bool:
        return self.shared_layers is not None or self.groups is not None

    @property
    def num_blocks(self) -> int:
        """How many different blocks there are."""
        return len({self.block_of(layer) for layer in range(self.num_layers)})

    @property
    def gain_of_branches(self) -> float:
        """``out_gain``, or what follows from where the norms are."""
        if self.out_gain is None:
            return 0.25 if self.norm == "post" else 1.0
        return self.out_gain

    @property
    def has_final_norm(self) -> bool:
        return self.norm == "pre" if self.final_norm is None else self.final_norm


@dataclass(frozen=True, kw_only=True)
class AdaptiveConfig:
    """Embeddings and softmax in bands of falling width, for large vocabularies.

    Grave et al. 2017 for the output, Baevski & Auli 2019 for the input. ``cutoffs`` are the ends of all bands but the
    last; band b has width ``D / factor**b``.
    """

    cutoffs: tuple[int, ...]
    factor: int = 4
    tied_projections: bool = True
    """Use the projections of the input bands for the output bands too."""
    dropout: float = 0.0
    """Dropout between the two matrices of an output band."""


@dataclass(frozen=True, kw_only=True)
class ExitsConfig:
    """Where tokens may leave a stack before its end: the decoder, or the encoder where there is no decoder."""

    depths: tuple[int, ...] | None = None
    """After how many blocks there is an exit, from low to high; none means after every block. The end is always one."""
    heads: str = "tied"
    """``tied``: the head of the model serves all exits; ``separate``: each has its own."""
    norms: str = "separate"
    """Of stacks with a last norm: each exit has a norm of its own (``separate``), or all have the last one's
    (``shared``)."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A whole model: at least one stack, its vocabulary and its embeddings."""

    vocab_size: int
    """Types of the target side (of the only side, where there is one)."""
    source_vocab_size: int | None = None
    """Types of the source side; none means ``vocab_size``."""
    width: int = 512
    encoder: StackConfig | None = None
    decoder: StackConfig | None = None
    tied_embeddings: str = "all"
    """``all``: one matrix for encoder, decoder and output; ``decoder``: decoder input and output share; ``none``."""
    scale_embedding: bool = True
    """Multiply embeddings by the square root of the width."""
    position_offset: int = 0
    """Index of the first position (fairseq and RoBERTa count from padding id + 1)."""
    embedding_width: int | None = None
    """Width of embeddings and positions, which a linear map then brings to ``width`` (ALBERT); none means ``width``
    without such a map. Scores of the vocabulary are taken at this width too."""
    embedding_norm: bool = False
    """Layer norm after the sum of embedding and positions."""
    token_types: int = 0
    """How many types of tokens there are, each with a vector to be added: first and second text of a pair (BERT)."""
    head_transform: str | None = None
    """Activation of a dense layer, with a norm behind it, between states and scores of the vocabulary, which then have
    a bias (BERT); none means that there is no such layer."""
    adaptive: AdaptiveConfig | None = None
    pooling: str = "max_mean"
    """How a classifier sums up a sequence: ``max_mean`` (ReLU of max and mean over tokens), ``first`` token, or
    ``first_tanh`` (a dense layer and tanh on the first token: BERT's pooler, which the encoder alone has too)."""
    classifier_dropout: float = 0.0
    """Dropout on what a classifier or tagger maps to its scores."""
    sentence_order: bool = False
    """A second head of a masked language model, which tells whether two segments are in order (ALBERT)."""
    exits: ExitsConfig | None = None
    """None means that every token runs the whole stack."""
    latent: LatentConfig | None = None
    """Gates by which layers are learned to be used or left out; none means that all are used."""
    structure: StructureConfig | None = None
    """Layers of the encoder that ask for others, as many as an input needs; none means that all are used."""
    policy: dict[str, Any] | None = field(default=None)
    """How depth is decided; none means that every token runs every block."""
    word_depths: WordDepthsConfig | None = None
    """Depths that words have before the model runs; none means that they have none."""

    @property
    def leaves_early(self) -> bool:
        """Whether the last stack can end before its last layer: there are exits, or layers that it may not need."""
        return self.exits is not None or (self.structure is not None and self.decoder is None)

    @property
    def stopping_side(self) -> str | None:
        """The stack whose depth can be chosen: the last one where it has exits, else an encoder with a structure."""
        if self.exits is not None:
            return "encoder" if self.decoder is None else "decoder"
        return None if self.structure is None else "encoder"

    @property
    def stopping_depths(self) -> tuple[int, ...]:
        """The depths that can be chosen there, from low to high; the last is the number of layers."""
        if self.structure is None or self.exits is not None:
            return self.exit_depths
        assert self.encoder is not None
        return tuple(range(self.structure.num_static, self.encoder.num_layers + 1))

    @property
    def exit_depths(self) -> tuple[int, ...]:
        """The depths of all exits of the last stack, from low to high; the last is the number of layers."""
        stack = self.decoder or self.encoder
        assert stack is not None
        if self.structure is not None and self.decoder is None:
            return self.stopping_depths
        if self.exits is None:
            return (stack.num_layers,)
        depths = range(1, stack.num_layers) if self.exits.depths is None else self.exits.depths
        return (*(depth for depth in depths if depth < stack.num_layers), stack.num_layers)


Section = (
    StackConfig
    | AdaptiveConfig
    | ExitsConfig
    | LatentConfig
    | RelativeConfig
    | StructureConfig
    | WordDepthsConfig
    | ModelConfig
)


def as_dict(config: Section) -> dict[str, Any]:
    """The options as nested dictionaries and lists, ready for YAML or JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, Section):
            return as_dict(value)
        return list(value) if isinstance(value, tuple) else value

    return {option.name: plain(getattr(config, option.name)) for option in fields(config)}
