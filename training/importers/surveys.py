"""Presets for tables of a known layout: PLAsTiCC, MALLORN, typed ZTF supernovae, Pan-STARRS1.

PLAsTiCC (Kaggle 2018; Zenodo 2539456, unblinded): a table of points with ``passband`` 0-5 and fluxes in FLUXCAL, and a
table of objects with ``target`` (or ``true_target``), host redshifts and ``mwebv``.

MALLORN (arXiv:2512.04946): LSST-cadence light curves simulated from spectroscopically typed ZTF nuclear transients.

The folder has ``train_log.csv`` and ``test_log.csv`` (``object_id, Z, EBV, SpecType, split``) and
``split_NN/{train,test}_full_lightcurves.csv.gz`` (``object_id, Time (MJD), Flux, Flux_err, Filter``).

Notable:

- fluxes are in microJy (undocumented, but consistent with the median error of an LSST visit) and are converted to nJy;
  rows without a flux are dropped;
- 16 spectroscopic types become five classes (:data:`MALLORN_CLASSES`), since rare types have too few objects to score;
- redshifts of labelled objects are exact, those of unlabelled objects photometric (only they have ``Z_err``). Since the
  distributions differ, the unlabelled light curves are used for pretraining on photometry only;
- several simulations share one parent object, and the parent is not given, so no split can keep them in one part, and
  scores of all methods are optimistic;
- the redshift of a labelled object is stored in the metadata and in a separate column.

ZTF supernovae (light curves of the ALeRCE broker with spectroscopic types): ``objects.csv`` with ``object_id, type``
and ``photometry.csv[.gz]`` with ``object_id, mjd, band, mag, magerr, upperlimit``. Notable:

- magnitudes are AB of the difference image without its sign, so every flux is positive; limits are left out;
- times are not converted (they have three decimals of a day; the 52 s from UTC at the start of an exposure to TAI at
  its middle are less than that);
- :data:`ZTF_CLASSES` uses the name of the type. Types with different light curves than their group (interacting Ibn,
  Icn and Ia-CSM, Iax, calcium-rich) and ambiguous ones (SN, SN I, two types at once) are left out and counted.

Pan-STARRS1 (Chambers+ 2016, arXiv:1612.05560; Detection table of Flewelling+ 2020, ApJS 251, 7): a CasJobs CSV of
``objID, obsTime, filterID, psfFlux, psfFluxErr, infoFlag, psfQfPerfect``. Notable:

- fluxes are total fluxes of the source in Jy on the AB system (zero point 3631 Jy);
- ``obsTime`` is treated as TAI;
- points with a failed or poor fit, of saturated stars and of defects (:data:`PS1_BAD`, bits of ``infoFlag``) are left
  out, and those with less than 0.9 of the PSF on good pixels; -999 is the archive's missing value.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final, Literal

import numpy as np

from nightjar_alerts.models.lightcurve import Int64, LightCurve
from nightjar_alerts.models.taxonomy import MALLORN
from nightjar_alerts.tables import About, TableError, TableObject, TableOptions
from nightjar_alerts.tables.files import open_source
from nightjar_alerts.tables.options import ROLES
from nightjar_alerts.training.data.sample import Sample, sample_of_curves
from nightjar_alerts.training.importers.tables import read_about, read_tables, tables_in

PLASTICC_METADATA: Final = {
    "hostgal_zspec": "hostgal_specz",
    "hostgal_zphot": "hostgal_photoz",
    "hostgal_zphot_err": "hostgal_photoz_err",
    "mwebv": "mwebv",
}
ZTF_COLUMNS: Final = {
    "object_id": "object_id",
    "time": "mjd",
    "band": "band",
    "mag": "mag",
    "mag_err": "magerr",
    "upper_limit": "upperlimit",
}
ZTF_TYPES: Final = {
    "Ia": ("SN Ia", "SN Ia-91T-like", "SN Ia-91bg-like", "SN Ia-pec", "SN Ia-SC"),
    "II": ("SN II", "SN IIP", "SN IIL", "SN IIb", "SN II-pec"),
    "Ibc": ("SN Ib", "SN Ic", "SN Ibc", "SN Ic-BL", "SN Ib-pec"),
    "IIn": ("SN IIn", "SN IIn-pec"),
    "SLSN-I": ("SLSN-I",),
    "SLSN-II": ("SLSN-II",),
}
ZTF_CLASSES: Final = {kind: name for name, kinds in ZTF_TYPES.items() for kind in kinds} | {"*": ""}

# Targets of the challenge (Kessler+ 2019, PASP 131, 094501), with class names of ELAsTiCC if they exist.
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

PS1_COLUMNS: Final = {
    "object_id": "objID",
    "time": "obsTime",
    "band": "filterID",
    "flux": "psfFlux",
    "flux_err": "psfFluxErr",
}
# infoFlag: fit failed, poor fit, saturated star, bad PSF, defect, saturated, cosmic ray.
PS1_BAD: Final = 0x8 | 0x10 | 0x80 | 0x400 | 0x800 | 0x1000 | 0x2000

MALLORN_COLUMNS: Final = {
    "object_id": "object_id",
    "time": "Time (MJD)",
    "band": "Filter",
    "flux": "Flux",
    "flux_err": "Flux_err",
}


def plasticc(source: Path, objects: Path | None, options: TableOptions) -> tuple[TableOptions, Iterator[TableObject]]:
    """Return options and objects of the tables of points in ``source``, with labels of the table ``objects``."""
    paths = tables_in(source)
    names = open_source(paths[0]).header
    columns = {"object_id": "object_id", "time": "mjd", "band": "passband", "flux": "flux", "flux_err": "flux_err"}
    columns["detected"] = next((name for name in ("detected", "detected_bool") if name in names), "")
    options = replace(options, columns=only(columns), flux_unit="FLUXCAL", filter_numbers="lsst")
    return options, read_tables(paths, options, None if objects is None else _plasticc_objects(objects))


def only(columns: Mapping[str, str]) -> dict[str, str]:
    """Return named columns, with guessing of other roles disabled."""
    return {**dict.fromkeys(ROLES, ""), **columns}


def _plasticc_objects(path: Path) -> dict[str, About]:
    names = open_source(path).header
    label = next((name for name in ("true_target", "target") if name in names), None)
    columns = ({"label": label} if label else {}) | ({"redshift": "true_z"} if "true_z" in names else {})
    return read_about(path, "object_id", columns, {k: v for k, v in PLASTICC_METADATA.items() if v in names})


def mallorn(
    source: Path, part: Literal["train", "test"], options: TableOptions
) -> tuple[dict[str, About], Iterator[TableObject]]:
    """Return properties by object id and objects of one part of the challenge's folder; ``test`` is unlabelled."""
    about = mallorn_log(source, part)
    paths = sorted(source.glob(f"split_*/{part}_full_lightcurves.csv*"))
    if not paths:
        raise TableError(f"{source} holds no split_*/{part}_full_lightcurves.csv")
    return about, read_tables(paths, mallorn_options(options), about)


