"""Readers of sets of light curves, in a common schema or in other formats.

The common schema (``real/*.parquet``) has a row per object and survey, with points in lists. ZTF's supernovae and
periodic variables and MALLORN are tables, which `nightjar_alerts.tables` reads. It does not read the others as they are
needed here: the common schema, ELAsTiCC's objects, Catalina (all written for training, with total fluxes, filters that
stand for a band, and host columns in a nested column) and Rubin alerts that are matched by the ids of their alerts.

**Filters.** A network uses the bands u g r i z Y of LSST. Similar filters (SDSS, Pan-STARRS, DECam, MegaCam, ZTF,
Kepler-cam, CSP) have the same letters; other filters are mapped to the nearest band in log wavelength, and the point is
marked as foreign. `V` is mapped to `r`, not to the slightly nearer `g`, so that `B` and `V` keep a colour. No colour
term is applied: `V` mapped to `r` is bluer than a measured `r`, and the training data must include such points.
Ultraviolet filters beyond `U`, and everything redder than `Y`, are left out.

If several filters of an object are mapped to one band (`V` and `R`), the band has the points of all of them, like the
``band_groups`` of a bundle when a request names these filters.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nightjar_alerts.models.metadata import METADATA_COLUMNS, SENTINELS
from nightjar_alerts.models.photometry import BANDS, FILTERS, NJY_ZERO_POINT
from nightjar_alerts.tables import TableObject, TableOptions
from nightjar_alerts.training.data.sample import LABELS, UNLABELLED, SurveyObject
from nightjar_alerts.training.importers.snana import ELASTICC_CLASSES
from nightjar_alerts.training.importers.surveys import ZTF_COLUMNS, mallorn_log, mallorn_options, only, ztf_supernovae
from nightjar_alerts.training.importers.tables import read_about, read_tables

WAVELENGTH: Final = {"u": 368.0, "g": 480.0, "r": 622.0, "i": 754.0, "z": 869.0, "Y": 971.0}
"""Effective wavelengths of the LSST filters, nm."""

FOREIGN: Final[dict[str, tuple[tuple[str, float], ...]]] = {
    "u": (("U", 360.0),),
    "g": (("B", 436.0), ("c", 533.0), ("gr", 560.0)),
    "r": (("R", 641.0), ("V", 545.0), ("Rs", 641.0), ("F625W", 625.0), ("G", 622.0), ("o", 679.0), ("w", 610.0),
          ("C", 600.0), ("clear", 600.0)),
    "i": (("I", 798.0), ("F775W", 775.0)),
}  # fmt: skip
"""Filters mapped to a band, with their effective wavelengths in nm."""

BAND_SUBSTITUTES: Final = {
    letter: band for band, stand_ins in FOREIGN.items() for letter, _ in stand_ins if letter in FILTERS
}
"""Band of each filter that a request may name, as in training; the ``band_groups`` of a bundle."""


def assign_bands(letters_P: NDArray[np.str_]) -> tuple[NDArray[np.int8], NDArray[np.bool_], NDArray[np.float32]]:
    """Return band, foreign flag and wavelength of the points of one object; band -1 if a point is to be left out."""
    band_P = np.full(len(letters_P), -1, dtype=np.int8)
    foreign_P = np.zeros(len(letters_P), dtype=np.bool_)
    wavelength_P = np.full(len(letters_P), np.nan, dtype=np.float32)
    for number, name in enumerate(BANDS):
        choices = ((name, WAVELENGTH[name]), *FOREIGN.get(name, ()))
        for index, (letter, nanometres) in enumerate(choices):
            matches_P = letters_P == letter
            band_P[matches_P], wavelength_P[matches_P], foreign_P[matches_P] = number, nanometres, index > 0
    return band_P, foreign_P, wavelength_P


OTHER_SCHEMA: Final = frozenset({"lclib_mdwarf"})
EVALUATION_ONLY: Final = frozenset({"tdecat"})
"""Sets that their licence restricts to evaluation: never used for training, calibration or selection."""
EVALUATION_LABELS: Final = EVALUATION_ONLY | {"rubin"}
"""Sources whose labels are for evaluation only. Rubin has few labels, so only the cadences of its light curves are used
in training."""

CONFLICTS: Final = frozenset({
    "SN2019dwa", "SN2019ieh", "SN2018hsf", "SN2020wnt", "AT2020yue", "SN2020abku", "SN2020acct", "SN2020acun",
    "SN2020esm", "SN2020fhs", "CSS110329:133902-240114", "Gaia19awv", "Gaia21fjv",
    "ZTF19aarfyvc", "ZTF19abauylg", "ZTF18acbvpzj", "ZTF20acjeflr", "ZTF20acnznms",
})  # fmt: skip
"""Objects to which two sources assign different types; they are left out."""

_POINTS: Final = ("mjd", "band", "flux", "flux_err", "total_flux", "detected")
_ROW: Final = ("source", "object_id", "label", "raw_label", "label_quality", "z", "z_err", "z_phot", "z_phot_err",
               "mwebv", "period_d", "aliases", "also_in")  # fmt: skip


def read_real(folder: Path) -> Iterator[SurveyObject]:
    """Yield every object with a usable point in the files of ``folder``; none if the folder does not exist.

    Objects of the file ``other_types`` are unlabelled and have quality ``other``.
    """
    for path in sorted(folder.glob("*.parquet")):
        if path.stem not in OTHER_SCHEMA:
            yield from _read_file(path)


def _read_file(path: Path) -> Iterator[SurveyObject]:
    table = pq.read_table(path, columns=[*_ROW, *_POINTS]).combine_chunks()
    rows = table.select(_ROW).to_pylist()
    lists = {name: table.column(name).combine_chunks() for name in _POINTS}
    for number, row in enumerate(rows):
        if row["object_id"] in CONFLICTS:
            continue
        points = {name: _numpy(column[number].values) for name, column in lists.items()}
        if points["total_flux"] is None or not len(points["total_flux"]):
            points["total_flux"] = np.full(len(points["mjd"]), np.nan)
        survey_object = _object(row, points)
        if survey_object is not None:
            if path.stem == "other_types":
                survey_object.quality = "other"
            yield survey_object


def _numpy(values: Any) -> Any:
    """Return the values of a list as an array; None if the row has no list."""
    return None if values is None else values.to_numpy(zero_copy_only=False)


def _object(row: dict[str, Any], points: dict[str, NDArray[Any]]) -> SurveyObject | None:
    flux, error = points["flux"], points["flux_err"]
    band, foreign, wavelength = assign_bands(points["band"].astype(np.str_))
    ok = (band >= 0) & np.isfinite(flux) & np.isfinite(error) & (error > 0)
    if not ok.any():
        return None
    return SurveyObject(
        source=row["source"],
        object_id=row["object_id"],
        mjd=points["mjd"][ok],
        flux=flux[ok],
        flux_err=error[ok],
        band=band[ok],
        detected=points["detected"][ok].astype(np.bool_),
        foreign=foreign[ok],
        wavelength=wavelength[ok],
        total_flux=points["total_flux"][ok],
        label=LABELS.get(row["label"] or "", UNLABELLED),
        raw_label=row["raw_label"] or "",
        quality=row["label_quality"] or "",
        names=_names(row),
        z=_number(row["z"]),
        z_err=_number(row["z_err"]),
        z_phot=_number(row["z_phot"]),
        z_phot_err=_number(row["z_phot_err"]),
        mwebv=_number(row["mwebv"]),
        period=_number(row["period_d"]),
    )


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _names(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the object's id, aliases and stated matches. OGLE aliases (field and star) are not unique names."""
    aliases = "" if row["source"].startswith("ogle") else row["aliases"] or ""
    return (row["object_id"], *aliases.split(";"), *(row["also_in"] or "").split(";"))


