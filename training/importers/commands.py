"""Subcommands of ``nightjar-train import``: one for each format, all with the same rules.

    nightjar-train import snana ELASTICC_TRAIN --out build/elasticc.parquet --licence "..."
    nightjar-train import plasticc training_set.csv --objects training_set_metadata.csv --out build/plasticc.parquet
    nightjar-train import mallorn mallorn --out build/mallorn.parquet
    nightjar-train import ztf-supernovae ztf_sn --min-detections 8 --out build/ztf_sn.parquet
    nightjar-train import ztf ztf_public_20260801.tar.gz --alerts all --out build/ztf.parquet
    nightjar-train import panstarrs detections.csv --out build/ps1.parquet
    nightjar-train import table points.csv.gz --columns id=object_id,mjd=mjd,mag=mag,mag_err=magerr,band=band \
        --objects objects.csv --object-columns id=object_id,label=type --out build/points.parquet
    nightjar-train import table objects.parquet --metadata-struct diaObject --out build/objects.parquet \
        --columns id=snid,mjd=mjd,flux=flux,flux_err=fluxerr,band=band,detected=detected,label=model,redshift=z_true
    nightjar-train import hats catalogue --out build/hats.parquet \
        --columns id=diaObjectId,mjd=lc.midpointMjdTai,flux=lc.psfFlux,flux_err=lc.psfFluxErr,band=lc.band

Each prints a JSON report of the numbers read, written and dropped, with reasons, which is also stored in the file
(`read_notes`). With ``--classes`` labels become classes of another name (``--classes 'SNII=II'``), are left out
(``'SNII='``) or become unlabelled (``'SNII=*'``); a label that the map does not name is an error unless the map has an
entry for ``*``.

Every point is validated, invalid ones are dropped and counted by reason, and the provenance is stored:

- invalid values are not repaired: a point with a NaN flux or an error that is not positive is dropped and counted;
- a band outside u g r i z Y stops the import, since only the user can decide: ``--bands w=r`` reads it as r, ``--bands
  w=`` leaves it out;
- Julian dates in SNANA files and alerts stop the import; a wrong flux unit cannot be detected with certainty, so an
  implausible median error is a warning;
- of several points with the same time and band the most precise one is kept;
- of several objects with the same id the first one is kept.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import BaseSettings, CliApp, CliPositionalArg, CliSubCommand, SettingsConfigDict
from tqdm import tqdm

from nightjar_alerts.models.lightcurve import Float64, Int64
from nightjar_alerts.models.metadata import METADATA_COLUMNS, clean_metadata, metadata_row
from nightjar_alerts.models.photometry import (
    BANDS,
    DETECTION_SNR,
    JD_MINUS_MJD,
    MAX_ABS_MJD,
    NJY_ZERO_POINT,
    MagSystem,
    SourceUnit,
    filter_index,
)
from nightjar_alerts.models.taxonomy import MALLORN, TAXONOMIES, ZTF_SUPERNOVAE
from nightjar_alerts.tables import About, TableError, TableObject, TableOptions, read_table
from nightjar_alerts.tables.files import hats_partitions, open_source
from nightjar_alerts.tables.options import ROLES, TimeFormat
from nightjar_alerts.training.data.dataset import LabelledObject, write_dataset
from nightjar_alerts.training.importers import surveys
from nightjar_alerts.training.importers.snana import COLUMNS, ELASTICC_CLASSES, read_snana
from nightjar_alerts.training.importers.tables import (
    MISSING,
    class_of_label,
    guess_label,
    objects_with_several_labels,
    read_about,
    read_tables,
    tables_in,
)
from nightjar_alerts.training.importers.ztf import LeftOut, read_alerts

DECADES = np.linspace(-6.0, 12.0, 18 * 20 + 1)  # bin edges of log10(flux error / nJy)
MAX_NAMED_FILES = 100
"""Maximum number of skipped files that a report names; it counts all of them."""
COMPLETING: Final = frozenset({"label", "redshift", "parent", "detected", "upper_limit", "limit", "sign", "mag_system"})
"""Columns that are named besides those that are guessed; with any other one, all columns have to be named."""
PLAUSIBLE_DEPTH = (14.0, 29.0)  # AB magnitude at 5 sigma: from a small telescope to a deep field
NAMES = {taxonomy.name: taxonomy.names for taxonomy in TAXONOMIES}

ColumnNames = Mapping[str, str]


class ImportRules(BaseModel):
    """Rules of an import: maps of names, and the minimum numbers of points and detections of an object."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bands: dict[str, str] = Field(default={}, description="band of the source=u g r i z or Y; empty: leave out")
    classes: dict[str, str] = Field(
        default={}, description="label of the source=class; empty: leave the object out; *: unlabelled"
    )
    taxonomy: Literal["found", "elasticc-20", "ztf-supernovae-6", "mallorn-5"] = Field(
        default="found", description="known set of classes for the file; found: the classes of the source"
    )
    min_points: int = Field(default=1, ge=1, description="leave out objects with fewer usable points")
    min_detections: int = Field(default=1, ge=0, description="leave out objects with fewer detections")
    required_bands: str = Field(
        default="", pattern="^[ugrizyY]*$", description="bands that every object must have, such as grizy"
    )
    min_per_band: int = Field(default=1, ge=1, description="minimum number of usable points in each required band")
    limit: int | None = Field(default=None, ge=1, description="maximum number of objects to write")


