"""Generated pages of docs/: benchmarks from docs/results/, metrics and settings from what the service declares.

A measurement is a file that ``python -m deploy.bench`` wrote: flat keys, each a number or a median with the full range
of its rounds, and what they hold for: version of the bundle, commit, machine, date. A table has one row for each file
that holds any of its figures, the newest first, so no row mixes versions or machines. The page's own text stands
around the tables, each between two comments: ``<!-- table: NAME -->`` and ``<!-- end of table -->``.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase
from pydantic.fields import FieldInfo

from deploy.bench.report import AIMS
from nightjar_alerts.models.common import markdown_table
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.settings import ClientSettings, Settings, StreamSettings, settings_table

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
SLOT = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)

Measurement = dict[str, Any]


class Figure(NamedTuple):
    """A column: the key in the files, its heading, and what was aimed at where the benchmark itself does not say."""

    key: str
    heading: str
    other_aim: str = ""

    @property
    def aim(self) -> str:
        """Aim of the figure; "" where there is none."""
        aim = AIMS.get(self.key)
        return f"{aim.bound} {aim.value:g}" if aim else self.other_aim


SERVICE = (
    Figure("http.requests_per_s", "requests/s"),
    Figure("http.p50_ms", "p50, ms"),
    Figure("http.p99_ms", "p99, ms"),
    Figure("bare.one_caller_per_s", "bare, one caller, curves/s"),
    Figure("bare.all_cores_per_s", "bare, all cores, curves/s"),
    Figure("http.ratio_to_bare_all_cores", "service / bare, all cores"),
    Figure("http.cpu_ms_per_request", "CPU a request, ms"),
    Figure("bare.cpu_ms_per_curve", "CPU a bare curve, ms"),
)
START = (
    Figure("coldstart.ready_s", "start to ready, s"),
    Figure("coldstart.first_s", "first start on a machine, s"),
    Figure("coldstart.rss_mb", "memory once ready, MB"),
    Figure("memory.rss_mb.at_2000", "after 2,000 requests, MB"),
    Figure("memory.rss_mb.at_10000", "after 10,000 requests, MB"),
)
POLICY = (
    Figure("engine.policy_speedup.fifo_count_64", "over first come, 64 curves"),
    Figure("engine.policy_speedup.fifo_token_budget", "over first come, 4,096 points"),
    Figure("engine.policy_speedup.window_5ms", "over a window of 5 ms"),
    Figure("engine.policy_speedup.one_by_one", "over one by one"),
    Figure("engine.p99_half_load_vs_one_by_one", "p99 at half load / one by one"),
    Figure("engine.simulation_error", "simulator's largest error"),
)
OVERHEAD = (
    Figure("engine.vs_bare.msgpack_64", "msgpack by 64 / bare"),
    Figure("engine.vs_bare.json_1", "JSON, 32 in flight / bare"),
    Figure("engine.bare_among_32_vs_bare", "bare that chooses among 32 / bare"),
    Figure("engine.vs_bare.json_1_128", "JSON, 128 in flight / bare"),
    Figure("engine.burst_10k_vs_ideal", "10,000 at once, time / bare"),
    Figure("engine.lone_p50_overhead_ms", "added to a lone request, ms"),
)
LONE = (
    Figure("engine.lone_p50_ms", "asked, ms"),
    Figure("engine.lone_bare_p50_ms", "bare, ms"),
    Figure("engine.lone_us.receive", "receive"),
    Figure("engine.lone_us.decode", "decode"),
    Figure("engine.lone_us.validate", "validate"),
    Figure("engine.lone_us.featurise", "featurise"),
    Figure("engine.lone_us.queue", "queue"),
    Figure("engine.lone_us.assemble", "assemble"),
    Figure("engine.lone_us.run_over_bare", "run beyond bare"),
    Figure("engine.lone_us.encode", "encode"),
    Figure("engine.lone_us.between", "between stages"),
    Figure("engine.lone_us.outside", "outside"),
)
STREAM = (
    Figure("stream.visit_10k_s", "10,000 alerts in 5 s, answered after, s"),
    Figure("stream.visit_10k_peak_mb", "its most memory, MB"),
    Figure("stream.visit_40k_s", "40,000 in 5 s, answered after, s"),
    Figure("stream.visit_40k_peak_mb", "its most memory, MB"),
    Figure("stream.age_p50_ms", "age at 270/s, p50, ms"),
    Figure("stream.age_p99_ms", "p99, ms"),
    Figure("stream.decode_vs_fastavro", "decoding / fastavro"),
)
DRAIN = (
    Figure("stream.drain_per_s.workers_1", "alerts/s, 1 worker"),
    Figure("stream.drain_per_s.workers_2", "2 workers"),
    Figure("stream.drain_per_s.workers_4", "4 workers"),
    Figure("stream.vs_bare", "best / bare at its best"),
    Figure("stream.vs_bare_one_by_one", "best / bare, one by one"),
)
BACKLOG = (
    Figure("stream.backlog.alerts", "alerts that wait"),
    Figure("stream.backlog.answered", "answered between the readings"),
    Figure("stream.backlog.early_mb", "memory before, MB"),
    Figure("stream.backlog.late_mb", "after, MB", "at most 1.1 times"),
)
KAFKA = (
    Figure("kafka.visit_10k_s", "10,000 alerts, s"),
    Figure("kafka.visit_40k_s", "40,000, s"),
    Figure("kafka.age_p50_ms.at_least_once", "age at 270/s, p50, ms"),
    Figure("kafka.age_p99_ms.at_least_once", "p99, ms"),
    Figure("kafka.age_p50_ms.exactly_once", "exactly once, p50, ms"),
    Figure("kafka.age_p99_ms.exactly_once", "p99, ms"),
)
KAFKA_DRAIN = (
    Figure("kafka.drain_per_s.workers_1", "alerts/s, 1 worker"),
    Figure("kafka.drain_per_s.workers_2", "2 workers"),
    Figure("kafka.drain_per_s.workers_4", "4 workers"),
    Figure("kafka.at_least_once_per_s", "at least once"),
    Figure("kafka.exactly_once_per_s", "exactly once"),
    Figure("kafka.exactly_once_price", "price of exactly once, share (interval)"),
    Figure("kafka.price_rounds", "rounds"),
    Figure("kafka.commit_often_ratio", "alerts/s, commits often / seldom (interval)", "up to at least 0.97"),
    Figure("kafka.commit_rounds", "rounds"),
)
KAFKA_FAULTS = (
    Figure("kafka.standstill_s", "standstill at a rebalance, s"),
    Figure("kafka.standstill_s.worst", "worst, s"),
    Figure("kafka.rebalances", "of so many trials"),
    Figure("kafka.repeats_per_rebalance", "repeats a rebalance"),
    Figure("kafka.repeats_per_kill", "repeats a kill at 270/s"),
    Figure("kafka.kills", "of so many kills"),
    Figure("kafka.repeats_per_kill_full_load", "repeats a kill at full load"),
    Figure("kafka.kills_full_load", "of so many kills"),
    Figure("kafka.return_to_first_answer_s.killed.at_least_once", "killed broker back to first answer, s"),
    Figure("kafka.return_to_first_answer_s.killed.exactly_once", "the same, exactly once, s"),
    Figure("kafka.return_to_first_answer_s.silent.at_least_once", "silent broker back to first answer, s"),
    Figure("kafka.return_to_first_answer_s.silent.exactly_once", "the same, exactly once, s"),
)
HOSTILE = (
    Figure("hostile.worst_stall_ms", "longest stall of a good client, ms", "at most 500"),
    Figure("hostile.worst_memory_mb", "most memory gained, MB", "at most 150"),
    Figure("hostile.worst_p99_ratio", "p99 / without the attack, worst", "at most 3"),
    Figure("hostile.worst_floor_ratio", "floor / without the attack, worst"),
    Figure("hostile.worst_p99_over_floor", "p99 / floor, worst"),
)
ATTACKS = (
    Figure("sent_mb", "sent, MB"),
    Figure("worst_stall_ms", "longest wait of a good client, ms"),
    Figure("p99_ms", "p99, ms"),
    Figure("floor_p99_ms", "p99 while a sink is attacked (floor), ms"),
    Figure("quiet_p99_ms", "p99 without the attack, ms"),
    Figure("failures", "not answered"),
    Figure("memory_mb", "memory gained, MB"),
    Figure("memory_after_mb", "not given back, MB"),
    Figure("loop_busy", "event loop computes, share of the time"),
)
"""Figures of each attack, below ``hostile.attack.NAME``."""
ATTACKS_BEFORE = (
    Figure("worst_stall_ms", "before: longest wait, ms"),
    Figure("failures", "before: not answered"),
    Figure("memory_mb", "before: memory gained, MB"),
    Figure("memory_after_mb", "before: not given back, MB"),
)
"""Figures of each attack on the service before its repairs, below ``hostile.before.NAME``."""
HOSTILE_STREAM = (
    Figure("hostile.worker.worst_age_ms", "oldest good alert, ms"),
    Figure("hostile.worker.worst_p99_ratio", "p99 of ages / without harm"),
    Figure("hostile.worker.worst_memory_mb", "most memory gained, MB", "at most 150"),
    Figure("hostile.worker.good_answered", "good alerts, all answered"),
)
BEFORE = (
    Figure("before.json_1.throughput_ratio", "JSON: curves/s, now / then (interval)", "up to at least 0.97"),
    Figure("before.json_1.cpu_ratio", "JSON: processor time, now / then"),
    Figure("before.msgpack_64.throughput_ratio", "msgpack, 64: curves/s, now / then (interval)", "up to at least 0.97"),
    Figure("before.msgpack_64.cpu_ratio", "msgpack, 64: processor time, now / then"),
)
BEFORE_STREAM = (
    Figure("before.stream.throughput_ratio", "alerts/s, now / then (interval)", "up to at least 0.97"),
    Figure("before.stream.cpu_ratio", "processor time, now / then"),
)
LEAN = (
    Figure("lean.lone6_vs_1_2_0", "1 of 6 points"),
    Figure("lean.lone30_vs_1_2_0", "1 of 30", "at most 0.45"),
    Figure("lean.lone100_vs_1_2_0", "1 of 100", "at most 0.5"),
    Figure("lean.b32_l60_vs_1_2_0", "32 of 60", "at most 0.6"),
    Figure("lean.b8_l390_vs_1_2_0", "8 of 390", "at most 0.6"),
    Figure("lean.nodes", "operations in a run", "at most 600"),
    Figure("lean.products_b32_l60", "matrix products, share of the time at 32 of 60", "at least 0.6"),
)
LEAN_NATIVE = (
    Figure("lean.native_lone6_vs_1_2_0", "1 of 6 points"),
    Figure("lean.native_lone30_vs_1_2_0", "1 of 30", "at most 0.45"),
    Figure("lean.native_lone100_vs_1_2_0", "1 of 100", "at most 0.5"),
    Figure("lean.native_b32_l60_vs_1_2_0", "32 of 60", "at most 0.6"),
    Figure("lean.native_b8_l390_vs_1_2_0", "8 of 390", "at most 0.6"),
    Figure("lean.native_nodes", "operations in a run", "at most 600"),
    Figure("lean.native_products_b32_l60", "matrix products, share of the time at 32 of 60", "at least 0.6"),
    Figure("lean.native_share_of_other_answers", "answers that differ by more than 1e-5", "at most 0.001"),
)
LEAN_SHIPPED = (
    Figure("lean.shipped_lone6", "1 of 6 points"),
    Figure("lean.shipped_lone30", "1 of 30"),
    Figure("lean.shipped_lone100", "1 of 100"),
    Figure("lean.shipped_b32_l60", "32 of 60"),
    Figure("lean.shipped_b8_l390", "8 of 390"),
)
KERNELS = (
    Figure("kernels.moe_over_dense.b16_l128_t1", "over dense, 16 of 128", "at most 1.4"),
    Figure("kernels.moe_over_dense.b16_l390_t1", "16 of 390", "at most 1.25"),
    Figure("kernels.moe_over_dense.b1_l128_t1", "1 of 128", "at most 1.7"),
    Figure("kernels.moe_over_all_experts.b16_l128_t1", "over all experts, 16 of 128", "at most 0.33"),
)
CORE = (
    Figure("core.onnxruntime", "onnxruntime, batches"),
    Figure("core.one_by_one", "onnxruntime, one by one"),
    Figure("core.int8", "8-bit weights"),
    Figure("core.int8_moves", "most that moves a probability"),
    Figure("core.torch", "torch, without trees"),
    Figure("core.torch_compiled", "torch, compiled"),
    Figure("core.trees", "boosted trees on features"),
    Figure("core.trees_within_us", "trees within the graph, 1 of 50 points, µs"),
    Figure("core.trees_within_share", "their share of that run"),
)
GPU = (
    Figure("gpu.ms.b256_l390", "256 of 390, ms"),
    Figure("gpu.ms.b256_l60", "256 of 60, ms"),
    Figure("gpu.mix_per_s", "lengths as alerts have them, curves/s", "at least 100,000"),
    Figure("gpu.moe_over_dense.b256_l390", "experts over dense, 256 of 390", "at most 1.15"),
    Figure("gpu.service_per_s", "through the service, curves/s"),
    Figure("gpu.service_share", "share that the service reaches"),
)
TWIN = (
    Figure("twin.ratio.b1_l50", "1 curve of 50 points"),
    Figure("twin.ratio.b16_l128", "16 of 128"),
    Figure("twin.ratio.b64_l32", "64 of 32"),
)
TABLES: dict[str, Sequence[Figure]] = {
    "service": SERVICE,
    "start": START,
    "policy": POLICY,
    "overhead": OVERHEAD,
    "lone": LONE,
    "stream": STREAM,
    "drain": DRAIN,
    "backlog": BACKLOG,
    "kafka": KAFKA,
    "kafka-drain": KAFKA_DRAIN,
    "kafka-faults": KAFKA_FAULTS,
    "before": BEFORE,
    "before-stream": BEFORE_STREAM,
    "hostile": HOSTILE,
    "hostile-stream": HOSTILE_STREAM,
    "core": CORE,
    "gpu": GPU,
    "kernels": KERNELS,
    "lean": LEAN,
    "lean-native": LEAN_NATIVE,
    "lean-shipped": LEAN_SHIPPED,
    "twin": TWIN,
}
MEASURED = "commit, machine, date"
PEER_HEADS = ("server", "light curves/s", "p50, ms", "p99, ms", "version", MEASURED)
DEFAULT = "astro-moe-elasticc "  # a version of any other model is shown with its name


def benchmarks_page(text: str) -> str:
    """Return docs/benchmarks.md with every table made anew."""
    measured = measurements()

    def filled(slot: re.Match[str]) -> str:
        name = slot["name"]
        if name == "missed":
            table = missed(measured, sections(text))
        else:
            render = {"peers": peers, "attacks": attacks}.get(name)
            table = render(measured) if render else rows_of(TABLES[name], measured)
        return f"{slot[1]}\n{table}\n{slot[3]}"

    return SLOT.sub(filled, text)


def sections(text: str) -> dict[str, str]:
    """Return the heading under which each table of a page stands."""
    places = {}
    heading = ""
    for line in text.splitlines():
        if match := re.match(r"#+ (.+)", line):
            heading = match[1]
        elif slot := re.fullmatch(r"<!-- table: ([\w-]+) -->", line):
            places[slot[1]] = heading
    return places


AIM = re.compile(r"(?P<end>up to )?at (?P<side>least|most) (?P<bound>[\d.,]+)")


def missed(measured: Sequence[Measurement], headings: dict[str, str]) -> str:
    """Return how many figures with an aim meet it in their newest measurement, and a table of those that do not."""
    met, never, rows = 0, 0, []
    for name, figures in TABLES.items():
        for figure in figures:
            if (aim := AIM.fullmatch(figure.aim)) is None:
                continue
            newest = next((one for one in measured if figure.key in one), None)
            if newest is None:
                never += 1
            elif _meets(newest, figure.key, aim):
                met += 1
            else:
                value = _with_interval(newest, figure.key)
                link = _link(headings.get(name, name))
                rows.append([link, figure.heading, figure.aim, value, _version(newest), _held_for(newest)])
    count = f"Of {met + never + len(rows)} figures with an aim {met} meet it in their newest measurement"
    count += f", {never} were never measured" if never else ""
    head = ["section", "figure", "wanted", "newest", "version", MEASURED]
    return f"{count}, {len(rows)} do not:\n\n{markdown_table(head, rows)}\n"


def _meets(one: Measurement, key: str, aim: re.Match[str]) -> bool:
    """Return whether a figure reaches its aim; where the aim is for an interval, its upper end counts."""
    value = _middle(one.get(f"{key}.high", one[key]) if aim["end"] else one[key])
    bound = float(aim["bound"].replace(",", ""))
    return value <= bound if aim["side"] == "most" else value >= bound


def _link(heading: str) -> str:
    anchor = re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
    return f"[{heading}](#{anchor})"


def measurements(folder: Path = RESULTS) -> list[Measurement]:
    """Return all measurements, the newest version first."""
    # Of files of one day the last by name is the newest.
    files = sorted(folder.glob("bench-*.json"), key=lambda path: path.stem, reverse=True)
    measured: list[Measurement] = [json.loads(path.read_text()) for path in files]
    return sorted(measured, key=lambda one: (one["date"], one["bundle"]), reverse=True)


def rows_of(figures: Sequence[Figure], measured: Sequence[Measurement]) -> str:
    """Return a Markdown table with a row for each measurement that holds any of the figures."""
    mine = [one for one in measured if any(figure.key in one for figure in figures)]
    columns = [figure for figure in figures if any(figure.key in one for one in mine)]
    if not mine:
        return "*Not measured yet.*\n"
    rows = [["version", *(figure.heading for figure in columns), MEASURED]]
    if any(figure.aim for figure in columns):
        rows.append(["*wanted*", *(f"*{figure.aim}*" if figure.aim else "" for figure in columns), ""])
    rows += [[_version(one), *(_with_interval(one, figure.key) for figure in columns), _held_for(one)] for one in mine]
    return markdown_table(rows[0], rows[1:]) + "\n"


def peers(measured: Sequence[Measurement]) -> str:
    """Return a Markdown table of other servers, the quickest of each measurement first."""
    rows = [list(PEER_HEADS)]
    for one in measured:
        rates = {
            key.split(".")[1]: _middle(value) for key, value in one.items() if re.fullmatch(r"peers\..+\.per_s", key)
        }
        for server in sorted(rates, key=lambda name: -rates[name]):
            figures = [_figure_cell(one[f"peers.{server}.{key}"]) for key in ("per_s", "p50_ms", "p99_ms")]
            rows.append([_server(server), *figures, _version(one), _held_for(one)])
    return markdown_table(rows[0], rows[1:]) + "\n"


POLICIES: Final = {
    "nightjar": "by predicted cost (Nightjar)",
    "one_by_one": "one by one",
    "fifo_token_budget": "first come, 4,096 padded points",
    "fifo_count_64": "first come, 64 light curves",
    "window_5ms": "window of 5 ms, 64 light curves",
}
_SIMULATED: Final = {
    "per_s": "answered per second, all of them waiting",
    "p50_ms": "p50 at 70 % of Nightjar's most, ms",
    "p99_ms": "p99, ms",
    "visit_p99_ms": "p99 of visits, ms",
}


def simulated(measured: Sequence[Measurement]) -> str:
    """Return a Markdown table of the policies of the newest simulation."""
    newest = next((one for one in measured if "simulation.nightjar.per_s" in one), None)
    if newest is None:
        return "*Not simulated yet.*\n"
    rows = [
        [name, *(_figure_cell(newest.get(f"simulation.{policy}.{key}")) for key in _SIMULATED)]
        for policy, name in POLICIES.items()
    ]
    about = f"{newest['bundle']}, {_held_for(newest)}"
    return markdown_table(["policy", *_SIMULATED.values()], rows) + f"\n\n({about})\n"


def batching_page(text: str) -> str:
    """Return docs/batching.md with the table of the simulator made anew."""
    measured = measurements()
    return SLOT.sub(lambda slot: f"{slot[1]}\n{simulated(measured)}\n{slot[3]}", text)


def attacks(measured: Sequence[Measurement]) -> str:
    """Return a Markdown table of the attacks of the newest measurement that has any, beside the newest from before."""
    now, before = (
        next((one for one in measured if any(key.startswith(f"hostile.{group}.") for key in one)), {})
        for group in ("attack", "before")
    )
    if not now:
        return "*Not measured yet.*\n"
    names = dict.fromkeys(key.split(".")[2] for key in now if key.startswith("hostile.attack."))
    columns = [(figure.heading, now, f"hostile.attack.{{}}.{figure.key}") for figure in ATTACKS]
    columns += [(figure.heading, before, f"hostile.before.{{}}.{figure.key}") for figure in ATTACKS_BEFORE]
    filled = [column for column in columns if any(column[2].format(name) in column[1] for name in names)]
    rows = [
        [name.replace("_", " "), *(_figure_cell(one.get(key.format(name))) for _, one, key in filled)] for name in names
    ]
    return markdown_table(["attack", *(heading for heading, _, _ in filled)], rows) + "\n"


def _version(one: Measurement) -> str:
    return str(one["bundle"]).removeprefix(DEFAULT)


def _held_for(one: Measurement) -> str:
    by = f", {one['measured_by']}" if "measured_by" in one else ""
    return f"`{one['commit'][:8]}`, {one['machine.cpu']} ({one['machine.cores']} cores), {one['date']}{by}"


def _server(key: str) -> str:
    name, _, batch = key.partition("_batch_")
    return f"{name}, batches of {batch}" if batch else name


def _middle(value: Any) -> float:
    return float(value["median"] if isinstance(value, dict) else value)


def _with_interval(one: Measurement, key: str) -> str:
    """Cell of a figure, with the interval that the measurement holds beside it under ``KEY.low`` and ``KEY.high``."""
    low, high = one.get(f"{key}.low"), one.get(f"{key}.high")
    interval = "" if low is None or high is None else f" ({_number(low)} to {_number(high)})"
    return _figure_cell(one.get(key)) + interval


def _figure_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):  # a time that never comes
        return value
    if isinstance(value, dict):
        return f"{_number(value['median'])} ± {_spread(value['spread'])}"
    return _number(value)


def _spread(value: float) -> str:
    """Two digits: a spread is known no better."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:.3g}"


