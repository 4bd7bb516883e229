"""The provisioned Grafana dashboards, as their tests see them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nightjar_alerts.service.observe.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "grafana" / "dashboards"
DASHBOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))
}
"""Every dashboard, by the name of its file."""

SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
    "gauge": ("",),
    "info": ("_info",),
}

CONSTANT_FALLBACK = re.compile(r"\bvector\s*\(|\bor\s+on\s*\(\s*\)|\babsent(_over_time)?\s*\(")
"""Parts of queries that return a value although nothing was measured."""

# What remains of a query once these are gone, in this order, is metric names.
_NOT_NAMES = (
    r'"(?:\\.|[^"\\])*"',  # string literals
    r"\{[^}]*\}|\[[^\]]*\]",  # label matchers and ranges
    r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)",
    r"\b\w+(?=\s*\()",  # functions and aggregations
    r"\b(?:or|and|unless|bool|offset)\b",
    r"\b\d\w*",  # numbers and durations
)


def panels() -> list[tuple[str, dict[str, Any]]]:
    """Every panel that shows something, with the name of its dashboard; rows are headings."""
    named = [(name, panel) for name, dashboard in DASHBOARDS.items() for panel in dashboard["panels"]]
    return [(name, panel) for name, panel in named if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Name and query of every target of every panel."""
    for name, panel in panels():
        for target in panel["targets"]:
            yield f"{name}: {panel['title']} {target['refId']}", target["expr"]


def metric_names(query: str) -> set[str]:
    """Names of the metrics in a PromQL query."""
    for pattern in _NOT_NAMES:
        query = re.sub(pattern, " ", query)
    return set(re.findall(r"[a-zA-Z_:][\w:]*", query))


def declared() -> set[str]:
    """Names of every series the service's registry can expose."""
    return {family.name + suffix for family in Metrics().registry.collect() for suffix in SUFFIXES[family.type]}
