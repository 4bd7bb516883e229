"""The Grafana dashboard: rows of panels, a few lines each; places, ids and the rest of Grafana's JSON follow.

``python -m deploy.pages`` writes ``deploy/grafana/dashboards/nightjar.json``, which is not to be edited by hand.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Final

WIDTH: Final = 24  # of Grafana's grid
SOURCE: Final = {"type": "prometheus", "uid": "nightjar-prometheus"}
NONE: Final = '{expr} or (label_replace(vector(0), "{label}", "none", "", "") unless on() ({expr}))'
RATE: Final = "[$__rate_interval]"
SERVICE: Final = '{job="nightjar"}'  # the worker's event loop is not watched
ASKED: Final = '{route=~"/v1/(classify|forecast|alerts)|/v2/models/.+/infer"}'


@dataclass(frozen=True)
class Query:
    """Query of a panel to Prometheus.

    Attributes
    ----------
    legend : as Grafana fills it in, ``{{label}}``.
    quiet : label of what may never have happened, such as a reason; a line at zero is shown until then, not "no data".
    instant : one value over the time shown, not a line.
    """

    expr: str
    legend: str = ""
    quiet: str = ""
    instant: bool = False

    def target(self, place: int) -> dict[str, Any]:
        """Return it as Grafana wants it."""
        expr = NONE.format(expr=self.expr, label=self.quiet) if self.quiet else self.expr
        target: dict[str, Any] = {"refId": "ABCDEFGH"[place], "expr": expr}
        if self.legend:
            target["legendFormat"] = self.legend
        return target | ({"instant": True} if self.instant else {})


@dataclass(frozen=True)
class Panel:
    """One picture.

    Attributes
    ----------
    unit : by Grafana's names: ``s``, ``ops``, ``reqps``, ``bytes``, ``percentunit``, ``short``.
    limits : from where on a number is orange, and red.
    defaults : more field options of Grafana.
    """

    title: str
    unit: str
    queries: tuple[Query, ...]
    description: str = ""
    kind: str = "timeseries"
    width: int = 6
    limits: tuple[float, float] | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def json(self, number: int, place: dict[str, int]) -> dict[str, Any]:
        """Return it as Grafana wants it."""
        least = {} if self.kind == "stat" else {"min": 0}
        defaults = {"unit": self.unit, **least, **self.defaults, **self._thresholds()}
        panel: dict[str, Any] = {"id": number, "type": self.kind, "title": self.title}
        if self.description:
            panel["description"] = self.description
        panel |= {"gridPos": place, "datasource": SOURCE, "fieldConfig": {"defaults": defaults, "overrides": []}}
        if self.options:
            panel["options"] = self.options
        return panel | {"targets": [query.target(place) for place, query in enumerate(self.queries)]}

    def _thresholds(self) -> dict[str, Any]:
        if self.limits is None:
            return {}
        colours = zip(("green", "orange", "red"), (None, *self.limits), strict=True)
        steps = [{"color": colour, "value": value} for colour, value in colours]
        return {"thresholds": {"mode": "absolute", "steps": steps}}


@dataclass(frozen=True)
class PanelRow:
    """Panels side by side under a heading; they wrap when the grid is full."""

    title: str
    panels: tuple[Panel, ...]
    height: int = 8


def quantile(share: float, metric: str, by: str = "", where: str = "") -> str:
    """Return the query of a histogram's quantile."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share:.2f}, sum by ({labels}) (rate({metric}_bucket{where}{RATE})))"


def quantiles(metric: str, *shares: float, where: str = "") -> tuple[Query, ...]:
    """Return one query for each quantile."""
    return tuple(Query(quantile(share, metric, where=where), f"p{share * 100:.0f}") for share in shares)


def mean(metric: str) -> str:
    """Return the query of a histogram's mean."""
    return f"sum(rate({metric}_sum{RATE})) / sum(rate({metric}_count{RATE}))"


