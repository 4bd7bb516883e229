"""Tables that would cost or reach more than they may: refused before they are built, with the bound in the message."""

import gzip
import io
import json
import socket
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.tables import (
    FILE_BOUNDS,
    TEXT_FORMATS,
    Bounds,
    TableError,
    TableOptions,
    TableTooLarge,
    UnsupportedFormat,
    read_object_metadata,
    read_table,
)

SMALL = Bounds(max_bytes=1 << 20)
HTTP = Bounds(TEXT_FORMATS, 8 << 20)
MOST_BUILT = 32 << 20
BLANK = (b" " * 999 + b"\n") * 105
HEAD = "object_id,mjd,band,mag,mag_err\n"
ROWS = "".join(f"a,{60000 + k},{'gr'[k % 2]},{18 + k / 10},0.{k + 1}\n" for k in range(8))


def refusal(data: bytes | Path, bounds: Bounds = FILE_BOUNDS, options: TableOptions | None = None) -> TableError:
    """Return the error of a table, which must not take much memory."""
    tracemalloc.start()
    try:
        with pytest.raises(TableError) as caught:
            list(read_table(data, options, bounds=bounds))
        assert tracemalloc.get_traced_memory()[1] < MOST_BUILT
    finally:
        tracemalloc.stop()
    return caught.value


# Formats


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b"SIMPLE  =                    T", "fits"),
        (b"# %ECSV 1.0\n", "ecsv"),
        (b"<VOTABLE/>", "votable"),
        (b"PAR1", "parquet"),
        (b"\\x = 1\n|a|b|\n 1 2\n", "ipac"),
        (gzip.compress(b"a,b\n", mtime=0), "gzip"),
        (b"PK\x03\x04", "zip"),
        (b"\x89HDF\r\n", "hdf5"),
        (b"\x00\x01\x02", "binary"),
    ],
)
def test_read_table_format_that_is_not_allowed_is_named(data: bytes, form: str) -> None:
    error = refusal(data, HTTP)
    assert isinstance(error, UnsupportedFormat)
    assert error.format == form


def test_read_table_format_of_an_option_that_is_not_allowed_is_named() -> None:
    error = refusal((HEAD + ROWS).encode(), HTTP, TableOptions(format="ecsv"))
    assert isinstance(error, UnsupportedFormat)


def test_read_table_ecsv_is_never_a_name_of_a_file(tmp_path: Path) -> None:
    pytest.importorskip("astropy")
    (tmp_path / "secret").write_text(f"# %ECSV 1.0\n{HEAD}{ROWS}")
    assert "ECSV header" in str(refusal(str(tmp_path / "secret").encode(), options=TableOptions(format="ecsv")))


# Text and JSON


def test_read_table_long_line_is_too_large() -> None:
    data = gzip.compress((HEAD + ROWS).encode() + b"1" * (17 << 20), 1)
    error = refusal(data)
    assert isinstance(error, TableTooLarge)
    assert "line of more than 16777216 bytes; --max-size 256GiB" in str(error)


def test_read_table_row_of_quotes_without_end_is_too_large() -> None:
    data = (HEAD + ROWS * 1000).encode() + b'a,"' + (b"x" * 1000 + b'\n","') * 40_000
    with pytest.raises(TableTooLarge, match="in quotes"):
        list(read_table(data))


def test_read_table_compressed_text_beyond_its_ratio_is_too_large() -> None:
    data = gzip.compress((HEAD + ROWS).encode() + BLANK * 700, 1)
    assert "once decompressed" in str(refusal(data))


def test_read_table_many_columns_are_too_large() -> None:
    names = [f"c{k}" for k in range(3000)]
    assert "2048 columns" in str(refusal("\n".join([",".join(names)] + [",".join("1" * 3000)] * 3).encode()))


@pytest.mark.parametrize("pack", [json.dumps, lambda rows: "\n".join(map(json.dumps, rows))], ids=["json", "jsonl"])
def test_read_table_rows_with_unlike_keys_are_too_large(pack: Callable[[object], str]) -> None:
    rows = [{f"{name}{k}": 1 for name in "abcd"} for k in range(3000)]
    assert "columns" in str(refusal(pack(rows).encode(), HTTP))


