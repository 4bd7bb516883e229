"""Generated pages: complete, and as the code says now."""

import json
import re
from pathlib import Path

import pytest

from deploy.pages import tables
from deploy.pages.__main__ import DOCS, stale
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.settings import ENV_PREFIX, ClientSettings, StreamSettings

MEASUREMENTS = sorted(tables.RESULTS.glob("bench-*.json"))


def test_no_generated_page_is_stale() -> None:
    assert [path.name for path in stale()] == [], "run python -m deploy.pages"


def test_every_setting_is_on_the_page_once() -> None:
    names = re.findall(rf"^\| `({ENV_PREFIX}\w+)` ", (DOCS / "settings.md").read_text(), re.MULTILINE)
    fields = StreamSettings.model_fields | ClientSettings.model_fields
    assert sorted(names) == sorted(f"{ENV_PREFIX}{name.upper()}" for name in fields)


def test_every_metric_of_the_exposition_is_on_the_page() -> None:
    exposed = set(re.findall(r"^# TYPE (nightjar_\w+) ", Metrics().render().decode(), re.MULTILINE))
    names = set(re.findall(r"^\| `(nightjar_\w+)` ", (DOCS / "metrics.md").read_text(), re.MULTILINE))
    created = {name for name in exposed if name.endswith("_created")}
    assert {name.removesuffix("_total") for name in exposed - created} == {
        name.removesuffix("_total") for name in names
    }


def test_labels_of_a_metric_are_told_in_order() -> None:
    metrics = Metrics()
    assert tables.labels(metrics.outcomes) == ("survey", "status", "reason")
    assert tables.labels(metrics.stage_seconds) == ("stage",)
    assert tables.labels(metrics.inflight) == ()


@pytest.mark.parametrize("path", MEASUREMENTS, ids=lambda path: path.name)
def test_a_measurement_says_what_it_holds_for(path: Path) -> None:
    measured = json.loads(path.read_text())
    assert {"bundle", "commit", "date", "machine.cpu", "machine.cores"} <= measured.keys()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", measured["date"])


def test_every_table_of_the_page_is_known_and_used() -> None:
    used = re.findall(r"<!-- table: ([\w-]+) -->", (DOCS / "benchmarks.md").read_text())
    assert sorted(used) == sorted([*tables.TABLES, "missed", "peers", "attacks"])


def test_missed_aims_are_counted_by_the_newest_measurement() -> None:
    about = {"bundle": "m 2.0.0", "commit": "abc", "machine.cpu": "CPU", "machine.cores": 2, "date": "2026-01-02"}
    newest = about | {
        "stream.visit_10k_s": 15.5,
        "before.stream.throughput_ratio": {"median": 0.9, "spread": 0.2},
        "before.stream.throughput_ratio.high": 0.98,
    }
    older = about | {"stream.visit_10k_s": 9.0, "stream.visit_40k_s": 60.0}
    lines = tables.missed([newest, older], {"stream": "A stream, Redis"}).splitlines()
    aims = sum(tables.AIM.fullmatch(figure.aim) is not None for figures in tables.TABLES.values() for figure in figures)
    counts = f"Of {aims} figures with an aim 2 meet it in their newest measurement, {aims - 3} were never measured"
    assert lines[0] == f"{counts}, 1 do not:"
    cells = "[A stream, Redis](#a-stream-redis) | 10,000 alerts in 5 s, answered after, s | at most 15 | 15.5 | m 2.0.0"
    assert lines[4:] == [f"| {cells} | `abc`, CPU (2 cores), 2026-01-02 |"]


def test_sections_of_tables_are_read_from_the_page() -> None:
    page = "# P\n\n## First\n\n<!-- table: a -->\n\n### Second one\n<!-- table: b-c -->\n"
    assert tables.sections(page) == {"a": "First", "b-c": "Second one"}


def test_policies_are_those_of_the_newest_simulation() -> None:
    about = {"bundle": "some 2.0.0", "commit": "abc", "machine.cpu": "CPU", "machine.cores": 2, "date": "2026-01-01"}
    one = about | {f"simulation.{policy}.per_s": 10.0 + place for place, policy in enumerate(tables.POLICIES)}
    rows = tables.simulated([about, one, one | {"simulation.nightjar.per_s": 1.0}]).splitlines()
    assert rows[2] == "| by predicted cost (Nightjar) | 10 |  |  |  |"
    assert len(rows) == 2 + len(tables.POLICIES) + 2
    assert "some 2.0.0" in rows[-1]
    assert tables.simulated([about]) == "*Not simulated yet.*\n"


def test_a_row_holds_one_version_and_what_it_lacks_is_empty() -> None:
    about = {"commit": "abc", "machine.cpu": "CPU", "machine.cores": 2}
    figures = (
        tables.Figure("a", "first", "at least 2"),
        tables.Figure("b", "second"),
        tables.Figure("c", "third"),
    )
    measurements = [
        {"bundle": "m 2.0.0", "date": "2026-01-02", **about, "a": {"median": 2.5, "spread": 0.25}, "b": 1234.5},
        {"bundle": "m 1.0.0", "date": "2026-01-01", **about, "b": 7},
        {"bundle": "m 0.9.0", "date": "2026-01-01", **about, "other": 7},
    ]
    assert tables.rows_of(figures, measurements).splitlines() == [
        "| version | first | second | commit, machine, date |",
        "| --- | --- | --- | --- |",
        "| *wanted* | *at least 2* |  |  |",
        "| m 2.0.0 | 2.5 ± 0.25 | 1,234 | `abc`, CPU (2 cores), 2026-01-02 |",
        "| m 1.0.0 |  | 7 | `abc`, CPU (2 cores), 2026-01-01 |",
    ]


def test_a_table_without_measurements_says_so() -> None:
    assert tables.rows_of(tables.KAFKA, []) == "*Not measured yet.*\n"