def mallorn_log(source: Path, part: Literal["train", "test"]) -> dict[str, About]:
    """Return the properties of the objects of one part of the challenge, by id."""
    log = source / f"{part}_log.csv"
    if not log.is_file():
        raise TableError(f"{log} is missing")
    labelled = part == "train"
    metadata = {"z_final": "Z", "mwebv": "EBV"} | ({} if labelled else {"z_final_err": "Z_err"})
    return read_about(log, "object_id", {"label": "SpecType", "redshift": "Z"} if labelled else {}, metadata)


def mallorn_options(options: TableOptions) -> TableOptions:
    """Return options for a file of light curves of the challenge."""
    return replace(options, columns=only(MALLORN_COLUMNS), flux_unit="uJy")


def mallorn_classes(about: Mapping[str, About] | None) -> dict[str, str]:
    """Return the class of each spectroscopic type that occurs."""
    types = {row.label for row in (about or {}).values() if row.label}
    return {name: MALLORN_CLASSES[mallorn_class(name)] for name in sorted(types)}


def ztf_supernovae(source: Path, options: TableOptions) -> Iterator[TableObject]:
    """Yield the objects of a folder of typed ZTF supernovae."""
    about = read_about(source / "objects.csv", "object_id", {"label": "type"}, {})
    paths = sorted(source.glob("photometry.csv*"))[:1] or [source / "photometry.csv"]
    return read_tables(paths, replace(options, columns=only(ZTF_COLUMNS)), about)


def panstarrs(source: Path, options: TableOptions, *, bad_flags: int, min_quality: float) -> Iterator[TableObject]:
    """Yield the objects of CasJobs tables of Pan-STARRS1 detections."""
    options = replace(
        options,
        columns=only(PS1_COLUMNS),
        flux_unit="Jy",
        filter_numbers="ps1",
        bad_flags={"infoFlag": bad_flags},
        minimum={"psfQfPerfect": min_quality},
    )
    return read_tables(tables_in(source), options)


MALLORN_CLASSES = MALLORN.names


@dataclass(frozen=True, slots=True, eq=False)
class Mallorn:
    """Light curves with metadata ``z_final`` and ``mwebv``, and class indices into :data:`MALLORN_CLASSES`.

    ``label_N`` is -1 for unlabelled objects, which have no metadata.
    """

    curves: tuple[LightCurve, ...]
    label_N: Int64

    def __len__(self) -> int:
        return len(self.curves)


def mallorn_class(spectral_type: str) -> int:
    """Return the class index of a spectroscopic type, such as ``SN Ia-91T-like``.

    Raises
    ------
    TableError
        If the type is in none of the five classes.
    """
    if spectral_type in ("AGN", "TDE"):
        return MALLORN_CLASSES.index(spectral_type)
    if spectral_type.startswith("SLSN"):
        return MALLORN_CLASSES.index("SLSN")
    if spectral_type.startswith("SN Ia"):
        return MALLORN_CLASSES.index("Ia")
    if spectral_type.startswith(("SN II", "SN Ib", "SN Ic")):
        return MALLORN_CLASSES.index("core-collapse")
    raise TableError(f"unknown spectroscopic type {spectral_type!r}")


def read_mallorn(folder: Path) -> Mallorn:
    """Read the labelled objects, in the order of their log. Raises TableError."""
    about, objects = mallorn(folder, "train", TableOptions())
    curves = {item.object_id: item.light_curve() for item in objects if item.usable().any()}
    names = [name for name in about if name in curves]
    labels = np.array([mallorn_class(about[name].label) for name in names], dtype=np.int64)
    return Mallorn(tuple(curves[name] for name in names), labels)


def read_unlabelled_mallorn(folder: Path, limit: int | None = None) -> Mallorn:
    """Read the photometry of the unlabelled objects, or of the first ``limit`` of them."""
    _, objects = mallorn(folder, "test", TableOptions())
    usable = (replace(item, metadata={}).light_curve() for item in objects if item.usable().any())
    curves = tuple(islice(usable, limit))
    return Mallorn(curves, np.full(len(curves), -1, dtype=np.int64))


def to_dataset(objects: Mallorn) -> Sample:
    """Convert to a dataset for training; labels are indices into :data:`MALLORN_CLASSES`."""
    return sample_of_curves(
        objects.curves,
        label=objects.label_N,
        source=np.full(len(objects.curves), "mallorn"),
        classes=MALLORN_CLASSES,
    )
