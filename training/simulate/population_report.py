"""Comparison of a simulated population with a real one, class by class: pictures, numbers, and what disagrees.

    nightjar-train simulate --out build/sim.parquet --per-class 1000
    python -m nightjar_alerts.training.simulate.population_report build/sim.parquet --against other.parquet --alerts

writes ``build/population.png`` and ``build/population.json``. Both files are light-curve files of this project; make
one of a survey's own format with ``nightjar-train import``. Classes are compared where both files have them.

The picture has one row per class and one column per measure, simulation and real set overlaid. Histograms are shares of
the objects, lines are medians; bars are the median number of points in a band with quartiles.

Notable:

- a set collected from an alert stream holds each object as one of its alerts saw it, and objects with many alerts more
  often; ``--alerts`` shows the simulation the same way, else whole histories are compared. An alert holds its own
  detection and everything before it, but forced photometry is measured a day later, so the alerts of an object's first
  day hold detections only;
- a survey of other depth sees other distances: ``--equal-redshift`` gives each class of the simulation the redshifts of
  the real set. For a few classes of the wide survey alone, simulate with ``--classes`` and ``--deep-fraction 0``;
- an entry of ``disagreements`` is a median that is off by more than `TOLERANCE`, which small samples and selection can
  cause too;
- colours are medians over nights on which both bands are seen at S/N 5 or better, so that neither cadence nor the time
  of maximum enters; the brightest detection may be a dimming, whose size then counts. Everything is computed over flat
  arrays of points, without a loop over objects.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pyarrow.parquet as pq
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray
from pydantic import Field
from pydantic_settings import BaseSettings, CliApp, CliPositionalArg, SettingsConfigDict

from nightjar_alerts.models.photometry import BANDS, magnitude_of
from nightjar_alerts.training.data.dataset import Dataset, LabelledObject, read_dataset, read_notes
from nightjar_alerts.training.simulate.cadence import FORCED_DELAY_DAYS, MINIMUM_DETECTIONS
from nightjar_alerts.training.simulate.photometry import Floats, Ints


def alerts(source: LabelledObject) -> Iterator[LabelledObject]:
    """Yield the object as each of its alerts shows it, one per detection, in order."""
    for point in np.flatnonzero(source.detected):
        yield alert(source, int(point))


def alert(source: LabelledObject, point: int) -> LabelledObject:
    """Return the object as the alert of its detection at ``point`` shows it.

    Raises ValueError when nothing was detected there.
    """
    rows = alert_rows(source.mjd, source.detected, point)
    return replace(
        source,
        mjd=source.mjd[rows],
        flux=source.flux[rows],
        flux_err=source.flux_err[rows],
        band=source.band[rows],
        detected=source.detected[rows],
    )


def alert_rows(mjd: Floats, detected: NDArray[np.bool_], point: int) -> Ints:
    """Rows of one object's time-sorted points that the alert of its detection at ``point`` holds.

    Raises ValueError when nothing was detected there.
    """
    if not detected[point]:
        raise ValueError(f"there is no detection at point {point}, hence no alert")
    rows = np.arange(point + 1)
    first_day = mjd[point] - mjd[int(detected.argmax())] < FORCED_DELAY_DAYS
    return rows[detected[rows]] if first_day else rows


COLOUR_SNR = 5.0
NIGHT_STARTS = 0.5  # fraction of the MJD at which a Chilean night has not begun
REDSHIFT_REACH = 0.02  # over 1 + z


@dataclass(frozen=True, eq=False)
class PointSample:
    """Light curves as flat points: ``offsets`` i64[N+1], columns of points [P], and per object class and redshift."""

    offsets: Ints
    mjd: Floats
    flux: Floats
    flux_err: Floats
    band: Ints
    detected: NDArray[np.bool_]
    class_name: NDArray[np.str_]
    redshift: Floats

    def __len__(self) -> int:
        return len(self.class_name)

    @property
    def owner(self) -> Ints:
        """Object number of each point, i64[P]."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))