@dataclass
class ImportReport:
    """Counts of one import; `as_dict` is printed and stored."""

    objects_read: int = 0
    objects_written: int = 0
    points_read: int = 0
    points_written: int = 0
    dropped_objects: Counter[str] = field(default_factory=Counter)
    dropped_points: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    bands: Counter[str] = field(default_factory=Counter)
    depths: Int64 = field(default_factory=lambda: np.zeros(len(DECADES) - 1, dtype=np.int64))
    parents: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)
    left_out: LeftOut | None = None

    def median_error(self) -> float:
        """Return the median flux error of the points written, nJy, to 12 % (a histogram bin); NaN without points."""
        if not self.depths.sum():
            return float("nan")
        at = int(np.searchsorted(np.cumsum(self.depths), self.depths.sum() / 2))
        return float(10 ** DECADES[at : at + 2].mean())

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as JSON values, with reasons and classes in descending order."""
        median, counters = self.median_error(), ("dropped_objects", "dropped_points", "classes", "bands")
        numbers = ("objects_read", "objects_written", "points_read", "points_written")
        return {
            **{name: getattr(self, name) for name in numbers},
            **({} if self.left_out is None else _files_left_out(self.left_out)),
            **{name: dict(getattr(self, name).most_common()) for name in counters},
            "parents": len(self.parents),
            "median_flux_err_njy": None if np.isnan(median) else round(median, 4),
            "warnings": [*self.warnings, *_depth_warning(median)],
        }


def _files_left_out(left_out: LeftOut) -> dict[str, Any]:
    """Return the numbers of skipped files, and names and reasons of the first `MAX_NAMED_FILES`."""
    return {
        "unreadable_files": len(left_out.unreadable),
        "unreadable": dict(islice(left_out.unreadable.items(), MAX_NAMED_FILES)),
        "other_files": len(left_out.other),
        "not_alerts": list(islice(left_out.other, MAX_NAMED_FILES)),
    }


def _depth_warning(median: float) -> list[str]:
    if np.isnan(median):
        return []
    depth = NJY_ZERO_POINT - 2.5 * np.log10(5.0 * median)
    if PLAUSIBLE_DEPTH[0] <= depth <= PLAUSIBLE_DEPTH[1]:
        return []
    return [f"the median error is that of a 5 sigma depth of {depth:.1f} mag: check the unit of the fluxes"]


def import_objects(
    objects: Iterable[TableObject],
    out: Path,
    rules: ImportRules,
    provenance: Mapping[str, Any],
    *,
    progress: bool = True,
    left_out: LeftOut | None = None,
    several: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Write ``objects`` to the data file ``out`` and return the report, which is also stored in the file.

    Parameters
    ----------
    provenance : source, survey, licence, columns used ...; JSON values, stored with the report.
    left_out : files that the reader of ``objects`` skips, for the report.
    several : objects whose rows have different labels, which are left out.

    Raises
    ------
    TableError
        If the source violates its format, a band is unknown, or no object is left to write.
    """
    report = ImportReport(left_out=left_out)

    def document() -> dict[str, Any]:
        return {**provenance, "rules": rules.model_dump(), "report": report.as_dict()}

    def stream() -> Iterator[LabelledObject]:
        yield from tqdm(_cleaned(objects, rules, report, several), unit="object", disable=not progress)
        if not report.objects_written:
            raise TableError(f"nothing to write: {json.dumps(report.as_dict())}")

    classes = None if rules.taxonomy == "found" else NAMES[rules.taxonomy]
    write_dataset(out, stream(), classes=classes, notes=lambda: {"import": json.dumps(document())})
    return report.as_dict()


