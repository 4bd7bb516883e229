"""Generate tables in docs/ (settings, metrics, errors of HTTP and gRPC), schemas of results, and Kubernetes rules.

python -m deploy.pages            write them
python -m deploy.pages --check    write nothing; list stale pages and exit with 1
"""

import json
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase
from pydantic.fields import FieldInfo

from nightjar_alerts.client_settings import ClientSettings
from nightjar_alerts.core.schemas import avro_schema, json_schema
from nightjar_alerts.models.common import markdown_table
from nightjar_alerts.service.grpc.codes import CODES
from nightjar_alerts.service.http.edge.errors import KINDS
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.settings import CommonSettings, Settings, StreamSettings, settings_table

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
    """Return the table of settings, except those in ``without``."""
    return settings_table({name: field for name, field in fields.items() if name not in (without or {})})


def problems() -> str:
    """Return the table of errors."""
    kinds = sorted(KINDS.values(), key=lambda kind: kind.status)
    rows = [[str(kind.status), f"`{kind.type}`", kind.title, kind.meaning] for kind in kinds]
    return markdown_table(["status", "type", "title", "what it means"], rows)


def grpc_codes() -> str:
    """Return the table of status codes of gRPC."""
    kinds = sorted(CODES, key=lambda kind: kind.status)
    rows = [[f"`{CODES[kind]}`", str(kind.status), f"`{kind.type}`", kind.title] for kind in kinds]
    return markdown_table(["code", "status over HTTP", "`problem`", "what it means"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "metrics": metrics,
    "settings-common": lambda: settings(CommonSettings.model_fields),
    "settings-service": lambda: settings(Settings.model_fields, without=CommonSettings.model_fields),
    "settings-worker": lambda: settings(StreamSettings.model_fields, without=CommonSettings.model_fields),
    "settings-client": lambda: settings(ClientSettings.model_fields),
    "problems": problems,
    "grpc-codes": grpc_codes,
}


SCHEMAS = DOCS.parent / "service" / "answers" / "schemas"
RESULT_TYPES: Mapping[str, tuple[str, Sequence[str]]] = {
    "result-1": (
        "Result of one light curve or alert packet",
        ("CurveResult", "CurveFailure", "PacketResult", "PacketFailure"),
    ),
    "stream-result-1": ("Result of one alert from a stream", ("StreamResult", "StreamFailure")),
}


def result_schema(name: str) -> str:
    """Return the published JSON Schema of a document; later releases may add optional fields to this version."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:nightjar:{name}"}
    return json.dumps(head | json_schema(*RESULT_TYPES[name]), indent=2) + "\n"


def stream_schema() -> str:
    """Return the published Avro schema of a record of a stream, a line for each field."""
    head = avro_schema()
    fields = ",\n    ".join(map(json.dumps, head.pop("fields")))
    return json.dumps(head)[:-1] + f', "fields": [\n    {fields}\n]}}\n'


ALERTS = DOCS.parent / "deploy" / "prometheus" / "alerts.yml"
PROMETHEUS_RULE = DOCS.parent / "deploy" / "kubernetes" / "base" / "prometheusrule.yaml"
RULE_HEAD = """# Written by `python -m deploy.pages` from deploy/prometheus/alerts.yml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: nightjar
spec:
"""


def prometheus_rule() -> str:
    """Return the alerting rules as the Prometheus operator takes them."""
    _, head, groups = ALERTS.read_text().partition("groups:\n")
    return RULE_HEAD + textwrap.indent(head + groups, "  ")


def main() -> None:
    """Write stale pages and schemas; with --check list them and exit with 1."""
    check = "--check" in sys.argv[1:]
    stale = False
    contents = {SCHEMAS / f"{name}.schema.json": result_schema(name) for name in RESULT_TYPES}
    contents[SCHEMAS / "stream-result-1.avsc"] = stream_schema()
    contents[PROMETHEUS_RULE] = prometheus_rule()
    for path in (DOCS / "settings.md", DOCS / "metrics.md", DOCS / "api.md", DOCS / "grpc.md"):
        contents[path] = TABLE.sub(
            lambda slot: f"{slot[1]}\n{TABLES[slot['name']]().strip()}\n\n{slot[3]}", path.read_text()
        )
    for path, after in contents.items():
        if not path.exists() or after != path.read_text():
            stale = True
            sys.stdout.write(f"{path.name}: {'stale, run python -m deploy.pages' if check else 'written'}\n")
            if not check:
                path.write_text(after)
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