def read_sample(path: Path, rename: dict[str, str] | None = None) -> PointSample:
    """Read the labelled objects of a file with two detections or more; ``rename`` gives classes other names."""
    data = read_dataset(path)
    redshift = pq.read_table(path, columns=["redshift"]).column("redshift").to_numpy()
    names = np.array([(rename or {}).get(name, name) for name in (*data.classes, "")])[data.label]
    detections = np.add.reduceat(data.detected, data.offsets[:-1], dtype=np.int64)
    return _chosen(data, np.flatnonzero((detections >= MINIMUM_DETECTIONS) & (names != "")), names, redshift)


def cut_at_alerts(sample: PointSample, rng: np.random.Generator) -> PointSample:
    """Show the set as a random dump of alerts does: as many objects per class, each at one alert, all alike.

    Objects with many alerts are drawn more often, and histories end where the alert does. Objects of which the alert
    holds one detection are dropped again.
    """
    owner, rows, order = sample.owner, [], []
    for name in np.unique(sample.class_name):
        points = np.flatnonzero(sample.detected & (sample.class_name[owner] == name))
        for point in rng.choice(points, int((sample.class_name == name).sum())):
            start = sample.offsets[owner[point]]
            alert_points = start + alert_rows(sample.mjd[start:], sample.detected[start:], int(point - start))
            if sample.detected[alert_points].sum() >= MINIMUM_DETECTIONS:
                rows.append(alert_points)
                order.append(owner[point])
    return _gather(sample, rows, np.array(order, dtype=np.int64))


def at_redshifts_of(sample: PointSample, reference: PointSample) -> PointSample:
    """Return the set with the redshift distribution of another one, class by class.

    Every object of ``reference`` with a known redshift is answered by the object of ``sample`` that is nearest in
    redshift, which may happen to one object several times, or by none within `REDSHIFT_REACH`. Classes without
    redshifts, those of the Galaxy, stay whole.
    """
    chosen = []
    for name in np.unique(sample.class_name):
        mine = np.flatnonzero(sample.class_name == name)
        mine = mine[np.argsort(sample.redshift[mine], kind="stable")]
        theirs = reference.redshift[(reference.class_name == name) & (reference.redshift > 0.0)]
        if len(theirs) and sample.redshift[mine[0]] > 0.0:
            middles = 0.5 * (sample.redshift[mine][1:] + sample.redshift[mine][:-1])
            nearest = mine[np.searchsorted(middles, theirs)]
            mine = nearest[np.abs(sample.redshift[nearest] - theirs) < REDSHIFT_REACH * (1.0 + theirs)]
        chosen.append(mine)
    return take(sample, np.concatenate(chosen))


def take(sample: PointSample, objects: Ints) -> PointSample:
    """Return the set of the given objects, in their order, with repetitions."""
    rows = [np.arange(sample.offsets[index], sample.offsets[index + 1]) for index in objects]
    return _gather(sample, rows, objects)


def measure(sample: PointSample) -> dict[str, Floats]:
    """Numbers of each object, f64[N], NaN where there is none.

    ``peak`` AB magnitude of the brightest detection, ``duration`` days from the first to the last one, ``points`` and
    ``detections``, ``points_u`` ... ``points_Y``, ``colour_ug`` ... ``colour_zY`` and ``redshift`` (of galaxies).
    """
    n, owner = len(sample), sample.owner
    brightest, first, last = np.zeros(n), np.full(n, np.inf), np.full(n, -np.inf)
    detected_owner = owner[sample.detected]
    np.maximum.at(brightest, detected_owner, np.abs(sample.flux[sample.detected]))
    np.minimum.at(first, detected_owner, sample.mjd[sample.detected])
    np.maximum.at(last, detected_owner, sample.mjd[sample.detected])
    values: dict[str, Floats] = {
        "peak": magnitude_of(brightest),
        "duration": last - first,
        "points": np.diff(sample.offsets).astype(np.float64),
        "detections": np.bincount(detected_owner, minlength=n).astype(np.float64),
        "redshift": np.where(sample.redshift > 0.0, sample.redshift, np.nan),
    }
    for index, band in enumerate(BANDS):
        values[f"points_{band}"] = np.bincount(owner[sample.band == index], minlength=n).astype(np.float64)
    return values | _colours(sample, owner)


