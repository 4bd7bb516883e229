"""Benchmark of classification in process: :class:`nightjar_alerts.Classifier` and ``nightjar classify``.

**Throughput.** One call of ``classify`` with light curves as dictionaries of arrays, and ``to_dict()`` of every result.
The batches are recorded, and in the same round onnxruntime runs the recorded arrays with as many threads: the
difference is the cost of validation, featurising, batching and results. On a busy machine the ratio of CPU time
(``cpu_vs_bare``) varies less than that of wall time.

**Import** is ``from nightjar_alerts import Classifier`` in a new process.

**Table**: the command line classifies a table with one row per observation to a CSV file; measured are the wall time of
the process from its start and its peak resident memory.
"""

import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from deploy.bench.report import Numbers, spread
from deploy.bench.workload import CurveColumns, alert_mix
from nightjar_alerts.classifier import Classifier
from nightjar_alerts.core.adapter import Arrays, Graph
from nightjar_alerts.core.machine import usable_cores

SEED: Final = 20260102
OBJECTS: Final = 5000
IMPORTS: Final = 7
_IMPORT: Final = (
    "import time; t = time.perf_counter(); from nightjar_alerts import Classifier; print(time.perf_counter() - t)"
)


def measure(curves: int, rounds: int, say: Callable[[str], None], objects: int = OBJECTS) -> Numbers:
    """Return the keys ``in_process.*``."""
    numbers = _throughput(curves, rounds, say) | _imports(say)
    return numbers | _table(objects, say)


def _throughput(curves: int, rounds: int, say: Callable[[str], None]) -> Numbers:
    sent = [_with_arrays(curve) for curve in alert_mix(curves, SEED)]
    rates, ratios, cpu_ratios = [], [], []
    with Classifier() as classifier:
        model = classifier._default
        loaded = model.open()
        graph = _Recorder(loaded.graph)
        model.loaded = replace(loaded, graph=graph)
        classifier.classify(sent[:64])
        for number in range(rounds):
            graph.batches.clear()
            began = _Clock()
            results = classifier.classify(sent)
            documents = [result.to_dict() for result in results]
            seconds, cpu = began.seconds()
            if any(document["status"] != "classified" for document in documents):
                raise RuntimeError("not every light curve was classified")
            bare, bare_cpu = _bare_seconds(loaded.graph, graph.batches)
            rates.append(curves / seconds)
            ratios.append(bare / seconds)
            cpu_ratios.append(bare_cpu / cpu)
            say(f"round {number + 1}/{rounds}: {curves / seconds:.0f}/s, bare {curves / bare:.0f}/s")
    return {
        "in_process.per_s": spread(rates),
        "in_process.vs_bare": spread(ratios),
        "in_process.cpu_vs_bare": spread(cpu_ratios),
    }


class _Clock:
    """Measures the wall time and the CPU time of this process since its construction."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def seconds(self) -> tuple[float, float]:
        """Return the wall time and the CPU time."""
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


def _with_arrays(curve: CurveColumns) -> dict[str, Any]:
    return {name: np.array(value) if name in ("mjd", "flux", "flux_err") else value for name, value in curve.items()}


class _Recorder:
    """Runs a graph and records the inputs of every run."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.batches: list[Arrays] = []

    def __call__(self, arrays: Arrays) -> Arrays:
        """Run the graph."""
        self.batches.append(arrays)
        return self._graph(arrays)


def _bare_seconds(graph: Graph, batches: Sequence[Arrays]) -> tuple[float, float]:
    with ThreadPoolExecutor(usable_cores()) as pool:
        began = _Clock()
        for _ in pool.map(graph, batches):
            pass
        return began.seconds()


def _imports(say: Callable[[str], None]) -> Numbers:
    seconds = [
        float(subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True).stdout)
        for _ in range(IMPORTS)
    ]
    say(f"import: {min(seconds):.2f} to {max(seconds):.2f} s")
    return {"in_process.import_s": spread(seconds)}


def _table(objects: int, say: Callable[[str], None]) -> Numbers:
    with tempfile.TemporaryDirectory() as folder:
        path, output = Path(folder, "table.csv"), Path(folder, "out.csv")
        rows = _write_table(path, alert_mix(objects, SEED + 1))
        command = [sys.executable, "-m", "nightjar_alerts.service", "classify", str(path), "-o", str(output)]
        began = time.perf_counter()
        process = subprocess.Popen([*command, "--flux-kind", "difference"], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)  # of this child alone, unlike RUSAGE_CHILDREN
        process.returncode = os.waitstatus_to_exitcode(status)
        if status:
            raise RuntimeError(f"nightjar classify ended with status {process.returncode}")
        seconds = time.perf_counter() - began
        written = len(output.read_text().splitlines()) - 1
    if written != objects:
        raise RuntimeError(f"{written} results of {objects} objects")
    peak = usage.ru_maxrss / 1024
    say(f"table of {objects} objects and {rows} rows: {seconds:.1f} s, {peak:.0f} MiB at most")
    return {
        "in_process.table_objects": objects,
        "in_process.table_rows": rows,
        "in_process.table_s": seconds,
        "in_process.table_peak_mib": peak,
    }


def _write_table(path: Path, curves: Sequence[CurveColumns]) -> int:
    rows = 0
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["object_id", "mjd", "band", "flux_njy", "flux_err_njy"])
        for curve in curves:
            columns = zip(curve["mjd"], curve["band"], curve["flux"], curve["flux_err"], strict=True)
            for row in columns:
                writer.writerow([curve["object_id"], *row])
                rows += 1
    return rows
