"""The page, the card and rows of README about the real sky: all of them say what the stored report says."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from nightjar_alerts.models.bundle import CARD, DEFAULT_BUNDLE, MANIFEST
from nightjar_alerts.training.sky.table_page import write_page, write_sky_card

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "docs" / "results" / "sky.json"


@pytest.fixture(scope="module")
def report() -> Any:
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def test_the_pages_are_those_of_the_stored_report(report: Any) -> None:
    assert (ROOT / "docs" / "sky.md").read_text(encoding="utf-8") == write_page(report, RESULTS.name)


def test_the_page_shows_every_figure_of_the_table(report: Any) -> None:
    page = write_page(report, RESULTS.name).split("## Set by set")[1]
    stored = {
        f"{value:.3f}"
        for row in report["table"]
        for columns in row["figures"].values()
        for figures in columns.values()
        for value in figures.values()
        if isinstance(value, float)
    }
    assert stored - set(re.findall(r"\d\.\d{3}", page)) == set()


def test_the_card_is_that_of_the_stored_report(report: Any, tmp_path: Path) -> None:
    copy = shutil.copytree(DEFAULT_BUNDLE, tmp_path / "bundle")
    write_sky_card(copy, report)
    for name in (CARD, MANIFEST):
        assert (copy / name).read_text(encoding="utf-8") == (DEFAULT_BUNDLE / name).read_text(encoding="utf-8")


def test_readme_shows_the_figures_of_the_stored_report(report: Any) -> None:
    columns = (
        (f"{DEFAULT_BUNDLE.parent.name} {DEFAULT_BUNDLE.name}", "seen"),
        ("astro-moe-elasticc 1.2.0", "left out"),
        ("boosted trees", "seen"),
        ("the whole network", "adapted"),
    )
    rows = (
        ("real supernovae", "broad", ("SN-like", "Long", "Periodic")),
        ("Ia / II of the Young Supernova", "yse", ("Ia (42)", "II (16)")),
        ("ELAsTiCC, another", "elasticc", ("top-1, no z",)),
        ("sets of 90 %", "coverage", ("coverage, raw",)),
        ("active galaxies of Rubin", "rubin", ("AGN named",)),
    )
    figures = {row["key"]: row["figures"] for row in report["table"]}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for title, key, names in rows:
        (row,) = re.findall(rf"^\| {re.escape(title)}[^|]*\|(.*)\|$", readme, re.MULTILINE)
        stored = [[figures[key][model][column].get(name) for name in names] for model, column in columns]
        expected = [" / ".join("" if value is None else f"{value:.2f}" for value in values) for values in stored]
        assert [cell.strip() for cell in row.split("|")] == expected, title


def test_each_run_that_told_sources_stands_beside_chance() -> None:
    before, after = ({"forest": 0.9, "boosted trees": 0.95}, {"forest": 0.15, "boosted trees": 0.14})
    report: dict[str, Any] = {"before, sources": 16, **{f"before, {kind}": value for kind, value in before.items()}}
    again = {"about": "again", "after, sources": 10, **{f"after, {kind}": value for kind, value in after.items()}}
    empty: dict[str, Any] = {"prior": "p", "looks": "once", "table": [], "reports": {}}
    page = write_page({**empty, "fingerprint": [report, again]}, "sky.json")
    assert "| - | light curves as their surveys saw them | 16 | 0.062 | 0.900 | 0.950 |" in page
    assert "| again | views | 10 | 0.100 | 0.150 | 0.140 |" in page
    assert "Can the source" not in write_page({**empty, "fingerprint": []}, "sky.json")