MOST_LABELS = 8
SUFFIX = {"counter": "_total"}
METRICS_HEAD = """# Metrics

<!-- Written by `python -m deploy.pages`. Change the texts in service/observe/metrics.py. -->

The service answers `GET /metrics` on its own port, the worker on `NIGHTJAR_WORKER_PORT`, in Prometheus' text format.
Times are seconds and sizes bytes. A histogram has the series `_bucket`, `_sum` and `_count`. The usual metrics of a
Python process (`process_*`, `python_*`) are there as well. The alerts made from them are in
[operations](operations.md#runbook).

| metric | type | labels | meaning |
|---|---|---|---|
"""


def metrics_page(_: str = "") -> str:
    """Return the text of docs/metrics.md."""
    return METRICS_HEAD + "".join(sorted(map(_metric_row, declared())))


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


def _metric_row(metric: MetricWrapperBase) -> str:
    family = next(iter(metric.describe()))
    name = family.name + SUFFIX.get(family.type, "")
    names = ", ".join(f"`{label}`" for label in labels(metric))
    meaning = family.documentation.replace("|", "\\|")
    return f"| `{name}` | {family.type} | {names} | {meaning} |\n"


SETTINGS_HEAD = """# Settings

<!-- Written by `python -m deploy.pages`; a test fails when it is stale. Change the fields in service/settings.py. -->

Every setting is an environment variable. The settings of the service are also options of `nightjar serve`, those of
the service and the worker options of `nightjar worker`: `NIGHTJAR_MAX_PACKETS=10` is `--max-packets 10`. A variable
that begins with `NIGHTJAR_` and names no setting is reported at the start. `nightjar settings` prints them.
"""


def settings_page(_: str = "") -> str:
    """Return the text of docs/settings.md."""
    service = Settings.model_fields
    worker = {name: field for name, field in StreamSettings.model_fields.items() if name not in service}
    sections = (
        ("The service", "", service),
        (
            "The stream worker",
            "The worker obeys the settings of the service too, those of its HTTP side excepted.",
            worker,
        ),
        ("Commands that ask a service", "", ClientSettings.model_fields),
    )
    return SETTINGS_HEAD + "".join(_settings_section(title, text, fields) for title, text, fields in sections)


def _settings_section(title: str, text: str, fields: Mapping[str, FieldInfo]) -> str:
    introduction = f"{text}\n\n" if text else ""
    return f"\n## {title}\n\n{introduction}{settings_table(fields)}"
