"""Pictures of how layers were used: they show what the logs of runs hold."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import AxesImage

from depthwise.errors import DataError
from depthwise.evaluation.layer_figures import figures
from depthwise.evaluation.layer_records import in_use, read_record

UPDATES = [100, 200, 300]


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def latent(tmp_path: Path) -> Path:
    """Two languages, two layers of the decoder; the gradient of the first update was no number."""
    run = tmp_path / "latent"
    run.mkdir()
    metrics: list[dict[str, Any]] = []
    for number, update in enumerate(UPDATES):
        norms = {f"gradient_norm/decoder.{layer}": 10.0**-layer if number else None for layer in range(2)}
        metrics.append({"update": update, "loss": 3.0 - number, "nll": 2.5 - number, **norms})
        metrics[-1]["effective_depth/decoder"] = 2 - number / 2
        metrics.append({"update": update, "valid_nll": 4.0 - number})
    write(run / "metrics.jsonl", metrics)

    def gates(number: int) -> dict[str, Any]:
        return {"probabilities": [0.5, 0.5 + number / 10], "samples": [1.0, float(number % 2)]}

    write(
        run / "layers.jsonl",
        [
            {"update": update, "decoder": {"de": gates(number), "fr": gates(number + 1)}}
            for number, update in enumerate(UPDATES)
        ],
    )
    return run


@pytest.fixture
def short(latent: Path) -> Path:
    """The same where the log ended after its first line and one validation."""
    for name, num_lines in (("metrics.jsonl", 2), ("layers.jsonl", 1)):
        lines = (latent / name).read_text().splitlines()[:num_lines]
        write(latent / name, [json.loads(line) for line in lines])
    return latent


def ticks(axis: Any) -> list[float]:
    """Those that are in view."""
    low, high = sorted(axis.get_view_interval())
    return [place for place in axis.get_majorticklocs() if low <= place <= high]


def shown(figure: Any, place: int = 0) -> np.ndarray:
    image: AxesImage = figure.axes[place].images[0]
    return np.asarray(image.get_array())


def test_what_is_in_use_at_the_end(latent: Path) -> None:
    """Of de, one of two is above one half at last, 0.7; of fr one with 0.8: all four are undecided."""
    assert in_use(read_record(latent), "decoder") == (
        "latent, decoder, update 300: 1 of 2 layers above 0.5, 2 between 0.1 and 0.9, in the mean over 2 languages"
    )


def test_gates_that_are_no_numbers(latent: Path) -> None:
    """As a run that diverged has them."""
    record = read_record(latent)
    record.probabilities["decoder"]["fr"][-1, 0] = np.nan
    assert in_use(record, "decoder") == "latent, decoder, update 300: probabilities are no numbers"


def test_what_is_read(latent: Path) -> None:
    record = read_record(latent)
    assert record.updates == UPDATES
    assert record.probabilities["decoder"]["fr"].tolist() == pytest.approx(
        np.array([[0.5, 0.6], [0.5, 0.7], [0.5, 0.8]])
    )
    updates, norms = record.gradients["decoder"]
    assert updates == UPDATES
    assert np.isnan(norms[0]).all()
    assert norms[1:].tolist() == [[1.0, 0.1]] * 2
    assert record.curves["valid_nll"] == (UPDATES, [4.0, 3.0, 2.0])
    assert record.curves["loss"] == (UPDATES, [3.0, 2.0, 1.0])


def test_what_is_drawn(latent: Path) -> None:
    """Layers from bottom to top, updates from left to right, in the mean over languages."""
    found = figures([read_record(latent)])
    assert set(found) == {"utilisation", "samples", "languages", "depths", "gradients", "learning"}
    np.testing.assert_allclose(shown(found["utilisation"]), [[0.5, 0.5, 0.5], [0.55, 0.65, 0.75]])
    np.testing.assert_allclose(shown(found["samples"]), [[1, 1, 1], [0.5, 0.5, 0.5]])
    np.testing.assert_allclose(shown(found["languages"]), [[0.5, 0.7], [0.5, 0.8]])
    assert [text.get_text() for text in found["languages"].axes[0].get_yticklabels()] == ["de (1)", "fr (1)"]
    np.testing.assert_allclose(shown(found["gradients"])[:, 1:], [[0, 0], [-1, -1]])
    (line,) = found["depths"].axes[0].lines
    assert line.get_ydata().tolist() == [2, 1.5, 1]
    assert line.get_label() == "latent, decoder"
    for name in ("utilisation", "samples", "gradients"):
        assert found[name].axes[0].images[0].get_extent() == [100, 300, -0.5, 1.5]
        assert ticks(found[name].axes[0].yaxis) == [0, 1]
    assert ticks(found["languages"].axes[0].xaxis) == [0, 1]


def test_a_log_of_one_line(short: Path) -> None:
    """Maps have one column, around its update, and curves a point; of a training's loss it is hollow."""
    found = figures([read_record(short)])
    for name in ("utilisation", "samples", "gradients"):
        axes = found[name].axes[0]
        assert shown(found[name]).shape == (2, 1)
        assert axes.images[0].get_extent() == [99.5, 100.5, -0.5, 1.5]
        assert (axes.get_xlim(), ticks(axes.xaxis), ticks(axes.yaxis)) == ((99.5, 100.5), [100], [0, 1])
    (depth,) = found["depths"].axes[0].lines
    assert (depth.get_ydata().tolist(), depth.get_marker()) == ([2], "o")
    lines = found["learning"].axes[0].lines
    assert [(line.get_marker(), line.get_fillstyle()) for line in lines] == [("o", "full"), ("o", "none")]
    for figure in found.values():
        figure.canvas.draw()


