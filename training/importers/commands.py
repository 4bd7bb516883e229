"""The sub-commands of ``python -m training import``: one for each format, all with the same rules.

    python -m training import snana ELASTICC_TRAIN --out build/elasticc.parquet --licence "..."
    python -m training import plasticc training_set.csv --objects training_set_metadata.csv --out build/plasticc.parquet
    python -m training import mallorn mallorn --out build/mallorn.parquet
    python -m training import ztf-supernovae ztf_sn --min-detections 8 --out build/ztf_sn.parquet
    python -m training import ztf ztf_public_20260801.tar.gz --alerts all --out build/ztf.parquet
    python -m training import panstarrs detections.csv --out build/ps1.parquet
    python -m training import table points.csv.gz --columns id=object_id,mjd=mjd,mag=mag,mag_err=magerr,band=band \
        --objects objects.csv --object-columns id=object_id,label=type --out build/points.parquet
    python -m training import table objects.parquet --metadata-struct diaObject --out build/objects.parquet \
        --columns id=snid,mjd=mjd,flux=flux,flux_err=fluxerr,band=band,detected=detected,label=model,redshift=z_true
    python -m training import hats catalogue --out build/hats.parquet \
        --columns id=diaObjectId,mjd=lc.midpointMjdTai,flux=lc.psfFlux,flux_err=lc.psfFluxErr,band=lc.band

Each prints what it read, wrote and dropped, and why, as JSON; the same is stored in the file (`read_notes`). With
``--classes`` labels become classes of another name (``--classes 'SNII=II'``), are left out (``'SNII='``) or become
unlabelled (``'SNII=*'``); with a map every label it does not name is left out.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import CliApp, CliPositionalArg, CliSubCommand

from models.taxonomy import MALLORN, ZTF_SUPERNOVAE
from models.units import NJY_PER_UNIT, SourceUnit, njy_of_magnitude
from training.importers import surveys
from training.importers.columns import ColumnMap, RawObject, tables_in
from training.importers.convert import Rules, import_objects
from training.importers.snana import COLUMNS, ELASTICC_CLASSES, read_snana
from training.importers.tables import About, Layout, read_about, read_tables
from training.importers.ztf import read_alerts


class Source(Rules):
    """Options of every import."""

    source: CliPositionalArg[Path] = Field(description="file or folder to read")
    out: Path = Field(description="Parquet file to write")
    survey: str = Field(default="not stated", description="name of the survey, for the provenance")
    licence: str = Field(default="not stated", description="terms of the data, for the provenance and the model card")
    progress: bool = Field(default=True, description="show a progress bar")

    def run(self, objects: Iterable[RawObject], columns: Mapping[str, str], **rules: Any) -> None:
        """Import and print the report; ``rules`` are the format's own, the user's go first, in maps name by name."""
        given = self.model_dump(include=set(Rules.model_fields) & self.model_fields_set)
        maps = {name: {**rules.get(name, {}), **given.get(name, {})} for name in ("bands", "classes")}
        settings = Rules(**{**rules, **given, **maps})
        provenance = {
            "format": re.sub(r"(?<!^)(?=[A-Z])", "-", type(self).__name__).lower(),
            "source": str(self.source),
            "survey": self.survey,
            "licence": self.licence,
            "columns": dict(columns),
        }
        report = import_objects(objects, self.out, settings, provenance, progress=self.progress)
        sys.stdout.write(json.dumps({"out": str(self.out), **report}, indent=2) + "\n")


class Snana(Source):
    """SNANA FITS of ELAsTiCC and PLAsTiCC: a folder of HEAD and PHOT files, the model being the name of the folder."""

    survey: str = "ELAsTiCC"
    label_column: str | None = Field(default=None, description="HEAD column of the label, instead of the folder's name")
    window: bool = Field(default=True, description="keep what an alert would hold: trigger - 30 d to last detection")

    def cli_cmd(self) -> None:
        """Import."""
        objects = read_snana(self.source, label_column=self.label_column, window=self.window)
        preset = {} if self.label_column else {"classes": ELASTICC_CLASSES, "taxonomy": "elasticc-20"}
        points = {"flux": "FLUXCAL", "flux_err": "FLUXCALERR", "mjd": "MJD", "band": "BAND", "detected": "PHOTFLAG"}
        self.run(objects, {"id": "SNID", **points, **COLUMNS}, **preset)


class Plasticc(Source):
    """PLAsTiCC tables of points (CSV, plain or gzipped), labelled by the table of objects."""

    survey: str = "PLAsTiCC"
    objects: Path | None = Field(default=None, description="table of objects; without it all are unlabelled")

    def cli_cmd(self) -> None:
        """Import."""
        layout, objects = surveys.plasticc(self.source, self.objects)
        bands = surveys.PLASTICC_BANDS
        self.run(objects, layout.columns.used(), bands=bands, classes=surveys.PLASTICC_CLASSES)


class Mallorn(Source):
    """The folder of the MALLORN challenge; without --classes the types become its five scored classes."""

    survey: str = "MALLORN"
    part: Literal["train", "test"] = Field(default="train", description="test is unlabelled")
    types: bool = Field(default=False, description="keep the spectroscopic types as classes")

    def cli_cmd(self) -> None:
        """Import."""
        layout, objects = surveys.mallorn(self.source, self.part)
        classes = surveys.mallorn_classes(layout.about)
        preset = {} if self.types or not classes else {"classes": classes, "taxonomy": MALLORN.name}
        columns = {**layout.columns.used(), "z_final": "Z", "mwebv": "EBV", "label": "SpecType"}
        self.run(objects, columns, min_detections=0, **preset)


class ZtfSupernovae(Source):
    """Spectroscopically typed ZTF supernovae: objects.csv and photometry.csv; six classes, from Ia to SLSN-II."""

    survey: str = "ZTF"
    types: bool = Field(default=False, description="keep the spectroscopic types as classes")

    def cli_cmd(self) -> None:
        """Import."""
        layout, objects = surveys.ztf_supernovae(self.source)
        preset = {} if self.types else {"classes": surveys.ZTF_CLASSES, "taxonomy": ZTF_SUPERNOVAE.name}
        self.run(objects, {**layout.columns.used(), "label": "type"}, **preset)


class Labelled(Source):
    """Options of an import with a separate table of objects."""

    objects: Path | None = Field(default=None, description="table of objects with labels, redshifts, metadata")
    object_columns: dict[str, str] = Field(default={}, description="its columns: id=, label=, redshift=, parent=")
    object_metadata: dict[str, str] = Field(default={}, description="metadata columns in it: z_final=Z, mwebv=EBV ...")

    def about(self) -> dict[str, About] | None:
        """Read the table of objects, by id; raises ValueError for options that do not go together."""
        if self.objects is None:
            if self.object_columns or self.object_metadata:
                raise ValueError(
                    "--object-columns and --object-metadata describe the table of --objects, which is missing"
                )
            return None
        if unknown := sorted(self.object_columns.keys() - {"id", "label", "redshift", "parent"}):
            raise ValueError(f"--object-columns knows id, label, redshift and parent, not {', '.join(unknown)}")
        if "id" not in self.object_columns:
            raise ValueError("--object-columns must name the id column: id=...")
        columns = {part: name for part, name in self.object_columns.items() if part != "id"}
        return read_about(self.objects, self.object_columns["id"], columns, self.object_metadata)


class Ztf(Labelled):
    """ZTF alert archives: tar, tar.gz or folders of Avro files."""

    survey: str = "ZTF"
    alerts: Literal["last", "all"] = Field(default="last", description="history of the last alert, or all joined")

    def cli_cmd(self) -> None:
        """Import."""
        objects = read_alerts(self.source, keep=self.alerts, about=self.about())
        columns = {"mag": "magpsf", "mag_err": "sigmapsf", "flux": "forcediffimflux", "flux_err": "forcediffimfluxunc"}
        self.run(objects, {"id": "objectId", "mjd": "jd", "band": "fid", **columns})


class Panstarrs(Source):
    """Pan-STARRS1 detections as CasJobs writes them (CSV); unlabelled, total fluxes."""

    survey: str = "Pan-STARRS1"
    bad_flags: int = Field(default=surveys.PS1_BAD, ge=0, description="bits of infoFlag that leave a point out")
    min_quality: float = Field(default=0.9, ge=0, le=1, description="least psfQfPerfect")
    grouped: bool = Field(default=False, description="the rows of an object are adjacent: no sorting")

    def cli_cmd(self) -> None:
        """Import."""
        layout, objects = surveys.panstarrs(
            self.source, bad_flags=self.bad_flags, min_quality=self.min_quality, grouped=self.grouped
        )
        rules = {"required_bands": "grizY", "min_per_band": 4}
        self.run(objects, layout.columns.used(), bands=surveys.PS1_BANDS, **rules)


class Table(Labelled):
    """Any Parquet or CSV table with a map of columns, one row a point or points in lists."""

    columns: dict[str, str] = Field(
        description="id=, mjd=, band= (or band==r), flux= and flux_err= or mag= and mag_err=, [detected=, "
        "upper_limit=, label=, redshift=, parent=]; a.b reaches into a nested column"
    )
    metadata: dict[str, str] = Field(default={}, description="metadata columns: z_final=Z, mwebv=EBV ...")
    metadata_struct: str | None = Field(
        default=None, description="struct column whose fields have the metadata's names"
    )
    flux_unit: SourceUnit = Field(default="nJy", description="of flux and flux_err")
    zero_point: float | None = Field(default=None, description="AB zero point of the fluxes, instead of --flux-unit")
    time_offset: float = Field(default=0.0, description="days to add to the times: -2400000.5 for Julian dates")
    unsorted: bool = Field(default=False, description="the rows of an object are not adjacent, so sort first")

    def layout(self) -> Layout:
        """Return the layout of the options."""
        unit = NJY_PER_UNIT[self.flux_unit] if self.zero_point is None else float(njy_of_magnitude(self.zero_point))
        return Layout(
            ColumnMap(**self.columns),
            unit=unit,
            time_offset=self.time_offset,
            metadata=self.metadata,
            metadata_struct=self.metadata_struct,
            about=self.about(),
            unsorted=self.unsorted,
        )

    def paths(self) -> list[Path]:
        """Return the files to read."""
        return tables_in(self.source)

    def cli_cmd(self) -> None:
        """Import."""
        layout = self.layout()
        columns = {**layout.columns.used(), **self.metadata, **self.object_columns, **self.object_metadata}
        self.run(read_tables(self.paths(), layout), columns)


class Hats(Table):
    """A HATS catalogue with nested light curves (nested-pandas, LSDB): Norder=*/Dir=*/Npix=* Parquet files."""

    def paths(self) -> list[Path]:
        """Return the partitions."""
        return surveys.hats_partitions(self.source)


class Import(BaseModel):
    """Turn a survey's or a challenge's files into a data file, with a report of what was left out and why."""

    model_config = ConfigDict(extra="forbid")

    snana: CliSubCommand[Snana]
    plasticc: CliSubCommand[Plasticc]
    mallorn: CliSubCommand[Mallorn]
    ztf_supernovae: CliSubCommand[ZtfSupernovae]
    ztf: CliSubCommand[Ztf]
    panstarrs: CliSubCommand[Panstarrs]
    table: CliSubCommand[Table]
    hats: CliSubCommand[Hats]

    def cli_cmd(self) -> None:
        """Run the chosen sub-command."""
        CliApp.run_subcommand(self)