def _cleaned(
    objects: Iterable[TableObject], rules: ImportRules, report: ImportReport, several: frozenset[str]
) -> Iterator[LabelledObject]:
    seen_ids: set[str] = set()
    for raw in objects:
        report.objects_read += 1
        report.points_read += len(raw.mjd)
        if not raw.object_id or raw.object_id in seen_ids:
            report.dropped_objects["id seen before" if raw.object_id else "no id"] += 1
            continue
        seen_ids.add(raw.object_id)
        if raw.object_id in several:
            report.dropped_objects["with several labels"] += 1
            continue
        if (record := clean(raw, rules, report)) is None:
            continue
        _count(record, report)
        yield record
        if report.objects_written == rules.limit:
            return


def clean(raw: TableObject, rules: ImportRules, report: ImportReport) -> LabelledObject | None:
    """Return the object for the data file, or None if it is left out; reasons are counted in ``report``.

    Raises
    ------
    TableError
        If a band is unknown, times are Julian dates, or a class is not in the taxonomy.
    """
    if len({len(raw.mjd), len(raw.flux), len(raw.flux_err), len(raw.band)}) != 1:
        report.dropped_objects["columns differ in length"] += 1
        return None
    class_name = _class_of(raw, rules, report)
    if class_name is None:
        return None
    band = _bands(raw, rules)
    points = _usable(raw, band, report)
    detected = np.abs(raw.flux) >= DETECTION_SNR * raw.flux_err if raw.detected is None else raw.detected
    if reason := _reason_too_few(band[points], int(detected[points].sum()), rules):
        report.dropped_objects[reason] += 1
        return None
    return LabelledObject(
        object_id=raw.object_id,
        class_name=class_name,
        mjd=raw.mjd[points],
        flux=raw.flux[points].astype(np.float32),
        flux_err=raw.flux_err[points].astype(np.float32),
        band=band[points].astype(np.int8),
        detected=detected[points],
        trigger_mjd=float(raw.mjd[points][detected[points]].min(initial=np.inf)),
        metadata=metadata_row(clean_metadata(raw.metadata), METADATA_COLUMNS),
        redshift=raw.redshift,
        parent=raw.parent,
    )


def _reason_too_few(band: Int64, detections: int, rules: ImportRules) -> str:
    """Return the reason why an object has too few points, or an empty text."""
    if not len(band):
        return "no usable points"
    if len(band) < rules.min_points:
        return "too few points"
    if detections < rules.min_detections:
        return "too few detections"
    counts = np.bincount(band, minlength=len(BANDS))
    lacking = [name for name in rules.required_bands if counts[filter_index(name)] < rules.min_per_band]
    return f"fewer than {rules.min_per_band} points in {lacking[0]}" if lacking else ""


def _class_of(raw: TableObject, rules: ImportRules, report: ImportReport) -> str | None:
    """Return the class of the object, empty if unlabelled; None if the map leaves it out."""
    name = "" if raw.label.lower() in MISSING and not rules.classes else class_of_label(raw.label)
    if rules.classes and name:
        known = NAMES.get(rules.taxonomy, ())
        mapped = rules.classes.get(name, name if name in known else rules.classes.get("*"))
        if mapped is None:
            raise TableError(
                f"object {raw.object_id}: the class map has no entry for {name!r}; map it (--classes '{name}=Ia'), "
                f"leave it out (--classes '{name}=') or leave out every class that is not named (--classes '*=')"
            )
        if not mapped:
            report.dropped_objects[f"label {name!r} is not imported"] += 1
            return None
        name = "" if mapped == "*" else mapped
    if name and name not in NAMES.get(rules.taxonomy, (name,)):
        raise TableError(
            f"object {raw.object_id}: class {name!r} is not one of {rules.taxonomy}; map it (--classes '{name}=Ia'), "
            f"leave it out (--classes '{name}=') or keep the source's own classes (--taxonomy found)"
        )
    return name


