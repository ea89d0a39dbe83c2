"""The cost model agrees with torch's own counter of matrix products, for every preset."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from depthwise.config import PRESETS, ModelConfig, StackConfig
from depthwise.kernels import correlation
from depthwise.models.causal_lm import DepthwiseForCausalLM
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.cost import Cost, ModelCost, StackCost
from depthwise.models.masked_lm import DepthwiseForMaskedLM
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM

SOURCE, TARGET = 37, 23


@pytest.fixture(autouse=True)
def _taps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sum every kernel tap by tap: torch counts a band or a grouped convolution among the products."""
    monkeypatch.setattr(correlation, "_walk_everywhere", lambda x, weight, left: correlation.correlate_taps)


def build(options: ModelConfig) -> DepthwiseForSeq2SeqLM | DepthwiseForCausalLM:
    model_class = DepthwiseForCausalLM if options.encoder is None else DepthwiseForSeq2SeqLM
    with torch.device("meta"):
        return model_class(DepthwiseConfig.from_options(options)).eval()


def ids(length: int) -> torch.Tensor:
    return torch.zeros(1, length, dtype=torch.long, device="meta")


@pytest.mark.parametrize("name", [name for name in PRESETS if PRESETS[name].decoder is not None])
def test_forward_products_are_what_the_counter_counts(name: str) -> None:
    options = PRESETS[name]
    model = build(options)
    inputs = {"input_ids": ids(TARGET)}
    if options.encoder is not None:
        inputs = {"input_ids": ids(SOURCE), "decoder_input_ids": ids(TARGET)}
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**inputs)
    expected = ModelCost(options).forward(TARGET, SOURCE if options.encoder is not None else 0)
    assert counter.get_total_flops() == expected.products


@pytest.mark.parametrize("transform", ["gelu", None])
def test_embeddings_of_their_own_width_cost_on_both_sides(transform: str | None) -> None:
    stack = StackConfig(num_layers=2, num_heads=2, ffn_width=48)
    options = ModelConfig(
        vocab_size=50, width=16, encoder=stack, decoder=stack, embedding_width=12, head_transform=transform
    )
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        build(options)(ids(SOURCE), decoder_input_ids=ids(TARGET))
    cost = ModelCost(options)
    assert counter.get_total_flops() == cost.forward(TARGET, SOURCE).products


@pytest.mark.parametrize("mixer", ["attention", "lightconv", "dynamicconv", "cnn", "depthwise", "average", "window"])
@pytest.mark.parametrize("glu", [False, True])
def test_decode_products_are_what_the_counter_counts(mixer: str, glu: bool) -> None:
    takes_glu = mixer in ("lightconv", "dynamicconv", "depthwise")
    stack = StackConfig(
        num_layers=3,
        mixer="attention" if mixer == "window" else mixer,
        num_heads=2,
        ffn_width=48,
        kernel_sizes=None if mixer in ("attention", "average") else (3, 5, 7),
        glu=glu and takes_glu,
        conv_width=24 if takes_glu else None,
    )
    options = ModelConfig(vocab_size=50, width=16, encoder=stack, decoder=stack)
    model = build(options)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        encoded = model.model.encoder(ids(SOURCE))
        state = None
        for _ in range(9):
            output = model(encoder_outputs=encoded, decoder_input_ids=ids(1), past_key_values=state, use_cache=True)
            state = output.past_key_values
    assert counter.get_total_flops() == ModelCost(options).decode([3] * 9, SOURCE).products


def test_published_per_step_formulas() -> None:
    width, ffn, kernel, heads, step, source = 16, 64, 7, 4, 11, 13
    attention = StackCost(StackConfig(ffn_width=ffn, num_heads=heads), width, has_source=True)
    assert attention.mixer(0, step) == Cost(8 * width**2 + 4 * step * width)
    assert attention.cross(source) == Cost(4 * width**2 + 4 * source * width)
    assert attention.feed_forward() == Cost(4 * width * ffn)
    light = StackCost(StackConfig(mixer="lightconv", kernel_sizes=(kernel,), num_heads=heads), width)
    assert light.mixer(0, step) == Cost(4 * width**2, 2 * kernel * width)
    dynamic = StackCost(StackConfig(mixer="dynamicconv", kernel_sizes=(kernel,), num_heads=heads, glu=True), width)
    assert dynamic.mixer(0, step) == Cost(6 * width**2 + 2 * width * heads * kernel, 2 * kernel * width)


def test_a_step_that_leaves_pays_only_for_being_seen_above() -> None:
    cost = StackCost(StackConfig(num_layers=4, ffn_width=32, num_heads=2), width=8)
    full, early = cost.decode([4]), cost.decode([1])
    skipped = cost.block(1, seen=1)
    assert full.flops - early.flops == 3 * (skipped.flops - cost.write(1).flops)
    assert cost.write(1) == Cost(4 * 8**2)


def test_nothing_is_written_above_a_depth_that_is_known_in_advance() -> None:
    options = StackConfig(num_layers=4, ffn_width=32, num_heads=2)
    four, two = (StackCost(replace(options, num_layers=number), width=8, has_source=True) for number in (4, 2))
    assert four.decode([2, 1, 2], 5, num_layers=2) == two.decode([2, 1, 2], 5)
    assert four.decode([2, 1, 2], 5, num_layers=4) == four.decode([2, 1, 2], 5)


def test_a_plan_pays_for_those_who_run_and_for_writing_the_others() -> None:
    cost = StackCost(StackConfig(num_layers=3, ffn_width=32, num_heads=2), width=8)
    assert cost.plan([3, 3]) == cost.forward(2)
    assert cost.plan([2, 1]) == cost.block(0, 2) * 2 + cost.block(1, 2) + cost.write(1)
    assert cost.plan([0, 0]) == Cost()


def test_cost_never_grows_when_a_token_leaves_earlier() -> None:
    cost = ModelCost(PRESETS["iwslt-dynamicconv"])
    flops = [cost.decode([depth] * 10, 10).flops for depth in range(1, 7)]
    assert flops == sorted(flops)
    assert len(set(flops)) == 6


# Encoders


@pytest.mark.parametrize("transform", ["gelu", None])
@pytest.mark.parametrize("embedding_width", [None, 12])
@pytest.mark.parametrize("shared", [None, (0,), (0, 1, 0)])
def test_encoder_products_are_what_the_counter_counts(
    transform: str | None, embedding_width: int | None, shared: tuple[int, ...] | None
) -> None:
    stack = StackConfig(num_layers=3, num_heads=2, ffn_width=48, shared_layers=shared)
    options = ModelConfig(
        vocab_size=50, width=16, encoder=stack, embedding_width=embedding_width, head_transform=transform, token_types=2
    )
    with torch.device("meta"):
        model = DepthwiseForMaskedLM(DepthwiseConfig.from_options(options)).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(ids(SOURCE))
    cost = ModelCost(options)
    assert counter.get_total_flops() == (cost.forward(SOURCE) + cost.head() * SOURCE).products


def test_sharing_saves_parameters_and_no_operations() -> None:
    apart = StackConfig(num_layers=4, num_heads=2, ffn_width=32)
    shared = StackConfig(num_layers=4, num_heads=2, ffn_width=32, shared_layers=(0, 0, 1, 1))
    assert (apart.num_blocks, shared.num_blocks) == (4, 2)
    assert StackCost(shared, width=8).plan([4, 2, 1]) == StackCost(apart, width=8).plan([4, 2, 1])
