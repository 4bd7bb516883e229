"""What kind of file this is, for paths, archives, standard input and HTTP."""

import json
from pathlib import Path

import pytest

from nightjar_alerts.inputs import NamedInput, UnreadFile, files_in, inputs_of_file, is_table_file
from nightjar_alerts.tables import TableOptions
from nightjar_alerts.tables.sniff import ADVICE, format_of, stem_of

CSV = b"name,mjd,band,mag,err\na,58000.0,g,18.0,0.1\na,58001.0,r,18.1,0.1\na,58002.0,g,18.2,0.1\n"
POINT = {"mjd": 60_000.0, "fid": 1, "magpsf": 19.0, "sigmapsf": 0.1, "isdiffpos": "t"}


@pytest.mark.parametrize(
    ("name", "head", "form"),
    [
        ("x.csv", CSV, "csv"),
        ("x", CSV, "csv"),
        ("x.csv", b"PAR1....", "parquet"),
        ("x.csv", b"PK\x03\x04....[Content_Types].xml", "xlsx"),
        ("x.csv", b"PK\x03\x04....", "zip"),
        ("x.csv", b"<!DOCTYPE html><html>login</html>", "html"),
        ("x.xml", b"<?xml version='1.0'?><VOTABLE>", "votable"),
        ("x", b"<?xml version='1.0'?><a b='1'/>", "xml"),
        ("x.txt", b"\\begin{tabular}{cc}\n1 & 2 \\\\\n", "latex"),
        ("x.txt", b"| a | b |\n|---|---|\n| 1 | 2 |\n", "markdown"),
        ("x", b"\x89HDF\r\n\x1a\n", "hdf5"),
        ("x", b"\x93NUMPY", "numpy"),
        ("x.dat", b'{"a": 1}', "json"),
        ("x.csv.gz", b"", "csv"),
        ("x", b"hello\n", "text"),
        ("x", b"\x00\x01\x02", ""),
    ],
)
def test_format_of_content_and_name(name: str, head: bytes, form: str) -> None:
    assert format_of(name, head) == form


def test_stem_of_name_has_neither_folder_nor_suffixes() -> None:
    assert stem_of("a/AT2019a.csv.gz") == "AT2019a"


@pytest.mark.parametrize(
    ("document", "is_table"),
    [
        ({"objectId": "ZTF1", "candidates": [POINT]}, True),
        ({"status": "success", "data": [{"obj_id": "a", "mjd": 1.0, "filter": "g", "mag": 19.0}]}, True),
        ({"SN1": {"name": "SN1", "photometry": [{"time": "1", "magnitude": "19"}]}}, True),
        ({"detections": [{"mjd": 1.0, "mag": 19.0}], "forced_photometry": []}, True),
        ([{"r:midpointMjdTai": 1.0, "r:psfFlux": 1.0}], True),
        ({"mjd": [1.0], "flux": [1.0], "flux_err": [1.0], "band": ["g"]}, False),
        ({"light_curves": [{"mjd": [1.0], "flux": [1.0]}]}, False),
        ({"candid": 1, "objectId": "ZTF1", "candidate": POINT, "prv_candidates": [POINT]}, False),
        ({"a": 1}, False),
    ],
)
def test_json_that_names_light_curves_and_is_no_alert_is_a_table(
    document: object, is_table: bool, tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    assert is_table_file(path, TableOptions()) == is_table


@pytest.mark.parametrize("name", ["xlsx", "html", "latex", "hdf5", "zip", "text"])
def test_file_of_another_kind_is_named_and_not_read(name: str, tmp_path: Path) -> None:
    heads = {
        **{"xlsx": b"PK\x03\x04xl/", "html": b"<html>", "latex": b"\\documentclass{a}"},
        **{"hdf5": b"\x89HDF", "zip": b"PK\x03\x04", "text": b"hello"},
    }
    (tmp_path / "file.csv" if name != "text" else tmp_path / "file").write_bytes(heads[name])
    (file,) = files_in(next(tmp_path.iterdir()))
    assert list(inputs_of_file(file, TableOptions())) == [UnreadFile(file.name, ADVICE[name])]


def test_file_that_is_missing_is_not_read(tmp_path: Path) -> None:
    (file,) = files_in(tmp_path)[:1] or [files_in(Path(__file__))[0]._replace(path=tmp_path / "x.csv", name="x.csv")]
    assert list(inputs_of_file(file, TableOptions())) == [UnreadFile("x.csv", "does not exist")]


def test_folder_reads_a_pair_of_snana_once(tmp_path: Path) -> None:
    for name in ("A_HEAD.FITS", "A_PHOT.FITS", "note.txt"):
        (tmp_path / name).write_bytes(b"x")
    assert [file.name for file in files_in(tmp_path)] == ["A_HEAD.FITS", "note.txt"]


def test_hats_collection_in_a_folder_is_read_once(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    collection = tmp_path / "night" / "ztf"
    for catalogue, names in (("main", ["1", "2"]), ("main_margin", ["2", "9"])):
        pixel = collection / catalogue / "dataset" / "Norder=0" / "Dir=0"
        pixel.mkdir(parents=True)
        (collection / catalogue / "hats.properties").write_text("")
        (collection / catalogue / "partition_info.csv").write_text("Norder,Npix\n0,1\n")
        rows = [
            {"objectId": name, "lc": [{"mjd": 58_000.0 + k, "band": "g", "mag": 18.0, "magerr": 0.1} for k in range(5)]}
            for name in names
        ]
        pq.write_table(pa.Table.from_pylist(rows), pixel / "Npix=1.parquet")
    (collection / "collection.properties").write_text("hats_primary_table_url = main\n")
    (file,) = files_in(tmp_path)
    items = list(inputs_of_file(file, TableOptions()))
    assert [item.name.rpartition(" ")[2] for item in items if isinstance(item, NamedInput)] == ["1", "2"]


def test_format_of_a_light_curve_of_salt_needs_no_known_ending() -> None:
    assert format_of("lc-03D4ag.list", b"@SN 03D4ag\n#Date:\n#Flux:\n#end\n52816.54 92.1\n") == "csv"
    assert format_of("NAMES.LIST", b"SN_2016W.txt\nSN_2016X.txt\nSN_2016Y.txt\n") != "csv"