def _colours(sample: PointSample, owner: Ints) -> dict[str, Floats]:
    night = np.floor(sample.mjd - NIGHT_STARTS).astype(np.int64)
    key = owner * 100_000 + night
    bright = sample.flux > COLOUR_SNR * sample.flux_err
    nightly = []
    for index in range(len(BANDS)):
        rows = np.flatnonzero(bright & (sample.band == index))
        keys, where = np.unique(key[rows], return_inverse=True)
        nightly.append((keys, np.bincount(where, weights=sample.flux[rows]) / np.maximum(np.bincount(where), 1)))
    colours = {}
    for index, pair in enumerate(pairwise(BANDS)):
        (left, left_flux), (right, right_flux) = nightly[index : index + 2]
        common, i, j = np.intersect1d(left, right, assume_unique=True, return_indices=True)
        colour = -2.5 * np.log10(left_flux[i] / right_flux[j])
        colours["colour_" + "".join(pair)] = _median_by(common // 100_000, colour, len(sample))
    return colours


def _median_by(owner: Ints, value: Floats, n: int) -> Floats:
    """Lower median of the values of each owner, f64[n], NaN without any."""
    order = np.lexsort((value, owner))
    count = np.bincount(owner, minlength=n)
    start = np.concatenate([[0], np.cumsum(count)[:-1]])
    result = np.full(n, np.nan)
    some = count > 0
    result[some] = value[order][start[some] + (count[some] - 1) // 2]
    return result


def _chosen(data: Dataset, objects: Ints, names: NDArray[np.str_], redshift: Floats) -> PointSample:
    everything = PointSample(
        offsets=data.offsets,
        mjd=data.mjd,
        flux=data.flux.astype(np.float64),
        flux_err=data.flux_err.astype(np.float64),
        band=data.band.astype(np.int64),
        detected=data.detected,
        class_name=names,
        redshift=redshift,
    )
    return take(everything, objects)


def _gather(sample: PointSample, rows: list[Ints], objects: Ints) -> PointSample:
    """Return the set of the given points of the given objects."""
    points = np.concatenate([np.empty(0, dtype=np.int64), *rows])
    return PointSample(
        offsets=np.cumsum([0, *map(len, rows)]),
        mjd=sample.mjd[points],
        flux=sample.flux[points],
        flux_err=sample.flux_err[points],
        band=sample.band[points],
        detected=sample.detected[points],
        class_name=sample.class_name[objects],
        redshift=sample.redshift[objects],
    )


def common_classes(simulated: PointSample, reference: PointSample) -> list[str]:
    """Classes that both sets have; raises ValueError when there are none."""
    names = sorted(set(simulated.class_name.tolist()) & set(reference.class_name.tolist()))
    if not names:
        theirs = ", ".join(sorted(set(reference.class_name.tolist())))
        raise ValueError(f"no class in common; the real set has {theirs}: say which are which by --rename")
    return names


matplotlib.use("Agg")

SIMULATED, REAL = "#2b6ca3", "#d1741f"
COLUMNS = {
    "peak": "brightest detection (AB mag)",
    "duration": "first to last detection (days)",
    "colour_gr": "g - r, same night (mag)",
    "colour_ri": "r - i, same night (mag)",
    "points": "points",
}
LOGARITHMIC = ("duration", "points")
SHORTEST = 0.02  # days; two visits of one night
MANY_DECADES = 50.0  # an axis of a larger ratio is labelled at powers of ten only


def draw_populations(path: Path, simulated: PointSample, reference: PointSample, reference_name: str) -> None:
    """Write the comparison of every class that both sets have as a PNG."""
    names = common_classes(simulated, reference)
    sides = [(sample, measure(sample)) for sample in (simulated, reference)]
    figure = Figure(figsize=(17, 0.9 + 2.3 * len(names)), dpi=90, layout="constrained")
    grid = figure.subplots(len(names), len(COLUMNS) + 1, squeeze=False)
    for row, name in zip(grid, names, strict=True):
        of_class = [
            {key: values[sample.class_name == name] for key, values in measures.items()} for sample, measures in sides
        ]
        for axes, (key, label) in zip(row[:-1], COLUMNS.items(), strict=True):
            _histograms(axes, of_class[0][key], of_class[1][key], logarithmic=key in LOGARITHMIC)
            axes.set_xlabel(label)
        _points_per_band(row[-1], of_class)
        row[0].set_ylabel(f"{name}\n{len(of_class[0]['peak'])} / {len(of_class[1]['peak'])} objects", fontsize=11)
    handles = [Patch(color=colour, alpha=0.6) for colour in (SIMULATED, REAL)]
    figure.legend(handles, ["simulation", reference_name], loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path)


def _histograms(axes: Axes, simulated: Floats, real: Floats, *, logarithmic: bool) -> None:
    """Shares of the objects per bin; bins span the central 98 % of both sides together."""
    pair = [values[np.isfinite(values)] for values in (simulated, real)]
    together = np.concatenate(pair)
    if not len(together):
        axes.text(0.5, 0.5, "no object has one", ha="center", va="center", transform=axes.transAxes, color="0.4")
        axes.set_xticks([])
        axes.set_yticks([])
        return
    if logarithmic:
        pair, together = [np.maximum(values, SHORTEST) for values in pair], np.maximum(together, SHORTEST)
    low, high = np.percentile(together, [1, 99])
    high = max(high, 1.05 * low if logarithmic else low + 0.1)
    bins = np.geomspace(low, high, 26) if logarithmic else np.linspace(low, high, 26)
    for values, colour in zip(pair, (SIMULATED, REAL), strict=True):
        if len(values):
            weights = np.full(len(values), 1.0 / len(values))
            axes.hist(values, bins.tolist(), weights=weights, color=colour, alpha=0.5)
            axes.axvline(float(np.median(values)), color=colour, linewidth=1.5)
    if logarithmic:
        axes.set_xscale("log")
        few = high < MANY_DECADES * low
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
        axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks([])


def _points_per_band(axes: Axes, sides: list[dict[str, Floats]]) -> None:
    """Median number of points in each band with its quartiles."""
    place = np.arange(len(BANDS))
    for side, colour, shift in zip(sides, (SIMULATED, REAL), (-0.2, 0.2), strict=True):
        counts = np.stack([side[f"points_{band}"] for band in BANDS])
        low, middle, high = np.percentile(counts, [25, 50, 75], axis=1)
        axes.bar(place + shift, middle, 0.38, color=colour, alpha=0.6)
        axes.errorbar(place + shift, middle, [middle - low, high - middle], fmt="none", ecolor="0.25", linewidth=1)
    axes.set_xticks(place, BANDS)
    axes.set_xlabel("points per band")


PERCENTILES = (5, 25, 50, 75, 95)
FEWEST = 20  # objects with a value on both sides; below that a median says little
COLOURS = tuple("colour_" + left + right for left, right in pairwise(BANDS))
COUNTS = ("points", "detections", *(f"points_{band}" for band in BANDS))
TOLERANCE = {"peak": 0.3, **dict.fromkeys(COLOURS, 0.15)}  # mag
RATIO_TOLERANCE = {"duration": 1.4, "redshift": 1.25, **dict.fromkeys(COUNTS, 1.4)}

Measures = dict[str, Floats]


class PopulationReport(BaseSettings):
    """Compare a simulated population with a real one: PNG and JSON."""

    model_config = SettingsConfigDict(
        cli_prog_name="python -m nightjar_alerts.training.simulate.population_report",
        cli_kebab_case=True,
        cli_implicit_flags=True,
    )

    simulated: CliPositionalArg[Path] = Field(description="Parquet file of `simulate`")
    against: Path = Field(description="Parquet file of the real set")
    out: Path = Field(default=Path("build/population"), description="path of the two files, without suffix")
    rename: dict[str, str] = Field(default={}, description="class of the real set = class of the simulation")
    equal_redshift: bool = Field(default=False, description="give the simulation the redshifts of the real set")
    alerts: bool = Field(default=False, description="cut the simulated histories at random alerts")
    seed: int = Field(default=0, ge=0, description="of the draw of alerts")

    def cli_cmd(self) -> None:
        """Compare, write both files, and print the disagreements."""
        simulated = read_sample(self.simulated)
        if self.alerts:
            simulated = cut_at_alerts(simulated, np.random.default_rng(self.seed))
        reference = read_sample(self.against, self.rename)
        if self.equal_redshift:
            simulated = at_redshifts_of(simulated, reference)
        report = compare(simulated, reference, self.against.stem)
        report["simulation"] = json.loads(read_notes(self.simulated).get("simulation", "null"))
        report["selection"] = self.model_dump(include={"alerts", "seed", "equal_redshift"})
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        draw_populations(self.out.with_suffix(".png"), simulated, reference, self.against.stem)
        compared = sum(map(len, report["classes"].values()))
        summary = f"{compared} medians compared, {len(report['disagreements'])} disagree"
        sys.stdout.write("\n".join([*report["disagreements"], summary]) + "\n")


def compare(simulated: PointSample, reference: PointSample, reference_name: str) -> dict[str, Any]:
    """Percentiles of every measure on both sides, Kolmogorov-Smirnov distances, and the disagreements in words.

    Raises ValueError when the two sets have no class in common.
    """
    names = common_classes(simulated, reference)
    left, right = measure(simulated), measure(reference)
    classes = {
        name: _compare_class(_of_class(left, simulated, name), _of_class(right, reference, name)) for name in names
    }
    disagreements = [
        f"{name}: median {key.replace('_', ' ')} {entry['simulated'][2]:.3g} simulated, "
        f"{entry['reference'][2]:.3g} in {reference_name}"
        for name, measures in classes.items()
        for key, entry in measures.items()
        if not entry["agrees"]
    ]
    return {
        "reference": reference_name,
        "percentiles": PERCENTILES,
        "tolerance_mag": TOLERANCE,
        "tolerance_ratio": RATIO_TOLERANCE,
        "classes": classes,
        "disagreements": disagreements,
    }


def _of_class(measures: Measures, sample: PointSample, name: str) -> Measures:
    return {key: values[sample.class_name == name] for key, values in measures.items()}


def _compare_class(simulated: Measures, reference: Measures) -> dict[str, dict[str, Any]]:
    """Entries of the measures that enough objects have on both sides."""
    entries = {}
    for key in (*TOLERANCE, *RATIO_TOLERANCE):
        left, right = (values[key][np.isfinite(values[key])] for values in (simulated, reference))
        if min(len(left), len(right)) >= FEWEST:
            entries[key] = _entry(key, left, right)
    return entries


def _entry(key: str, left: Floats, right: Floats) -> dict[str, Any]:
    medians = float(np.median(left)), float(np.median(right))
    if key in TOLERANCE:
        agrees = abs(medians[0] - medians[1]) <= TOLERANCE[key]
    else:  # counts may be zero: one point more or less is no disagreement
        low, high = sorted(medians)
        agrees = high <= RATIO_TOLERANCE[key] * low or (key in COUNTS and high - low <= 1.0)
    return {
        "objects": [len(left), len(right)],
        "simulated": np.percentile(left, PERCENTILES).round(3).tolist(),
        "reference": np.percentile(right, PERCENTILES).round(3).tolist(),
        "distance": round(_distance(left, right), 3),
        "agrees": bool(agrees),
    }


def _distance(left: Floats, right: Floats) -> float:
    """Largest difference of the two cumulative distributions."""
    left, right = np.sort(left), np.sort(right)
    grid = np.concatenate([left, right])
    parts = (np.searchsorted(values, grid, side="right") / len(values) for values in (left, right))
    first, second = parts
    return float(np.abs(first - second).max())


if __name__ == "__main__":
    try:
        CliApp.run(PopulationReport)
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error
