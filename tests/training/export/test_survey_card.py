"""Cards of bundles trained on real surveys, and the rows of README that show their scores."""

import csv
import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from nightjar_alerts.models.bundle import CARD, DEFAULT_BUNDLE, load_bundle
from nightjar_alerts.routing import SURVEY_BUNDLES
from nightjar_alerts.training.export.card import write_card

ROOT = Path(__file__).resolve().parents[3]
Figures = dict[str, dict[tuple[str, str], dict[str, float]]]


@pytest.fixture(scope="module")
def figures() -> Figures:
    """Scores of docs/results/sky.csv by row, by model and column, and by name."""
    figures: Figures = defaultdict(lambda: defaultdict(dict))
    with (ROOT / "docs" / "results" / "sky.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["value"]:
                figures[row["key"]][row["model"], row["column"]][row["figure"]] = float(row["value"])
    return figures


def test_write_card_shows_the_scores_of_the_report(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(DEFAULT_BUNDLE, tmp_path / "bundle"))
    model = f"{DEFAULT_BUNDLE.parent.name} {DEFAULT_BUNDLE.name}"
    scores = {model: {"seen": {"top-1": 0.8871, "objects": 42}}, "boosted trees": {"left out": {"top-1": 0.35}}}
    row = {"key": "spcc", "title": "SPCC", "wanted": "0.84", "figures": scores}
    seeds = [{"title": "SPCC", "seeds": 3, "figures": {"top-1": [0.88, 0.004]}}]
    report: dict[str, Any] = {
        "prior": "p",
        "test_evaluations": 1,
        "reports": {model: {}},
        "table": [row],
        "seeds": seeds,
    }
    write_card(copy, report)
    card = (copy / CARD).read_text(encoding="utf-8")
    assert re.search(r"\| SPCC +\| 0.84 +\| seen: top-1 0.887, objects 42 +\| left out: top-1 0.350 +\|", card)
    assert "top-1 0.880 ± 0.004" in card
    load_bundle(copy)  # the manifest has the hash of the new card


@pytest.mark.parametrize("bundle", [DEFAULT_BUNDLE, SURVEY_BUNDLES["ztf"]])
def test_write_card_without_a_report_says_so(bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    write_card(copy)
    assert "Not measured." in (copy / CARD).read_text(encoding="utf-8")


def test_readme_shows_the_measured_scores(figures: Figures) -> None:
    columns = (
        (f"{DEFAULT_BUNDLE.parent.name} {DEFAULT_BUNDLE.name}", "seen"),
        ("boosted trees", "seen"),
        ("the whole network", "adapted"),
    )
    rows = (
        ("supernovae, recognised", "broad", ("SN-like",)),
        ("periodic variables", "broad", ("Periodic",)),
        ("long-lived transients", "broad", ("Long",)),
        ("type Ia / type II", "yse", ("Ia (42)", "II (16)")),
        ("sets of 90 %", "coverage", ("coverage, raw",)),
    )
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for title, key, names in rows:
        (row,) = re.findall(rf"^\| {re.escape(title)}[^|]*\|(.*)\|$", readme, re.MULTILINE)
        stored = [[figures[key][column].get(name) for name in names] for column in columns]
        expected = [
            " / ".join("" if value is None else f"{100 * value:.0f} %" for value in values) for values in stored
        ]
        assert [cell.strip() for cell in row.split("|")] == expected, title