def rate(metric: str, by: str = "", where: str = "") -> str:
    """Return the query of a counter's rate, summed by labels."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{where}{RATE}))"


ANSWERED = f'sum(rate(nightjar_outcomes_total{{status=~"classified|forecast"}}{RATE}))'
NAMED = "{{model}} {{version}} ({{provider}})"
EXPERTS = rate("nightjar_expert_load_total", "layer, expert")

GLANCE = PanelRow(
    "",
    (
        Panel(
            "Light curves answered", "ops", (Query(rate("nightjar_outcomes_total")),),
            kind="stat", width=4, defaults={"decimals": 1},
        ),
        Panel(
            "Latency p99", "s", (Query(quantile(0.99, "nightjar_request_duration_seconds", where=ASKED)),),
            "From the first byte of a request to the last of its reply.", "stat", 4,
        ),
        Panel(
            "Server errors", "percentunit",
            (
                Query(
                    f'(sum(rate(nightjar_requests_total{{code=~"5.."}}{RATE})) or vector(0))'
                    f" / sum(rate(nightjar_requests_total{RATE}))"
                ),
            ),
            "Share of requests answered 5xx.", "stat", 4, (0.001, 0.01),
        ),
        Panel(
            "Predicted backlog", "s", (Query("max(nightjar_queue_work_seconds)"),),
            "Work in the queue, in seconds of this machine. Requests are refused beyond NIGHTJAR_MAX_QUEUED_SECONDS.",
            "stat", 4, (2, 8),
        ),
        Panel(
            "Model", "short",
            (Query("count by (model, version, provider) (nightjar_model_info)", NAMED),),
            kind="stat", width=8, options={"textMode": "name", "colorMode": "none", "graphMode": "none"},
        ),
    ),
    height=4,
)  # fmt: skip
TRAFFIC = PanelRow(
    "Traffic",
    (
        Panel("Requests by route", "reqps", (Query(rate("nightjar_requests_total", "route"), "{{route}}"),), width=8),
        Panel(
            "Light curves and packets by survey and outcome", "ops",
            (Query(rate("nightjar_outcomes_total", "survey, status"), "{{survey}} {{status}}"),), width=8,
        ),
        Panel(
            "Requests in progress", "short",
            (
                Query("sum(nightjar_inflight_requests)", "in progress"),
                Query(rate("nightjar_withdrawn_total"), "clients gone, per second"),
            ),
            width=8,
        ),
    ),
)  # fmt: skip
ERRORS = PanelRow(
    "Errors",
    (
        Panel(
            "Requests not answered 2xx, by status", "reqps",
            (Query(rate("nightjar_requests_total", "code", '{code!~"2.."}'), "{{code}}", "code"),), width=8,
        ),
        Panel(
            "Requests turned away, by reason", "reqps",
            (Query(rate("nightjar_rejected_total", "reason"), "{{reason}}", "reason"),),
            "Overload, deadlines, draining: requests that were fine in themselves.", width=8,
        ),
        Panel(
            "Light curves and packets without an answer, by reason", "ops",
            (
                Query(
                    rate("nightjar_outcomes_total", "status, reason", '{status!~"classified|forecast"}'),
                    "{{status}} {{reason}}", "reason",
                ),
            ),
            width=8,
        ),
    ),
)  # fmt: skip
LATENCY = PanelRow(
    "Latency",
    (
        Panel(
            "Requests for light curves", "s",
            quantiles("nightjar_request_duration_seconds", 0.5, 0.9, 0.99, where=ASKED),
        ),
        *(
            Panel(
                f"Stages, p{share * 100:.0f}", "s",
                (Query(quantile(share, "nightjar_stage_duration_seconds", "stage"), "{{stage}}"),),
            )
            for share in (0.5, 0.9, 0.99)
        ),
    ),
)  # fmt: skip
BATCHES = PanelRow(
    "Queue and batches",
    (
        Panel(
            "Queue depth", "short", (Query("sum(nightjar_queue_depth)", "waiting"),),
            "Light curves waiting for a worker.", width=4,
        ),
        Panel(
            "RequestQueue and longest run", "s",
            (
                Query("max(nightjar_queue_work_seconds)", "predicted backlog"),
                Query("max(nightjar_oldest_run_seconds)", "longest run"),
            ),
            "Predicted time to work through the queue, and the age of the longest run under way: one that only grows "
            "is stuck.",
            width=5,
        ),
        Panel(
            "Batch size", "short",
            (Query(mean("nightjar_batch_size"), "mean"), *quantiles("nightjar_batch_size", 0.5, 0.99)),
            "Light curves in one run of the network.", width=5,
        ),
        Panel(
            "Observations in a batch", "short", (Query(mean("nightjar_batch_tokens"), "mean"),),
            "With padding, and times to forecast.", width=5,
        ),
        Panel(
            "Padding and cost model", "short",
            (
                Query(mean("nightjar_batch_padding_ratio"), "padding, mean"),
                Query(quantile(0.5, "nightjar_cost_model_error_ratio"), "measured / predicted, p50"),
                Query(quantile(0.9, "nightjar_cost_model_error_ratio"), "measured / predicted, p90"),
            ),
            "Padded over real observations (1 is no padding), and measured over predicted duration of a run (1 is a "
            "perfect cost model).",
            width=5, defaults={"decimals": 2},
        ),
    ),
)  # fmt: skip
NETWORK = PanelRow(
    "The network",
    (
        Panel(
            "Class mix", "ops", (Query(rate("nightjar_predicted_class_total", "class"), "{{class}}"),),
            "Light curves by most probable class. A change that no survey explains is drift.", width=8,
            defaults={"custom": {"fillOpacity": 60, "lineWidth": 0, "stacking": {"mode": "percent", "group": "A"}}},
        ),
        Panel(
            "Confidence", "percentunit", quantiles("nightjar_confidence", 0.1, 0.5, 0.9),
            "Probability of the most probable class.", width=5, defaults={"max": 1},
        ),
        Panel(
            "Observations by band", "ops", (Query(rate("nightjar_observations_total", "band"), "{{band}}"),), width=5
        ),
        Panel(
            "Busiest expert of each layer", "short",
            (Query(f"max by (layer) ({EXPERTS}) / avg by (layer) ({EXPERTS})", "layer {{layer}}"),),
            "Its share of the observations over an even share: 1 is perfect balance, the number of experts collapse.",
            defaults={"decimals": 2},
        ),
        Panel(
            "Observations by layer and expert, over the time shown", "percentunit",
            (
                Query(
                    "sum by (layer, expert) (increase(nightjar_expert_load_total[$__range]))"
                    " / on (layer) group_left () sum by (layer) (increase(nightjar_expert_load_total[$__range]))",
                    "{{layer}} / {{expert}}", instant=True,
                ),
            ),
            kind="bargauge", width=18, defaults={"max": 1, "decimals": 1},
            options={"orientation": "vertical", "displayMode": "basic"},
        ),
        Panel(
            "Per light curve", "short",
            (
                Query(f"{rate('nightjar_missing_metadata_total')} / {ANSWERED}", "metadata columns missing"),
                Query(f"{rate('nightjar_truncated_total')} / {ANSWERED}", "share cut"),
            ),
            "Metadata columns missing, and the share of light curves cut to the network's limits.",
            defaults={"decimals": 2},
        ),
    ),
    height=9,
)  # fmt: skip
PROCESS = PanelRow(
    "The process",
    (
        Panel("Resident memory", "bytes", (Query('process_resident_memory_bytes{job=~"nightjar.*"}', "{{instance}}"),)),
        Panel(
            "Cores in use", "short",
            (Query(f'rate(process_cpu_seconds_total{{job=~"nightjar.*"}}{RATE})', "{{instance}}"),),
        ),
        Panel(
            "Event loop lag, p99", "s",
            (Query(quantile(0.99, "nightjar_event_loop_lag_seconds", "instance", SERVICE), "{{instance}}"),),
            "How late the event loop wakes a timer: what every request waits for on top of its own work.",
        ),
        Panel(
            "Faults of the engine", "short",
            (
                Query(
                    f"sum by (fault, outcome) (increase(nightjar_engine_faults_total{RATE}))", "{{fault}}, {{outcome}}"
                ),
            ),
            "Runs that hung, memory that was not there, a provider or a thread that was lost. A fault that ends the "
            "process shows as a restart.",
            defaults={"decimals": 0},
        ),
    ),
    height=7,
)  # fmt: skip
MODELS = PanelRow(
    "Models and results",
    (
        Panel(
            "Light curves by model", "ops",
            (Query(rate("nightjar_model_curves_total", "model, version, role"), "{{model}} {{version}}, {{role}}"),),
            "A canary answers a share of what is asked of a name; a fallback what would have been refused.",
        ),
        Panel(
            "Requests answered by a canary or the fallback", "reqps",
            (Query(rate("nightjar_substitutes_total", "role"), "{{role}}", "role"),),
        ),
        Panel(
            "Bundles", "short",
            (
                Query("sum by (instance) (nightjar_models_failing)", "cannot be served, {{instance}}"),
                Query(f"sum by (outcome) (increase(nightjar_model_loads_total{RATE}))", "{{outcome}}", "outcome"),
            ),
            "In the repository: those that failed (the log and the admin interface say why; what they were to replace "
            "goes on answering), and loads.",
            defaults={"decimals": 0},
        ),
        Panel("Loading a model", "s", (Query("max by (task) (nightjar_model_load_seconds)", "{{task}}"),)),
        Panel(
            "Light curves compared with a shadow", "ops",
            (Query(rate("nightjar_shadow_curves_total", "outcome"), "{{outcome}}", "outcome"),),
        ),
        Panel(
            "Distance and delay of a shadow, median", "short",
            (
                Query(quantile(0.5, "nightjar_shadow_distance"), "total-variation distance", "none"),
                Query(quantile(0.5, "nightjar_shadow_seconds"), "delay, s", "none"),
            ),
        ),
        Panel(
            "Where results were found", "ops",
            (Query(rate("nightjar_cache_answers_total", "found"), "{{found}}", "found"),),
            "none: the network was asked.",
        ),
        Panel(
            "Kept results", "bytes",
            (
                Query("sum(nightjar_cache_bytes)", "in memory"),
                Query(f"sum(increase(nightjar_cache_errors_total{RATE}))", "failures of Redis"),
            ),
        ),
    ),
    height=7,
)  # fmt: skip
STREAM = PanelRow(
    "Stream workers",
    (
        Panel(
            "Alerts taken, and how they left", "ops",
            (
                Query(rate("nightjar_stream_in_total"), "taken"),
                Query(rate("nightjar_stream_out_total", "ending, reason"), "{{ending}} {{reason}}", "ending"),
            ),
            "dead: kept with the dead letters; returned: for the broker to deliver again.",
        ),
        Panel(
            "Behind and under way", "short",
            (
                Query("sum by (topic) (nightjar_stream_lag_messages)", "waiting at the broker, {{topic}}", "topic"),
                Query("sum(nightjar_stream_inflight_messages)", "under way"),
            ),
        ),
        Panel(
            "Standing still", "s",
            (
                Query('max by (instance) (nightjar_stream_untaken_seconds{job="nightjar-worker"})', "{{instance}}"),
                Query('sum(nightjar_stream_not_ready{job="nightjar-worker"})', "workers that are not ready"),
            ),
            "Seconds since a worker took anything although messages wait; its /readyz says why.",
        ),
        Panel(
            "Partitions and rebalances", "short",
            (
                Query('sum by (instance) (nightjar_stream_assigned_partitions{job="nightjar-worker"})', "{{instance}}"),
                Query(f"sum(increase(nightjar_stream_rebalance_seconds_count{RATE}))", "rebalances"),
            ),
        ),
        Panel(
            "Age of alerts when answered", "s",
            tuple(Query(quantile(share, "nightjar_stream_alert_age_seconds"), f"p{share * 100:.0f}", "none")
                  for share in (0.5, 0.99)),
            "From mid-exposure to the acknowledged answer; replays are left out.", width=5,
        ),
        Panel(
            "Age of messages when taken", "s",
            tuple(Query(quantile(share, "nightjar_stream_broker_age_seconds"), f"p{share * 100:.0f}", "none")
                  for share in (0.5, 0.99)),
            "From the broker's timestamp.", width=5,
        ),
        Panel(
            "Worker, stages of a batch, p90", "s",
            (Query(quantile(0.9, "nightjar_stream_stage_duration_seconds", "stage"), "{{stage}}", "stage"),), width=5,
        ),
        Panel(
            "Tries repeated", "ops", (Query(rate("nightjar_stream_retries_total", "step"), "{{step}}", "step"),),
            "What is failing now also shows in a worker's /readyz.", width=5,
        ),
        Panel(
            "Dead letters cut short", "short",
            (Query(f"sum(increase(nightjar_stream_dead_letters_shortened_total{RATE}))"),),
            "Of those too large for their topic only the beginning is kept.", width=4,
        ),
    ),
    height=7,
)  # fmt: skip
KEYS = PanelRow(
    "API keys",
    (
        Panel(
            "Requests by key", "reqps", (Query(rate("nightjar_key_requests_total", "key"), "{{key}}", "key"),), width=8,
        ),
        Panel(
            "Light curves by key", "ops", (Query(rate("nightjar_key_curves_total", "key"), "{{key}}", "key"),), width=8,
        ),
        Panel(
            "Refused beyond a limit of the key", "reqps",
            (Query(rate("nightjar_key_refused_total", "key, limit"), "{{key}}, {{limit}}", "key"),), width=8,
        ),
    ),
    height=7,
)  # fmt: skip
ROWS: Final = (GLANCE, TRAFFIC, ERRORS, LATENCY, BATCHES, NETWORK, PROCESS, MODELS, KEYS, STREAM)


def queries() -> list[tuple[str, Query]]:
    """Return every query with the title of its panel."""
    return [(panel.title, query) for row in ROWS for panel in row.panels for query in panel.queries]


def page(_: str = "") -> str:
    """Return the text of the dashboard's file."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in ROWS:
        if row.title:
            place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
            heading = {"id": len(panels) + 1, "type": "row", "title": row.title, "collapsed": False}
            panels.append({**heading, "gridPos": place, "panels": []})
            top += 1
        column = 0
        for panel in row.panels:
            if column + panel.width > WIDTH:
                column, top = 0, top + row.height
            place = {"x": column, "y": top, "w": panel.width, "h": row.height}
            panels.append(panel.json(len(panels) + 1, place))
            column += panel.width
        top += row.height
    head = json.dumps(_HEAD, indent=1).removesuffix("\n}")
    lines = ",\n  ".join(map(json.dumps, panels))  # a panel on each line, so that a change of one is a change of a line
    return f'{head},\n "panels": [\n  {lines}\n ]\n}}\n'


_HEAD: Final = {
    "uid": "nightjar",
    "title": "Nightjar",
    "description": "Classification of astronomical alerts: traffic, latency, errors, batches, queue, what the "
    "network is doing, streams.",
    "tags": ["nightjar"],
    "schemaVersion": 39,
    "version": 2,
    "editable": False,
    "graphTooltip": 1,
    "refresh": "10s",
    "time": {"from": "now-30m", "to": "now"},
    "timezone": "utc",
    "templating": {"list": []},
    "annotations": {"list": []},
}