def _bands(raw: TableObject, rules: ImportRules) -> Int64:
    """Return indices into BANDS, -1 for bands that are left out."""
    index_by_name: dict[str, int] = {}
    left_out = raw.rejected.get("filter left out")
    index_by_name |= (
        dict.fromkeys({name for name, out in zip(raw.band, left_out, strict=True) if out}, -1)
        if (left_out is not None)
        else {}
    )
    for name in set(raw.band) - index_by_name.keys():
        mapped = rules.bands.get(name, name)
        if mapped and mapped not in (*BANDS, "y"):
            raise TableError(
                f"object {raw.object_id}: band {mapped!r} is not one of {' '.join(BANDS)}; state how to read it "
                f"(--bands '{name}=r') or leave it out (--bands '{name}=')"
            )
        index_by_name[name] = filter_index(mapped) if mapped else -1
    return np.array([index_by_name[name] for name in raw.band], dtype=np.int64)


def _usable(raw: TableObject, band: Int64, report: ImportReport) -> Int64:
    """Return the indices of usable points, sorted by time and band; others are counted by their first reason."""
    is_usable = np.ones(len(raw.mjd), dtype=np.bool_)
    for reason, bad in {**raw.rejected, **_invalid(raw, band)}.items():
        report.dropped_points[reason] += int((is_usable & bad).sum())
        is_usable &= ~bad
    report.dropped_points = +report.dropped_points  # without reasons that did not occur
    positions = np.flatnonzero(is_usable)
    order = positions[np.lexsort((raw.flux_err[is_usable], band[is_usable], raw.mjd[is_usable]))]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (np.diff(raw.mjd[order]) != 0) | (np.diff(band[order]) != 0)
    if not first.all():
        report.dropped_points["another point at this time in this band"] += int((~first).sum())
    return order[first]


@np.errstate(over="ignore", invalid="ignore")
def _invalid(raw: TableObject, band: Int64) -> dict[str, NDArray[np.bool_]]:
    finite = np.isfinite(raw.mjd)
    _reject_julian_dates(raw, raw.mjd[finite])
    error = raw.flux_err.astype(np.float32)
    return {
        "band left out": band < 0,
        "time is not finite": ~finite,
        "time cannot be an MJD": finite & (np.abs(raw.mjd) >= MAX_ABS_MJD),
        "flux is not finite": ~np.isfinite(raw.flux.astype(np.float32)),
        "flux error is not finite": ~np.isfinite(error),
        "flux error is not positive": ~(error > 0),
    }


def _reject_julian_dates(raw: TableObject, mjd: Float64) -> None:
    if len(mjd) and (np.abs(mjd - JD_MINUS_MJD) < MAX_ABS_MJD).all():
        raise TableError(
            f"object {raw.object_id}: times near {mjd[0]:.1f} are Julian dates; this importer reads MJD "
            "(the tables take --time-offset -2400000.5)"
        )


def _count(record: LabelledObject, report: ImportReport) -> None:
    report.objects_written += 1
    report.points_written += len(record.mjd)
    report.classes[record.class_name or "(unlabelled)"] += 1
    report.parents |= {record.parent} - {""}
    for index, number in enumerate(np.bincount(record.band, minlength=len(BANDS)).tolist()):
        report.bands.update({BANDS[index]: number} if number else {})
    errors = np.log10(record.flux_err.astype(np.float64))
    report.depths += np.histogram(np.clip(errors, DECADES[0], DECADES[-1]), DECADES)[0]


