"""Run a service and a worker under load and faults with a real Prometheus, and draw pictures of the dashboards.

    python -m deploy.monitoring                  # four minutes; needs prometheus, redis-server and the train extra

writes ``docs/pictures/dashboard-NAME.png`` for each dashboard in ``deploy/grafana/dashboards``. The panels show what
Prometheus answers to their queries. A run is short, so the durations in queries and rules are scaled
(:func:`scaled`). The tests of dashboards and rules use the same load.
"""

import asyncio
import hashlib
import io
import itertools
import json
import math
import re
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import yaml

from deploy.bench.__main__ import sample_packets
from deploy.bench.http_load import HttpRequest, drive, request
from deploy.bench.stream import Redis, feed, redis_server, worker
from deploy.bench.workload import alert_mix, visit
from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, MODEL, load_bundle, write_manifest
from nightjar_alerts.service.local import HOST, ServiceProcess, free_port, running

DEPLOY: Final = Path(__file__).resolve().parent
DASHBOARDS: Final = DEPLOY / "grafana" / "dashboards"
RULES: Final = DEPLOY / "prometheus" / "alerts.yml"
PICTURES: Final = DEPLOY.parent / "docs" / "pictures"
OCTETS: Final = "application/octet-stream"

SECONDS: Final = {"m": 1.0, "h": 20.0, "d": 120.0}
"""Length of a minute, an hour and a day in a short run."""
SCRAPES: Final = "500ms"
"""Time between two scrapes, and between two evaluations of the rules."""
WINDOW: Final = "10s"
"""Grafana's ``$__rate_interval``: twenty scrapes."""


def scaled(expression: str, seconds: Mapping[str, float] = SECONDS) -> str:
    """Replace durations in minutes, hours and days by those of a short run, and Grafana's variables by values."""
    for variable in ("$__rate_interval", "$__range"):
        expression = expression.replace(variable, WINDOW)
    expression = expression.replace("$job", ".*")
    return re.sub(r"\b(\d+)([mhd])\b", lambda match: f"{round(1000 * int(match[1]) * seconds[match[2]])}ms", expression)


def scaled_rules(seconds: Mapping[str, float] = SECONDS) -> dict[str, Any]:
    """Return the alerting rules with scaled durations, evaluated after every scrape."""
    rules: dict[str, Any] = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        group["interval"] = SCRAPES
        for rule in group["rules"]:
            rule |= {key: scaled(rule[key], seconds) for key in ("expr", "for") if key in rule}
    return rules