def test_read_table_list_of_objects_with_unlike_keys_is_refused() -> None:
    data = json.dumps([{"object_id": "a", "points": [{f"k{k}": 1} for k in range(5000)]}])
    assert "different keys" in str(refusal(data.encode()))


def test_read_table_deep_json_is_refused() -> None:
    assert "nested" in str(refusal(b'[{"a":' + b'{"a":' * 900 + b"1" + b"}" * 901 + b"]"))


def test_read_table_json_of_empty_lists_is_too_large() -> None:
    assert "objects and lists" in str(refusal(b"[" + b"[]," * 2_600_000 + b"[]]", HTTP))


def test_read_table_repeated_long_names_of_json_are_refused() -> None:
    data = json.dumps([{"k" * 500: {f"a{k}": 1 for k in range(2000)}}])
    assert "100 characters" in str(refusal(data.encode()))


def test_read_table_integer_of_4000_digits_is_not_readable() -> None:
    rows = [json.loads(json.dumps(dict(zip(HEAD.split(","), row.split(","), strict=True)))) for row in ROWS.split()]
    data = json.dumps(rows).replace('"18.3"', "9" * 4000)
    assert "18.2" in data
    assert sum(len(item.mjd) for item in read_table(data.encode(), TableOptions(columns={"mag_err": "mag_err\n"}))) == 8


def test_read_table_many_names_of_filters_take_time_in_proportion() -> None:
    rows = [f"a,{60000 + k},{'g' if k < 20_000 else f'x{k}'},18,0.1\n" for k in range(120_000)]
    (item,) = read_table((HEAD + "".join(rows)).encode())
    assert item.rejected["unknown filter"].sum() == 100_000


def test_read_table_many_columns_of_flux_take_time_in_proportion() -> None:
    names = ["object_id", "mjd", "band", *(f"flux.{k}.flux" for k in range(1000))]
    rows = [",".join(["a", str(60000 + k), "g", *["1.5"] * 1000]) for k in range(5)]
    assert "errors" in str(refusal("\n".join([",".join(names), *rows]).encode()))


def test_read_table_more_objects_than_the_bound_are_too_large() -> None:
    rows = "".join(f"o{k},60000,g,18,0.1\n" for k in range(30_000))
    assert "16384 objects" in str(refusal((HEAD + ROWS + rows).encode(), SMALL))


def test_read_table_line_of_blanks_is_read() -> None:
    data = "t;m;e\n1,5;2,5;3,5\n1;" + " " * 50_000 + "x;3\n1,5;2,5;3,5\n"
    refusal(data.encode())  # after a moment, not minutes


def test_read_table_checkpoint_that_raises_ends_the_reading() -> None:
    def stop() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        read_table((HEAD + ROWS).encode(), checkpoint=stop)


@pytest.mark.parametrize(
    ("data", "least"),
    [
        (b'{"mjd":1}\n' + b"{\n" * 20_000, 4),  # lines without a row, two passes over them
        (b",".join(b"c%d" % number for number in range(100)) + b"\n" + b"x," * 99 + b"x\n", 100),  # columns to judge
    ],
)
def test_read_table_checkpoint_is_called_between_rows_and_columns(data: bytes, least: int) -> None:
    calls = list[None]()
    with pytest.raises(TableError):
        read_table(data, checkpoint=lambda: calls.append(None))
    assert len(calls) > least


def test_read_table_larger_bounds_read_what_the_default_refuses() -> None:
    data = gzip.compress((HEAD + ROWS).encode() + BLANK * 700, 1)
    assert len(list(read_table(data, bounds=Bounds(max_bytes=256 << 30)))) == 1


def test_read_object_metadata_beyond_the_bounds_is_too_large() -> None:
    rows = "".join(f"o{k},0.1\n" for k in range(30_000))
    with pytest.raises(TableTooLarge, match="16384 objects"):
        read_object_metadata(("object_id,redshift\n" + rows).encode(), SMALL)


# FITS


