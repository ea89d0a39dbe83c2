"""Named models of ALBERTa ("From Static to Dynamic", a poster): encoders whose first layers say how many they need.

The poster gives sizes of ALBERT and numbers of parameters, but no number of layers. Three blocks make its 30M, 48M,
166M and 630M out of those sizes, with 4M to 7M left for relative positions, predictor, heads and a larger vocabulary;
and its speeds without early exit (0.28 of ALBERT's twelve layers) and at the highest threshold (1.98) make 43 layers,
six of which always run: five static ones, and the first of the others. ``docs/structure.md`` has the arithmetic.
"""

from depthwise.config.model import ModelConfig, StackConfig
from depthwise.config.relative import RelativeConfig
from depthwise.config.structure import StructureConfig

SIZES = {"base": (768, 12), "large": (1024, 16), "xlarge": (2048, 16), "xxlarge": (4096, 64)}
"""Width and heads of ALBERT; the feed-forward branch is four times as wide."""
PUBLISHED = {"alberta-base": 30, "alberta-large": 48, "alberta-xlarge": 166, "alberta-xxlarge": 630}
"""Millions of parameters that the poster gives, heads included."""
NUM_STATIC, NUM_ADAPTIVE, NUM_GROUPS = 5, 38, 3


def alberta(width: int, num_heads: int, dropout: float) -> ModelConfig:
    """A model of this size."""
    return ModelConfig(
        vocab_size=30_000,
        width=width,
        embedding_width=128,
        embedding_norm=True,
        token_types=2,
        scale_embedding=False,
        head_transform="gelu",
        pooling="first_tanh",
        classifier_dropout=0.1,
        sentence_order=True,
        encoder=StackConfig(
            num_layers=NUM_STATIC + NUM_ADAPTIVE,
            groups=NUM_GROUPS,
            num_heads=num_heads,
            ffn_width=4 * width,
            norm="pre",
            activation="gelu",
            positions="learned",
            relative=RelativeConfig(),
            max_positions=512,
            dropout=dropout,
            attention_dropout=dropout,
        ),
        structure=StructureConfig(num_static=NUM_STATIC),
    )


ALBERTA_PRESETS = {
    f"alberta-{name}": alberta(width, heads, 0.0 if name == "xxlarge" else 0.1)
    for name, (width, heads) in SIZES.items()
}
"""ALBERT's largest model has no dropout (Lan et al. 2020, section 4.8)."""
