"""HATS catalogues: their partitions, and the files that make a folder of partitions a catalogue. Needs hats.

The output is a collection: a catalogue with the partitions of the input, and its margin, whose rows are copied from the
partitions that own them.
"""

from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from nightjar_alerts.catalog.bands import least_margin
from nightjar_alerts.catalog.partitions import Partition, digest_of, opened
from nightjar_alerts.models.common import how_to_install
from nightjar_alerts.resumable import published
from nightjar_alerts.tables import TableError

SKYMAP_ORDER: Final = 8
MAX_ORDER: Final = 29
COLLECTION: Final = "collection.properties"


def library(name: str) -> Any:
    """Import a module of hats. Raises TableError with the command that installs it."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise TableError(f"HATS catalogues need hats: {how_to_install('catalog')}") from error


@dataclass(frozen=True)
class HatsInput:
    """A HATS catalogue, or collection, that is classified.

    Attributes
    ----------
    catalog, margin : catalogues of the library; margin is None if there is none.
    """

    catalog: Any
    margin: Any

    @cached_property
    def name(self) -> str:
        """Name of the output, and of its folder in the collection."""
        return f"{self.catalog.catalog_name}_classes"

    @cached_property
    def margin_name(self) -> str:
        """Name of the margin of the output."""
        return f"{self.name}_{self.margin.catalog_info.margin_threshold:g}arcs"

    @property
    def info(self) -> Any:
        """Properties of the catalogue."""
        return self.catalog.catalog_info

    @property
    def healpix_column(self) -> str:
        """Column of the HEALPix index of the highest order."""
        if (self.info.healpix_order or MAX_ORDER) != MAX_ORDER or not self.info.healpix_column:
            raise TableError(
                f"{self.catalog.catalog_name} has no HEALPix column of order {MAX_ORDER}: write it with LSDB"
            )
        return str(self.info.healpix_column)

    def partitions(self, join_radius: float) -> list[Partition]:
        """Return the partitions, with the margin of each if bands are joined."""
        if join_radius and self.margin is None:
            raise TableError("--join-bands needs a catalogue with a margin, or objects at borders would be torn apart")
        if join_radius and self.margin.catalog_info.margin_threshold < least_margin(join_radius):
            width = self.margin.catalog_info.margin_threshold
            raise TableError(
                f"--join-bands {join_radius:g} needs a margin of {least_margin(join_radius):g} arcseconds; that of the "
                f"catalogue has {width:g}"
            )
        return list(self._partitions(bool(join_radius)))

    def _partitions(self, with_margin: bool) -> Iterator[Partition]:
        margins = {} if not with_margin else {str(pixel): pixel for pixel in self.margin.get_healpix_pixels()}
        for pixel in self.catalog.get_healpix_pixels():
            sources = files_of(self.catalog, pixel)
            margin = files_of(self.margin, pixel) if str(pixel) in margins else ()
            yield Partition(self.file(self.name, pixel), sources, *digest_of([*sources, *margin]), margin)

    def file(self, catalog: str, pixel: Any) -> str:
        """Return the path of a pixel below the collection."""
        return f"{catalog}/dataset/Norder={pixel.order}/Dir={pixel.dir}/Npix={pixel.pixel}.parquet"

    def columns(self) -> tuple[str, ...]:
        """Return the columns of the input that the output must have."""
        return self.info.ra_column, self.info.dec_column, self.healpix_column

    # Output

    def finish(self, output: Path, id_column: str) -> None:
        """Write the margin and the metadata. Files that are there already are kept, so that this can be repeated."""
        pixels = self._without_empty(output, self.name, self.catalog.get_healpix_pixels())
        self._write_metadata(output, self.name, self.info, pixels)
        collection: dict[str, Any] = {"name": self.name, "hats_primary_table_url": self.name}
        if self.margin is not None:
            for pixel in self.margin.get_healpix_pixels():
                self._write_margin(output, pixel, pixels, id_column)
            if own := self._without_empty(output, self.margin_name, self.margin.get_healpix_pixels()):
                info = self.margin.catalog_info.copy_and_update(primary_catalog=self.name)
                self._write_metadata(output, self.margin_name, info, own)
                collection |= {"all_margins": [self.margin_name], "default_margin": self.margin_name}
        properties = library("hats.catalog.dataset.collection_properties").CollectionProperties
        properties(**collection).to_properties_file(output)

    def _without_empty(self, output: Path, name: str, pixels: Sequence[Any]) -> list[Any]:
        """Return the pixels whose files have rows; remove the others, which no HATS catalogue has."""
        kept = []
        for pixel in pixels:
            path = output / self.file(name, pixel)
            if not path.exists():
                continue
            if pq.read_metadata(path).num_rows:
                kept.append(pixel)
            else:
                path.unlink()
        return kept

    def _write_margin(self, output: Path, pixel: Any, homes: Sequence[Any], id_column: str) -> None:
        """Write the rows of the output in the margin of a pixel, from the partitions that own them."""
        path = output / self.file(self.margin_name, pixel)
        if path.exists():
            return
        keys = [self.healpix_column, *([id_column] if id_column else [])]
        files = files_of(self.margin, pixel)
        wanted = pa.concat_tables([pq.ParquetFile(opened(file)).read(columns=keys) for file in files])
        index = wanted[self.healpix_column].to_numpy()
        found = []
        for home in homes:
            shift = 2 * (MAX_ORDER - home.order)
            if len(inside := np.flatnonzero(index >> shift == home.pixel)):
                rows = pads.dataset(output / self.file(self.name, home), format="parquet").to_table(
                    filter=pads.field(self.healpix_column).isin(index[inside].tolist())
                )
                found.append(_matching(rows, wanted.take(pa.array(inside)), keys))
        if found and sum(map(len, found)):
            path.parent.mkdir(parents=True, exist_ok=True)
            table = pa.concat_tables(found).sort_by(self.healpix_column)
            with published(path) as temporary:
                pq.write_table(table, temporary)

    def _write_metadata(self, output: Path, name: str, info: Any, pixels: Sequence[Any]) -> None:
        folder = output / name
        if not pixels:
            raise TableError(f"{folder} has no rows")
        rows = library("hats.io.parquet_metadata").write_parquet_metadata(folder, create_per_partition_stats=True)
        partitions = library("hats.catalog.partition_info").PartitionInfo(list(pixels))
        partitions.write_to_file(folder / "partition_info.csv")
        counts = [pq.read_metadata(output / self.file(name, pixel)).num_rows for pixel in pixels]
        changed: dict[str, Any] = {
            "catalog_name": name,
            "total_rows": rows,
            "hats_max_rows": max(counts),
            "hats_max_bytes": None,
            "hats_estsize": sum((output / self.file(name, pixel)).stat().st_size for pixel in pixels) // 1024,
            "hats_order": partitions.get_highest_order(),
            "moc_sky_fraction": round(partitions.calculate_fractional_coverage(), 7),
            "default_columns": None,
            "npix_suffix": ".parquet",
            "skymap_alt_orders": None,
        }
        if info.margin_threshold is None:
            order = max(SKYMAP_ORDER, partitions.get_highest_order())
            library("hats.io.skymap").write_skymap(self._skymap(output, name, pixels, order), folder)
            changed["skymap_order"] = order
        info.copy_and_update(**changed).to_properties_file(folder)

    def _skymap(self, output: Path, name: str, pixels: Sequence[Any], order: int) -> Any:
        counts = np.zeros(12 * 4**order, np.int64)
        for pixel in pixels:
            index = pq.ParquetFile(output / self.file(name, pixel)).read([self.healpix_column])[0].to_numpy()
            places, numbers = np.unique(index >> 2 * (MAX_ORDER - order), return_counts=True)
            counts[places] += numbers
        return counts


def _matching(rows: Any, wanted: Any, keys: Sequence[str]) -> Any:
    """Return the rows whose keys are wanted."""
    pairs = set(zip(*(wanted[key].to_pylist() for key in keys), strict=True))
    mask = [pair in pairs for pair in zip(*(rows[key].to_pylist() for key in keys), strict=True)]
    return rows.filter(pa.array(mask, pa.bool_()))


def files_of(catalog: Any, pixel: Any) -> tuple[str, ...]:
    """Return the Parquet files of a pixel: one, or those of its folder."""
    paths = library("hats.io.paths")
    suffix = catalog.catalog_info.npix_suffix
    path = paths.pixel_catalog_file(catalog.catalog_base_dir, pixel, npix_suffix=suffix)
    if suffix in ("/", "\\"):
        return tuple(_name(each) for each in sorted(path.glob("*.parquet")))
    return (_name(path),)


def _name(path: Any) -> str:
    return str(path) if path.protocol in ("", "file", "local") else path.as_uri()


def open_hats(path: str) -> HatsInput:
    """Open a HATS catalogue, or the primary one of a collection with its default margin. Raises TableError."""
    library("hats")
    read = library("hats.loaders.read_hats").read_hats
    try:
        found = read(path)
        if not hasattr(found, "main_catalog"):
            return HatsInput(found, None)
        margin = found.default_margin_catalog_dir
        return HatsInput(found.main_catalog, None if margin is None else read(margin))
    except (FileNotFoundError, ValueError) as error:
        detail = " ".join(str(error).split())
        raise TableError(f"{path} is not a HATS catalogue that can be read: {detail}") from error


class Pixels:
    """Pixels of the partitions of a catalogue, by the names of their files."""

    def __init__(self, names: Iterable[str]) -> None:
        # Pixels of a catalogue do not overlap, so those of the highest order within each are a range of their own.
        self._ranges = sorted((*_range(name), name) for name in names)

    def overlapping(self, name: str) -> list[str]:
        """Return the names of the partitions that overlap another one."""
        start, end = _range(name)
        found = []
        for index in range(max(0, bisect(self._ranges, (start, end, name)) - 1), len(self._ranges)):
            other_start, other_end, other = self._ranges[index]
            if other_start >= end:
                break
            if other_end > start:
                found.append(other)
        return found


def _range(name: str) -> tuple[int, int]:
    """Return the pixels of the highest order in the pixel of a file."""
    order, pixel = _pixel(name)
    width = 1 << 2 * (MAX_ORDER - order)
    return pixel * width, (pixel + 1) * width


def _pixel(name: str) -> tuple[int, int]:
    parts = dict(part.split("=", 1) for part in name.removesuffix(".parquet").split("/") if "=" in part)
    return int(parts["Norder"]), int(parts["Npix"])