def test_only_single_points_are_marked(latent: Path) -> None:
    """As the validation of a run that was validated once."""
    lines = (latent / "metrics.jsonl").read_text().splitlines()
    write(latent / "metrics.jsonl", [json.loads(line) for line in (*lines[:3], lines[4])])
    once, often = figures([read_record(latent)])["learning"].axes[0].lines
    assert (once.get_ydata().tolist(), once.get_marker()) == ([4], "o")
    assert (often.get_ydata().tolist(), often.get_marker()) == ([2.5, 1.5, 0.5], "None")


def test_one_layer(tmp_path: Path) -> None:
    """One layer and one gradient: the axis of layers has one tick, and the colours their one value."""
    write(tmp_path / "metrics.jsonl", [{"update": 1, "gradient_norm/decoder.0": 0.1}])
    write(tmp_path / "layers.jsonl", [{"update": 1, "decoder": {"all": {"probabilities": [0.5], "samples": [1]}}}])
    found = figures([read_record(tmp_path)])
    assert ticks(found["utilisation"].axes[0].yaxis) == ticks(found["languages"].axes[0].xaxis) == [0]
    for figure in found.values():
        figure.canvas.draw()


def test_gradients_that_are_not_there(tmp_path: Path) -> None:
    """A layer without a gradient at some updates has its row all the same; without any finite norm there is a map."""
    metrics = [{"update": 1, "gradient_norm/encoder.2": 0.1}, {"update": 2, "gradient_norm/encoder.1": 1.0}]
    write(tmp_path / "metrics.jsonl", metrics)
    updates, norms = read_record(tmp_path).gradients["encoder"]
    assert updates == [1, 2]
    np.testing.assert_array_equal(norms, [[np.nan, np.nan, 0.1], [np.nan, 1.0, np.nan]])
    write(tmp_path / "metrics.jsonl", [{"update": 1, "gradient_norm/encoder.0": None}])
    drawn = figures([read_record(tmp_path)])["gradients"]
    drawn.canvas.draw()
    assert drawn.axes[0].images[0].get_clim() == (0, 1)


def test_losses_of_training_are_dashed(latent: Path) -> None:
    """And have the colour of the run whose validation losses stand beside them."""
    lines = figures([read_record(latent)] * 2)["learning"].axes[0].lines
    assert [line.get_ydata().tolist() for line in lines] == [[4, 3, 2], [2.5, 1.5, 0.5]] * 2
    assert [line.get_linestyle() for line in lines] == ["-", "--"] * 2
    assert [line.get_label() for line in lines] == ["latent", "latent, training"] * 2
    assert [line.get_color() for line in lines] == ["C0", "C0", "C1", "C1"]


