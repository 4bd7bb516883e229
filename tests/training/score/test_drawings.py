"""Figures: values computed for them, and the texts and marks that they show."""

from io import BytesIO

import numpy as np
import pytest
from matplotlib.text import Text

from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.score.figures import (
    STYLES,
    confusion_figure,
    family_order,
    legend_below,
    reliability_figure,
    series_figure,
    wilson,
)


def test_wilson_by_hand_and_where_all_are_right() -> None:
    low, high = wilson(np.array([0.5, 1.0, 0.0]), np.array([100.0, 4.0, 4.0]))
    assert high[0] - low[0] == pytest.approx(2 * np.sqrt(0.25 / 100 + 0.25 / 1e4) / 1.01)
    assert (low[1], high[1]) == pytest.approx((4 / 5, 1.0))  # n / (n + z^2) with one sigma
    assert (low[2], high[2]) == pytest.approx((0.0, 1 / 5))
    assert np.isnan(wilson(np.array([np.nan]), np.array([0.0]))).all()


def test_families_are_put_together_in_the_order_they_appear() -> None:
    order, borders = family_order(["b", "a", "b", "c", "a"])
    assert order.tolist() == [0, 2, 1, 4, 3]
    assert borders == [2, 4]
    families = [leaf.path[-1] for leaf in ELASTICC.classes]
    assert sorted(family_order(families)[0].tolist()) == list(range(20))
    assert len(family_order(families)[1]) == 4


def test_confusion_figure_of_a_class_with_dollar_signs_draws_them() -> None:
    drawn = confusion_figure(np.array([[90.0, 10.0], [1.0, 99.0]]), ["$x^$", "b"], [5, 6], "title")
    drawn.savefig(BytesIO())
    assert drawn.axes[0].get_xticklabels()[0].get_text() == "$x^$"


def test_confusion_figure_shows_median_and_percentiles() -> None:
    median, low, high = np.array([[90.0, 10.0], [0.2, 99.8]]), np.array([[80.0, 9.8], [0, 99]]), np.full((2, 2), 10.2)
    high[0, 0] = 95.0
    drawn = confusion_figure(median, ["a", "b"], [5, 6], "title", (low, high))
    texts = {text.get_text() for text in drawn.axes[0].texts}
    assert {"90", "+5", "−10", "10", "100"} <= texts
    assert "0" not in texts  # a cell below half a percent stays blank
    assert [label.get_text() for label in drawn.axes[0].get_yticklabels()] == ["a (5)", "b (6)"]


def test_the_title_of_a_reliability_diagram_is_its_error() -> None:
    table: list[list[float | None]] = [[0, None, None], [10, 0.6, 0.5], [30, 0.9, 0.9]]
    drawn = reliability_figure({"everything": table})
    assert drawn.axes[0].get_title(loc="left") == "everything: ECE 0.025"


def test_a_single_line_needs_no_legend() -> None:
    score = {"mean": 0.5, "spread": 0.1}
    series = {step: {"macro_f1": score} for step in ("1", "2", "4")}
    alone, both = series_figure("days", {"one": series}), series_figure("days", {"one": series, "two": series})
    assert (len(alone.legends), len(both.legends)) == (0, 1)
    legend_below(alone, alone.axes[0])
    assert len(alone.legends) == 0
    assert [text.get_text() for text in both.legends[0].findobj(Text)][-2:] == ["one", "two"]
    assert len({colour for colour, _, _ in STYLES}) == len({marker for _, marker, _ in STYLES}) == len(STYLES)
