"""Benchmark of ``nightjar catalog``: speed beside :class:`Classifier`, memory, and workers of Dask.

**Speed.** In each round one process with one thread classifies the same light curves twice, in alternating order, so
the number of rounds should be even: as dictionaries of arrays by ``Classifier.classify``, and from a nested Parquet
file to one of classes by ``write_partition``. The ratio is of processor time; ``read``, ``columns`` and ``write`` are
shares of the second.

**Lengths**: processor time of a row with light curves of a few lengths.

**Memory** is the peak resident memory of ``nightjar catalog`` on files with 10,000 and 1,000,000 objects.

**Workers**: rows per second of two worker processes of Dask beside one process with one thread, from start to end of
the run, without the start of the cluster.

    python -m deploy.bench.catalog --rounds 6 --output docs/results/catalog.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deploy.bench.workload import CurveColumns, alert_mix
from nightjar_alerts.catalog.columns import Columns
from nightjar_alerts.catalog.partition import Model, Plan, classified, classifier_of, models_of, write_partition
from nightjar_alerts.catalog.partitions import Partition, digest_of
from nightjar_alerts.catalog.reading import TableReading
from nightjar_alerts.core.request import Options
from nightjar_alerts.models.common import processor_name
from nightjar_alerts.tables import Table, TableOptions

SEED: Final = 20261129
NAMES: Final = {"mjd": "midpointMjdTai", "flux": "psfFlux", "flux_err": "psfFluxErr", "band": "band"}
PARTS: Final = "speed,lengths,memory,workers"
LENGTHS: Final = (5, 20, 60, 200)
STAGES: Final = ("read", "columns", "write")
SMALL: Final = 4096
"""Light curves that are repeated for a large file."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write or print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--curves", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--parts", default=PARTS, help="some of %(default)s")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the large file")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    is_there = options.output is not None and options.output.exists()
    numbers: dict[str, Any] = json.loads(options.output.read_text()) if is_there else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "speed" in options.parts:
            numbers |= speed(folder, options.curves, options.rounds)
        if "lengths" in options.parts:
            numbers |= lengths(folder, options.rounds)
        if "memory" in options.parts:
            numbers |= memory(folder, options.rows)
        if "workers" in options.parts:
            numbers |= workers(folder, options.curves, options.rounds)
    text = json.dumps(numbers | {"machine": processor_name()}, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


def write_nested(path: Path, curves: Sequence[CurveColumns], copies: int = 1) -> Path:
    """Write light curves as rows of lists, with names of their own."""
    lists = {theirs: pa.array([list(curve[ours]) for curve in curves]) for ours, theirs in NAMES.items()}
    struct = pa.StructArray.from_arrays(list(lists.values()), names=list(lists))
    with pq.ParquetWriter(path, pa.schema({"diaObjectId": pa.int64(), "diaSource": struct.type})) as writer:
        for copy in range(copies):
            ids = pa.array(10**17 + copy * len(curves) + np.arange(len(curves)))
            writer.write_table(pa.table({"diaObjectId": ids, "diaSource": struct}))
    return path


def _plan(path: Path, output: Path, threads: int) -> Plan:
    options = TableOptions()
    reading = TableReading(Table(path, options).layout, options, ("diaObjectId",))
    model = Model(None, threads)
    classes, bands, _ = models_of(classifier_of(model))
    columns = Columns("rows", classes, bands, {"diaObjectId": pa.int64()})
    return Plan("bench", model, Options(), columns, reading, output)


def _cpu(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def speed(folder: Path, count: int, rounds: int) -> dict[str, Any]:
    """Return rows per second of processor time, of the catalogue and of the classifier on the same arrays."""
    curves = alert_mix(count, SEED)
    path = write_nested(folder / "speed.parquet", curves)
    plan = _plan(path, folder / "speed", 1)
    assert plan.reading is not None
    reading = plan.reading
    classifier = classifier_of(plan.model)
    items = partial(reading.items, on_note=lambda *_: None)
    numeric = ("mjd", "flux", "flux_err")
    bodies = [{**{name: np.asarray(curve[name]) for name in numeric}, "band": list(curve["band"])} for curve in curves]
    partition = Partition("speed.parquet", (str(path),), *digest_of([str(path)]))
    rows = list(classified(classifier, plan.options, items(partition), [""]))
    table = plan.columns.table(rows)
    stages: dict[str, Callable[[], Any]] = {
        "classifier": lambda: classifier.classify(bodies),
        "catalog": lambda: write_partition(plan, partition),
        "read": lambda: sum(1 for _ in items(partition)),
        "columns": lambda: plan.columns.table(rows),
        "write": lambda: pq.write_table(table, folder / "written.parquet"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in stages}
    for number in range(rounds + 1):
        for name in stages if number % 2 else reversed(stages):
            found = _cpu(stages[name])
            if number:  # the first round warms up
                seconds[name].append(found)
    ratios = [one / other for one, other in zip(seconds["classifier"], seconds["catalog"], strict=True)]
    middle = {name: float(np.median(each)) for name, each in seconds.items()}
    return {
        "catalog.rows": count,
        "catalog.points": sum(len(curve["mjd"]) for curve in curves),
        "catalog.rows_per_cpu_second": round(count / middle["catalog"], 1),
        "catalog.classifier_rows_per_cpu_second": round(count / middle["classifier"], 1),
        "catalog.vs_classifier": round(sum(seconds["classifier"]) / sum(seconds["catalog"]), 3),
        "catalog.vs_classifier_rounds": [round(each, 3) for each in ratios],
        **{f"catalog.{name}_share": round(middle[name] / middle["catalog"], 3) for name in STAGES},
        "catalog.output_bytes_per_row": round((folder / "speed" / "speed.parquet").stat().st_size / count, 1),
    }


def lengths(folder: Path, rounds: int, count: int = 512) -> dict[str, Any]:
    """Return the processor time and the bytes of a row for light curves of several lengths."""
    found: dict[str, Any] = {}
    long = [curve for curve in alert_mix(20 * count, SEED) if len(curve["mjd"]) >= max(LENGTHS)][:count]
    for length in LENGTHS:
        curves = [{name: list(curve[name])[:length] for name in NAMES} for curve in long]
        path = write_nested(folder / f"length-{length}.parquet", curves)
        plan = _plan(path, folder / "lengths", 1)
        partition = Partition(path.name, (str(path),), *digest_of([str(path)]))
        seconds = [_cpu(partial(write_partition, plan, partition)) for _ in range(rounds + 1)]
        found[f"catalog.cpu_ms_per_row_of_{length}"] = round(1e3 * float(np.median(seconds[1:])) / len(curves), 3)
    return found


def memory(folder: Path, rows: int) -> dict[str, Any]:
    """Return the peak resident memory in MB for 10,000 rows and for many."""
    curves = [curve for curve in alert_mix(SMALL, SEED) if len(curve["mjd"]) <= 12]
    found: dict[str, Any] = {}
    for count in (10_000, rows):
        path = write_nested(folder / f"rows-{count}.parquet", curves, -(-count // len(curves)))
        began = time.monotonic()
        command = [sys.executable, "-c", _MEASURED, "catalog", str(path), str(folder / f"out-{count}"), "--quiet"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[f"catalog.peak_mb_{count}"] = round(int(text.splitlines()[-1]) / 1024, 1)
        found[f"catalog.seconds_{count}"] = round(time.monotonic() - began, 1)
    return found


_MEASURED: Final = (  # not getrusage, which begins with what the process that starts this one holds
    "from nightjar_alerts.cli import main\ntry:\n    main()\nfinally:\n"
    "    print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
)


def _clusters(number: int) -> Iterator[str]:
    from distributed import LocalCluster

    with LocalCluster(n_workers=number, threads_per_worker=1, dashboard_address=None, memory_limit=None) as cluster:
        yield cluster.scheduler_address


def workers(folder: Path, count: int, rounds: int) -> dict[str, Any]:
    """Return the speed of two workers of Dask beside one process with one thread, each warmed up."""
    from distributed import Client

    curves = alert_mix(count, SEED)
    paths = [write_nested(folder / f"part-{number}.parquet", curves[number::8]) for number in range(8)]
    partitions = [Partition(path.name, (str(path),), *digest_of([str(path)])) for path in paths]
    plan = _plan(paths[0], folder / "workers", 1)
    one, two = [], []
    for address in _clusters(2):
        with Client(address) as client:
            for number in range(rounds + 1):
                began = time.monotonic()
                client.gather(client.map(write_partition, [plan] * 8, partitions, pure=False))
                middle = time.monotonic()
                for partition in partitions:
                    write_partition(plan, partition)
                if number:
                    two.append(count / (middle - began))
                    one.append(count / (time.monotonic() - middle))
    ratios = [many / single for many, single in zip(two, one, strict=True)]
    return {
        "catalog.one_process_rows_per_second": round(float(np.median(one)), 1),
        "catalog.two_workers_rows_per_second": round(float(np.median(two)), 1),
        "catalog.two_workers_vs_one": round(float(np.median(ratios)), 2),
        "catalog.two_workers_vs_one_rounds": [round(each, 2) for each in ratios],
        "catalog.load_average": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    main()