def header(*cards: tuple[str, object]) -> bytes:
    lines = [f"{key:<8}= {value!s:>20}".ljust(80) if value != "" else key.ljust(80) for key, value in cards]
    data = "".join([*lines, "END".ljust(80)]).encode()
    return data + b" " * (-len(data) % 2880)


PRIMARY = header(("SIMPLE", "T"), ("BITPIX", 8), ("NAXIS", 0))


def fits(width: int, rows: int, *forms: str, heap: int = 0, more: tuple[tuple[str, object], ...] = ()) -> bytes:
    columns = [(f"TFORM{k}", f"'{form:<8}'") for k, form in enumerate(forms, 1)]
    sizes = ("NAXIS1", width), ("NAXIS2", rows), ("PCOUNT", heap), ("GCOUNT", 1), ("TFIELDS", len(forms))
    return PRIMARY + header(("XTENSION", "'BINTABLE'"), ("BITPIX", 8), ("NAXIS", 2), *sizes, *columns, *more)


LISTS = np.array([[100_000, 0]] * 2000, ">i4").tobytes() + bytes(800_000)


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (fits(0, 2_000_000_000, "0D"), "rows without a byte"),
        (fits(8, 2_000_000_000, "D"), "more than"),
        (fits(8, 100, "D") + bytes(90), "cut short"),
        (fits(1, 100_000, "B", *["0D"] * 900) + bytes(100_000), "take more than"),
        (fits(8, 10, "9D") + bytes(80), "wider than its rows"),
        (fits(8, 10, "Z") + bytes(80), "no type of a column"),
        (fits(8, 2000, "1PD(100000)", heap=800_000) + LISTS, "take more than"),
        (fits(8, 1, "1PD(9)", heap=8) + np.array([9, 0], ">i4").tobytes() + bytes(8), "outside its heap"),
        (fits(-8, 10, "D"), "no valid size"),
        (fits(8, 1, "D", more=(("TUNIT1", "'10**99999999 m'"),)) + bytes(8), "no unit"),
        (fits(8, 1, "D", more=tuple((f"K{k}", k) for k in range(20_000))), "headers of more than"),
        (PRIMARY.replace(b"END", b"   "), "no end"),
    ],
)
def test_read_table_fits_that_lies_is_refused(data: bytes, detail: str) -> None:
    pytest.importorskip("astropy")
    assert detail in str(refusal(data))


def test_read_table_fits_yaml_in_comments_is_checked() -> None:
    pytest.importorskip("astropy")
    lines = ["--BEGIN-ASTROPY-SERIALIZED-COLUMNS--", "a: &a [1]", "b: *a", "--END-ASTROPY-SERIALIZED-COLUMNS--"]
    cards = tuple((f"COMMENT {line}", "") for line in lines)
    assert "anchors or aliases" in str(refusal(fits(8, 1, "D", more=cards) + bytes(8)))


def test_read_table_fits_only_reads_up_to_its_first_table() -> None:
    pytest.importorskip("astropy")
    data = gzip.compress(fits(8, 1, "D", more=(("TTYPE1", "'a'"),)) + bytes(20 << 20), 1)
    assert "Which column holds the time" in str(refusal(data))


def test_read_table_snana_pair_whose_objects_share_rows_is_refused(tmp_path: Path) -> None:
    table = pytest.importorskip("astropy.table").Table
    head = {"SNID": list(range(50)), "PTROBS_MIN": [1] * 50, "PTROBS_MAX": [100] * 50}
    table(head).write(tmp_path / "x_HEAD.FITS")
    table({"MJD": np.arange(100.0), "FLUXCAL": np.ones(100)}).write(tmp_path / "x_PHOT.FITS")
    assert "share rows" in str(refusal(tmp_path / "x_PHOT.FITS"))


# VOTable, ECSV, IPAC


def votable(fields: str, data: str, table: str = "", before: str = "") -> bytes:
    return f"<?xml version='1.0'?>{before}<VOTABLE><RESOURCE><TABLE {table}>{fields}<DATA>{data}</DATA></TABLE></RESOURCE></VOTABLE>".encode()  # noqa: E501