class ImportOptions(ImportRules):
    """Options of every import."""

    source: CliPositionalArg[Path] = Field(description="file or folder to read")
    out: Path = Field(description="Parquet file to write")
    survey: str = Field(default="not stated", description="name of the survey, for the provenance")
    licence: str = Field(default="not stated", description="terms of the data, for the provenance and the model card")
    progress: bool = Field(default=True, description="show a progress bar")

    maps_bands: ClassVar[bool] = True
    """Whether the reader maps the bands itself."""

    def table_options(self) -> TableOptions:
        """Return the options of the table reader; metadata come from tables of objects, unless they are named."""
        return TableOptions(filters=self.bands, metadata={})

    def run(
        self,
        objects: Iterable[TableObject],
        columns: Mapping[str, str],
        left_out: LeftOut | None = None,
        several: frozenset[str] = frozenset(),
        /,
        **rules: Any,
    ) -> None:
        """Import and print the report; the user's rules override ``rules`` of the format, in maps for each name."""
        options = self.model_dump(include=set(ImportRules.model_fields) & self.model_fields_set)
        maps = {name: {**rules.get(name, {}), **options.get(name, {})} for name in ("bands", "classes")}
        maps["classes"] = {class_of_label(label): name for label, name in maps["classes"].items()}
        if self.maps_bands:
            maps["bands"] = {}
        settings = ImportRules(**{**rules, **options, **maps})
        provenance = {
            "format": re.sub(r"(?<!^)(?=[A-Z])", "-", type(self).__name__.removesuffix("Import")).lower(),
            "source": str(self.source),
            "survey": self.survey,
            "licence": self.licence,
            "columns": {part: name for part, name in columns.items() if name},
            "bands": dict(self.bands),
        }
        report = import_objects(
            objects, self.out, settings, provenance, progress=self.progress, left_out=left_out, several=several
        )
        sys.stdout.write(json.dumps({"out": str(self.out), **report}, indent=2) + "\n")


class SnanaImport(ImportOptions):
    """SNANA FITS of ELAsTiCC and PLAsTiCC: folders of HEAD and PHOT files, named after the model."""

    maps_bands: ClassVar[bool] = False

    survey: str = "ELAsTiCC"
    label_column: str | None = Field(default=None, description="HEAD column of the label, instead of the folder's name")
    window: bool = Field(default=True, description="keep only the alert history: trigger - 30 d to last detection")

    def cli_cmd(self) -> None:
        """Import."""
        objects = read_snana(self.source, label_column=self.label_column, window=self.window)
        preset = {} if self.label_column else {"classes": ELASTICC_CLASSES, "taxonomy": "elasticc-20"}
        points = {"flux": "FLUXCAL", "flux_err": "FLUXCALERR", "mjd": "MJD", "band": "BAND", "detected": "PHOTFLAG"}
        self.run(objects, {"id": "SNID", **points, **COLUMNS}, **preset)


class PlasticcImport(ImportOptions):
    """PLAsTiCC tables of points (CSV, plain or gzipped), labelled by the table of objects."""

    survey: str = "PLAsTiCC"
    objects: Path | None = Field(default=None, description="table of objects; default: all are unlabelled")

    def cli_cmd(self) -> None:
        """Import."""
        options, objects = surveys.plasticc(self.source, self.objects, self.table_options())
        self.run(objects, options.columns, classes=surveys.PLASTICC_CLASSES)


class MallornImport(ImportOptions):
    """Folder of the MALLORN challenge; without --classes the types become its five scored classes."""

    survey: str = "MALLORN"
    part: Literal["train", "test"] = Field(default="train", description="test is unlabelled")
    types: bool = Field(default=False, description="keep the spectroscopic types as classes")

    def cli_cmd(self) -> None:
        """Import."""
        about, objects = surveys.mallorn(self.source, self.part, self.table_options())
        classes = surveys.mallorn_classes(about)
        preset = {} if self.types or not classes else {"classes": classes, "taxonomy": MALLORN.name}
        columns = {**surveys.MALLORN_COLUMNS, "z_final": "Z", "mwebv": "EBV", "label": "SpecType"}
        self.run(objects, columns, min_detections=0, **preset)


class ZtfSupernovaeImport(ImportOptions):
    """ZTF supernovae with spectroscopic types: objects.csv and photometry.csv; six classes, from Ia to SLSN-II."""

    survey: str = "ZTF"
    types: bool = Field(default=False, description="keep the spectroscopic types as classes")

    def cli_cmd(self) -> None:
        """Import."""
        objects = surveys.ztf_supernovae(self.source, self.table_options())
        preset = {} if self.types else {"classes": surveys.ZTF_CLASSES, "taxonomy": ZTF_SUPERNOVAE.name}
        self.run(objects, {**surveys.ZTF_COLUMNS, "label": "type"}, **preset)


