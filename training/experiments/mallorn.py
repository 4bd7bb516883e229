"""MALLORN (arXiv:2512.04946): LSST-cadence light curves simulated from spectroscopically typed ZTF nuclear transients.

The folder holds ``train_log.csv`` and ``test_log.csv`` (``object_id, Z, EBV, SpecType, split``) and
``split_NN/{train,test}_full_lightcurves.csv.gz`` (``object_id, Time (MJD), Flux, Flux_err, Filter``).

Notable:

- fluxes are in microJy (stated nowhere, but consistent with the median error of an LSST visit) and become nJy here;
  rows without a flux are dropped;
- 16 spectroscopic types become five classes (:data:`CLASSES`): the rare ones have too few objects to score;
- **traps.** The redshift of the labelled objects is exact, that of the unlabelled ones a noisy photometric one (and
  only they have ``Z_err``): a network trained on the former and asked about the latter meets another distribution, so
  the unlabelled curves are used for pretraining on photometry alone. Several simulations share one parent object and
  the parent is not given: folds drawn at random may hold siblings on both sides, which flatters every method alike.
"""

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.lightcurve import Int64, LightCurve
from models.metadata import METADATA_COLUMNS, metadata_row
from models.taxonomy import MALLORN
from training.data.dataset import Dataset

CLASSES = MALLORN.names


class MallornError(ValueError):
    """The folder does not hold the MALLORN tables."""


@dataclass(frozen=True, slots=True, eq=False)
class Mallorn:
    """Light curves with metadata ``z_final`` and ``mwebv``, and class indices into :data:`CLASSES`.

    ``label_N`` is -1 throughout for the unlabelled objects, which carry no metadata.
    """

    curves: tuple[LightCurve, ...]
    label_N: Int64

    def __len__(self) -> int:
        return len(self.curves)


def class_of(spectral_type: str) -> int:
    """Index of the class of a spectroscopic type, such as ``SN Ia-91T-like``.

    Raises
    ------
    MallornError
        For a type of none of the five classes.
    """
    if spectral_type in ("AGN", "TDE"):
        return CLASSES.index(spectral_type)
    if spectral_type.startswith("SLSN"):
        return CLASSES.index("SLSN")
    if spectral_type.startswith("SN Ia"):
        return CLASSES.index("Ia")
    if spectral_type.startswith(("SN II", "SN Ib", "SN Ic")):
        return CLASSES.index("core-collapse")
    raise MallornError(f"unknown spectroscopic type {spectral_type!r}")


def read_labelled(folder: Path) -> Mallorn:
    """Read the labelled objects, in the order of their log."""
    rows = {row["object_id"]: row for row in _log(folder / "train_log.csv")}
    found = {curve.object_id: curve for curve in _curves(folder, "train", _metadata(rows))}
    kept = [name for name in rows if name in found]
    labels = np.array([class_of(rows[name]["SpecType"]) for name in kept], dtype=np.int64)
    return Mallorn(tuple(found[name] for name in kept), labels)


def read_unlabelled(folder: Path, limit: int | None = None) -> Mallorn:
    """Read the photometry of the unlabelled objects, of the first ``limit`` of them where given."""
    curves: list[LightCurve] = []
    for curve in _curves(folder, "test", {}):
        if limit is not None and len(curves) >= limit:
            break
        curves.append(curve)
    return Mallorn(tuple(curves), np.full(len(curves), -1, dtype=np.int64))


def to_dataset(objects: Mallorn) -> Dataset:
    """Return the objects as the training commands see a data file; labels are indices into :data:`CLASSES`."""
    curves = objects.curves
    return Dataset(
        offsets=np.cumsum([0, *(len(curve) for curve in curves)]),
        mjd=np.concatenate([curve.mjd for curve in curves]),
        flux=np.concatenate([curve.flux for curve in curves]),
        flux_err=np.concatenate([curve.flux_err for curve in curves]),
        band=np.concatenate([curve.band for curve in curves]).astype(np.int8),
        detected=np.concatenate([curve.detected for curve in curves]),
        metadata=np.stack([metadata_row(curve.metadata, METADATA_COLUMNS) for curve in curves]),
        label=objects.label_N,
        object_id=[curve.object_id for curve in curves],
        trigger_mjd=np.array([curve.mjd[curve.detected].min(initial=np.inf) for curve in curves]),
        classes=CLASSES,
    )


def _log(path: Path) -> Iterator[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)
    except FileNotFoundError:
        raise MallornError(f"{path} is missing") from None


def _metadata(rows: dict[str, dict[str, str]]) -> dict[str, dict[str, float]]:
    columns = {"Z": "z_final", "EBV": "mwebv"}
    return {
        name: {ours: float(row[theirs]) for theirs, ours in columns.items() if row[theirs]}
        for name, row in rows.items()
    }


def _curves(folder: Path, part: str, metadata: dict[str, dict[str, float]]) -> Iterator[LightCurve]:
    """Light curves of one part, split by split; an object's rows are consecutive in its file."""
    for path in sorted(folder.glob(f"split_*/{part}_full_lightcurves.csv.gz")):
        columns: dict[str, list[tuple[float, float, float, str]]] = {}
        with gzip.open(path, "rt", newline="", encoding="utf-8") as file:
            for name, mjd, flux, flux_err, band in _rows(path, file):
                if flux and flux_err:
                    columns.setdefault(name, []).append((float(mjd), float(flux), float(flux_err), band))
        for name, points in columns.items():
            yield _curve(name, points, metadata.get(name, {}))


def _rows(path: Path, file: Iterator[str]) -> Iterator[list[str]]:
    rows = csv.reader(file)
    if next(rows, None) != ["object_id", "Time (MJD)", "Flux", "Flux_err", "Filter"]:
        raise MallornError(f"{path} has other columns than the challenge's")
    yield from rows


def _curve(name: str, points: list[tuple[float, float, float, str]], metadata: dict[str, float]) -> LightCurve:
    mjd, flux, flux_err, band = zip(*points, strict=True)
    return LightCurve.from_columns(
        mjd=mjd, flux=flux, flux_err=flux_err, band=band, metadata=metadata, object_id=name, flux_unit="uJy"
    )
