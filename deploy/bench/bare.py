"""Bare onnxruntime: ``session.run`` on ready-made inputs, one curve a call, and nothing else.

No HTTP, JSON, validation, featurisation, queue or batching: the inputs are made before the clock starts. With one
caller it is what a loop in a script gets; with as many callers as the service has workers it is all that the cores can
do one by one.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime as ort

from deploy.bench.curves import Columns, graph_inputs
from models.bundle import load_bundle
from models.runtime import Run, open_session, run


class Pace(NamedTuple):
    """How fast a pass over the curves went: curves per second of wall time, processor milliseconds per curve."""

    per_second: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Bare:
    """A session and the inputs to run it on."""

    session: ort.InferenceSession
    inputs: Sequence[Run]

    @classmethod
    def of(cls, folder: Path, curves: Sequence[Columns]) -> "Bare":
        """Open a bundle as the service does (CPU, one thread a run) and prepare every curve as a batch of one."""
        bundle = load_bundle(folder)
        inputs = [graph_inputs(curve, bundle.manifest) for curve in curves]
        bare = cls(open_session(bundle.model), inputs)
        bare.run(callers=1)  # the first run of a shape is dearer
        return bare

    def probabilities(self) -> np.ndarray:
        """Shape (curves, classes): the answer to every curve, alone."""
        return np.concatenate([run(self.session, one)["probabilities"] for one in self.inputs])

    def run(self, callers: int) -> Pace:
        """Run every curve once, with `callers` threads that share the session."""
        return pace(self.session, self.inputs, callers, len(self.inputs))


def pace(session: ort.InferenceSession, inputs: Sequence[Run], callers: int, curves: int) -> Pace:
    """Run every input once, in their order, with `callers` threads that share the session; `curves` are in them all."""
    names = [output.name for output in session.get_outputs()]
    wanted = [node.name for node in session.get_inputs()]
    feeds = iter([{name: one[name] for name in wanted} for one in inputs])
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
    return Pace(curves / seconds, 1e3 * cpu / curves)
