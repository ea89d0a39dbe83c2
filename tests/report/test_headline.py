"""What is saved and what it costs, in words that are true."""

import json
from typing import Any

from depthwise.report import page_data, read_runs

from .conftest import MakeFolder, evaluation, frontier, point

SPACE = "\N{NO-BREAK SPACE}"


def headline(make_folder: MakeFolder, **files: Any) -> dict[str, Any]:
    (found,) = page_data(read_runs([make_folder(**files)]))["headlines"]
    told: dict[str, Any] = found
    return told


def test_something_for_nothing(make_folder: MakeFolder) -> None:
    found = headline(make_folder)
    assert found["sentences"] == [
        f"Saves 50{SPACE}% of the depth, 40{SPACE}% of the operations and 25{SPACE}% of the time, and costs nothing: "
        "exact match is 100.00, that of the full model 100.00.",
        "That is with confidence 0.9, by which a token runs 2.00 of 4 blocks in the mean.",
    ]
    assert found["measured"] == "Measured on 100 validation inputs, one at a time, on abacus."
    assert [(tile["value"], tile["label"], tile["good"]) for tile in found["tiles"]] == [
        (f"50{SPACE}%", "less depth", True),
        (f"40{SPACE}%", "fewer operations", True),
        (f"25{SPACE}%", "less time", True),
        ("±0", "exact match against the full model", True),
    ]


def test_more_time_and_a_loss(make_folder: MakeFolder) -> None:
    swept = frontier(
        point("fixed", 40.0, 4.0, 400, 4.0, depth=4),
        point("patience", 38.5, 2.0, 300, 5.0, patience=1),
        point("patience", 30.0, 1.0, 100, 1.0, patience=0),
    )
    found = headline(make_folder, **{"results/frontier.json": json.dumps(swept), "calibration.json": None})
    assert found["sentences"][0] == (
        f"Saves 50{SPACE}% of the depth and 25{SPACE}% of the operations, takes 25{SPACE}% more time, and costs 1.50 "
        "points: exact match is 38.50, that of the full model 40.00."
    )
    assert [(tile["value"], tile["good"]) for tile in found["tiles"][2:]] == [(f"25{SPACE}%", False), ("−1.50", False)]


def test_a_calibrated_setting_where_nothing_is_as_good(make_folder: MakeFolder) -> None:
    swept = frontier(
        point("fixed", 100.0, 4.0, 400_000, 4.0, depth=4), point("fixed", 99.9, 3.0, 300_000, 3.0, depth=3)
    )
    found = headline(make_folder, **{"results/frontier.json": json.dumps(swept)})
    assert found["setting"] == "drop-0.5: confidence 0.8"
    assert "costs 0.40 points" in found["sentences"][0]
    assert "time" not in found["sentences"][0]  # nobody measured it


def test_a_gain_in_perplexity_has_no_points(make_folder: MakeFolder) -> None:
    swept = frontier(
        point("fixed", 20.0, 4.0, 400, 4.0, depth=4),
        point("fixed", 18.0, 3.0, 300, 3.0, depth=3),
        metric="perplexity",
        higher_is_better=False,
    )
    found = headline(make_folder, **{"results/frontier.json": json.dumps(swept)})
    assert "and gains 2.00: perplexity is 18.00" in found["sentences"][0]


def test_the_same_setting_on_test_data(make_folder: MakeFolder) -> None:
    policy = {"kind": "confidence", "threshold": [0.9]}
    files = {"results/test-confidence-0.9.json": json.dumps(evaluation(97.5, 2.1, policy))}
    assert headline(make_folder, **files)["sentences"][2] == (
        "On 1,000 test inputs, which had no part in the choice, it has 97.50 instead of 98.00 at a mean depth of 2.10."
    )


def test_no_word_of_test_data_of_other_weights(make_folder: MakeFolder) -> None:
    policy = {"kind": "confidence", "threshold": [0.9]}
    files = {"results/test-confidence-0.9.json": json.dumps(evaluation(97.5, 2.1, policy, weights_digest="x"))}
    assert len(headline(make_folder, **files)["sentences"]) == 2


def test_an_evaluation_alone(make_folder: MakeFolder) -> None:
    found = headline(make_folder, **{"results/frontier.json": None})
    assert found["sentences"][0] == "exact_match is 98.00 at a mean depth of 4.00 of 4 blocks, on 1,000 test inputs."
    assert "not known before a sweep" in found["sentences"][1]


def test_depths_of_sources_are_the_encoder_s(make_folder: MakeFolder) -> None:
    found = evaluation(98.0, 1.5, depth_of="encoder")
    config = json.dumps({"encoder": {"num_layers": 3}, "decoder": {"num_layers": 4}})
    files = {"results/frontier.json": None, "results/test.json": json.dumps(found), "config.json": config}
    told = headline(make_folder, **files)
    assert "at a mean encoder depth of 1.50 of 3 blocks" in told["sentences"][0]
    assert [tile["label"] for tile in told["tiles"]] == ["exact_match", "mean encoder depth of 3"]


def test_so_are_those_of_a_sweep_of_sources(make_folder: MakeFolder) -> None:
    policy = {"kind": "confidence", "threshold": [0.9]}
    early = evaluation(97.5, 2.1, policy, depth_of="encoder")
    swept = json.dumps({**frontier(), "depth_of": "encoder"})
    files = {"results/test-confidence-0.9.json": json.dumps(early), "results/frontier.json": swept}
    sentences = headline(make_folder, **files)["sentences"]
    assert sentences[1].endswith("of 4 encoder blocks in the mean.")
    assert sentences[2].endswith("at a mean encoder depth of 2.10.")


def test_gates_alone(make_folder: MakeFolder) -> None:
    """Those that pruning keeps, which may be fewer than the sum of probabilities."""
    depths = {"expected_depth/decoder": 3.1, "effective_depth/decoder": 2.25}
    lines = json.dumps({"update": 1200, **depths}) + "\n"
    found = headline(make_folder, **{"results/frontier.json": None, "metrics.jsonl": lines})
    assert found["sentences"] == [
        "Of its latent layers, 2.2 of 4 in the decoder were in the mean more likely open than not after update 1,200."
    ]
    assert found["tiles"] == [{"value": "2.2", "label": "of 4 layers open, decoder", "good": True}]


def test_nothing_at_all(make_folder: MakeFolder) -> None:
    found = headline(make_folder, **{"results/frontier.json": None, "results/test.json": None})
    assert found["sentences"][0].startswith("Nothing has been measured here yet")
    assert found["tiles"] == []