class LabelledImport(ImportOptions):
    """Options of an import with a separate table of objects."""

    objects: Path | None = Field(default=None, description="table of objects with labels, redshifts, metadata")
    object_columns: dict[str, str] = Field(default={}, description="its columns: id=, label=, redshift=, parent=")
    object_metadata: dict[str, str] = Field(default={}, description="metadata columns in it: z_final=Z, mwebv=EBV ...")

    def about(self) -> dict[str, About] | None:
        """Read the table of objects, by id. Raises ValueError for incompatible options."""
        if self.objects is None:
            if self.object_columns or self.object_metadata:
                raise ValueError(
                    "--object-columns and --object-metadata describe the table of --objects, which is missing"
                )
            return None
        if unknown := sorted(self.object_columns.keys() - {"id", "label", "redshift", "parent"}):
            raise ValueError(f"--object-columns accepts id, label, redshift and parent, not {', '.join(unknown)}")
        if "id" not in self.object_columns:
            raise ValueError("--object-columns must name the id column: id=...")
        columns = {part: name for part, name in self.object_columns.items() if part != "id"}
        return read_about(self.objects, self.object_columns["id"], columns, self.object_metadata)


class ZtfImport(LabelledImport):
    """ZTF alert archives: files, tar archives or folders of Avro or JSON alerts, optionally compressed."""

    maps_bands: ClassVar[bool] = False

    survey: str = "ZTF"
    alerts: Literal["last", "all"] = Field(default="last", description="history of the last alert, or all joined")

    def cli_cmd(self) -> None:
        """Import."""
        left_out = LeftOut({}, {})
        objects = read_alerts(self.source, keep=self.alerts, about=self.about(), left_out=left_out)
        columns = {"mag": "magpsf", "mag_err": "sigmapsf", "flux": "forcediffimflux", "flux_err": "forcediffimfluxunc"}
        self.run(objects, {"id": "objectId", "mjd": "jd", "band": "fid", **columns}, left_out)


class PanstarrsImport(ImportOptions):
    """Pan-STARRS1 detections from CasJobs (CSV); unlabelled, total fluxes."""

    survey: str = "Pan-STARRS1"
    bad_flags: int = Field(default=surveys.PS1_BAD, ge=0, description="bits of infoFlag that exclude a point")
    min_quality: float = Field(default=0.9, ge=0, le=1, description="minimum psfQfPerfect")

    def cli_cmd(self) -> None:
        """Import."""
        options, quality = self.table_options(), self.min_quality
        objects = surveys.panstarrs(self.source, options, bad_flags=self.bad_flags, min_quality=quality)
        self.run(objects, surveys.PS1_COLUMNS, required_bands="grizY", min_per_band=4)


