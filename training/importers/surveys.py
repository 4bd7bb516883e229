"""Tables whose layout is known: PLAsTiCC, MALLORN, typed ZTF supernovae, Pan-STARRS1, and HATS partitions.

PLAsTiCC (Kaggle 2018; Zenodo 2539456, unblinded): a table of points with ``passband`` 0-5 and fluxes in FLUXCAL, and a
table of objects with ``target`` (or ``true_target``), host redshifts and ``mwebv``.

MALLORN (arXiv:2512.04946): see `training.experiments.mallorn` for its layout and its traps; the redshift of labelled
objects is exact and goes both into the metadata and beside the curve, that of unlabelled ones is photometric. Several
objects share a parent that the tables do not name, so no split can keep them together.

ZTF supernovae (light curves of the ALeRCE broker with spectroscopic types): ``objects.csv`` with ``object_id, type``
and ``photometry.csv[.gz]`` with ``object_id, mjd, band, mag, magerr, upperlimit``. Notable:

- magnitudes are AB of the difference image and come without its sign, so every flux is positive; limits are left out;
- the times are used as they are (days to three decimals; the 52 s from UTC at the start of an exposure to TAI at its
  middle are less than that);
- :data:`ZTF_CLASSES` goes by the name of the type. Types whose light is not that of their namesake (interacting Ibn,
  Icn and Ia-CSM, Iax, calcium-rich) or that say too little (SN, SN I, two types at once) are left out and counted.

Pan-STARRS1 (Chambers+ 2016, arXiv:1612.05560; Detection table of Flewelling+ 2020, ApJS 251, 7): a CasJobs CSV of
``objID, obsTime, filterID, psfFlux, psfFluxErr, infoFlag, psfQfPerfect``. Notable:

- fluxes are Jy on the AB system (zero point 3631 Jy) and are those of the source, not of a difference image;
- ``obsTime`` is taken as TAI;
- points whose fit failed or was poor, of saturated stars and of defects (:data:`PS1_BAD`, bits of ``infoFlag``) are
  left out, as are those with less than 0.9 of the PSF on good pixels; -999 is how the archive says "missing".
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from models.units import NJY_PER_UNIT
from training.experiments.mallorn import CLASSES, class_of
from training.importers.columns import ColumnMap, as_numbers, column, header, tables_in
from training.importers.raw import ImportFormatError, RawObject
from training.importers.tables import About, Layout, read_about, read_tables

PLASTICC_BANDS: Final = {str(number): band for number, band in enumerate("ugrizY")}
PLASTICC_METADATA: Final = {
    "hostgal_zspec": "hostgal_specz",
    "hostgal_zphot": "hostgal_photoz",
    "hostgal_zphot_err": "hostgal_photoz_err",
    "mwebv": "mwebv",
}
ZTF_COLUMNS: Final = ColumnMap(
    id="object_id", mjd="mjd", band="band", mag="mag", mag_err="magerr", upper_limit="upperlimit"
)
ZTF_TYPES: Final = {
    "Ia": ("SN Ia", "SN Ia-91T-like", "SN Ia-91bg-like", "SN Ia-pec", "SN Ia-SC"),
    "II": ("SN II", "SN IIP", "SN IIL", "SN IIb", "SN II-pec"),
    "Ibc": ("SN Ib", "SN Ic", "SN Ibc", "SN Ic-BL", "SN Ib-pec"),
    "IIn": ("SN IIn", "SN IIn-pec"),
    "SLSN-I": ("SLSN-I",),
    "SLSN-II": ("SLSN-II",),
}
ZTF_CLASSES: Final = {kind: name for name, kinds in ZTF_TYPES.items() for kind in kinds}

# Targets of the challenge (Kessler+ 2019, PASP 131, 094501) by the names of the ELAsTiCC grouping where it has them.
PLASTICC_CLASSES: Final = {
    "90": "Ia",
    "67": "91bg",
    "52": "Iax",
    "42": "II",
    "62": "Ib/c",
    "95": "SLSN",
    "15": "TDE",
    "64": "KN",
    "88": "AGN",
    "92": "RR Lyrae",
    "65": "M-dwarf Flare",
    "16": "EB",
    "53": "Mira",
    "6": "uLens",
    "991": "uLens",
    "992": "ILOT",
    "993": "CART",
    "994": "PISN",
}

PS1_BANDS: Final = {str(number): band for number, band in enumerate("grizY", start=1)}
PS1_COLUMNS: Final = ColumnMap(id="objID", mjd="obsTime", band="filterID", flux="psfFlux", flux_err="psfFluxErr")
# infoFlag: fit failed, poor fit, saturated star, bad PSF, defect, saturated, cosmic ray.
PS1_BAD: Final = 0x8 | 0x10 | 0x80 | 0x400 | 0x800 | 0x1000 | 0x2000
PS1_MISSING: Final = -999.0

MALLORN_COLUMNS: Final = ColumnMap(id="object_id", mjd="Time (MJD)", band="Filter", flux="Flux", flux_err="Flux_err")


def plasticc(source: Path, objects: Path | None) -> tuple[Layout, Iterator[RawObject]]:
    """Layout and objects of the tables of points in ``source``, labelled by the table ``objects`` where given."""
    paths = tables_in(source)
    detected = next((name for name in header(paths[0]) if name in ("detected", "detected_bool")), None)
    parts = {"id": "object_id", "mjd": "mjd", "band": "passband", "flux": "flux", "flux_err": "flux_err"}
    layout = Layout(
        ColumnMap(**parts, detected=detected),
        unit=NJY_PER_UNIT["FLUXCAL"],
        about=None if objects is None else _plasticc_objects(objects),
    )
    return layout, read_tables(paths, layout)


def _plasticc_objects(path: Path) -> dict[str, About]:
    names = header(path)
    label = next((name for name in ("true_target", "target") if name in names), None)
    columns = ({"label": label} if label else {}) | ({"redshift": "true_z"} if "true_z" in names else {})
    return read_about(path, "object_id", columns, {k: v for k, v in PLASTICC_METADATA.items() if v in names})


def mallorn(source: Path, part: Literal["train", "test"]) -> tuple[Layout, Iterator[RawObject]]:
    """Layout and objects of one part of the challenge's folder; ``test`` is unlabelled."""
    log = source / f"{part}_log.csv"
    if not log.is_file():
        raise ImportFormatError(f"{log} is missing")
    labelled = part == "train"
    metadata = {"z_final": "Z", "mwebv": "EBV"} | ({} if labelled else {"z_final_err": "Z_err"})
    about = read_about(log, "object_id", {"label": "SpecType", "redshift": "Z"} if labelled else {}, metadata)
    layout = Layout(MALLORN_COLUMNS, unit=NJY_PER_UNIT["uJy"], about=about)
    paths = sorted(source.glob(f"split_*/{part}_full_lightcurves.csv*"))
    if not paths:
        raise ImportFormatError(f"{source} holds no split_*/{part}_full_lightcurves.csv")
    return layout, read_tables(paths, layout)


