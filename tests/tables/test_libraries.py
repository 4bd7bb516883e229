"""Files and tables of astropy, pandas, nested-pandas and pyarrow."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightjar_alerts.tables import MissingExtra, TableError, TableObject, TableOptions, read_table
from nightjar_alerts.tables.columns import column_of
from nightjar_alerts.tables.files import is_table

pd = pytest.importorskip("pandas", reason="the [tables] extra")
pa = pytest.importorskip("pyarrow", reason="the [tables] extra")
pq = pytest.importorskip("pyarrow.parquet")
astropy_table = pytest.importorskip("astropy.table", reason="the [tables] extra")

COLUMNS: dict[str, Any] = {
    "objectId": np.repeat(["ZTF1", "ZTF2"], 6),
    "mjd": np.tile(60_000.0 + 2.0 * np.arange(6), 2),
    "band": np.tile(["g", "r"], 6),
    "mag": 18.0 + 0.1 * np.arange(12),
    "magerr": np.full(12, 0.05),
}
NJY = 10 ** (-0.4 * (COLUMNS["mag"] - 31.4))


def check(data: Any, name: str = "", **options: Any) -> list[TableObject]:
    objects = list(read_table(data, TableOptions(**options), name=name))
    assert [item.object_id for item in objects] == ["ZTF1", "ZTF2"]
    for item, rows in zip(objects, (slice(0, 6), slice(6, 12)), strict=True):
        order = np.lexsort((item.mjd,))
        np.testing.assert_allclose(item.mjd[order], COLUMNS["mjd"][rows], atol=1e-6)
        np.testing.assert_allclose(item.flux[order], NJY[rows], rtol=1e-5)
        assert list(item.band[order]) == ["g", "r"] * 3
        assert len(item.light_curve()) == 6
    return objects


def frame() -> Any:
    return pd.DataFrame(COLUMNS)


def astropy_of_points() -> Any:
    return astropy_table.Table(COLUMNS)


def lists() -> dict[str, Any]:
    nested: dict[str, Any] = {"objectId": ["ZTF1", "ZTF2"]}
    for name in ("mjd", "band", "mag", "magerr"):
        nested[name] = [list(COLUMNS[name][:6]), list(COLUMNS[name][6:])]
    return nested


# Files of astropy


WRITTEN = [
    ("fits", "fits"),
    ("votable", "vot"),
    ("votable", "xml"),
    ("ascii.ecsv", "ecsv"),
    ("ascii.ecsv", "csv"),
    ("ascii.ipac", "tbl"),
    ("ascii.fixed_width", "txt"),
    ("ascii.tab", "tsv"),
    ("ascii.commented_header", "dat"),
    ("ascii.csv", "csv"),
    ("ascii.basic", "dat"),
]


@pytest.mark.parametrize(("form", "ending"), WRITTEN)
def test_file_that_astropy_writes_is_read(form: str, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"table.{ending}"
    astropy_of_points().write(path, format=form)
    check(path)
    check(path.read_bytes())
    with path.open("rb") as file:
        check(file)


def test_fits_units_masks_and_compression_are_read(tmp_path: Path) -> None:
    table = astropy_of_points()
    table["uflux"], table["uflux_err"] = NJY / 1e3, NJY / 1e4
    table["uflux"].unit = table["uflux_err"].unit = "uJy"
    del table["mag"], table["magerr"]
    table = astropy_table.Table(table, masked=True)
    table["uflux"].mask[3] = True
    path = tmp_path / "table.fits.gz"
    table.write(path, format="fits")
    objects = list(read_table(path))
    np.testing.assert_allclose(objects[1].flux, NJY[6:], rtol=1e-5)
    assert int(objects[0].usable().sum()) == 5


def test_fits_with_arrays_in_rows_is_read(tmp_path: Path) -> None:
    table = astropy_table.Table(
        {
            "objectId": ["ZTF1", "ZTF2"],
            "mjd": COLUMNS["mjd"].reshape(2, 6),
            "band": COLUMNS["band"].reshape(2, 6),
            "mag": COLUMNS["mag"].reshape(2, 6),
            "magerr": COLUMNS["magerr"].reshape(2, 6),
        }
    )
    check(table)
    path = tmp_path / "table.fits"
    table.write(path, format="fits")
    check(path)


def test_astropy_times_and_quantities_are_read() -> None:
    units = pytest.importorskip("astropy.units")
    time = pytest.importorskip("astropy.time")
    table = astropy_table.QTable(COLUMNS)
    table["time"] = time.Time(COLUMNS["mjd"], format="mjd")
    table["flux"] = (NJY / 1e9) * units.Jy
    table["flux_err"] = (NJY / 1e10) * units.Jy
    for name in ("mjd", "mag", "magerr"):
        table.remove_column(name)
    check(table)


def test_damaged_files_are_errors_that_name_the_file(tmp_path: Path) -> None:
    for form, ending in (("fits", "fits"), ("votable", "vot"), ("ascii.ecsv", "ecsv")):
        path = tmp_path / f"table.{ending}"
        astropy_of_points().write(path, format=form)
        path.write_bytes(path.read_bytes()[: 300 if form != "fits" else 3000])
        with pytest.raises(TableError, match=r"table\."):
            list(read_table(path))
    path = tmp_path / "table.parquet"
    frame().to_parquet(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(TableError, match=r"table\.parquet"):
        list(read_table(path))


# Data frames


def test_data_frame_of_points_is_read() -> None:
    check(frame())
    check(frame().set_index("objectId"))
    check(frame().astype({"band": "category", "objectId": "category"}))
    check(frame().sample(frac=1.0, random_state=1).sort_values("objectId", kind="stable"))
    check(frame().convert_dtypes())
    check(frame().convert_dtypes(dtype_backend="pyarrow"))


def test_data_frame_with_dates_and_missing_values_is_read() -> None:
    table = frame()
    table["time"] = pd.to_datetime(table["mjd"] - 40_587.0, unit="D")
    table = table.drop(columns="mjd")
    check(table)
    table.loc[3, "mag"] = np.nan
    objects = list(read_table(table))
    assert int(objects[0].usable().sum()) == 5


def test_data_frame_with_lists_is_read() -> None:
    check(pd.DataFrame(lists()))
    arrays = {name: [np.array(row) for row in rows] if name != "objectId" else rows for name, rows in lists().items()}
    check(pd.DataFrame(arrays))
    check(lists())


def test_nested_pandas_is_read(tmp_path: Path) -> None:
    nested_pandas = pytest.importorskip("nested_pandas")
    points = frame().set_index("objectId")
    objects = pd.DataFrame({"ra": [1.0, 2.0]}, index=pd.Index(["ZTF1", "ZTF2"], name="objectId"))
    nested = nested_pandas.NestedFrame(objects).join_nested(points, "lightcurve")
    check(nested)
    path = tmp_path / "nested.parquet"
    nested.reset_index().to_parquet(path)
    check(path)


def test_groups_of_a_data_frame_are_read_one_by_one() -> None:
    for name, group in frame().groupby("objectId"):
        (item,) = read_table(group)
        assert item.object_id == name


def test_data_frame_of_one_object_needs_no_name() -> None:
    (item,) = read_table(frame()[:6].drop(columns="objectId"))
    assert (item.object_id, len(item.light_curve())) == ("", 6)
    (named,) = read_table(frame()[:6].drop(columns="objectId"), TableOptions(object_id="SN 1"))
    assert named.object_id == "SN 1"


def test_mapping_of_columns_and_structured_array_are_read() -> None:
    check({name: list(column) for name, column in COLUMNS.items()})
    check(COLUMNS)
    check(frame().to_records(index=False))
    check(frame().to_dict("records"))


# Arrow and Parquet


def test_arrow_table_is_read() -> None:
    check(pa.table(COLUMNS))
    check(pa.table(lists()))
    check(pa.Table.from_batches(pa.table(COLUMNS).to_batches(max_chunksize=5)))


def arrow_nested(kind: str) -> Any:
    values = lists()
    if kind == "struct of lists":
        inner = pa.StructArray.from_arrays(
            [pa.array(values[name]) for name in ("mjd", "band", "mag", "magerr")], ["mjd", "band", "mag", "magerr"]
        )
        return pa.table({"objectId": values["objectId"], "lc": inner})
    if kind == "list of structs":
        rows = [
            [{name: values[name][row][k] for name in ("mjd", "band", "mag", "magerr")} for k in range(6)]
            for row in range(2)
        ]
        return pa.table({"objectId": values["objectId"], "lc": rows})
    if kind == "fixed-size lists":
        columns = {
            name: pa.array(values[name], pa.list_(pa.string() if name == "band" else pa.float64(), 6))
            for name in ("mjd", "band", "mag", "magerr")
        }
        return pa.table({"objectId": values["objectId"], **columns})
    return pa.table(
        {"objectId": values["objectId"], **{f"lc_{name}": values[name] for name in values if name != "objectId"}}
    )


@pytest.mark.parametrize("kind", ["struct of lists", "list of structs", "fixed-size lists", "prefix"])
def test_nested_parquet_is_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "nested.parquet"
    pq.write_table(arrow_nested(kind), path)
    check(path)
    check(path.read_bytes())
    check(arrow_nested(kind))
    check(arrow_nested(kind).slice(0, 2))


def test_column_of_arrays_without_rows_has_no_lists() -> None:
    assert len(column_of(np.zeros((0, 5)))) == 0


def test_nested_parquet_of_several_row_groups_is_read(tmp_path: Path) -> None:
    path = tmp_path / "groups.parquet"
    rows = {"object_id": list("abc"), "mjd": [[1.0, 2.0]] * 3, "band": [["g", "r"]] * 3, "flux_nJy": [[9.0, 9.0]] * 3}
    pq.write_table(pa.table(rows | {"fluxerr_nJy": [[1.0, 1.0]] * 3}), path, row_group_size=1)
    assert [(item.object_id, len(item.mjd)) for item in read_table(path)] == [("a", 2), ("b", 2), ("c", 2)]


def test_parquet_sorted_by_time_and_in_parts_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "points.parquet"
    frame().sort_values("mjd").to_parquet(path, row_group_size=5)
    check(path)
    monkeypatch.setattr("nightjar_alerts.tables.reader.HELD_POINTS", 3)
    monkeypatch.setattr("nightjar_alerts.tables.libraries.BATCH_ROWS", 4)
    check(path)


@pytest.mark.parametrize("kind", [pa.int64(), pa.decimal128(38, 0)])
def test_integers_with_nulls_keep_their_digits(kind: Any) -> None:
    table = pa.table({**COLUMNS, "objectId": pa.array([611254385447108737] * 12, kind)})
    table = pa.concat_tables([table, pa.table({**COLUMNS, "objectId": pa.array([None] * 12, kind)})])
    read = read_table(table.slice(0, 20))
    assert [item.object_id for item in read] == ["611254385447108737"]
    assert dict(read.report.unused) == {"without the name of an object": 8}


def test_nested_lists_of_another_length_are_not_points() -> None:
    values = {f"lc_{name}": column for name, column in lists().items() if name != "objectId"}
    table = pa.table(
        {"oid": ["ZTF1", "ZTF2"], **values, "nondet_mjd": [[1.0], [2.0]], "nondet_diffmaglim": [[20.0], [20.1]]}
    )
    check(table)


def hats(folder: Path, table: Any) -> Path:
    """Write a HATS catalogue of two pixels."""
    for pixel in range(2):
        path = folder / "dataset" / "Norder=1" / "Dir=0" / f"Npix={pixel}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.slice(pixel, 1), path)
    (folder / "dataset" / "_metadata.parquet").write_bytes(b"")
    (folder / "hats.properties").write_text("obs_collection=test\ndataproduct_type=object\n")
    return folder


@pytest.mark.parametrize("kind", ["struct of lists", "list of structs"])
def test_hats_catalogue_is_read(kind: str, tmp_path: Path) -> None:
    check(hats(tmp_path / "catalogue", arrow_nested(kind)))


def test_hats_collection_is_read_without_its_margins(tmp_path: Path) -> None:
    hats(tmp_path / "collection" / "main", arrow_nested("struct of lists"))
    hats(tmp_path / "collection" / "main_margin", arrow_nested("struct of lists"))
    (tmp_path / "collection" / "collection.properties").write_text("hats_primary_table_url=main\n")
    check(tmp_path / "collection")


def test_hats_catalogue_of_ztf_has_one_filter_a_row(tmp_path: Path) -> None:
    rows = [
        [{"hmjd": 58_300.0 + k, "mag": 18.5, "magerr": 0.03, "clrcoeff": 0.1, "catflags": 0} for k in range(6)]
        for _ in range(2)
    ]
    kind = pa.int8()
    table = pa.table({"objectid": [455, 455], "filterid": pa.array([1, 2], kind), "lightcurve": rows})
    (item,) = read_table(hats(tmp_path / "ztf", table))
    assert list(item.band) == ["g"] * 6 + ["r"] * 6
    assert (item.survey, item.flux_kind) == ("ztf", "total")
    flat = pa.table(
        {
            "objectid": [1, 2],
            "filterid": pa.array([1, 2], kind),
            **{
                name: [[row[name] for row in points] for points in rows]
                for name in ("hmjd", "mag", "magerr", "catflags")
            },
        }
    )
    assert [item.object_id for item in read_table(flat)] == ["1", "2"]


def test_folder_that_is_no_catalogue_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="not a HATS catalogue"):
        read_table(tmp_path)
    with pytest.raises(TableError, match="does not exist"):
        read_table(tmp_path / "missing.csv")


# Libraries that are missing


@pytest.mark.parametrize(("ending", "library"), [("fits", "astropy"), ("vot", "astropy"), ("parquet", "pyarrow")])
def test_format_without_its_library_names_the_extra(
    ending: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"table.{ending}"
    if ending == "parquet":
        frame().to_parquet(path)
    else:
        astropy_of_points().write(path, format="votable" if ending == "vot" else ending)
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=r"nightjar-alerts\[tables\]"):
        read_table(path)


def test_data_frame_is_read_without_pyarrow() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None; import pandas as pd; "
        "from nightjar_alerts.tables import read_table; "
        "frame = pd.DataFrame({'id': ['a', 'a'], 'mjd': [1.0, 2.0], 'band': ['g', 'r'], 'mag': [18.0, 19.0], "
        "'mag_err': [0.1, 0.1]}); print([len(item.mjd) for item in read_table(frame)])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[2]"


# Alerts and SNANA


def test_alerts_in_parquet_are_joined_with_their_history(tmp_path: Path) -> None:
    def alert(last: int) -> dict[str, Any]:
        def candidate(k: int) -> dict[str, Any]:
            return {
                "jd": 2_460_000.5 + k,
                "fid": 1,
                "magpsf": 19.0,
                "sigmapsf": 0.1,
                "isdiffpos": "t",
                "diffmaglim": 20.5,
            }

        history = [candidate(k) for k in range(last)] + [candidate(-1) | {"magpsf": None, "sigmapsf": None}]
        return {"objectId": "ZTF1", "candidate": candidate(last), "prv_candidates": history}

    path = tmp_path / "alerts.parquet"
    pq.write_table(pa.Table.from_pylist([alert(2), alert(4)]), path)
    (item,) = read_table(path)
    curve = item.light_curve()
    middle = (37 + 15) / 86_400  # TAI - UTC, and half an exposure of 30 s, as in packets
    np.testing.assert_allclose(curve.mjd, 60_000.0 + np.arange(5) + middle, rtol=0, atol=1e-8)
    assert (len(curve), curve.duplicates, dict(curve.dropped)) == (5, 3, {"upper_limit": 2})


@pytest.mark.parametrize("kind", ["HEAD", "PHOT"])
def test_snana_files_are_read_in_pairs(kind: str, tmp_path: Path) -> None:
    head = {"SNID": ["11", "12"], "PTROBS_MIN": [1, 4], "PTROBS_MAX": [2, 6], "MWEBV": [0.1, 0.2]}
    points = {
        "MJD": [60_000.0, 60_001.0, -777.0, 60_000.0, 60_001.0, 60_002.0, -777.0],
        "BAND": ["g", "r", "-", "g", "r", "i", "-"],
        "FLUXCAL": [100.0] * 7,
        "FLUXCALERR": [5.0] * 7,
        "PHOTFLAG": [0, 4096, 0, 0, 4096, 4096, 0],
    }
    for name, columns in (("HEAD", head), ("PHOT", points)):
        astropy_table.Table(columns).write(tmp_path / f"A_{name}.FITS", format="fits")
    objects = list(read_table(tmp_path / f"A_{kind}.FITS"))
    assert [(item.object_id, len(item.mjd)) for item in objects] == [("11", 2), ("12", 3)]
    assert objects[1].detected is not None
    assert objects[1].detected.tolist() == [False, True, True]
    np.testing.assert_allclose(objects[0].flux, 100.0 * 10 ** (0.4 * 3.9), rtol=1e-5)
    assert objects[1].metadata == {"mwebv": 0.2}
    assert is_table(tmp_path / f"A_{kind}.FITS") == (kind == "HEAD")