MAG_TO_ERROR: Final = 0.4 * np.log(10)
ZTF_TYPES: Final = {
    "SN Ia": "Ia", "SN Ia-91T-like": "Ia", "SN Ia-91bg-like": "91bg", "SN Iax[02cx-like]": "Iax",
    "SN Ia-CSM": "SN-like/Other", "SN Ia-SC": "SN-like/Other",
    "SN II": "II", "SN IIP": "II", "SN IIn": "II", "SN II-pec": "II", "SN IIn-pec": "II", "SN IIb": "SN-like/Other",
    "SN Ib": "Ib/c", "SN Ic": "Ib/c", "SN Ibc": "Ib/c", "SN Ic-BL": "Ib/c", "SN Ibn": "Ib/c", "SN Icn": "Ib/c",
    "SN Ib-pec": "Ib/c", "SN Ibc|SN Ic": "Ib/c", "SN Ib|SN Ic-BL": "Ib/c",
    "SLSN-I": "SLSN", "SLSN-II": "SLSN",
}  # fmt: skip
MALLORN_TYPES: Final = {
    "AGN": "AGN", "TDE": "TDE", "SLSN-I": "SLSN", "SLSN-II": "SLSN", "SN Ia": "Ia", "SN Ia-91T-like": "Ia",
    "SN Ia-91bg-like": "91bg", "SN Iax[02cx-like]": "Iax", "SN II": "II", "SN IIP": "II", "SN IIn": "II",
    "SN IIb": "SN-like/Other", "SN Ib": "Ib/c", "SN Ic": "Ib/c", "SN Ic-BL": "Ib/c",
}  # fmt: skip
PERIODIC_TYPES: Final = {"RR Lyr": "RR Lyrae", "Cepheid": "Cepheid", "δ Sct": "Delta Scuti"}
CATALINA_TYPES: Final = {
    "EW(contact/semi-detached EB)": "EB", "EA": "EB", "RRab": "RR Lyrae", "RRc": "RR Lyrae", "RRd": "RR Lyrae",
    "Blazhko": "RR Lyrae", "ACEP": "Cepheid", "Cep-II": "Cepheid", "LMC-Cep-I": "Cepheid", "delta-Scuti": "Delta Scuti",
}  # fmt: skip
CATALINA_PER_CLASS: Final = 400
_INDEX: Final = {name: number for number, name in enumerate(BANDS)}
_NANOMETRES: Final = np.array([WAVELENGTH[name] for name in BANDS], dtype=np.float32)


