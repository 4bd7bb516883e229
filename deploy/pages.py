"""Write the tables of docs/ that follow from the code: settings, metrics and the errors of the HTTP API.

python -m deploy.pages            write them
python -m deploy.pages --check    write nothing; exit with 1 and name the pages that are stale
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase
from pydantic.fields import FieldInfo

from nightjar_alerts.models.common import markdown_table
from nightjar_alerts.service.http.edge.errors import KINDS
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.settings import ClientSettings, CommonSettings, Settings, StreamSettings, settings_table

DOCS = Path(__file__).resolve().parents[1] / "docs"
TABLE = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
MOST_LABELS = 8


def labels(metric: MetricWrapperBase) -> tuple[str, ...]:
    """Return the names of a metric's labels, in order.

    prometheus_client keeps the names private, so this makes a child with as many values as the metric accepts and reads
    the names from its sample.
    """
    for count in range(1, MOST_LABELS + 1):
        try:
            metric.labels(*("?" * count))
        except ValueError:
            continue
        family = next(iter(metric.collect()))
        return tuple(name for name in family.samples[0].labels if name != "le")
    return ()


def metrics() -> str:
    """Return the table of metrics."""
    rows = []
    for metric in vars(Metrics()).values():
        if isinstance(metric, MetricWrapperBase):
            family = next(iter(metric.describe()))
            name = family.name + ("_total" if family.type == "counter" else "")
            meaning = family.documentation.replace("|", "\\|")
            rows.append([f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels(metric)), meaning])
    return markdown_table(["metric", "type", "labels", "meaning"], sorted(rows))


def settings(fields: Mapping[str, FieldInfo], without: Mapping[str, FieldInfo] | None = None) -> str:
    """Return the table of some settings."""
    return settings_table({name: field for name, field in fields.items() if name not in (without or {})})


def problems() -> str:
    """Return the table of errors."""
    kinds = sorted(KINDS.values(), key=lambda kind: kind.status)
    rows = [[str(kind.status), f"`{kind.type}`", kind.title, kind.meaning] for kind in kinds]
    return markdown_table(["status", "type", "title", "what it means"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "metrics": metrics,
    "settings-common": lambda: settings(CommonSettings.model_fields),
    "settings-service": lambda: settings(Settings.model_fields, without=CommonSettings.model_fields),
    "settings-worker": lambda: settings(StreamSettings.model_fields, without=CommonSettings.model_fields),
    "settings-client": lambda: settings(ClientSettings.model_fields),
    "problems": problems,
}


def main() -> None:
    """Write each stale page, or name it and exit with 1."""
    check = "--check" in sys.argv[1:]
    stale = False
    for path in (DOCS / "settings.md", DOCS / "metrics.md", DOCS / "api.md"):
        before = path.read_text()
        after = TABLE.sub(lambda slot: f"{slot[1]}\n{TABLES[slot['name']]().strip()}\n\n{slot[3]}", before)
        if after != before:
            stale = True
            sys.stdout.write(f"{path.name}: {'stale, run python -m deploy.pages' if check else 'written'}\n")
            if not check:
                path.write_text(after)
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
