"""The sparse mixture against its dense twin: the same network with one feed-forward block in place of the experts.

Both graphs run bare, one thread, turn and turn about, on batches of equal length; the ratio is taken within a round.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort

from deploy.bench.report import Numbers, spread
from models.bundle import Manifest, load_bundle
from models.lightcurve import LightCurve, RaggedBatch, featurise
from models.runtime import Run, open_session, run

SHAPES = ((1, 50), (16, 128), (64, 32))  # curves, points
ROUNDS = 7
SECONDS_PER_ARM = 0.5


def measure(bundle: Path, twin: Path, say: Callable[[str], None]) -> Numbers:
    """Keys ``twin.ratio.bB_lL``: time of the mixture over time of the dense twin."""
    mixture, dense = load_bundle(bundle), load_bundle(twin)
    sessions = open_session(mixture.model), open_session(dense.model)
    numbers: Numbers = {}
    for size, length in SHAPES:
        feeds = [_batch(size, length, one.manifest) for one in (mixture, dense)]
        times = [[_seconds(*arm) for arm in zip(sessions, feeds, strict=True)] for _ in range(ROUNDS)]
        numbers[f"twin.ratio.b{size}_l{length}"] = spread([moe / flat for moe, flat in times])
        say(f"{size} curves of {length} points: {1e3 * times[-1][0]:.2f} ms, dense twin {1e3 * times[-1][1]:.2f} ms")
    return numbers


def _batch(size: int, length: int, manifest: Manifest) -> Run:
    rng = np.random.default_rng(size * length)
    curves = [
        LightCurve.from_columns(
            60_000.0 + np.arange(length), rng.normal(0, 5_000, length), np.full(length, 300.0),
            np.arange(length) % 6, np.ones(length, dtype=bool),
        )
        for _ in range(size)
    ]  # fmt: skip
    tokens = [
        featurise(c, manifest.limits, manifest.flux_unit, manifest.metadata_columns, manifest.bands) for c in curves
    ]
    return RaggedBatch.collate(tokens).padded()


def _seconds(session: ort.InferenceSession, feed: Run) -> float:
    """Mean seconds of a run."""
    run(session, feed)
    runs, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < SECONDS_PER_ARM:
        run(session, feed)
        runs += 1
    return elapsed / max(runs, 1)