def label_of(name: str | None) -> int:
    """Return the class index of a name of the taxonomy; `UNLABELLED` for None and other names."""
    return LABELS.get(name or "", UNLABELLED)


def flux_of(mag: NDArray[np.floating]) -> NDArray[np.float64]:
    """Convert AB magnitudes to nJy."""
    return np.asarray(10.0 ** (-0.4 * (np.asarray(mag, dtype=np.float64) - NJY_ZERO_POINT)))


def _native(band: NDArray[np.int8]) -> dict[str, Any]:
    """Return flags and wavelengths of points in LSST-like filters."""
    return {"band": band, "foreign": np.zeros(len(band), np.bool_), "wavelength": _NANOMETRES[band]}


def _points(item: TableObject) -> dict[str, Any] | None:
    """Return the usable points of an object of a table in filters like LSST's; None if it has none."""
    keep = item.usable()
    band = np.array([_INDEX.get(name, -1) for name in item.band[keep]], dtype=np.int8)
    keep[keep] = band >= 0
    if not keep.any():
        return None
    columns = {name: getattr(item, name)[keep] for name in ("mjd", "flux", "flux_err")}
    return {"object_id": item.object_id, **columns, **_native(band[band >= 0])}


def read_ztf_supernovae(folder: Path, conflicts: frozenset[str]) -> Iterator[SurveyObject]:
    """Yield ZTF supernovae with alert photometry; limits have flux 0, ambiguous and unknown types are unlabelled."""
    if not (folder / "objects.csv").exists():
        return
    for item in ztf_supernovae(folder, TableOptions(upper_limits="use")):
        points = _points(item)
        if not item.label or item.object_id in conflicts or points is None or not points["flux"].any():
            continue
        yield SurveyObject(
            source="ztf_sn", **points, detected=points["flux"] != 0, label=label_of(ZTF_TYPES.get(item.label)),
            raw_label=item.label, quality="spectroscopic", names=(item.object_id,),
        )  # fmt: skip