FIELD = "<FIELD name='mjd' datatype='double'/>"
CELLS = "<TABLEDATA><TR><TD>1</TD></TR></TABLEDATA>"
SIZED = "<FIELD name='a' datatype='double' arraysize='{}'/>"


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (votable(FIELD, "<BINARY><STREAM href='file:///etc/passwd'/></BINARY>"), "elsewhere"),
        (votable(FIELD, "<v:BINARY2 xmlns:v='v'><v:STREAM v:HREF='http://x'/></v:BINARY2>"), "elsewhere"),
        (votable(FIELD, "<PARQUET type='x'><STREAM href='http://x'/></PARQUET>"), "PARQUET"),
        (votable(FIELD, "<FITS><STREAM>x</STREAM></FITS>"), "FITS"),
        (votable(FIELD, CELLS, before="<!DOCTYPE VOTABLE SYSTEM 'http://x' [<!ATTLIST A b CDATA 'c'>]>"), "DOCTYPE"),
        (votable(FIELD, CELLS, before="<!DOCTYPE VOTABLE [<!ENTITY % a SYSTEM 'file:///etc/passwd'>%a;]>"), "DOCTYPE"),
        (votable(FIELD, CELLS, before="<!DOCTYPE VOTABLE [<!ENTITY a 'b'>]>"), "DOCTYPE"),
        (votable(SIZED.format(200_000), "<TABLEDATA>" + "<TR><TD/></TR>" * 5000 + "</TABLEDATA>"), "take more than"),
        (votable(SIZED.format("9999x9999"), CELLS), "take more than"),
        (votable(FIELD, CELLS, table="nrows='1000000000'"), "take more than"),
        (votable("<PARAM name='p' datatype='double' arraysize='99999999' value=''/>" + FIELD, CELLS), "take more than"),
        (
            votable("<FIELD name='a' datatype='char' arraysize='0'/>", "<BINARY><STREAM>AA</STREAM></BINARY>"),
            "no bytes",
        ),
        (votable("<FIELD name='a' datatype='double' unit='10+99999999m'/>", CELLS), "no unit"),
        (votable(FIELD * 3000, CELLS), "2048 columns"),
        (votable("<GROUP>" * 30 + "</GROUP>" * 30 + FIELD, CELLS), "nested"),
        (votable("<INFO name='a' value='b'/>" * 30_000 + FIELD, CELLS), "too many elements"),
    ],
)
def test_read_table_votable_that_reaches_or_costs_too_much_is_refused(data: bytes, detail: str) -> None:
    pytest.importorskip("astropy")
    assert detail in str(refusal(data))


def test_read_table_votable_that_names_a_dtd_is_read_without_it() -> None:
    """As old files of VizieR do."""
    pytest.importorskip("astropy")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        dtd = f"<!DOCTYPE VOTABLE SYSTEM 'http://127.0.0.1:{server.getsockname()[1]}/VOTable.dtd'>"
        assert str(refusal(votable(FIELD, CELLS, before=dtd))) == str(refusal(votable(FIELD, CELLS)))
        with pytest.raises(BlockingIOError):
            server.accept()


def ecsv(*lines: str, rows: int = 1) -> bytes:
    head = ["# %ECSV 1.0", "# ---", "# datatype:", *(f"# {line}" for line in lines)]
    return "\n".join([*head, "a", *["1.0"] * rows, ""]).encode()


COLUMN = "- {name: a, datatype: float64}"
SHAPED = "- {name: a, datatype: string, subtype: 'float64[200000]'}"


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (ecsv(COLUMN, "meta: {x: &x [1], y: *x}"), "anchors"),
        (ecsv(COLUMN, "meta: {<<: {x: 1}}"), "merge keys"),
        (ecsv(COLUMN, "meta: !!python/object/apply:os.system [ls]"), "damaged"),
        (ecsv(COLUMN, "meta: !numpy.ndarray {}"), "objects"),
        (ecsv(COLUMN, "meta: " + "[" * 60 + "]" * 60), "nested"),
        (ecsv(COLUMN, "meta:", *(f"  k{k}: 1" for k in range(40_000))), "header of more than"),
        (ecsv(SHAPED, rows=5000), "take more than"),
        (ecsv("- {name: a, datatype: float64, unit: 10**99999999 m}"), "no unit"),
    ],
)
def test_read_table_ecsv_header_that_multiplies_is_refused(data: bytes, detail: str) -> None:
    pytest.importorskip("astropy")
    assert detail in str(refusal(data))


