"""The Grafana dashboard is well-formed, and every metric it names is one the service declares.

Grafana itself is not run here (Debian does not carry it). What its panels would show is tested in test_prometheus.py.
"""

from itertools import combinations
from typing import Any

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from nightjar_alerts.service.observe.metrics import STAGES, Metrics
from support.dashboard import ROOT, dashboard, declared, metric_names, panels, queries

GRID_WIDTH = 24


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("sum(rate(a_total[5s]))", {"a_total"}),
        ('sum by (le, x) (rate(b{route=~"/v1/(c|d)", y!="}"}[5s])) or vector(0)', {"b"}),
        ("max by (l) (m) / on (l) group_left () avg(n offset 5m)", {"m", "n"}),
    ],
)
def test_metric_names_are_found(query: str, names: set[str]) -> None:
    assert metric_names(query) == names


def test_every_metric_is_declared_by_the_service() -> None:
    names = declared()
    assert {title: unknown for title, query in queries() if (unknown := metric_names(query) - names)} == {}


def test_every_metric_of_the_service_is_on_it() -> None:
    named = set().union(*(metric_names(query) for _, query in queries()))
    names = {name.removesuffix(suffix) for name in named for suffix in ("_bucket", "_sum", "_count", "_total")} | named
    metrics = [value for value in vars(Metrics()).values() if isinstance(value, MetricWrapperBase)]
    families = {next(iter(metric.describe())).name for metric in metrics}
    assert {name for name in families if name not in names and f"{name}_total" not in names} == set()


def test_the_dashboard_shows_all_that_must_be_watched() -> None:
    named = set().union(*(metric_names(query) for _, query in queries()))
    assert named >= {
        "nightjar_requests_total",
        "nightjar_stage_duration_seconds_bucket",
        "nightjar_outcomes_total",
        "nightjar_batch_size_bucket",
        "nightjar_queue_depth",
        "nightjar_queue_work_seconds",
    }
    stages = [query for title, query in queries() if title.startswith("Stages")]
    assert [query.partition("(")[2].partition(",")[0] for query in stages] == ["0.50", "0.90", "0.99"]
    assert STAGES[0] == "receive"
    assert STAGES[-1] == "encode"


def test_ids_are_unique() -> None:
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels():
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs)), panel["title"]


def overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
    above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
    return not (beside or above)


def test_panels_lie_side_by_side() -> None:
    every: list[dict[str, Any]] = dashboard()["panels"]
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= GRID_WIDTH for p in every)
    assert [(a["title"], b["title"]) for a, b in combinations(every, 2) if overlap(a["gridPos"], b["gridPos"])] == []


def test_every_panel_reads_from_the_provisioned_source() -> None:
    path = ROOT / "deploy" / "grafana" / "provisioning" / "datasources" / "prometheus.yml"
    provisioned = {source["uid"] for source in yaml.safe_load(path.read_text())["datasources"]}
    assert {panel["datasource"]["uid"] for panel in panels()} <= provisioned
