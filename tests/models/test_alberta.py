"""ALBERTa's presets have the parameters that three blocks of ALBERT's sizes make, beside the published counts."""

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from depthwise.config import built_in, preset
from depthwise.config.alberta import PUBLISHED
from depthwise.models.backbone import DepthwiseModel
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.cost import ModelCost

EXPECTED = {"base": (25.9, 30), "large": (42.9, 48), "xlarge": (159.4, 166), "xxlarge": (625.4, 630)}
"""Millions without relative positions and predictor, and published millions, which also have heads."""
TABLE = Path(__file__).parents[2] / "docs" / "structure.md"


@pytest.mark.parametrize(("size", "expected", "published"), [(size, *numbers) for size, numbers in EXPECTED.items()])
def test_parameter_counts(size: str, expected: float, published: int) -> None:
    """Counted, and said so beside the published ones: by recipe, by documentation and (``test_info``) by command."""
    with torch.device("meta"):
        model = DepthwiseModel(DepthwiseConfig.from_options(preset(f"alberta-{size}")))
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    apart = sum(count for name, count in counts.items() if ".structure." in name or ".distances." in name)
    millions = (sum(counts.values()) - apart) / 1e6
    shown, total = f"{millions:.1f}M (published {published}M)", f"{sum(counts.values()) / 1e6:.1f}M"
    print(f"alberta-{size}: {shown}; {total} with distances and predictor")
    (recipe,) = (each for each in built_in() if each.name == f"masked_language_modeling/alberta-{size}")
    assert recipe.facts["parameters"] == f"{shown}; {total} with distances and predictor; both without head"
    row = next(line for line in TABLE.read_text(encoding="utf-8").splitlines() if f"| `alberta-{size}` |" in line)
    assert row.endswith(f"| {millions:.1f}M | {total} | {published}M |")
    assert PUBLISHED[f"alberta-{size}"] == published
    assert millions == pytest.approx(expected, abs=0.06)
    assert 0 < published - millions < 7
    assert 0 < apart / 1e6 < 18


@pytest.mark.parametrize("terms", [{}, {"position_to_content": False}])
def test_costs_of_distances_are_what_the_counter_counts(terms: dict[str, bool]) -> None:
    """But for the predictor, which runs once for a sequence."""
    config = DepthwiseConfig(
        vocab_size=50,
        width=16,
        encoder={"num_layers": 4, "groups": 2, "num_heads": 2, "ffn_width": 48, "norm": "pre", "relative": terms},
    )
    with torch.device("meta"):
        model = DepthwiseModel(config).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 23, dtype=torch.long, device="meta"))
    assert counter.get_total_flops() == ModelCost(config.options).forward(23).products
