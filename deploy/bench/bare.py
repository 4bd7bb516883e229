"""Bare onnxruntime, the reference of the benchmarks: one light curve per call, and the best schedule.

**One curve per call** (:class:`Bare`): ``session.run`` on prepared inputs, without HTTP, JSON, validation,
preprocessing, queue or batching. With one caller this is a loop in a script; with as many callers as the service has
workers it is the throughput of all cores without batching.

**Best schedule** (:class:`Best`): all curves are known in advance, and the fastest of several schedules is used: one by
one, or in batches sorted by length with a maximum number of padded observations, the longest first. The time for
scheduling and padding is not counted. No server can reach this, because light curves arrive one after the other.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime as ort

from deploy.bench.workload import CurveColumns
from nightjar_alerts.models.bundle import Manifest, load_bundle
from nightjar_alerts.models.lightcurve import LightCurve, RaggedBatch, Tokens, featurise
from nightjar_alerts.models.runtime import Inputs, open_session, run


class BarePace(NamedTuple):
    """Speed of a pass over the curves: curves per second of wall time, CPU milliseconds per curve."""

    per_second: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Bare:
    """A session and the inputs to run it on."""

    session: ort.InferenceSession
    inputs: Sequence[Inputs]

    @classmethod
    def of(cls, folder: Path, curves: Sequence[CurveColumns]) -> "Bare":
        """Open a bundle as the service does (CPU, one thread per run) and prepare every curve as a batch of one."""
        bundle = load_bundle(folder)
        inputs = [_inputs([tokens_of(curve, bundle.manifest)]) for curve in curves]
        bare = cls(open_session(bundle.model), inputs)
        bare.run(callers=1)  # the first run of a shape takes longer
        return bare

    def probabilities(self) -> np.ndarray:
        """Return the probabilities of every curve, computed alone, shape (curves, classes)."""
        return np.concatenate([run(self.session, one)["probabilities"] for one in self.inputs])

    def run(self, callers: int) -> BarePace:
        """Run all curves once, with `callers` threads that share the session."""
        return pace(self.session, self.inputs, callers, len(self.inputs))


def pace(session: ort.InferenceSession, inputs: Sequence[Inputs], callers: int, curves: int) -> BarePace:
    """Run all inputs once, in order, with `callers` threads that share the session; they have `curves` light curves."""
    names = [output.name for output in session.get_outputs()]
    names_of_inputs = [node.name for node in session.get_inputs()]
    feeds = iter([{name: one[name] for name in names_of_inputs} for one in inputs])
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                feed = next(feeds, None)
            if feed is None:
                return
            session.run(names, feed)

    threads = [threading.Thread(target=work) for _ in range(callers)]
    started, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return BarePace(curves / seconds, 1e3 * cpu / curves)


BUDGETS = (0, 256, 512, 1024, 2048, 4096)
"""Maximum numbers of padded observations in a batch; 0 means one by one."""
TRIALS = 2
SAMPLE = 1024  # number of curves for comparing schedules


@dataclass(frozen=True, slots=True)
class Best:
    """Best schedule of some light curves for a network on this machine.

    Attributes
    ----------
    budget : the best of :data:`BUDGETS`.
    inputs : inputs of all runs, in order.
    curves : number of light curves in them.
    """

    session: ort.InferenceSession
    budget: int
    inputs: Sequence[Inputs]
    curves: int

    @classmethod
    def of(cls, folder: Path, curves: Sequence[CurveColumns], callers: int) -> "Best":
        """Compare the schedules with `callers` threads on up to :data:`SAMPLE` curves; use the best for all curves."""
        bundle = load_bundle(folder)
        session = open_session(bundle.model)
        tokens = [tokens_of(curve, bundle.manifest) for curve in curves]
        some = tokens[:SAMPLE]
        ready = {budget: [_inputs(group) for group in length_batches(some, budget)] for budget in BUDGETS}
        rates = dict.fromkeys(BUDGETS, 0.0)
        for budget in [*BUDGETS] * (1 + TRIALS):  # the first run of a shape is slower and thus never the best
            rates[budget] = max(rates[budget], pace(session, ready[budget], callers, len(some)).per_second)
        best = max(BUDGETS, key=lambda budget: rates[budget])
        return cls(session, best, [_inputs(group) for group in length_batches(tokens, best)], len(tokens))

    def run(self, callers: int) -> BarePace:
        """Run all curves once, with `callers` threads that share the session."""
        return pace(self.session, self.inputs, callers, self.curves)


def tokens_of(curve: CurveColumns, manifest: Manifest) -> Tokens:
    """Featurise a light curve as the service does."""
    record = LightCurve.from_columns(
        curve["mjd"], curve["flux"], curve["flux_err"], curve["band"], metadata=curve["metadata"]
    )
    return featurise(record, manifest.limits, manifest.flux_unit, manifest.metadata_columns, manifest.band_map)


def length_batches(tokens: Sequence[Tokens], budget: int) -> list[list[Tokens]]:
    """Return batches of curves sorted by length, the longest first, with at most `budget` padded observations."""
    groups: list[list[Tokens]] = []
    for one in sorted(tokens, key=len, reverse=True):
        if groups and (len(groups[-1]) + 1) * len(groups[-1][0]) <= budget:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def _inputs(group: Sequence[Tokens]) -> Inputs:
    return RaggedBatch.collate(group).padded()
