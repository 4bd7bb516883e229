"""The Grafana dashboards are well-formed, and every metric that they name is one that the service declares.

Grafana itself is not run here (Debian does not carry it). Whether panels have data is tested in test_prometheus.py.
"""

import re
from itertools import combinations
from typing import Any

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from nightjar_alerts.service.observe.metrics import Metrics
from support.dashboard import CONSTANT_FALLBACK, DASHBOARDS, ROOT, declared, metric_names, panels, queries

GRID_WIDTH = 24
OF_PROMETHEUS = {"process_start_time_seconds", "process_resident_memory_bytes", "process_cpu_seconds_total"}


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("sum(rate(a_total[5s]))", {"a_total"}),
        ('sum by (le, x) (rate(b{route=~"/v1/(c|d)", y!="}"}[5s])) or on (x) c', {"b", "c"}),
        ("max by (l) (m) / on (l) group_left () avg(n offset 5m)", {"m", "n"}),
    ],
)
def test_metric_names_are_found(query: str, names: set[str]) -> None:
    assert metric_names(query) == names


def test_there_is_a_dashboard_for_service_model_and_stream() -> None:
    assert {dashboard["uid"] for dashboard in DASHBOARDS.values()} == {f"nightjar-{name}" for name in DASHBOARDS}
    assert set(DASHBOARDS) == {"service", "model", "stream"}


def test_queries_use_metrics_that_are_declared() -> None:
    names = declared() | OF_PROMETHEUS
    assert {title: unknown for title, query in queries() if (unknown := metric_names(query) - names)} == {}


def test_every_metric_of_the_service_is_on_a_dashboard() -> None:
    named = set().union(*(metric_names(query) for _, query in queries()))
    names = {name.removesuffix(suffix) for name in named for suffix in ("_bucket", "_sum", "_count", "_total")} | named
    metrics = [value for value in vars(Metrics()).values() if isinstance(value, MetricWrapperBase)]
    families = {next(iter(metric.describe())).name for metric in metrics}
    assert {name for name in families if name not in names and f"{name}_total" not in names} == set()


def test_queries_have_no_constant_fallback() -> None:
    assert [title for title, query in queries() if CONSTANT_FALLBACK.search(query)] == []


def test_queries_select_the_jobs_of_the_variable() -> None:
    selectors = re.compile(r"\b(?:nightjar|process)_\w+(?!\w)(?P<labels>\{[^}]*\})?")
    wrong = [
        (title, match[0])
        for title, query in queries()
        for match in selectors.finditer(query)
        if 'job=~"$job"' not in (match["labels"] or "")
    ]
    assert wrong == []


@pytest.mark.parametrize(("name", "panel"), panels(), ids=[f"{name}: {panel['title']}" for name, panel in panels()])
def test_a_panel_has_a_description_a_unit_and_a_link_to_a_section_that_exists(name: str, panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["links"]
    for link in panel["links"]:
        page, _, section = link["url"].removeprefix("${docs}/").partition("#")
        assert link["url"].startswith("${docs}/")
        assert not section or section in sections(page), link["url"]


def sections(page: str) -> set[str]:
    """Anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_rule_is_linked_from_a_panel() -> None:
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]
    runbook = {
        f"${{docs}}/operations.md#{rule['alert'].lower()}"
        for group in groups
        for rule in group["rules"]
        if "alert" in rule
    }
    assert runbook - {link["url"] for _, panel in panels() for link in panel["links"]} == set()


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_docs_show_a_small_picture_of_each_dashboard(name: str) -> None:
    picture = f"pictures/dashboard-{name}.png"
    assert f"]({picture})" in (ROOT / "docs" / "operations.md").read_text()
    assert (ROOT / "docs" / picture).stat().st_size < 150_000


@pytest.mark.parametrize("name", DASHBOARDS)
def test_ids_are_unique(name: str) -> None:
    ids = [panel["id"] for panel in DASHBOARDS[name]["panels"]]
    assert len(ids) == len(set(ids))
    for panel in DASHBOARDS[name]["panels"]:
        refs = [target["refId"] for target in panel.get("targets", ())]
        assert len(refs) == len(set(refs)), panel["title"]


def overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    side_by_side = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
    above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
    return not (side_by_side or above)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_do_not_overlap(name: str) -> None:
    every: list[dict[str, Any]] = DASHBOARDS[name]["panels"]
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= GRID_WIDTH for p in every)
    assert [(a["title"], b["title"]) for a, b in combinations(every, 2) if overlap(a["gridPos"], b["gridPos"])] == []


def test_every_panel_reads_from_the_provisioned_source() -> None:
    path = ROOT / "deploy" / "grafana" / "provisioning" / "datasources" / "prometheus.yml"
    provisioned = {source["uid"] for source in yaml.safe_load(path.read_text())["datasources"]}
    assert {panel["datasource"]["uid"] for _, panel in panels()} <= provisioned
