"""The whole debug pipeline, run through the command line."""

import time
from dataclasses import dataclass
from pathlib import Path

from training.__main__ import main

PER_CLASS = 20


@dataclass(frozen=True)
class Pipeline:
    """Files that the commands wrote, and the processor seconds that all of them took."""

    data: Path
    run: Path
    bundle: Path
    report: Path
    baseline: Path
    seconds: float


def run_pipeline(folder: Path) -> Pipeline:
    """Simulate, train, export, evaluate, baseline and card, with the debug recipe."""
    data, run, bundle = folder / "sim.parquet", folder / "runs" / "debug", folder / "bundle"
    report, baseline = folder / "reports" / "report.json", folder / "reports" / "baseline.json"
    started = time.process_time()
    main(f"simulate --out {data} --per-class {PER_CLASS} --seed 5 --workers 1".split())
    main(f"train debug --data {data} --out {run} --threads 1".split())
    main(f"export {run} {bundle} --data {data} --name debug --version 0.1.0".split())
    main(f"evaluate {bundle} {run} --data {data} --report {report}".split())
    main(f"baseline --recipe debug --data {data} --report {baseline} --examples 200 --features summary".split())
    main(f"card {bundle} --report {report} --baseline {baseline}".split())
    return Pipeline(data, run, bundle, report, baseline, time.process_time() - started)