class TableImport(LabelledImport):
    """Any table that `tables` reads, with a row per point or points in lists; columns are guessed or named."""

    columns: dict[str, str] = Field(
        default={},
        description="id=, mjd=, band= (or band==r), flux= and flux_err= or mag= and mag_err=, [detected=, "
        "upper_limit=, label=, redshift=, parent=]; a.b is a field of a nested column; other columns are ignored. "
        "Default: guess all but redshift and parent; label=, redshift=, parent=, detected= and the like alone complete "
        "the guesses",
    )
    metadata: dict[str, str] = Field(default={}, description="metadata columns: z_final=Z, mwebv=EBV ...")
    metadata_struct: str | None = Field(
        default=None, description="struct column whose fields have the names of the metadata"
    )
    flux_unit: SourceUnit | None = Field(
        default=None, description="unit of the fluxes; default: nJy if columns are named"
    )
    signed_magnitudes: bool | None = Field(
        default=None, description="negative magnitudes are negative fluxes, as in ATLAS forced photometry"
    )
    mag_system: MagSystem | Literal["mixed"] | None = Field(
        default=None, description="mixed: Vega in U B V R I G BP RP and unfiltered, AB in other filters"
    )
    zero_point: float | None = Field(default=None, description="AB zero point of the fluxes, instead of --flux-unit")
    time_format: TimeFormat | None = Field(default=None, description="format of the times")
    time_offset: float | None = Field(default=None, description="days to add to the times")

    def table_options(self) -> TableOptions:
        """Return the options of the reader."""
        roles = {"id": "object_id", "mjd": "time"}
        columns = {roles.get(part, part): name for part, name in self.columns.items()}
        band = columns.get("band", "")
        if is_complete := bool(columns.keys() - COMPLETING):
            self._check(columns)
            columns = {**dict.fromkeys(ROLES, ""), **columns}
        has_flux = is_complete and bool(columns.get("flux"))
        unit = self.flux_unit or ("nJy" if has_flux and self.zero_point is None else "")
        return TableOptions(
            columns={**columns, "band": ""} if band.startswith("=") else columns,
            band=band[1:] if band.startswith("=") else "",
            filters=self.bands,
            time_format=self.time_format or "",
            time_offset=self.time_offset,
            flux_unit=unit,
            zero_point=self.zero_point,
            mag_system=self.mag_system or "",
            signed_magnitudes=False if is_complete and self.signed_magnitudes is None else self.signed_magnitudes,
            metadata=self._metadata(),
        )

    @staticmethod
    def _check(columns: Mapping[str, str]) -> None:
        pairs = [[columns.get(kind), columns.get(f"{kind}_err")] for kind in ("flux", "mag")]
        if not all(columns.get(part) for part in ("object_id", "time", "band")) or (
            [all(pair) for pair in pairs].count(True) != 1 or any(any(pair) != all(pair) for pair in pairs)
        ):
            raise ValueError("columns must name id, mjd, band, and flux and flux_err, or mag and mag_err")

    def _metadata(self) -> dict[str, str]:
        """Return the named metadata columns, and those among the fields of the struct."""
        if self.metadata_struct is None:
            return self.metadata
        names = open_source(self.paths()[0]).header
        fields = {name.rpartition(".")[2]: name for name in names if name.startswith(f"{self.metadata_struct}.")}
        if not fields:
            raise TableError(f"column {self.metadata_struct} is not a struct")
        return {name: fields[name] for name in METADATA_COLUMNS if name in fields} | self.metadata

    def paths(self) -> list[Path]:
        """Return the files to read."""
        return tables_in(self.source)

    def cli_cmd(self) -> None:
        """Import."""
        options, paths, about = self.table_options(), self.paths(), self.about()
        first = read_table(paths[0], options)
        if about is None and "label" not in options.columns and (label := guess_label(first.header)):
            options = replace(options, columns={**options.columns, "label": label})
            first = read_table(paths[0], options)
            sys.stderr.write(f"the label is column {label!r} (columns.label={label})\n")
        elif about is None and "label" not in options.columns:
            sys.stderr.write("no column of labels was found: name it by --columns label=COLUMN, or give --objects\n")
        for guess in () if self.columns.keys() - COMPLETING else first.guesses:
            sys.stderr.write(f"{guess}\n")
        columns = {**first.columns, **(options.metadata or {}), **self.object_columns, **self.object_metadata}
        label = options.columns.get("label", "") if about is None else ""
        several = [objects_with_several_labels(path, first, options, label) for path in paths if label]
        self.run(read_tables(paths, options, about), columns, None, frozenset().union(*several))


class HatsImport(TableImport):
    """A HATS catalogue with nested light curves (nested-pandas, LSDB): Norder=*/Dir=*/Npix=* Parquet files."""

    def paths(self) -> list[Path]:
        """Return the partitions."""
        return hats_partitions(self.source)


class Import(BaseModel):
    """Convert files of a survey or challenge to a data file, with a report of dropped objects and points."""

    model_config = ConfigDict(extra="forbid")

    snana: CliSubCommand[SnanaImport]
    plasticc: CliSubCommand[PlasticcImport]
    mallorn: CliSubCommand[MallornImport]
    ztf_supernovae: CliSubCommand[ZtfSupernovaeImport]
    ztf: CliSubCommand[ZtfImport]
    panstarrs: CliSubCommand[PanstarrsImport]
    table: CliSubCommand[TableImport]
    hats: CliSubCommand[HatsImport]

    def cli_cmd(self) -> None:
        """Run the chosen sub-command."""
        CliApp.run_subcommand(self)


class _ImportCommand(BaseSettings, Import):
    """Convert files of a survey or challenge to a data file, with a report of dropped objects and points."""

    model_config = SettingsConfigDict(
        cli_prog_name="nightjar-train import",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_use_class_docs_for_groups=True,
    )


def main(arguments: list[str]) -> None:
    """Run an import from its arguments."""
    CliApp.run(_ImportCommand, cli_args=arguments)