def mallorn_classes(about: Mapping[str, About] | None) -> dict[str, str]:
    """Spectroscopic type to one of the five classes that have enough objects to be scored."""
    types = {known.label for known in (about or {}).values() if known.label}
    return {name: CLASSES[class_of(name)] for name in sorted(types)}


def ztf_supernovae(source: Path) -> tuple[Layout, Iterator[RawObject]]:
    """Layout and objects of a folder of typed ZTF supernovae."""
    about = read_about(source / "objects.csv", "object_id", {"label": "type"}, {})
    layout = Layout(ZTF_COLUMNS, about=about)
    return layout, read_tables(sorted(source.glob("photometry.csv*"))[:1] or [source / "photometry.csv"], layout)


def panstarrs(
    source: Path, *, bad_flags: int = PS1_BAD, min_quality: float = 0.9, grouped: bool = False
) -> tuple[Layout, Iterator[RawObject]]:
    """Layout and objects of CasJobs tables of Pan-STARRS1 detections; ``grouped``: rows of an object are adjacent."""

    def rejections(batch: pa.RecordBatch) -> dict[str, NDArray[np.bool_]]:
        flags = np.nan_to_num(as_numbers(column(batch, "infoFlag"), "infoFlag"), nan=float(bad_flags)).astype(np.int64)
        quality = as_numbers(column(batch, "psfQfPerfect"), "psfQfPerfect")
        values = [as_numbers(column(batch, name), name) for name in ("obsTime", "psfFlux", "psfFluxErr")]
        return {
            "missing (-999)": np.any([value == PS1_MISSING for value in values], axis=0),
            "infoFlag": (flags & bad_flags) != 0,
            f"psfQfPerfect below {min_quality:g}": ~(quality >= min_quality),
        }

    layout = Layout(
        PS1_COLUMNS,
        unit=NJY_PER_UNIT["Jy"],
        extra=("infoFlag", "psfQfPerfect"),
        rejections=rejections,
        unsorted=not grouped,
    )
    return layout, read_tables(tables_in(source), layout)


def hats_partitions(source: Path) -> list[Path]:
    """Return the Parquet files of a HATS catalogue, pixel by pixel; of a collection, those of its primary catalogue.

    The margin and index tables of a collection repeat objects and are not read, nor are the ``_metadata`` files.

    Raises
    ------
    ImportFormatError
        When there is no ``Norder=*/Dir=*/Npix=*`` below ``source``.
    """
    catalogue = source
    properties = source / "collection.properties"
    if properties.is_file():
        lines = [line.partition("=") for line in properties.read_text(encoding="utf-8").splitlines()]
        named = {key.strip(): value.strip() for key, _, value in lines}
        catalogue = source / named.get("hats_primary_table_url", ".")
    found = sorted(path for path in catalogue.rglob("*.parquet") if _is_partition(path))
    if not found:
        raise ImportFormatError(f"{source} is not a HATS catalogue: it holds no Norder=*/Dir=*/Npix=* Parquet files")
    return found


def _is_partition(path: Path) -> bool:
    parts = path.parts
    return all(any(part.startswith(f"{key}=") for part in parts) for key in ("Norder", "Dir", "Npix"))
