"""The whole debug pipeline, run through the command line."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from training.__main__ import main

PER_CLASS = 20
SECONDS = "seconds"


@dataclass(frozen=True)
class Pipeline:
    """Files that the commands wrote, and the processor seconds that all of them took."""

    data: Path
    run: Path
    bundle: Path
    report: Path
    baseline: Path
    seconds: float = 0.0


def run_pipeline(folder: Path) -> None:
    """Simulate, train, export, evaluate, baseline and card, with the debug recipe, in a folder."""
    folder.mkdir()
    made = _paths(folder)
    started = time.process_time()
    main(f"simulate --out {made.data} --per-class {PER_CLASS} --seed 5 --workers 1".split())
    main(f"train debug --data {made.data} --out {made.run} --threads 1".split())
    main(f"export {made.run} {made.bundle} --data {made.data} --name debug --version 0.1.0".split())
    main(f"evaluate {made.bundle} {made.run} --data {made.data} --report {made.report}".split())
    main(
        f"baseline --recipe debug --data {made.data} --report {made.baseline} --examples 200 --features summary".split()
    )
    main(f"card {made.bundle} --report {made.report} --baseline {made.baseline}".split())
    (folder / SECONDS).write_text(str(time.process_time() - started))


def files_of(folder: Path) -> Pipeline:
    """Return what the commands wrote into a folder, and how long they took there."""
    return replace(_paths(folder), seconds=float((folder / SECONDS).read_text()))


def _paths(folder: Path) -> Pipeline:
    reports = folder / "reports"
    return Pipeline(
        data=folder / "sim.parquet",
        run=folder / "runs" / "debug",
        bundle=folder / "bundle",
        report=reports / "report.json",
        baseline=reports / "baseline.json",
    )
