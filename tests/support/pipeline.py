"""The whole debug pipeline, run through the command line."""

from dataclasses import dataclass
from pathlib import Path

from nightjar_alerts.training.__main__ import main

PER_CLASS = 20


@dataclass(frozen=True)
class Pipeline:
    """Files that the commands wrote."""

    data: Path
    run: Path
    bundle: Path
    report: Path
    baseline: Path


def run_pipeline(folder: Path) -> None:
    """Simulate, fit, export, evaluate, baseline and card, with the debug recipe, in a folder."""
    folder.mkdir()
    made = files_of(folder)
    main(f"simulate --out {made.data} --per-class {PER_CLASS} --seed 5 --workers 1".split())
    main(f"fit debug --data {made.data} --out {made.run} --threads 1".split())
    main(f"export {made.run} {made.bundle} --data {made.data} --name debug --version 0.1.0".split())
    html = made.report.with_suffix(".html")
    main(f"evaluate {made.bundle} {made.run} --data {made.data} --report {made.report} --html {html}".split())
    trees = "makers baseline --recipe debug --examples 200 --features summary"
    main(f"{trees} --data {made.data} --report {made.baseline}".split())
    main(f"card {made.bundle} --report {made.report} --baseline {made.baseline}".split())


def files_of(folder: Path) -> Pipeline:
    """Return what the commands write into a folder."""
    reports = folder / "reports"
    return Pipeline(
        data=folder / "sim.parquet",
        run=folder / "runs" / "debug",
        bundle=folder / "bundle",
        report=reports / "report.json",
        baseline=reports / "baseline.json",
    )
