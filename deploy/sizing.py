"""Cores, hours and storage for whole surveys, from measured costs: writes docs/sizing.md.

python -m deploy.sizing            write it
python -m deploy.sizing --check    write nothing; exit with 1 if it is stale

The costs are those of docs/results/catalog.json, which ``python -m deploy.bench.catalog`` measures.
"""
# ruff: noqa: E501  # lines of the page

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from nightjar_alerts.models.common import markdown_table

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
COSTS: Final = DOCS / "results" / "catalog.json"
PAGE: Final = DOCS / "sizing.md"
_LENGTH: Final = re.compile(r"catalog\.cpu_ms_per_row_of_(\d+)")
EFFICIENCY: Final = 0.85
"""Share of its time that a core of a cluster works, with the partitions of different sizes."""
HOURS: Final = (1.0, 24.0)


@dataclass(frozen=True)
class Work:
    """Something to be classified.

    Attributes
    ----------
    rows : objects or alerts.
    points : mean number of observations of a row.
    source : of the two numbers.
    within, seconds : time within which it must be done; empty and None for an archive.
    """

    name: str
    rows: float
    points: float
    source: str
    within: str = ""
    seconds: float | None = None


WORKS: Final = (
    Work("Rubin's archive of alerts", 17e6, 40, "15 to 19 million objects; the mean length is assumed"),
    Work(
        "a mean night of Rubin", 10e6, 40, "ten million alerts (DMTN-102); the mean length is assumed", "10 h", 36_000.0
    ),
    Work("a visit of 40,000 alerts", 40e3, 40, "the most that must be supported (DMTN-102)", "60 s", 60.0),
    Work("a ZTF data release, bands joined", 2e9, 400, "assumed: 5 × 10⁹ rows of one band are 2 × 10⁹ objects"),
)


def seconds_per_row(costs: Mapping[str, float], points: float) -> float:
    """Return the processor time of a row with a number of observations, between and beyond the lengths measured."""
    measured = sorted((int(found[1]), costs[name]) for name in costs if (found := _LENGTH.fullmatch(name)))
    lengths, times = zip(*measured, strict=True)
    if points > lengths[-1]:
        slope = (times[-1] - times[-2]) / (lengths[-1] - lengths[-2])
        return float(times[-1] + slope * (points - lengths[-1])) / 1e3
    return float(np.interp(points, lengths, times)) / 1e3


def core_hours(costs: Mapping[str, float], work: Work) -> float:
    """Return the hours of one core, at :data:`EFFICIENCY`."""
    return work.rows * seconds_per_row(costs, work.points) / EFFICIENCY / 3600.0


def _number(value: float) -> str:
    """Return a number with two significant digits."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


def _cores(work: Work, hours: float) -> str:
    """Return how many cores do the work in time, or an archive in an hour and in a day."""
    if work.seconds is not None:
        return f"{_number(max(1.0, np.ceil(hours * 3600.0 / work.seconds)))} in {work.within}"
    return ", ".join(f"{_number(max(1.0, np.ceil(hours / each)))} in {each:g} h" for each in HOURS)


def _row(costs: Mapping[str, float], work: Work) -> list[str]:
    hours = core_hours(costs, work)
    storage = _number(work.rows * costs["catalog.output_bytes_per_row"] / 1e9)
    return [work.name, f"{work.rows:,.0f}", f"{work.points:g}", _number(hours), _cores(work, hours), storage]


def _changed(work: Work) -> Sequence[tuple[str, Work]]:
    return (
        ("as above", work),
        ("half as many observations", replace(work, points=work.points / 2)),
        ("twice as many observations", replace(work, points=work.points * 2)),
        ("twice as many rows", replace(work, rows=work.rows * 2)),
    )


def page(costs: Mapping[str, float]) -> str:
    """Return the text of the page."""
    head = ["", "rows", "observations", "core hours", "cores", "output, GB"]
    work = markdown_table(head, [_row(costs, each) for each in WORKS], numbers=True)
    sources = "\n".join(f"- {each.name}: {each.source}." for each in WORKS)
    lengths = sorted(int(found[1]) for name in costs if (found := _LENGTH.fullmatch(name)))
    measured = markdown_table(
        ["observations", *map(str, lengths)],
        [["ms of a core", *(f"{costs[f'catalog.cpu_ms_per_row_of_{length}']:.2f}" for length in lengths)]],
        numbers=True,
    )
    names = [name for name, _ in _changed(WORKS[0])]
    sensitivity = markdown_table(
        ["core hours", *names],
        [[each.name, *(_number(core_hours(costs, other)) for _, other in _changed(each))] for each in WORKS],
        numbers=True,
    )
    return f"""# Sizing

What `nightjar catalog` needs for whole surveys. `python -m deploy.sizing` writes this page from costs that
`python -m deploy.bench.catalog` measured on one core of {costs["machine"]}; measure on yours, since cores differ by factors of two.

{work}

The service classifies visits as they come ([benchmarks](benchmarks.md)); the number of cores here is for the work alone, without the broker,
and needs every core busy from the first second.

## Assumptions

{sources}
- A core works {EFFICIENCY:.0%} of the time, since partitions differ in size and are read over a network.
- The default model, on processors, without embeddings. An embedding of 128 numbers adds about 500 bytes to a row.
- Longer light curves than the longest measured cost as much more for each observation as between the two longest.

## Measured

{measured}

Of the processor time of `nightjar catalog`, {costs["catalog.read_share"]:.1%} is reading Parquet and building light curves,
{costs["catalog.columns_share"]:.1%} making columns and {costs["catalog.write_share"]:.1%} writing; the rest is the same work that `Classifier` does. On the same
light curves as arrays, `Classifier` classifies {costs["catalog.classifier_rows_per_cpu_second"]:,.0f} rows in a second of one core and `nightjar catalog`
{costs["catalog.rows_per_cpu_second"]:,.0f}: {costs["catalog.vs_classifier"]:.2f} of it.

Memory is {costs["catalog.peak_mb_10000"]:,.0f} MB for a file of 10,000 rows and {costs["catalog.peak_mb_1000000"]:,.0f} MB for one of 1,000,000, in each process. Two workers
of Dask classify {costs["catalog.two_workers_vs_one"]:.2f} times as many rows per second as one process with one thread, on two cores that other work
shares (load average {costs["catalog.load_average"]:g}).

## How much the assumptions matter

{sensitivity}
"""


def main(arguments: Sequence[str]) -> int:
    """Write or check the page."""
    text = page(json.loads(COSTS.read_text()))
    if "--check" not in arguments:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        print("docs/sizing.md is stale: run python -m deploy.sizing", file=sys.stderr)  # noqa: T201  # the message of a command
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