class Prometheus:
    """A Prometheus server that scrapes processes on this machine twice a second.

    Parameters
    ----------
    jobs : ports of the processes, or their addresses as ``host:port``, by job name.
    rules : alerting and recording rules.
    """

    def __init__(
        self, folder: Path, jobs: Mapping[str, Sequence[int | str]], rules: Mapping[str, Any] | None = None
    ) -> None:
        self.address = f"http://{HOST}:{free_port()}"
        config: dict[str, Any] = {
            "global": dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), SCRAPES),
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [_target(process) for process in processes]}]}
                for job, processes in jobs.items()
            ],
        }
        if rules is not None:
            (folder / "rules.yml").write_text(yaml.safe_dump(rules))
            config["rule_files"] = ["rules.yml"]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with (folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={self.address.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def close(self) -> None:
        """Stop the server."""
        self._process.terminate()
        self._process.wait(60)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query; none while the server starts. Raises ValueError for a bad query."""
        return self._get("query", query=expression)

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """Return the series of a range query (times in seconds since 1970)."""
        return self._get("query_range", query=expression, start=start, end=end, step=step)

    def firing(self) -> set[tuple[str, str]]:
        """Return the name and the job of every firing alert."""
        alerts = self.query('ALERTS{alertstate="firing"}')
        return {(alert["metric"]["alertname"], alert["metric"].get("job", "")) for alert in alerts}

    def _get(self, path: str, **parameters: Any) -> list[dict[str, Any]]:
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as reply:
                series: list[dict[str, Any]] = json.load(reply)["data"]["result"]
                return series
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return []
            raise ValueError(f"{parameters['query']}\n{error.read().decode()}") from None
        except OSError:
            return []


def _target(process: int | str) -> str:
    return process if isinstance(process, str) else f"{HOST}:{process}"


@contextmanager
def prometheus(
    folder: Path, jobs: Mapping[str, Sequence[int | str]], rules: Mapping[str, Any] | None = None
) -> Iterator[Prometheus]:
    """Run a Prometheus server."""
    server = Prometheus(folder, jobs, rules)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def repeated(work: Callable[[int], None], pause: float) -> Iterator[None]:
    """Call a function with 0, 1, 2, ... in a thread until the block ends, every ``pause`` seconds."""
    stop = threading.Event()

    def repeat() -> None:
        number = 0
        while not stop.wait(pause):
            work(number)
            number += 1

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


KEYS: Final = {"broker": "key-of-the-broker", "portal": "key-of-the-portal"}
"""API keys of the clients; the portal exceeds its rate limit."""


def with_key(one: HttpRequest, name: str) -> HttpRequest:
    """Return a request with an API key."""
    return HttpRequest(one.data.replace(b"\r\n", f"\r\nX-API-Key: {KEYS[name]}\r\n".encode(), 1), one.vanish)


def classify(curves: Sequence[Mapping[str, Any]]) -> HttpRequest:
    """Return a request that classifies light curves."""
    return request("/v1/classify", orjson.dumps({"light_curves": curves}))


def too_bright(curve: Mapping[str, Any]) -> dict[str, Any]:
    """Return a light curve outside the domain of the bundled models, which they abstain from."""
    return {**curve, **{name: [1e4 * value for value in curve[name]] for name in ("flux", "flux_err")}}


def without_band(curve: Mapping[str, Any]) -> dict[str, Any]:
    """Return a light curve in a described filter that has no band, which is rejected."""
    filters = {"X": {"wavelength_nm": 5000, "width_nm": 100}}
    return {**curve, "band": ["X"] * len(curve["band"]), "filters": filters}


def http_requests(number: int, packets: Sequence[bytes]) -> list[HttpRequest]:
    """Return requests: valid and invalid light curves and packets, a disconnecting client, look-ups."""
    curves = alert_mix(24, seed=number)
    good = classify(curves[:16])
    mixed = classify([*curves[:2], too_bright(curves[2]), without_band(curves[3])])
    requests = [
        good,
        good,
        mixed,
        HttpRequest(good.data, vanish=True),
        request("/v1/classify", b'{"light_curves": [1]}'),
    ]
    requests += [request("/v1/alerts", packet, OCTETS) for packet in [*packets, b"not an alert"]]
    requests += [request("/v1/models"), request("/v1/nowhere")]
    return [with_key(one, "broker") for one in requests] + [
        with_key(classify([curve]), "portal") for curve in curves[16:]
    ]


def copy_bundle(bundle: Path, target: Path, version: str, damage: bool = False) -> None:
    """Copy a bundle into a model repository as another version; if ``damage``, modify a byte so that loading fails."""
    making = target.with_name(f".{target.name}")  # hidden from the service until it is complete
    shutil.copytree(bundle, making)
    write_manifest(making, load_bundle(bundle).manifest.model_copy(update={"version": version}))
    if damage:
        data = bytearray((making / MODEL).read_bytes())
        data[len(data) // 2] ^= 0xFF
        (making / MODEL).write_bytes(data)
    making.rename(target)


@dataclass(frozen=True, slots=True)
class Scene:
    """Service with a canary and a shadow, worker between two Redis servers, and Prometheus."""

    service: ServiceProcess
    worker: ServiceProcess
    prometheus: Prometheus
    source: Any
    sink: Redis
    repository: Path


@contextmanager
def scene(bundle: Path, shadow: Path | None = None) -> Iterator[Scene]:
    """Run a scene under load.

    Parameters
    ----------
    bundle : bundle of a classifier; a copy with another version is the canary.
    shadow : bundle of the shadow; None for the copy.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nightjar-")))
        repository, admin = folder / "repository", free_port()
        repository.mkdir()
        copy_bundle(bundle, repository / "canary", "0.0.1")
        canary = load_bundle(repository / "canary").manifest
        compared = canary if shadow is None else load_bundle(shutil.copytree(shadow, repository / "shadow")).manifest
        settings = {
            "CACHE_BYTES": "4000000", "REPOSITORY": str(repository), "REPOSITORY_POLL": "1", "ADMIN_PORT": str(admin),
            "NAMED_KEYS": json.dumps({name: [hashlib.sha256(key.encode()).hexdigest()] for name, key in KEYS.items()}),
            "KEY_LIMITS": json.dumps({"portal": {"requests_per_second": 4}}),
        }  # fmt: skip
        service = stack.enter_context(running(bundle, {f"NIGHTJAR_{name}": value for name, value in settings.items()}))
        models = f"http://{HOST}:{admin}/admin/models/{canary.name}"
        _send("POST", f"{models}/load", {"version": canary.version})
        _send("PUT", f"{models}/canary", {"version": canary.version, "percent": 20})
        _send("PUT", f"{models}/shadow", {"model": f"{compared.name}@{compared.version}", "share": 0.5})
        source, sink = stack.enter_context(redis_server()), Redis(folder)
        stack.callback(sink.kill)
        consumer = stack.enter_context(worker(bundle, source, 1, sink=f"redis://{HOST}:{sink.port}/results"))
        jobs = {"nightjar": [service.port], "nightjar-worker": [consumer.port]}
        (folder / "prometheus").mkdir()
        server = stack.enter_context(prometheus(folder / "prometheus", jobs, scaled_rules()))
        packets = sample_packets()

        def send_requests(number: int) -> None:
            asyncio.run(drive(service.port, http_requests(number, packets), clients=2))

        def send_alerts(number: int) -> None:
            now = time.time() / 86_400 + 40_587
            feed(source, [*visit(24, seed=number, latest=now), b"not an alert"])

        stack.enter_context(repeated(send_requests, pause=0.2))
        stack.enter_context(repeated(send_alerts, pause=1.0))
        yield Scene(service, consumer, server, source, sink, repository)


def _send(method: str, url: str, document: Mapping[str, Any]) -> None:
    body = json.dumps(document).encode()
    wanted = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        urllib.request.urlopen(wanted, timeout=120).close()
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{url}: {error.read().decode()}") from None


WIDTH_INCHES, ROW_INCHES, DPI = 17.0, 0.27, 100
COLOURS: Final = (
    "#3274d9", "#56a64b", "#e0b400", "#e02f44", "#8f3bb8", "#ff780a", "#37872d", "#1f60c4", "#fade2a", "#c4162a",
    "#a352cc", "#fa6400", "#73bf69", "#5794f2", "#f2cc0c", "#f2495c", "#b877d9", "#ff9830", "#96d98d", "#8ab8ff",
)  # fmt: skip
MAX_LEGEND, MAX_LABEL = 8, 30


def draw(prometheus: Prometheus, name: str, start: float, end: float, target: Path) -> None:
    """Draw the panels of a dashboard in Grafana's layout, with the results of their Prometheus queries."""
    from matplotlib.figure import Figure

    dashboard = json.loads((DASHBOARDS / f"{name}.json").read_text())
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    rows = max(place["y"] + place["h"] for place in places)
    figure = Figure((WIDTH_INCHES, rows * ROW_INCHES), dpi=DPI, facecolor="white")
    for panel, place in zip(dashboard["panels"], places, strict=True):
        bottom, height = 1 - (place["y"] + place["h"]) / rows, place["h"] / rows
        left, width = place["x"] / 24, place["w"] / 24
        if panel["type"] == "row":
            figure.text(0.006, bottom + height / 2, panel["title"], fontsize=11, weight="bold", va="center")
            continue
        gap_x, gap_y = 0.05 / WIDTH_INCHES, 0.05 / (rows * ROW_INCHES)
        box = (left + gap_x, bottom + gap_y, width - 2 * gap_x, height - 2 * gap_y)
        card = figure.add_axes(box, facecolor="white", xticks=[], yticks=[])
        card.spines[:].set_color("#d8d9da")
        card.set_title(panel["title"], loc="left", fontsize=8, weight="bold", y=1.0, pad=-11, x=0.02)
        _DRAWINGS[panel["type"]](figure, card, box, panel, prometheus, start, end)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    from PIL import Image

    # MAXCOVERAGE keeps the colours of thin lines.
    picture = Image.open(buffer).convert("RGB").quantize(96, Image.Quantize.MAXCOVERAGE)
    picture.save(target, optimize=True)


def _draw_stat(figure: Any, card: Any, box: Any, panel: Any, prometheus: Prometheus, start: float, end: float) -> None:
    target, defaults = panel["targets"][0], panel["fieldConfig"]["defaults"]
    series = prometheus.query_range(scaled(target["expr"]), end, end, 1.0)
    if "legendFormat" in target:
        text, size = "\n".join(sorted(_legend(target, one) for one in series)), 8
    else:
        value = float(series[0]["values"][-1][1]) if series else math.nan
        text, size = _number(value, defaults["unit"], defaults.get("decimals")), 20
    colour = "#1f60c4" if size == 20 else "black"
    card.text(0.5, 0.42, text, ha="center", va="center", fontsize=size, color=colour, transform=card.transAxes)


def _draw_bars(figure: Any, card: Any, box: Any, panel: Any, prometheus: Prometheus, start: float, end: float) -> None:
    target = panel["targets"][0]
    series = sorted(
        prometheus.query_range(scaled(target["expr"]), end, end, 1.0),
        key=lambda one: (one["metric"]["layer"] != "input", _legend(target, one)),
    )
    axes = _axes(figure, box, legend_rows=2)
    layers = sorted({one["metric"]["layer"] for one in series})
    values = [float(one["values"][-1][1]) for one in series]
    colours = [COLOURS[layers.index(one["metric"]["layer"])] for one in series]
    axes.bar(range(len(values)), values, color=colours)
    axes.set_xticks(range(len(values)), [_legend(target, one) for one in series], rotation=90)
    axes.yaxis.set_major_formatter(lambda value, _: _number(value, panel["fieldConfig"]["defaults"]["unit"]))


def _draw_lines(figure: Any, card: Any, box: Any, panel: Any, prometheus: Prometheus, start: float, end: float) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    lines = {}
    for target in panel["targets"]:
        for one in prometheus.query_range(scaled(target["expr"]), start, end, 2.0):
            points = {float(at) - start: float(value) for at, value in one["values"]}
            lines[_legend(target, one)] = {at: value for at, value in points.items() if math.isfinite(value)}
    lines = {name: points for name, points in sorted(lines.items()) if points}
    longest = min(MAX_LABEL, max(map(len, lines), default=1))
    columns = max(1, int(box[2] * WIDTH_INCHES / (0.4 + 0.047 * longest)))
    entries = min(len(lines), MAX_LEGEND, 4 * columns)
    axes = _axes(figure, box, legend_rows=math.ceil(entries / columns))
    if defaults.get("custom", {}).get("stacking"):
        times = sorted({at for points in lines.values() for at in points})
        table = np.array([[points.get(at, 0.0) for at in times] for points in lines.values()])
        table /= np.maximum(table.sum(axis=0), 1e-12)
        kept = np.argsort(-table.sum(axis=1))
        names = list(lines)
        axes.stackplot(times, table[kept], labels=[names[index] for index in kept], colors=COLOURS, alpha=0.8)
        axes.set_ylim(0, 1)
        unit = "percentunit"
    else:
        for (name, points), colour in zip(lines.items(), itertools.cycle(COLOURS), strict=False):
            axes.plot(list(points), list(points.values()), label=name, color=colour, linewidth=1.0)
        unit = defaults["unit"]
        top = max((value for points in lines.values() for value in points.values()), default=0.0)
        axes.set_ylim(0, min(1.12 * top, defaults.get("max", math.inf)) or 1.0)
    axes.set_xlim(0, end - start)
    axes.set_xticks(range(0, int(end - start), 60))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 60:.0f} min")
    axes.yaxis.set_major_formatter(lambda value, _: _number(value, unit))
    handles, labels = axes.get_legend_handles_labels()
    shown = [label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}…" for label in labels[:entries]]
    if len(labels) > entries:
        shown[-1] = f"and {len(labels) - entries + 1} more"
    axes.legend(
        handles[:entries], shown, ncols=columns, fontsize=6, frameon=False, handlelength=1, columnspacing=1,
        loc="upper left", bbox_to_anchor=(-0.02, -0.12), borderpad=0, labelspacing=0.25,
    )  # fmt: skip


_DRAWINGS: Final = {"stat": _draw_stat, "bargauge": _draw_bars, "timeseries": _draw_lines}


def _axes(figure: Any, box: tuple[float, float, float, float], legend_rows: int) -> Any:
    """Return the axes of a plot within the box of its panel, above a legend."""
    left, bottom, width, height = box
    margin = 0.5 / WIDTH_INCHES
    low = bottom + (0.3 + 0.115 * legend_rows) / figure.get_figheight()
    axes = figure.add_axes((left + margin, low, width - 1.3 * margin, bottom + 0.87 * height - low))
    axes.tick_params(labelsize=6, length=2, pad=2)
    axes.grid(visible=True, color="#e9edf2", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#c7d0d9")
    return axes


def _legend(target: Mapping[str, Any], series: Mapping[str, Any]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda match: series["metric"].get(match[1], ""), target.get("legendFormat", ""))


def _number(value: float, unit: str, decimals: int | None = None) -> str:
    """Format a number with its unit."""
    units = {"percentunit": (100.0, " %"), "s": (1.0, " s"), "bytes": (1e-6, " MB"), "reqps": (1.0, " /s")}
    factor, suffix = units.get(unit, (1.0, unit.removeprefix("suffix:").replace("none", "")))
    if unit == "s" and 0 < abs(value) < 1:
        factor, suffix = 1000.0, " ms"
    elif unit != "bytes" and abs(value) >= 1000:
        factor, suffix = 1e-3, f" k{suffix}"
    number = value * factor
    return f"{number:.{decimals}f}{suffix}" if decimals is not None else f"{number:.3g}{suffix}"


def _one_band(port: int, number: int) -> None:
    """Send light curves with all points in the same band, like a broken pipeline."""
    curves = [{**curve, "band": ["r"] * len(curve["band"])} for curve in alert_mix(24, seed=10_000 + number)]
    asyncio.run(drive(port, [with_key(classify(curves), "broker")], clients=1))


def main() -> None:
    """Run the load for four minutes, with faults, and draw the dashboards."""
    with scene(DEFAULT_BUNDLE, shadow=next((DEFAULT_BUNDLE.parents[1] / "romae-elasticc").iterdir())) as running:
        start = time.time()
        time.sleep(70)
        running.sink.kill()
        time.sleep(12)
        running.sink.start()
        time.sleep(20)
        copy_bundle(DEFAULT_BUNDLE, running.repository / "damaged", "999.0.0", damage=True)
        time.sleep(10)
        with repeated(lambda number: _one_band(running.service.port, number), pause=0.1):
            time.sleep(40)
        time.sleep(10)
        burst = [with_key(classify(alert_mix(16, seed=number)), "broker") for number in range(150)]
        asyncio.run(drive(running.service.port, burst, clients=64))
        time.sleep(40)
        for path in sorted(DASHBOARDS.glob("*.json")):
            draw(running.prometheus, path.stem, start, time.time(), PICTURES / f"dashboard-{path.stem}.png")


if __name__ == "__main__":
    main()
