"""Tables by a map of columns: rows or lists, CSV or Parquet, sorted or not, nested, damaged."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar_alerts.tables import TableError, TableObject, TableOptions
from nightjar_alerts.tables.files import hats_partitions
from nightjar_alerts.training.importers.commands import TableImport
from nightjar_alerts.training.importers.surveys import only
from nightjar_alerts.training.importers.tables import read_about, read_tables, tables_in
from support.importers import cleaned, nested_table, write_hats, write_text

Columns = dict[str, str]
FLUXES: Columns = {"object_id": "id", "time": "t", "band": "b", "flux": "f", "flux_err": "e"}
NESTED: Columns = {"object_id": "id", "time": "lc.t", "band": "lc.b", "flux": "lc.f", "flux_err": "lc.e"}
MAGNITUDES: Columns = {"object_id": "id", "time": "t", "band": "b", "mag": "m", "mag_err": "e"}
ROWS = "id,t,b,f,e\n7,60000,g,1,0.5\n7,60001,r,2,0.5\n8,60000,g,3,0.5\n9,60000,g,,0.5\n9,60001,i,5,0.5\n"


def read(path: Path, columns: Columns = FLUXES, about: Any = None, **options: Any) -> list[TableObject]:
    options.setdefault("flux_unit", "nJy")
    options.setdefault("metadata", {})
    return list(read_tables([path], TableOptions(columns=only(columns), **options), about))


@pytest.mark.parametrize("name", ["points.csv", "points.csv.gz"])
def test_rows_become_objects(tmp_path: Path, name: str) -> None:
    raws = read(write_text(tmp_path / name, ROWS), flux_unit="uJy", time_offset=0.5)
    assert [(raw.object_id, len(raw.mjd)) for raw in raws] == [("7", 2), ("8", 1), ("9", 2)]
    assert raws[0].mjd.tolist() == [60_000.5, 60_001.5]
    assert raws[0].flux.tolist() == [1e3, 2e3]
    assert raws[0].flux_err.tolist() == [500.0, 500.0]
    assert list(raws[2].band) == ["g", "i"]
    assert np.isnan(raws[2].flux[0])


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_an_object_may_reach_over_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr("nightjar_alerts.tables.libraries.BATCH_ROWS", rows)
    table = {"id": ["a"] * 4 + ["b"], "t": np.arange(5.0), "b": ["g"] * 5, "f": np.ones(5), "e": np.ones(5)}
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    raws = read(tmp_path / "x.parquet")
    assert [(raw.object_id, raw.mjd.tolist()) for raw in raws] == [("a", [0, 1, 2, 3]), ("b", [4])]


def test_scattered_rows_are_grouped_by_object(tmp_path: Path) -> None:
    header, *rows = ROWS.splitlines()
    path = write_text(tmp_path / "x.csv", "\n".join([header, *rows[::2], *rows[1::2]]) + "\n")
    times = {raw.object_id: sorted(raw.mjd) for raw in read(path)}
    assert times == {"7": [60_000, 60_001], "8": [60_000], "9": [60_000, 60_001]}


@pytest.mark.parametrize("scattered", [False, True])
def test_a_large_csv_is_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scattered: bool) -> None:
    """Peak memory of Python's own objects and numpy's arrays must not grow with the file."""
    monkeypatch.setattr("nightjar_alerts.tables.text.BATCH_ROWS", 500)
    monkeypatch.setattr("nightjar_alerts.tables.reader.HELD_POINTS", 1000)
    row = "{},60000.125,g,12345.678901,0.125\n"
    ids = [n % 600 if scattered else n // 100 for n in range(60_000)]
    path = write_text(tmp_path / "x.csv", "id,t,b,f,e\n" + "".join(map(row.format, ids)))
    options = TableOptions(columns=only(FLUXES), flux_unit="nJy", metadata={})
    tracemalloc.start()
    try:
        objects = sum(1 for _ in read_tables([path], options))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert objects == 600
    assert path.stat().st_size > 2_000_000
    assert peak < 1_500_000


def test_magnitudes_limits_and_flags(tmp_path: Path) -> None:
    columns = {**MAGNITUDES, "upper_limit": "ul", "detected": "d"}
    text = "id,t,b,m,e,ul,d\na,60000,g,20,0.1,0,True\na,60001,g,21,,1,f\na,60002,g,20,0.1,0,False\n"
    record, report = cleaned(read(write_text(tmp_path / "x.csv", text), columns)[0])
    np.testing.assert_allclose(record.flux, [36_307.8] * 2, rtol=1e-5)
    assert record.detected.tolist() == [True, False]
    assert report.dropped_points == {"upper limit": 1}


def test_read_tables_sentinels_for_magnitudes_are_counted(tmp_path: Path) -> None:
    rows = [f"a,{60000 + day},g,{mag},0.1" for day, mag in enumerate([20, 0, -99, 99, 99.99, 35.1])]
    raws = read(write_text(tmp_path / "x.csv", "\n".join(["id,t,b,m,e", *rows, ""])), MAGNITUDES)
    record, report = cleaned(raws[0])
    np.testing.assert_allclose(record.flux, [36_307.8], rtol=1e-5)
    assert report.dropped_points == {"magnitude is not plausible": 4, "negative magnitude": 1}


def test_a_table_may_be_of_one_band(tmp_path: Path) -> None:
    assert list(read(write_text(tmp_path / "x.csv", ROWS), FLUXES | {"band": ""}, band="r")[0].band) == ["r", "r"]


def test_labels_and_metadata_come_from_a_table_of_objects(tmp_path: Path) -> None:
    objects = write_text(tmp_path / "objects.csv", "name,kind,z,zp\n7,SN,0.1,0.2\n9,,,\n")
    about = read_about(objects, "name", {"label": "kind", "redshift": "z"}, {"z_final": "zp"})
    raws = read(write_text(tmp_path / "x.csv", ROWS), about=about)
    assert [raw.label for raw in raws] == ["SN", "", ""]
    assert (raws[0].redshift, raws[0].metadata) == (0.1, {"z_final": 0.2})
    assert np.isnan(raws[1].redshift)
    assert np.isnan(raws[2].metadata["z_final"])


def test_read_about_of_objects_with_two_labels_names_them(tmp_path: Path) -> None:
    objects = write_text(tmp_path / "objects.csv", "name,kind\n7,SN\n7,AGN\n9,SN\n9,SN\n")
    with pytest.raises(TableError, match=r"1 objects have rows with different labels \(7\); keep one row of each"):
        read_about(objects, "name", {"label": "kind"}, {})


@pytest.mark.parametrize("of_structs", [False, True])
def test_nested_columns_of_both_kinds(tmp_path: Path, of_structs: bool) -> None:
    pq.write_table(nested_table([2**60 + 1, 5], of_structs=of_structs), tmp_path / "x.parquet")
    raws = read(tmp_path / "x.parquet", NESTED)
    assert [raw.object_id for raw in raws] == [str(2**60 + 1), "5"]
    assert raws[1].mjd.tolist() == [60_001, 60_002, 60_003]
    assert raws[1].flux.tolist() == [0, 100, 200]
    assert list(raws[1].band) == ["g", "r", "i"]


def test_lists_with_a_struct_of_metadata(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": [1, 2],
            "t": [[1.0], None],
            "b": [["g"], None],
            "f": [[1.0], None],
            "e": [[1.0], None],
            "host": [{"mwebv": 0.1, "ra": 5.0}, {"mwebv": None, "ra": 5.0}],
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    first, second = read(tmp_path / "x.parquet", metadata=None)
    assert first.metadata == {"mwebv": 0.1}
    assert len(second.mjd) == 0
    assert cleaned(second)[1].dropped_objects == {"no usable points": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("id,t,b,f,e\n", "is empty"),
        ("id,t,b,flux,e\n1,2,g,3,4\n", "'f', which the table does not have; it has id, t, b, flux, e"),
        ("id,t,b,f,e\n1,2,g,bright,4\n", "'f' does not hold numbers"),
    ],
)
def test_damaged_csv_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TableError, match=rf"x\.csv.*{message}"):
        read(write_text(tmp_path / "x.csv", text))


def test_truncated_files_are_named(tmp_path: Path) -> None:
    packed = write_text(tmp_path / "x.csv.gz", ROWS * 1000)
    packed.write_bytes(packed.read_bytes()[:-200])
    pq.write_table(nested_table([1]), tmp_path / "x.parquet")
    (tmp_path / "x.parquet").write_bytes((tmp_path / "x.parquet").read_bytes()[:-50])
    with pytest.raises(TableError, match=r"x\.csv\.gz"):
        read(packed)
    with pytest.raises(TableError, match=r"x\.parquet cannot be read"):
        read(tmp_path / "x.parquet", NESTED)


def test_columns_of_the_wrong_type_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    good = {"id": ["a"], "t": [1.0], "b": ["g"], "f": [1.0], "e": [1.0]}
    for change, message in (
        ({"id": [1e17]}, "'id' holds floating-point numbers"),
        ({"f": ["x"]}, "'f' does not hold numbers"),
        ({"t": [[1.0]]}, "'f' is not a column of lists"),
    ):
        pq.write_table(pa.table(good | change), path)
        with pytest.raises(TableError, match=message):
            read(path)
    pq.write_table(nested_table([1]), path)
    with pytest.raises(TableError, match=r"'lc\.nope', which the table does not have; it has id"):
        read(path, NESTED | {"time": "lc.nope"})


@pytest.mark.parametrize(
    "parts",
    [{}, {"flux": "f"}, {"flux": "f", "flux_err": "e", "mag": "m", "mag_err": "x"}, {"mag": "m"}],
)
def test_named_columns_are_one_kind_of_brightness(tmp_path: Path, parts: dict[str, str]) -> None:
    columns = {"id": "id", "mjd": "t", "band": "b", **parts}
    options = TableImport(source=tmp_path, out=tmp_path / "x", columns=columns)
    with pytest.raises(ValueError, match="flux and flux_err, or mag and mag_err"):
        options.table_options()


@pytest.mark.parametrize("collection", [False, True])
def test_hats_partitions_are_read_in_order_and_margins_left_out(tmp_path: Path, collection: bool) -> None:
    paths = hats_partitions(write_hats(tmp_path, collection=collection))
    raws = list(read_tables(paths, TableOptions(columns=only(NESTED), flux_unit="nJy")))
    assert [raw.object_id for raw in raws] == [str(2**60 + 1), "7", "8"]
    assert all(len(raw.mjd) == 3 for raw in raws)


def test_a_folder_without_partitions_is_no_hats_catalogue(tmp_path: Path) -> None:
    write_text(tmp_path / "x.csv", ROWS)
    with pytest.raises(TableError, match="not a HATS catalogue"):
        hats_partitions(tmp_path)
    assert tables_in(tmp_path) == [tmp_path / "x.csv"]
    with pytest.raises(TableError, match="does not exist"):
        tables_in(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TableError, match="holds no tables"):
        tables_in(tmp_path / "empty")


def test_import_table_guesses_the_column_of_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{name},{58_000 + k},{'gr'[k % 2]},{18 + 0.1 * k},0.05,SN I{name}" for name in "ab" for k in range(6)]
    source = tmp_path / "labelled.csv"
    source.write_text("\n".join(["object_id,mjd,band,mag,magerr,type", *rows]))
    TableImport(source=source, out=tmp_path / "out.parquet", progress=False).cli_cmd()
    captured = capsys.readouterr()
    assert '"SN Ia": 1' in captured.out
    assert "the label is column 'type'" in captured.err
    named = TableImport(source=source, out=tmp_path / "b.parquet", progress=False, columns={"label": "type"})
    named.cli_cmd()
    assert '"SN Ib": 1' in capsys.readouterr().out
