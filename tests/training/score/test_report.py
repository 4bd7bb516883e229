"""The report of served predictions: scores by hand, groups, worst objects, pairs, and its page."""

from dataclasses import replace

import numpy as np
import pytest

from nightjar_alerts.training.score.report import Answers, ServedPredictions, report_of, scores_of
from nightjar_alerts.training.score.report_page import page

TABLE = {"name": "made up", "objects": 5, "left_out": {}, "guesses": []}
IDS = ["a", "b", "c", "d", "e"]
DETECTIONS = np.array([0, 3, 4, 60, 60])
MAGNITUDES = np.array([np.nan, 15.0, 20.5, 20.5, 25.0])


def answers(name: str = "mine 1.0.0") -> Answers:
    """Return predictions of three classes; the label of the last object is no class of the model."""
    p_NC = np.array([[0.9, 0.1, 0.0], [0.9, 0.1, 0.0], [0.2, 0.6, 0.2], [0.4, 0.3, 0.3]])
    inside = p_NC == p_NC.max(axis=1, keepdims=True)
    unusual = np.array([False, False, False, True])
    served = ServedPredictions(np.arange(4), p_NC, inside, unusual.astype(float), unusual, unusual)
    return Answers(name, ("one", "two", "three"), np.array([0, 1, 1, 2, -1]), served)


def test_scores_of_equal_hand_calculation() -> None:
    mine = answers()
    scores = scores_of(mine.predictions, mine.label_O[:4])
    assert (scores["accuracy"], scores["set_coverage"], scores["set_size"]) == pytest.approx((0.5, 2 / 3, 1.0))
    assert (scores["set_withheld"], scores["sure_and_wrong"], scores["single_and_missing"]) == (0.25, 0.25, 0.25)


def test_report_classes_have_their_sets() -> None:
    one, two, three = report_of(TABLE, [answers()], IDS).values["models"]["mine 1.0.0"]["classes"]
    assert (one["recall"], one["precision"], one["set_coverage"]) == (1.0, pytest.approx(1 / 3), 1.0)
    assert (two["recall"], two["set_coverage"], two["unusual"]) == (0.5, 0.5, 0.0)
    assert (three["set_coverage"], three["set_withheld"], three["unusual"]) == (None, 1.0, 1.0)


def test_report_groups_have_every_classified_object_once() -> None:
    (model,) = report_of(TABLE, [answers()], IDS, DETECTIONS, MAGNITUDES).values["models"].values()
    counts = {key: {row["group"]: row["objects"] for row in model[key]} for key in ("detections", "brightness")}
    assert counts["detections"] == {"0": 1, "3 to 4": 2, "50 or more": 1}
    assert counts["brightness"] == {"brighter than 16": 1, "20 to 21": 2, "no positive flux": 1}


def test_report_worst_objects_are_wrong_and_start_with_the_least_probable_label() -> None:
    (model,) = report_of(TABLE, [answers()], IDS).values["models"].values()
    assert [(row["object_id"], row["label"], row["class"]) for row in model["worst"]] == [
        ("b", "two", "one"), ("d", "three", "one"),
    ]  # fmt: skip


def test_report_compares_models_on_the_objects_that_both_classified() -> None:
    first = answers()
    other = replace(first, predictions=first.predictions.take(np.array([False, True, True, True])))
    values = report_of(TABLE, [first, other], IDS).values
    assert list(values["models"]) == ["mine 1.0.0", "mine 1.0.0 (2)"]
    difference = values["differences"]["mine 1.0.0 (2)"]
    assert (difference["objects"], difference["accuracy"]["difference"]) == (3, 0.0)


def test_report_without_classified_objects_has_no_scores() -> None:
    none = replace(answers(), predictions=answers().predictions.take(np.zeros(4, dtype=np.bool_)))
    (model,) = report_of(TABLE, [none], IDS, DETECTIONS, MAGNITUDES).values["models"].values()
    assert model["scores"]["classified"] == 0
    assert model["scores"]["accuracy"] is None
    assert model["classes"] == model["detections"] == model["worst"] == []


def test_page_is_one_file_with_escaped_names() -> None:
    html = page(report_of(TABLE, [answers("<b>mine")], ["<i>", "<i>b", "<i>c", "<i>d", "<i>e"], DETECTIONS, MAGNITUDES))
    assert html.startswith("<!doctype html>")
    assert "<b>mine" not in html
    assert "&lt;i&gt;b" in html
    assert "<script" not in html
