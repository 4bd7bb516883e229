"""The report page: self-contained, with the values of the report."""

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from nightjar_alerts.training.score.page import page, read_baselines, value, write_page
from support.pipeline import Pipeline

pytestmark = pytest.mark.slow

VOID = {"meta", "img", "br"}


class Balanced(HTMLParser):
    """Fails on a tag that is closed out of order, and gathers headings."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.sources += [content for name, content in attrs if name == "src" and content]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def report(pipeline: Pipeline) -> Any:
    return json.loads(pipeline.report.read_text())


@pytest.fixture(scope="module")
def drawn(pipeline: Pipeline, report: Any) -> str:
    return page(report, read_baselines([pipeline.baseline]))


def test_the_page_stands_alone(drawn: str) -> None:
    parser = Balanced()
    parser.feed(drawn)
    assert parser.open == []
    assert len(parser.sources) >= 10
    assert all(source.startswith("data:image/") for source in parser.sources)
    assert "<script" not in drawn
    assert not re.search(r"""(href|src)="(?!#|data:)""", drawn)


def test_page_of_the_command_equals_that_of_the_stored_report(pipeline: Pipeline, report: Any) -> None:
    assert pipeline.report.with_suffix(".html").read_text(encoding="utf-8") == page(report)


def test_page_shows_the_scores_of_model_and_baseline(drawn: str, report: Any, pipeline: Pipeline) -> None:
    trees = json.loads(pipeline.baseline.read_text())
    for source in (report, trees):
        for scores in source["views"].values():
            assert value(scores["macro_f1"]) in drawn
    for heading in (
        "Against time",
        "Classes against time",
        "Levels",
        "Confusion",
        "Calibration",
        "Abstention",
        "Stability",
        "Experts",
    ):
        assert heading in drawn
    assert "boosted trees" in drawn


@pytest.fixture(scope="module")
def bare(report: Any) -> str:
    """A page of a survey with a flat taxonomy, of models of which little was measured, and with a name to beware of."""
    less = copy.deepcopy(report)
    less |= {"conformal": None, "experts": None, "embedding": None, "stability": {"days": None, "detections": None}}
    less |= {"levels": {}, "families": less["classes"]}
    less["models"][0]["name"] = less["data"]["name"] = "<script>alert(1)</script>"
    return page(less)


def test_sections_that_were_not_measured_say_so(bare: str) -> None:
    assert bare.count("Not measured") == 3  # sets, novelty, stability
    assert "None of these models is a mixture" in bare
    assert "Not drawn" in bare
    assert "this taxonomy has none" in bare


def test_names_cannot_break_out_of_the_page(bare: str) -> None:
    assert "<script" not in bare
    assert "&lt;script" in bare


def test_write_page_with_a_baseline_of_other_objects_raises(report: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="same objects"):
        write_page(tmp_path / "page.html", report, [{"data": {}}])
    assert not (tmp_path / "page.html").exists()


def test_rows_begin_with_their_heading(drawn: str) -> None:
    assert re.search(r'<tr><th scope="row">everything</th><td>\d+</td><td>0\.\d{3}', drawn)
    assert drawn.count("<tr><th scope=") == drawn.count('<tr><th scope="row">') + drawn.count("<thead>")


def test_numbers_as_they_are_written() -> None:
    assert value({"mean": 0.1234, "spread": None}) == "0.123"
    assert value({"mean": 0.1234, "spread": 0.01}, 2) == "0.12 ± 0.01"
    assert value({"mean": None, "spread": None}) == "–"
