"""The picture of a frontier."""

from typing import Any

from depthwise.evaluation.plotting import frontier_figure, frontier_png


def point(policy: str, mean_depth: float | None, quality: float | None, **setting: Any) -> dict[str, Any]:
    return {"policy": policy, "setting": setting, "mean_depth": mean_depth, "quality": quality}


FRONTIER = {
    "task": "translation",
    "split": "valid",
    "examples": 1000,
    "metric": "sacrebleu",
    "higher_is_better": True,
    "num_layers": 3,
    "points": [
        *(point("fixed", depth, 10.0 * depth, depth=depth) for depth in (1, 2, 3)),
        point("confidence", 2.5, 29.0, measure="max_probability", threshold=0.9),
        point("confidence", 1.5, 21.0, measure="max_probability", threshold=0.5),
        point("confidence", 2.0, 20.0, measure="saturation", threshold=0.9),
        point("patience", 2.0, None, patience=1),
        point("separate", 2.0, 19.0, run="runs/shallow", depth=2),
    ],
}


def test_lines_axes_and_the_full_model() -> None:
    figure = frontier_figure(FRONTIER)
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines["fixed depth"].get_xdata()) == [1, 2, 3]
    assert list(lines["confidence (max_probability)"].get_xdata()) == [1.5, 2.5]
    assert list(lines["confidence (max_probability)"].get_ydata()) == [21.0, 29.0]
    assert list(lines["confidence (saturation)"].get_ydata()) == [20.0]
    assert list(lines["trained separately"].get_ydata()) == [19.0]
    assert (list(lines["full model"].get_xdata()), list(lines["full model"].get_ydata())) == ([3], [30.0])
    assert not any(str(label).startswith("patience") for label in lines)
    assert axes.get_xlabel() == "mean depth (blocks per token, of 3)"
    assert axes.get_ylabel() == "sacrebleu (higher is better)"
    assert axes.get_title() == "translation, valid: 1,000 examples"


def test_lower_may_be_better() -> None:
    figure = frontier_figure({**FRONTIER, "metric": "perplexity", "higher_is_better": False})
    assert figure.axes[0].get_ylabel() == "perplexity (lower is better)"


def test_a_png() -> None:
    assert frontier_png({**FRONTIER, "points": []}).startswith(b"\x89PNG")