def read_elasticc(folder: Path) -> Iterator[SurveyObject]:
    """Yield supernovae and kilonovae of ELAsTiCC with the host columns of their alerts."""
    for path in sorted(folder.glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            band = np.array([_INDEX[letter] for letter in row["band"]], dtype=np.int8)
            flux = np.asarray(row["flux"], dtype=np.float64)
            alert = row["diaObject"]
            values = np.array([_missing(alert.get(name)) for name in METADATA_COLUMNS], dtype=np.float32)
            metadata = dict(zip(METADATA_COLUMNS, values.astype(np.float64).tolist(), strict=True))
            model = row["model"]
            yield SurveyObject(
                source="elasticc", object_id=f"elasticc-{row['snid']}", mjd=np.asarray(row["mjd"], dtype=np.float64),
                flux=flux, flux_err=np.asarray(row["fluxerr"], dtype=np.float64), **_native(band),
                detected=np.asarray(row["detected"]).astype(np.bool_), raw_label=model, quality="simulated",
                label=label_of(ELASTICC_CLASSES.get(model, ELASTICC_CLASSES.get(f"{model}_V19"))),
                z=float(row["z_true"]), z_phot=metadata["z_final"], z_phot_err=metadata["z_final_err"],
                mwebv=metadata["mwebv"], metadata=values, names=(f"elasticc-{row['snid']}",),
            )  # fmt: skip


def _missing(value: float | None) -> float:
    return np.nan if value is None or float(value) in SENTINELS else float(value)


def read_mallorn(folder: Path) -> Iterator[SurveyObject]:
    """Yield every object of the challenge; its test objects are unlabelled."""
    if not (folder / "train_log.csv").exists():
        return
    about = {**mallorn_log(folder, "train"), **mallorn_log(folder, "test")}
    paths = sorted(folder.glob("split_*/*_full_lightcurves.csv.gz"))  # split by split, as the sample has them
    for path in paths:
        exact = path.name.startswith("train")
        for item in read_tables([path], mallorn_options(TableOptions()), about):
            points = _points(item)
            if item.object_id not in about or points is None:
                continue
            z, mwebv = item.metadata["z_final"], item.metadata["mwebv"]
            yield SurveyObject(
                source="mallorn", **points, detected=np.abs(points["flux"]) >= 5 * points["flux_err"],
                label=label_of(MALLORN_TYPES.get(item.label)), raw_label=item.label,
                quality="simulated" if exact else "unlabelled", mwebv=mwebv, names=(f"mallorn:{item.object_id}",),
                z=z if exact else np.nan, z_phot=np.nan if exact else z,
                z_phot_err=item.metadata.get("z_final_err", np.nan),
            )  # fmt: skip


def read_ztf_periodic(folder: Path) -> Iterator[SurveyObject]:
    """Yield periodic variables of ZTF's data releases; flux is total flux minus the median of each band."""
    if not (folder / "objects.csv").exists():
        return
    about = read_about(folder / "objects.csv", "object_id", {"label": "class"}, {"period": "period_d"})
    columns = {role: name for role, name in ZTF_COLUMNS.items() if role != "upper_limit"}
    for item in read_tables([folder / "photometry.csv.gz"], TableOptions(columns=only(columns)), about):
        points = _points(item)
        if item.object_id not in about or points is None:
            continue
        label = label_of(PERIODIC_TYPES.get(item.label))
        yield _variable(
            SurveyObject(
                source="ztf_dr", **points, detected=np.zeros(len(points["flux"]), np.bool_), label=label,
                raw_label=item.label, quality="catalogue" if label >= 0 else "other", period=item.metadata["period"],
                names=(item.object_id,),
            )
        )  # fmt: skip


def read_catalina(folder: Path, per_class: int = CATALINA_PER_CLASS) -> Iterator[SurveyObject]:
    """Yield at most ``per_class`` periodic variables of each class of Catalina's southern survey (no filter)."""
    for path in sorted(folder.glob("*.parquet")):
        table = pq.read_table(path)
        counts: dict[str, int] = {}
        for number, kind in enumerate(table.column("class").to_pylist()):
            counts[kind] = counts.get(kind, 0) + 1
            if counts[kind] > per_class:
                continue
            row = table.slice(number, 1).to_pylist()[0]
            total = flux_of(np.asarray(row["mag"]) - 0.02)
            band, foreign, wavelength = assign_bands(np.full(len(total), "C"))
            name, label = f"css-{row['object_id']}", label_of(CATALINA_TYPES.get(kind))
            yield _variable(
                SurveyObject(
                    source="css", object_id=name, mjd=np.asarray(row["mjd"], dtype=np.float64), flux=total,
                    flux_err=total * np.asarray(row["magerr"]) * MAG_TO_ERROR, band=band, foreign=foreign,
                    wavelength=wavelength, detected=np.zeros(len(total), np.bool_), label=label, raw_label=kind,
                    quality="catalogue" if label >= 0 else "other", period=float(row["period_d"] or "nan"),
                    names=(name,),
                )
            )  # fmt: skip


def _variable(row: SurveyObject) -> SurveyObject:
    """Subtract the median of each band from total flux; deviations of five sigma count as detections."""
    ok = np.isfinite(row.flux) & np.isfinite(row.flux_err) & (row.flux_err > 0) & (row.band >= 0)
    for name in ("mjd", "flux", "flux_err", "band", "detected", "foreign", "wavelength"):
        setattr(row, name, getattr(row, name)[ok])
    row.total_flux = row.flux
    difference = row.flux.astype(np.float64)
    for number in np.unique(row.band):
        in_band = row.band == number
        difference[in_band] -= np.median(difference[in_band])
    row.flux, row.detected = difference, np.abs(difference) >= 5 * row.flux_err
    return row


_ALERT_COLUMNS: Final = ("diaSource", "prvDiaSources", "prvDiaForcedSources")


def read_rubin(data: Path) -> Iterator[SurveyObject]:
    """Yield objects of ``real/rubin_labels.csv`` whose alert is in a Parquet file below ``alerts/lsst``.

    Objects are matched by the ids of their alerts, since object ids in the table have lost digits.
    """
    table = data / "real" / "rubin_labels.csv"
    if not table.exists():
        return
    with table.open(encoding="utf-8") as file:
        about = {alert: row for row in csv.DictReader(file) for alert in row["diaSourceIds"].split(";")}
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted((data / "alerts" / "lsst").rglob("*.parquet")):
        for alert in pq.read_table(path, columns=list(_ALERT_COLUMNS)).to_pylist():
            row = about.get(str(alert["diaSource"]["diaSourceId"]))
            if row is None:
                continue
            previous = newest.get(row["diaObjectId"])
            if previous is None or previous["diaSource"]["midpointMjdTai"] < alert["diaSource"]["midpointMjdTai"]:
                newest[row["diaObjectId"]] = alert
    for name, alert in newest.items():
        row = about[str(alert["diaSource"]["diaSourceId"])]
        label = LABELS.get(row["label"], UNLABELLED)
        yield _alert_object(f"rubin-{name}", alert, label, row)


def _alert_object(name: str, alert: dict[str, Any], label: int, row: dict[str, str]) -> SurveyObject:
    """Return an object with its detections, and forced photometry of the visits without a detection."""
    sources = [*(alert["prvDiaSources"] or []), alert["diaSource"]]
    visits = {source["visit"] for source in sources}
    forced = [source for source in alert["prvDiaForcedSources"] or [] if source["visit"] not in visits]
    every = [(source, number < len(sources)) for number, source in enumerate([*sources, *forced])]
    every = [(s, d) for s, d in every if s["psfFlux"] is not None and s["psfFluxErr"] and np.isfinite(s["psfFlux"])]
    band = np.array([_INDEX[source["band"].replace("y", "Y")] for source, _ in every], dtype=np.int8)
    total = [np.nan if source["scienceFlux"] is None else source["scienceFlux"] for source, _ in every]
    return SurveyObject(
        source="rubin",
        object_id=name,
        mjd=np.array([source["midpointMjdTai"] for source, _ in every], dtype=np.float64),
        flux=np.array([source["psfFlux"] for source, _ in every], dtype=np.float64),
        flux_err=np.array([source["psfFluxErr"] for source, _ in every], dtype=np.float64),
        band=band,
        detected=np.array([detected for _, detected in every], dtype=np.bool_),
        foreign=np.zeros(len(band), np.bool_),
        wavelength=np.array([WAVELENGTH[BANDS[number]] for number in band], dtype=np.float32),
        total_flux=np.array(total, dtype=np.float64),
        label=label,
        raw_label=row["label"] or row["kind"],
        quality="catalogue" if label >= 0 else "unlabelled",
        names=(name,),
    )