def test_read_table_ipac_cells_are_bounded() -> None:
    pytest.importorskip("astropy")
    assert "take more than" in str(refusal(b"|a" * 2000 + b"|\n" + b" x\n" * 20_000))


# Parquet and HATS


def parquet(**columns: object) -> bytes:
    pa = pytest.importorskip("pyarrow")
    file = io.BytesIO()
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(columns), file, compression="zstd")
    return file.getvalue()


def test_read_table_parquet_that_expands_is_too_large() -> None:
    data = parquet(mjd=np.zeros(10_000_000))
    assert len(data) < 100_000
    assert "decoded" in str(refusal(data))


def test_read_table_parquet_list_that_expands_is_too_large() -> None:
    data = parquet(object_id=["a"], mjd=[np.zeros(10_000_000)])
    assert "decoded" in str(refusal(data))


def test_read_table_parquet_text_that_repeats_is_refused() -> None:
    data = parquet(object_id=["x" * 50_000] * 3_000, mjd=np.arange(3_000.0))
    assert len(data) < 200_000
    assert "repeats texts" in str(refusal(data))


@pytest.mark.parametrize("target", ["../other", "/", "link"])
def test_read_table_hats_collection_that_leaves_its_folder_is_refused(target: str, tmp_path: Path) -> None:
    partition = tmp_path / "other" / "Norder=0" / "Dir=0" / "Npix=1"
    partition.mkdir(parents=True)
    (partition / "a.parquet").write_bytes(parquet(mjd=[1.0]))
    collection = tmp_path / "collection"
    collection.mkdir()
    (collection / "link").symlink_to(tmp_path / "other")
    (collection / "collection.properties").write_text(f"hats_primary_table_url = {target}\n")
    assert "outside" in str(refusal(collection))


def test_read_table_hats_partition_that_is_a_link_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.parquet").write_bytes(parquet(mjd=[1.0]))
    partition = tmp_path / "cat" / "Norder=0" / "Dir=0" / "Npix=1"
    partition.mkdir(parents=True)
    (partition / "a.parquet").symlink_to(tmp_path / "secret.parquet")
    assert "link out of" in str(refusal(tmp_path / "cat"))


def test_read_table_machine_readable_fields_that_overlap_are_not_cut_out() -> None:
    rows = "\n".join(f"   1-{4000:5} A4000  ---    c{k}    text" for k in range(500))
    head = f"Byte-by-byte Description of file: t.txt\n{'-' * 60}\n{rows}\n{'-' * 60}\n"
    with pytest.raises(TableError):
        read_table(f"{head}{'x' * 4000}\n".encode(), name="t.txt")


def test_values_that_overflow_are_compared_without_a_warning() -> None:
    text = HEAD + "a,60000.0,g,1e308,1e308\na,60000.0,g,-1e308,1\n" * 4
    list(
        read_table(text.replace("mag_err", "flux_err").replace("mag,", "flux,").encode(), TableOptions(flux_unit="nJy"))
    )


def test_stars_of_asas_in_one_text_are_one_object_each() -> None:
    rows = "".join(f"#desig= {k:06}+0000.0\n{2000 + k}.5 12.1 0.03\n" for k in range(50))
    table = read_table(f"# HJD MAG_0 MER_0\n{rows}".encode(), name="asas.txt")
    assert len(list(table)) == 50


@pytest.mark.parametrize("row", ["59000 18 0.1 " + "1 " * 2_000_000, "filter g\n" * 200_000])
def test_hostile_text_of_snoopy_is_read_in_bounded_memory(row: str) -> None:
    text = f"SN1 0.01 10.0 20.0\nfilter g\n59000 18 0.1\n{row}\n".encode()
    tracemalloc.start()
    assert len(list(read_table(text, name="snoopy.txt"))) == 1
    assert tracemalloc.get_traced_memory()[1] < 2 * MOST_BUILT
    tracemalloc.stop()
