"""The page of metrics, from the metrics that the service declares."""

from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase

from service.observe.metrics import Metrics

MOST_LABELS = 8
SUFFIX = {"counter": "_total"}
HEAD = """# Metrics

<!-- Written by `python -m deploy.pages`. Change the texts in service/observe/metrics.py. -->

The service answers `GET /metrics` on its own port, the worker on `NIGHTJAR_WORKER_PORT`, in Prometheus' text format.
Times are seconds and sizes bytes. A histogram has the series `_bucket`, `_sum` and `_count`. The usual metrics of a
Python process (`process_*`, `python_*`) are there as well. The alerts made from them are in
[operations](operations.md#runbook).

| metric | type | labels | meaning |
|---|---|---|---|
"""


def page(_: str = "") -> str:
    """Return the text of docs/metrics.md."""
    return HEAD + "".join(sorted(map(_row, declared())))


def declared() -> list[MetricWrapperBase]:
    """Return the metrics that the service declares itself."""
    return [value for value in vars(Metrics()).values() if isinstance(value, MetricWrapperBase)]


def labels(metric: MetricWrapperBase) -> tuple[str, ...]:
    """Return the names of a metric's labels, in order.

    The library keeps them private, so a child is made with as many values as it takes, and its sample tells the names.
    """
    for count in range(1, MOST_LABELS + 1):
        try:
            metric.labels(*("?" * count))
        except ValueError:
            continue
        family: Metric = next(iter(metric.collect()))
        return tuple(name for name in family.samples[0].labels if name != "le")
    return ()


def _row(metric: MetricWrapperBase) -> str:
    family = next(iter(metric.describe()))
    name = family.name + SUFFIX.get(family.type, "")
    names = ", ".join(f"`{label}`" for label in labels(metric))
    meaning = family.documentation.replace("|", "\\|")
    return f"| `{name}` | {family.type} | {names} | {meaning} |\n"