def test_runs_without_gates_stand_beside(latent: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    write(plain / "metrics.jsonl", [{"update": 100, "loss": 2.0}, {"update": 100, "valid_nll": 3.5}])
    assert set(figures([read_record(plain)])) == {"learning"}
    found = figures([read_record(latent), read_record(plain)])
    assert [line.get_label() for line in found["learning"].axes[0].lines] == ["latent", "latent, training", "plain"]


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"metrics.jsonl is missing or empty; name the folder of a run"):
        read_record(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("{")
    with pytest.raises(DataError, match=r"metrics.jsonl:1: the line is no JSON, or only a part of it; remove the line"):
        read_record(tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff")
    with pytest.raises(DataError, match="it is no log of a run"):
        read_record(tmp_path)


GATES = {"probabilities": [0.5, 0.5], "samples": [1, 0]}
FEWER = {"probabilities": [0.5], "samples": [1]}
OTHER_FORM = "its sides, languages or layers are not those of the first line"
NO_GATES = "there are no probabilities and samples of layers by side and language"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ([1], "the line says nothing of its update"),
        ({"decoder": {"de": GATES, "fr": GATES}}, "the line says nothing of its update"),
        ({"update": "400"}, "the line says nothing of its update"),
        ({"update": 400, "decoder": 1}, NO_GATES),
        ({"update": 400, "decoder": {}}, NO_GATES),
        ({"update": 400, "decoder": {"de": 1, "fr": 1}}, NO_GATES),
        ({"update": 400, "decoder": {"de": [], "fr": []}}, NO_GATES),
        ({"update": 400, "decoder": {"de": {}, "fr": {}}}, NO_GATES),
        ({"update": 400, "decoder": {"de": {"probabilities": [], "samples": []}}}, NO_GATES),
        ({"update": 400, "decoder": {"de": {"probabilities": [0.5, 0.5], "samples": [1]}}}, NO_GATES),
        ({"update": 400, "decoder": {"de": {"probabilities": ["a"], "samples": [1]}}}, NO_GATES),
        ({"update": 400, "decoder": {"de": {"probabilities": [10**400], "samples": [1]}}}, NO_GATES),
        ({"update": 400}, OTHER_FORM),
        ({"update": 400, "decoder": {"de": GATES}}, OTHER_FORM),
        ({"update": 400, "encoder": {"de": GATES, "fr": GATES}}, OTHER_FORM),
        ({"update": 400, "decoder": {"de": FEWER, "fr": FEWER}}, OTHER_FORM),
    ],
)
def test_damaged_lines_of_gates(latent: Path, line: Any, problem: str) -> None:
    with (latent / "layers.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(DataError, match=rf"layers.jsonl:4: {problem}; remove the line, or name another run"):
        read_record(latent)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ([1], "the line says nothing of its update"),
        ({"update": True}, "the line says nothing of its update"),
        ({"update": 400, "nll": "2.5"}, "nll is no number"),
        ({"update": 400, "gradient_norm/decoder.0": [1]}, "gradient_norm/decoder.0 is no number"),
    ],
)
def test_damaged_lines_of_metrics(latent: Path, line: Any, problem: str) -> None:
    with (latent / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(DataError, match=rf"metrics.jsonl:7: {problem}; remove the line, or name another run"):
        read_record(latent)


@pytest.mark.parametrize(("num_runs", "num_columns"), [(1, 1), (3, 1), (4, 2), (9, 3)])
def test_many_runs_stand_beside_each_other(latent: Path, num_runs: int, num_columns: int) -> None:
    drawn = figures([read_record(latent)] * num_runs)["utilisation"]
    pictures = [axes for axes in drawn.axes if axes.images]
    assert len(pictures) == num_runs
    assert len({round(axes.get_subplotspec().get_position(drawn).x0, 3) for axes in pictures}) == num_columns


def test_one_side(latent: Path) -> None:
    assert set(figures([read_record(latent)], ["encoder"])) == {"learning"}
    assert set(figures([read_record(latent)], ["decoder"])) == set(figures([read_record(latent)]))
