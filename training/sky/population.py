"""Do simulated and re-observed populations look like the real ones? And which inputs does each survey lack?

For every class and survey: brightness, significance, colours at maximum and three weeks later, rise and decline, period
where it is known, scatter against stated errors; medians beside each other and the Kolmogorov-Smirnov distance, and a
figure for every class to look at. `missing` tells the share of objects that have each input, by source: what only some
surveys lack names the survey, and has to be dropped in training for all classes alike.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import BANDS, magnitude_of
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.dataset import read_dataset
from nightjar_alerts.training.sky.load import as_sent
from nightjar_alerts.training.sky.readers import WAVELENGTH
from nightjar_alerts.training.sky.record import Sky

Float = NDArray[np.float64]

MEASURES: Final = ("points", "detections", "magnitude", "significance", "g - r", "r - i", "g - r after 3 weeks",
                   "rise", "decline", "period", "scatter / error")  # fmt: skip
FEWEST: Final = 8
NEAR: Final = 4.0
"""Days from the maximum within which a point tells the colour there."""
LATER: Final = 22.0
FALLEN: Final = 0.4
SIMULATED: Final = "simulated"
EVERYWHERE: Final = "all surveys"


def measures(sky: Sky) -> Float:
    """`MEASURES` of every object, NaN where one is not defined, (N, 11)."""
    return np.array([_of_object(sky, row) for row in range(len(sky))]).reshape(len(sky), len(MEASURES))


def _of_object(sky: Sky, row: int) -> tuple[float, ...]:
    at = sky.points(row)
    flux, error = sky.flux[at].astype(np.float64), sky.flux_err[at].astype(np.float64)
    band, mjd, detected = sky.band[at], sky.mjd[at], sky.detected[at]
    top = int(np.argmax(flux - 0.8 * error))
    days, height, mine = mjd - mjd[top], float(flux[top]), band == band[top]

    def colour(blue: int, red: int, when: float, width: float) -> float:
        near = [(band == number) & (np.abs(days - when) < width) for number in (blue, red)]
        if not (near[0].any() and near[1].any()):
            return np.nan
        first, second = (np.average(flux[here], weights=1 / error[here] ** 2) for here in near)
        return float(-2.5 * np.log10(first / second)) if first > 0 and second > 0 else np.nan

    fallen = mine & (flux < FALLEN * height)
    after, before = days[fallen & (days > 0)], days[fallen & (days < 0)]
    return (
        len(flux),
        int(detected.sum()),
        float(magnitude_of(max(height, 1e-3))),
        height / float(error[top]),
        colour(1, 2, 0.0, NEAR),
        colour(2, 3, 0.0, NEAR),
        colour(1, 2, LATER, 1.5 * NEAR),
        float(-before.max()) if len(before) else np.nan,
        float(after.min()) if len(after) else np.nan,
        float(sky.period[row]),
        _scatter(mjd, flux, error, band),
    )


def _scatter(mjd: Float, flux: Float, error: Float, band: NDArray[np.int8]) -> float:
    """Scatter of points of one band and night over what their errors say, the median over pairs; NaN without pairs."""
    order = np.lexsort((mjd, band))
    apart, same = np.diff(mjd[order]), np.diff(band[order]) == 0
    pairs = same & (apart < 0.5)
    if pairs.sum() < 3:
        return np.nan
    difference = np.diff(flux[order])[pairs] / np.hypot(error[order][1:], error[order][:-1])[pairs]
    return float(np.median(np.abs(difference)) / 0.6745)


def compare(real: Sky, other: Sky, of_a_cell: int = 300) -> dict[str, dict[str, dict[str, Any]]]:
    """Medians of both sides and the distance between them, for every class and survey that both have.

    Parameters
    ----------
    other : views, or simulated objects; ``source`` says which survey an object looks like.
    of_a_cell : objects of a class and survey that are looked at.
    """
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for label in np.unique(real.label[real.label >= 0]):
        for source in np.unique(other.source[other.label == label]):
            sides = [sky.take(_some(sky, int(label), str(source), of_a_cell)) for sky in (real, other)]
            if min(map(len, sides)) >= FEWEST:
                cell = _cell(*(measures(side) for side in sides))
                table.setdefault(ELASTICC.names[label], {})[str(source)] = {
                    "real": len(sides[0]), "other": len(sides[1]), **cell,
                }  # fmt: skip
    return table


def compare_classes(real: Sky, other: Sky, of_a_cell: int = 60) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the same for every class over all its surveys, at most ``of_a_cell`` real objects of each."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for label in np.unique(other.label):
        sources = np.unique(real.source[real.label == label])
        rows = [_some(real, int(label), str(source), of_a_cell) for source in sources]
        mine = np.flatnonzero(other.label == label)[: 10 * of_a_cell]
        if sum(map(len, rows)) >= FEWEST:
            side = real.take(np.concatenate(rows))
            cell = _cell(measures(side), measures(other.take(mine)))
            table[ELASTICC.names[label]] = {EVERYWHERE: {"real": len(side), "other": len(mine), **cell}}
    return table


def read_simulated(path: Path) -> Sky:
    """Read a file of the simulator as a record, all of it of one survey, `SIMULATED`; periods are not told."""
    data = read_dataset(path)
    points, rows = len(data.mjd), len(data)
    unknown_N, text_N = np.full(rows, np.nan), np.full(rows, "", dtype=np.str_)
    names = np.array(data.object_id, dtype=np.str_)
    redshift_N = data.metadata[:, METADATA_COLUMNS.index("z_final")].astype(np.float64)
    return Sky(
        offsets=data.offsets, mjd=data.mjd, flux=data.flux, flux_err=data.flux_err,
        total_flux=np.full(points, np.nan, np.float32), band=data.band.astype(np.int8), detected=data.detected,
        foreign=np.zeros(points, np.bool_),
        wavelength=np.array([WAVELENGTH[name] for name in BANDS], np.float32)[data.band],
        source=np.full(rows, SIMULATED), object_id=names, group=names, raw_label=text_N, quality=text_N,
        label=data.label.astype(np.int64), z=redshift_N, z_err=unknown_N, z_phot=unknown_N, z_phot_err=unknown_N,
        mwebv=unknown_N, period=unknown_N, part=np.zeros(rows, np.int8), metadata=data.metadata,
    )  # fmt: skip


def _some(sky: Sky, label: int, source: str, most: int) -> NDArray[np.intp]:
    rows = np.flatnonzero((sky.label == label) & (sky.source == source))
    return rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(np.intp)] if len(rows) else rows


def _cell(real_NM: Float, other_NM: Float) -> dict[str, Any]:
    """Median of both sides and KS distance of every measure that both have."""
    cell = {}
    for place, name in enumerate(MEASURES):
        left, right = (side[:, place][np.isfinite(side[:, place])] for side in (real_NM, other_NM))
        if min(len(left), len(right)) >= FEWEST:
            cell[name] = {
                "real": float(np.median(left)), "other": float(np.median(right)), "distance": _distance(left, right),
            }  # fmt: skip
    return cell


def _distance(left: Float, right: Float) -> float:
    """Largest difference of the two distribution functions (Kolmogorov and Smirnov)."""
    every = np.sort(np.concatenate([left, right]))
    below = [np.searchsorted(np.sort(side), every, side="right") / len(side) for side in (left, right)]
    return float(np.abs(below[0] - below[1]).max())


def draw(real: Sky, others: Mapping[str, Sky], folder: Path, of_a_class: int = 400) -> list[Path]:
    """One figure for every class: histograms of the measures, real objects and each of ``others``."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for label in np.unique(real.label[real.label >= 0]):
        sides = {"real": real, **others}
        measures_by_side = {
            name: measures(sky.take(_evenly(sky, int(label), of_a_class))) for name, sky in sides.items()
        }
        figure = Figure(figsize=(20, 7), dpi=60, layout="constrained")
        for axes, place in zip(figure.subplots(2, 6).ravel(), range(len(MEASURES)), strict=False):
            _histogram(axes, MEASURES[place], {name: values[:, place] for name, values in measures_by_side.items()})
        figure.suptitle(
            f"{ELASTICC.names[label]}: " + ", ".join(f"{len(v)} {name}" for name, v in measures_by_side.items())
        )
        written.append(folder / f"{ELASTICC.names[label].replace('/', '-').replace(' ', '-')}.png")
        figure.savefig(written[-1])
    return written


