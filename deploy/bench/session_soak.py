"""Soak of one onnxruntime session: resident memory over many runs of random shapes.

    python -m deploy.bench.session_soak --runs 100000

Prints resident memory ten times, and ends with status 1 if it grew by more than ``--limit`` MB after the first tenth of
the runs, in which buffers reach their final size.
"""

import argparse
import sys
from pathlib import Path
from time import monotonic

import numpy as np

from nightjar_alerts.models.bundle import DEFAULT_BUNDLE
from nightjar_alerts.service.engine.adapter import TaskAdapter
from nightjar_alerts.service.engine.load import load_model
from nightjar_alerts.service.engine.warmup import BatchShape, dummy_batch

LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233)
MAX_BATCH, MAX_TOKENS = 16, 256


def resident_megabytes() -> float:
    """Return the resident memory of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def soak(bundle: Path, runs: int, seed: int = 0) -> list[float]:
    """Run a session ``runs`` times; return resident memory in MB after each tenth of the runs."""
    model, rng = load_model(bundle), np.random.default_rng(seed)
    adapter = TaskAdapter(model.bundle.manifest)
    inputs = {length: dummy_batch(adapter, BatchShape(1, length, 0))[0] for length in LENGTHS}
    memory, started = [], monotonic()
    for number in range(1, runs + 1):
        longest = int(rng.choice(LENGTHS))
        others = [length for length in LENGTHS if length <= longest]
        size = int(rng.integers(1, min(MAX_BATCH, MAX_TOKENS // longest) + 1))
        batch = [inputs[longest], *(inputs[int(length)] for length in rng.choice(others, size - 1))]
        model.graph(adapter.assemble(batch))
        if number % max(1, runs // 10) == 0:
            memory.append(resident_megabytes())
            print(f"{number} runs, {monotonic() - started:.0f} s: {memory[-1]:.1f} MB", flush=True)
    return memory


def main() -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m deploy.bench.session_soak", description=__doc__.split("\n")[0])
    parser.add_argument("--bundle", type=Path, default=DEFAULT_BUNDLE, help="folder of the bundle")
    parser.add_argument("--runs", type=int, default=100_000, help="number of runs")
    parser.add_argument("--limit", type=float, default=10.0, help="maximum growth in MB after the first tenth")
    options = parser.parse_args()
    memory = soak(options.bundle, options.runs)
    growth = memory[-1] - memory[0]
    print(f"growth after the first tenth: {growth:+.1f} MB")
    return int(growth > options.limit)


if __name__ == "__main__":
    sys.exit(main())