def _evenly(sky: Sky, label: int, most: int) -> NDArray[np.intp]:
    """About ``most`` objects of a class, of every survey as many, as far as it has them."""
    sources = np.unique(sky.source[sky.label == label])
    rows = [_some(sky, label, str(source), -(-most // len(sources))) for source in sources]
    return np.concatenate(rows) if rows else np.zeros(0, np.intp)


def _histogram(axes: Any, title: str, sides: Mapping[str, Float]) -> None:
    logarithmic = title in ("points", "detections", "significance", "rise", "decline", "period", "scatter / error")
    cleaned = {name: values[np.isfinite(values)] for name, values in sides.items()}
    cleaned = {name: np.log10(np.maximum(v, 1e-3)) if logarithmic else v for name, v in cleaned.items()}
    every = np.concatenate(list(cleaned.values()))
    axes.set_title(f"log {title}" if logarithmic else title)
    if len(every):
        low, high = np.percentile(every, [1, 99])
        bins = np.linspace(float(low) - 1e-3, float(high) + 1e-3, 25)
        for name, values in cleaned.items():
            axes.hist(values, bins.tolist(), density=True, histtype="step", label=name)
        axes.legend(fontsize=7)


def missing(sky: Sky) -> dict[str, dict[str, float]]:
    """Share of the labelled objects of each source that have each input."""
    sky = sky.take(sky.label >= 0)
    have: dict[str, NDArray[np.bool_]] = {
        "redshift": np.isfinite(sky.z), "photometric redshift": np.isfinite(sky.z_phot),
        "dust": np.isfinite(sky.mwebv), "period": np.isfinite(sky.period),
        "host": np.asarray(np.isfinite(sky.metadata).any(axis=1)),
        "total flux": sky.count(np.isfinite(sky.total_flux)) > 0,
        "limits": sky.count(sky.limit) > 0, "stand-in filters": sky.count(sky.foreign) > 0,
        "points below 3 sigma": sky.count(~sky.limit & (np.abs(sky.flux) < 3 * sky.flux_err)) > 0,
        "negative flux": sky.count(sky.flux < 0) > 0,
    }  # fmt: skip
    sent = as_sent(sky)
    table = {}
    for source in np.unique(sky.source):
        mine = sky.source == source
        row = {"objects": float(mine.sum()), **{name: float(flags[mine].mean()) for name, flags in have.items()}}
        objects = sent.take(sent.source == source)
        row |= {band: float((objects.count(objects.band == number) > 0).mean()) for number, band in enumerate(BANDS)}
        table[str(source)] = row
    return table
