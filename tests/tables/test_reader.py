"""The reader of tables: formats, order of rows, bad rows, upper limits, questions."""

import bz2
import gzip
import io
import json
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightjar_alerts.models.lightcurve import LightCurveError
from nightjar_alerts.tables import (
    Table,
    TableError,
    TableObject,
    TableOptions,
    TableQuestion,
    read_object_metadata,
    read_table,
)
from nightjar_alerts.tables import reader as reader_module

ROWS = [
    (name, 60_000.0 + 2 * step, band, 18.0 + 0.1 * step + shift, 0.05)
    for name, shift in (("a", 0.0), ("b", 1.0), ("c", 2.0))
    for step in range(5)
    for band in ("g", "r")
]
NAMES = ("object_id", "mjd", "band", "mag", "mag_err")


def csv_of(rows: list[tuple[Any, ...]], names: tuple[str, ...] = NAMES) -> bytes:
    return "\n".join(",".join(map(str, row)) for row in [names, *rows]).encode()


def read(data: Any, name: str = "table.csv", **options: Any) -> tuple[Table, list[TableObject]]:
    table = read_table(data, TableOptions(**options), name=name)
    return table, list(table)


def only(data: Any, name: str = "table.csv", **options: Any) -> TableObject:
    _, objects = read(data, name, **options)
    assert len(objects) == 1
    return objects[0]


def same(first: list[TableObject], second: list[TableObject]) -> None:
    assert [item.object_id for item in first] == [item.object_id for item in second]
    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one.mjd, other.mjd)
        np.testing.assert_allclose(one.flux, other.flux)
        np.testing.assert_allclose(one.flux_err, other.flux_err)
        assert list(one.band) == list(other.band)


# Order of rows


def test_table_sorted_by_time_groups_rows_by_object() -> None:
    _, grouped = read(csv_of(ROWS))
    _, mixed = read(csv_of(sorted(ROWS, key=lambda row: (row[1], row[0]))))
    same(grouped, mixed)
    assert [len(item.mjd) for item in mixed] == [10, 10, 10]


@pytest.mark.parametrize("is_sorted", [True, False])
def test_table_larger_than_memory_yields_the_same_objects(monkeypatch: pytest.MonkeyPatch, is_sorted: bool) -> None:
    rows = ROWS if is_sorted else sorted(ROWS, key=lambda row: (row[1], row[0]))
    _, expected = read(csv_of(rows))
    monkeypatch.setattr(reader_module, "HELD_POINTS", 4)
    monkeypatch.setattr("nightjar_alerts.tables.text.BATCH_ROWS", 3)
    table, objects = read(csv_of(rows))
    same(expected, sorted(objects, key=lambda item: item.object_id))
    assert (table.report.objects, table.report.points) == (3, 30)
    assert table.progress == 1.0


def test_table_iterated_twice_yields_the_same_objects() -> None:
    table, first = read(csv_of(ROWS))
    same(first, list(table))
    assert table.report.objects == 3


# Text


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, bytes])
def test_table_compressed_is_read(compress: Any, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(compress(csv_of(ROWS)))
    same(read(csv_of(ROWS))[1], read(path)[1])


def test_table_from_standard_input_is_read_once() -> None:
    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self._content = io.BytesIO(csv_of(ROWS))

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            return self._content.readinto(buffer)

    same(read(csv_of(ROWS))[1], read(Pipe())[1])


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace(",", ";"),
        lambda text: text.replace(",", ";").replace(".", ","),
        lambda text: text.replace(",", "\t"),
        lambda text: text.replace(",", " "),
        lambda text: text.replace(",", "  |  "),
        lambda text: "# made by hand\n#\n" + text,
        lambda text: "# made by hand\n# " + text.replace(",", "   "),
        lambda text: text.replace("\n", ",\n") + ",",
        lambda text: text + "\n\n\n",
        lambda text: '"' + text.replace(",", '","').replace("\n", '"\n"') + '"',
        lambda text: text.replace("\n", "\n# remark\n", 3),
    ],
)  # fmt: skip
def test_text_table_in_another_form_is_the_same(change: Any) -> None:
    same(read(csv_of(ROWS))[1], read(change(csv_of(ROWS).decode()).encode())[1])


def test_text_table_in_utf16_is_read() -> None:
    same(read(csv_of(ROWS))[1], read(csv_of(ROWS).decode().encode("utf-16"))[1])


def test_text_table_without_names_is_read_by_place() -> None:
    text = "\n".join(f"{mjd} {mag} {err} {band}" for _, mjd, band, mag, err in ROWS[:10])
    table, objects = read(text.encode(), "OGLE-1.dat")
    assert [item.object_id for item in objects] == ["OGLE-1"]
    assert sorted(set(objects[0].band)) == ["g", "r"]
    np.testing.assert_allclose(objects[0].flux, read(csv_of(ROWS[:10]))[1][0].flux)
    assert any("column 1" in str(guess) for guess in table.guesses)


def test_malformed_rows_are_counted_and_named() -> None:
    lines = csv_of(ROWS).decode().split("\n")
    lines[3] = "a,60002.0"
    lines[5] = "a,60004.0,r,18.2,0.05,7,8"
    lines[7] = "a,yesterday,g,18.3,0.05"
    lines[9] = "a,60006.0,r,bright,0.05"
    table, objects = read("\n".join(lines).encode())
    assert sum(table.report.malformed.values()) == 2
    assert "line 4" in table.report.examples[0]
    assert "line 6" in table.report.examples[1]
    assert dict(table.report.unused) == {"time is not readable": 1, "brightness is not readable": 1}
    assert [int(item.usable().sum()) for item in objects] == [6, 10, 10]
    assert "time is not readable" in " ".join(table.report.lines())


def test_table_without_rows_is_an_error() -> None:
    for text in (b"", b"object_id,mjd,band,mag,mag_err\n", b"\n\n", b"# nothing\n", b"one column\n1\n2\n"):
        with pytest.raises(TableError):
            read(text)


def test_binary_content_named_csv_is_an_error() -> None:
    with pytest.raises(TableError, match="not text"):
        read(bytes(range(256)) * 4)


def test_lists_in_cells_of_csv_are_light_curves() -> None:
    text = 'oid,mjd,band,mag,mag_err\nx,"[60000.0, 60001.0]","[\'g\', \'r\']","[18.0, 18.5]","[0.1, 0.2]"\n'
    item = only(text.encode())
    assert (item.object_id, list(item.band), list(item.mjd)) == ("x", ["g", "r"], [60_000.0, 60_001.0])


def test_large_identifiers_keep_their_digits() -> None:
    assert only(csv_of([("3138179372681221921", *row[1:]) for row in ROWS[:10]])).object_id == "3138179372681221921"


# JSON


def test_json_of_any_shape_is_the_same() -> None:
    expected = read(csv_of(ROWS))[1]
    points = [dict(zip(NAMES, row, strict=True)) for row in ROWS]
    by_object = [
        {
            "object_id": name,
            **{key: [point[key] for point in points if point["object_id"] == name] for key in NAMES[1:]},
        }
        for name in "abc"
    ]
    columns = {key: [point[key] for point in points] for key in NAMES}
    frame = {key: {str(row): value for row, value in enumerate(values)} for key, values in columns.items()}
    nested = [
        {"objectId": row["object_id"], "candidates": [{k: row[k][n] for k in NAMES[1:]} for n in range(10)]}
        for row in by_object
    ]
    documents: dict[str, Any] = {
        "points": points,
        "objects": by_object,
        "body": {"light_curves": by_object},
        "columns": columns,
        "frame": frame,
        "split": {"columns": list(NAMES), "data": [list(row) for row in ROWS]},
        "candidates": nested,
    }
    for name, document in documents.items():
        assert read(json.dumps(document).encode(), "t.json")[1], name
        same(expected, read(json.dumps(document).encode(), "t.json")[1])
    for lines in (points, by_object, nested):
        text = "\n".join(json.dumps(line) for line in lines)
        for file_name in ("t.jsonl", "t.ndjson", "t.json", ""):
            same(expected, read(text.encode(), file_name)[1])


def test_json_lines_with_errors_are_counted_and_named() -> None:
    lines = [json.dumps(dict(zip(NAMES, row, strict=True))) for row in ROWS[:10]]
    lines[2] = '{"object_id": "a", '
    lines[4] = "17"
    table, objects = read("\n".join(lines).encode(), "t.jsonl")
    assert dict(table.report.malformed) == {"no valid JSON": 1, "no JSON object": 1}
    assert "line 3" in table.report.examples[0]
    assert len(objects[0].mjd) == 8


def test_json_with_nan_and_null_has_missing_values() -> None:
    text = (
        '{"object_id": "a", "mjd": [1, 2, 3, 4], "band": ["g", "g", "g", "g"], "mag": [18.0, NaN, null, 19], '
        '"mag_err": [0.1, 0.1, 0.1, 0.1]}'
    )
    item = only(text.encode(), "t.json")
    assert int(item.usable().sum()) == 2


def test_json_of_the_open_supernova_catalog_is_read() -> None:
    photometry: list[dict[str, Any]] = [
        {"time": str(mjd), "band": band, "magnitude": str(mag), "e_magnitude": str(err), "u_time": "MJD"}
        for _, mjd, band, mag, err in ROWS[:10]
    ]
    photometry.append({"time": "60100.0", "band": "g", "magnitude": "21.0", "upperlimit": True})
    document = {"SN2011fe": {"name": "SN2011fe", "redshift": [{"value": "0.0008"}], "photometry": photometry}}
    table, objects = read(json.dumps(document).encode(), "SN2011fe.json")
    assert [item.object_id for item in objects] == ["SN2011fe"]
    assert dict(table.report.unused) == {"upper limit": 1}
    np.testing.assert_allclose(objects[0].flux[:10], read(csv_of(ROWS[:10]))[1][0].flux)


def test_json_of_alerce_joins_detections_and_limits() -> None:
    detections = [
        {"mjd": mjd, "fid": {"g": 1, "r": 2}[band], "magpsf": mag, "sigmapsf": err, "isdiffpos": -1 if n == 0 else 1}
        for n, (_, mjd, band, mag, err) in enumerate(ROWS[:10])
    ]
    limits = [{"mjd": 59_990.0, "fid": 1, "diffmaglim": 20.5}]
    item = only(json.dumps({"detections": detections, "non_detections": limits}).encode(), "ZTF1.json")
    assert item.survey == "ztf"
    assert item.flux[0] < 0 < item.flux[1]
    assert int(item.rejected["upper limit"].sum()) == 1


# Times


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("jd", [2_460_000.5, 2_460_002.5]),
        ("HJD", [2_460_000.5, 2_460_002.5]),
        ("time", [2_460_000.5, 2_460_002.5]),
        ("HJD-2450000", [10_000.5, 10_002.5]),
        ("hjd", [10_000.5, 10_002.5]),
        ("HJD-2400000", [60_000.5, 60_002.5]),
        ("RJD", [60_000.5, 60_002.5]),
        ("JD-2400000.5", [60_000.0, 60_002.0]),
        ("JD-2450000.5", [10_000.0, 10_002.0]),
        ("date", ["2023-02-25", "2023-02-27"]),
        ("obsdate", ["2023-02-25 00:00:00.0", "2023-02-27 00:00:00.0"]),
        ("ut", ["2023-02-25T00:00:00Z", "2023-02-27T00:00:00+00:00"]),
        ("ut", ["2023-02-25 02:00:00+02:00", "2023-02-26T19:00:00-0500"]),
        ("Date", ["2023-02-25.0", "2023-02-27.0"]),
        ("Date", ["2023/02/25 00:00", "2023/02/27 00:00"]),
        ("date", [20_230_225, 20_230_227]),
        ("time", [1_677_283_200, 1_677_456_000]),
        ("epoch", [60_000.0, 60_002.0]),
    ],
)
def test_times_of_every_format_become_mjd(name: str, values: list[Any]) -> None:
    rows = [("a", value, "g", 18.0 + n, 0.05) for n, value in enumerate(values)]
    item = only(csv_of(rows, ("object_id", name, "band", "mag", "mag_err")))
    np.testing.assert_allclose(item.mjd, [60_000.0, 60_002.0], atol=1e-6)


def test_time_options_override_the_guess() -> None:
    rows = [("a", 100.0 + n, "g", 18.0 + n, 0.05) for n in range(3)]
    item = only(csv_of(rows), time_offset=59_900.0)
    np.testing.assert_allclose(item.mjd, [60_000.0, 60_001.0, 60_002.0])


# Filters


def filters_of(names: list[str], **options: Any) -> list[str]:
    rows = [("a", 60_000.0 + n, name, 18.0, 0.05) for n, name in enumerate(names)]
    item = only(csv_of(rows), **options)
    return list(item.band)


def test_numbers_of_filters_that_may_be_of_two_surveys_are_a_question() -> None:
    with pytest.raises(TableQuestion) as caught:
        filters_of(["1", "2", "2", "1"])
    assert caught.value.option == "filter_numbers"
    assert {choice.value for choice in caught.value.choices} == {"ztf", "lsst", "ps1"}
    assert filters_of(["1", "2"], filter_numbers="ps1") == ["g", "r"]
    assert filters_of(["0", "3"]) == ["u", "i"]
    assert filters_of(["1", "5"]) == ["g", "Y"]
    assert filters_of(["1", "2"], survey="ztf") == ["g", "r"]


def test_capital_letters_that_may_be_two_filters_are_a_question() -> None:
    with pytest.raises(TableQuestion, match="capital letters"):
        filters_of(["G", "R", "I"])
    assert filters_of(["G", "R"], filters={"G": "g", "R": "r"}) == ["g", "r"]
    assert filters_of(["G", "R"], survey="ztf") == ["g", "r"]
    assert filters_of(["B", "V", "R", "I"]) == ["B", "V", "R", "I"]
    assert filters_of(["U", "G", "R", "I", "Z"]) == ["u", "g", "r", "i", "z"]


def test_filters_of_ones_own_are_named_by_wavelength() -> None:
    assert filters_of(["F606W", "g"], filters={"F606W": "590/230"}) == ["r", "g"]
    assert filters_of(["F606W", "g"], filters={"F606W": {"wavelength_nm": 589, "width_nm": 230}}) == ["r", "g"]
    assert filters_of(["L", "g"], filters={"L": ""})[1] == "g"
    for width in ("10", "600"):
        with pytest.raises(TableError, match=r"filters\['K'\] is '589/.*the width must be from 20 to 500 nm"):
            filters_of(["K"], filters={"K": f"589/{width}"})
    with pytest.raises(TableError, match=r"filters\['K'\] is '589/5': the width"):
        filters_of(["K"], filters={"K": {"wavelength_nm": 589, "width_nm": 5}})
    for meaning in (589, {"wavelength": 589}, {"wavelength_nm": 589, "vega_zero_point_jy": 3000}):
        with pytest.raises(TableError, match=r'it must be a wavelength in nm, such as "589"'):
            filters_of(["K"], filters={"K": meaning})
    with pytest.raises(TableQuestion, match="Which filters"):
        filters_of(["L", "M"])
    with pytest.raises(TableError, match="no band within"):
        filters_of(["K"], filters={"K": "2200"})


def test_filter_of_the_options_that_no_row_has_is_named() -> None:
    rows = [("a", 60_000.0 + n, name, 18.0, 0.05) for n, name in enumerate(["g", "F606W"])]
    table, _ = read(csv_of(rows), filters={"F606W": "590", "F6O6W": "590"})
    assert "no row is in F6O6W, which the option filters names" in [guess.text for guess in table.guesses]


def test_rows_in_unknown_filters_are_counted_by_name() -> None:
    rows = [("a", 60_000.0 + n, name, 18.0, 0.05) for n, name in enumerate(["g", "UVW1", "UVW1", "r"])]
    table, objects = read(csv_of(rows))
    assert dict(table.report.unknown_filters) == {"UVW1": 2}
    curve = objects[0].light_curve()
    assert (len(curve), dict(curve.unknown_filters)) == (2, {"UVW1": 2})


def test_filters_of_cousins_with_an_underscore_are_known() -> None:
    assert filters_of(["R_c", "I_C"]) == ["R", "I"]


def test_table_without_filters_is_a_question() -> None:
    rows = [("a", 60_000.0 + n, 18.0, 0.05) for n in range(3)]
    names = ("object_id", "mjd", "mag", "mag_err")
    with pytest.raises(TableQuestion) as caught:
        read(csv_of(rows, names))
    assert caught.value.option == "band"
    assert "The table has object_id, mjd, mag, mag_err." in str(caught.value)
    assert "Set band ('u'; 'g'; " in str(caught.value)
    assert list(only(csv_of(rows, names), band="V").band) == ["V"] * 3


# Brightness


def test_flux_without_a_unit_is_a_question_where_two_units_are_possible() -> None:
    rows = [("a", 60_000.0 + n, "g", 120.0 + n, 10.0) for n in range(3)]
    names = ("object_id", "mjd", "band", "flux", "flux_err")
    with pytest.raises(TableQuestion) as caught:
        read(csv_of(rows, names))
    assert caught.value.option == "flux_unit"
    assert {"uJy", "FLUXCAL"} <= {choice.value for choice in caught.value.choices}
    assert "nanomaggies (22.5) set zero_point instead" in str(caught.value)
    np.testing.assert_allclose(only(csv_of(rows, names), flux_unit="uJy").flux, [120e3, 121e3, 122e3])
    np.testing.assert_allclose(only(csv_of(rows, names), zero_point=23.9).flux, [120e3, 121e3, 122e3], rtol=1e-6)


def test_flux_of_a_depth_of_njy_is_read_as_njy() -> None:
    rows = [("a", 60_000.0 + n, "g", 3000.0, 300.0) for n in range(3)]
    table, objects = read(csv_of(rows, ("object_id", "mjd", "band", "flux", "flux_err")))
    np.testing.assert_allclose(objects[0].flux, 3000.0)
    assert any("nJy" in str(guess) for guess in table.guesses)


def test_unit_of_flux_follows_from_magnitudes_in_the_same_rows() -> None:
    rows = [("a", 60_000.0 + n, "g", 10 ** (-0.4 * (18 + n - 25.0)), 1.0, 18 + n) for n in range(4)]
    item = only(csv_of(rows, ("object_id", "mjd", "band", "flux", "flux_err", "mag")))
    np.testing.assert_allclose(item.flux, [10 ** (-0.4 * (18 + n - 31.4)) for n in range(4)], rtol=1e-6)


def test_magnitudes_of_mixed_systems_are_converted_by_filter() -> None:
    rows = [("a", 60_000.0, "V", 18.0, 0.05), ("a", 60_001.0, "g", 18.0, 0.05)]
    as_ab = 10 ** (-0.4 * (18.0 - 31.4))
    np.testing.assert_allclose(only(csv_of(rows)).flux, [as_ab * 10 ** (-0.4 * 0.02), as_ab], rtol=1e-6)
    np.testing.assert_allclose(only(csv_of(rows), mag_system="AB").flux, [as_ab, as_ab], rtol=1e-6)
    np.testing.assert_allclose(only(csv_of(rows), mag_system="Vega").flux[1], as_ab * 10 ** (0.4 * 0.08), rtol=1e-6)


def test_sentinels_and_negative_magnitudes_are_no_measurements() -> None:
    mags = [18.0, 99.0, 99.99, -99.0, 0.0, -999.0, 18.5]
    rows = [("a", 60_000.0 + n, "g", mag, 0.05) for n, mag in enumerate(mags)]
    table, objects = read(csv_of(rows))
    assert int(objects[0].usable().sum()) == 2
    assert dict(table.report.unused) == {"magnitude is not plausible": 3, "negative magnitude": 2}


def test_signed_magnitudes_of_atlas_are_recognised() -> None:
    rows = [("a", 60_000.0 + n, "o", (-1) ** n * (18.0 + 0.01 * n), 0.5) for n in range(10)]
    table, objects = read(csv_of(rows))
    assert (objects[0].flux[1::2] < 0).all()
    assert any(guess.option == "signed_magnitudes" for guess in table.guesses)
    _, plain = read(csv_of(rows), signed_magnitudes=False)
    assert int(plain[0].usable().sum()) == 5


# Upper limits


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (("upperlimit",), [(18.0, 0.1, ""), (20.5, "", 1)]),
        (("upperlimit",), [(18.0, 0.1, "F"), (20.5, "", "T")]),
        (("is_upper_limit",), [(18.0, 0.1, False), (20.5, "nan", True)]),
        ((), [(18.0, 0.1), (">20.5", "99.99")]),
        ((), [(18.0, 0.1), ("<20.5", "")]),
        (("diffmaglim",), [(18.0, 0.1, 20.9), ("", "", 20.5)]),
        (("limiting_mag",), [(18.0, 0.1, 20.9), ("nan", "nan", 20.5)]),
        (("maglim",), [(18.0, 0.1, 20.9), (99.0, 99.0, 20.5)]),
    ],
)
def test_upper_limits_are_recognised(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    filled = [("a", 60_000.0 + n, "g", *rows[n % 2]) for n in range(8)]
    text = csv_of(filled, ("object_id", "mjd", "band", "mag", "mag_err", *names))
    table, objects = read(text)
    assert dict(table.report.unused) == {"upper limit": 4}
    assert int(objects[0].usable().sum()) == 4
    used = only(text, upper_limits="use")
    assert used.usable().all()
    np.testing.assert_allclose(used.flux[1], 0.0)
    np.testing.assert_allclose(used.flux_err[1], 10 ** (-0.4 * (20.5 - 31.4)) / 5, rtol=1e-6)


# Options and questions


def test_columns_that_cannot_be_found_are_a_question_that_names_the_option() -> None:
    rows = [("a", "x", "g", 18.0, 0.05)]
    with pytest.raises(TableQuestion) as caught:
        read(csv_of(rows, ("object_id", "remark", "band", "mag", "mag_err")))
    assert caught.value.option == "columns.time"
    assert caught.value.to_dict()["option"] == "columns.time"
    with pytest.raises(TableQuestion) as caught:
        read(csv_of([("a", 60_000.0, "g", 18.0)], ("object_id", "mjd", "band", "mag")))
    assert caught.value.option == "mag_err"
    assert "columns.mag_err" in caught.value.question


def test_options_override_every_guess() -> None:
    names = ("object_id", "mjd", "band", "mag", "mag_err")
    renamed = ("n1", "n2", "n3", "n4", "n5")
    roles = ("object_id", "time", "band", "mag", "mag_err")
    table, objects = read(csv_of(ROWS, renamed), columns=dict(zip(roles, renamed, strict=True)))
    same(read(csv_of(ROWS, names))[1], objects)
    assert not any(guess.option.startswith("columns.") for guess in table.guesses)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": {"tiem": "mjd"}}, "tiem"),
        ({"columns": {"time": "missing"}}, "does not have"),
        ({"flux_unit": "Jansky"}, "flux_unit"),
        ({"time_format": "julian"}, "time_format"),
        ({"band": "K"}, "band"),
        ({"filters": {"x": "K"}}, "filters"),
        ({"upper_limits": "keep"}, "upper_limits"),
        ({"metadata": {"mwebv": "missing"}}, "metadata"),
        ({"format": "xls"}, "format"),
    ],
)
def test_options_with_wrong_values_are_errors_that_name_them(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TableError, match=message):
        read(csv_of(ROWS), **options)


FLAGGED = csv_of(
    [(*row, place % 4, place % 2 == 0, 0.1 * (place % 10)) for place, row in enumerate(ROWS)],
    (*NAMES, "flag", "is_valid", "quality"),
)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, 15),
        ({"bad_flags": {}}, 30),
        ({"bad_flags": {"flag": 3}}, 8),
        ({"bad_flags": {"flag": 2}}, 16),
        ({"bad_flags": {"is_valid": 1}}, 15),
        ({"minimum": {"is_valid": 1}}, 15),
        ({"minimum": {"quality": 0.5}, "bad_flags": {}}, 15),
    ],
)
def test_flags_and_qualities_leave_rows_out_as_asked(options: Any, left: int) -> None:
    _, objects = read(FLAGGED, **options)
    assert sum(int(item.usable().sum()) for item in objects) == left


def test_columns_of_flags_that_are_not_used_name_the_option() -> None:
    table, _ = read(FLAGGED)
    lines = {line.split("'")[1]: line for guess in table.guesses if (line := str(guess)).startswith("no rows are left")}
    assert "--bad-flags 'flag=3'" in lines["flag"]
    assert "is_valid" not in lines  # whose name says what its values mean
    assert "--minimum 'quality=VALUE'" in lines["quality"]
    table, _ = read(FLAGGED, minimum={"quality": 0.5})
    assert not any("no rows are left" in guess.text for guess in table.guesses)


def test_metadata_of_objects_are_joined_by_name(tmp_path: Path) -> None:
    path = tmp_path / "hosts.csv"
    path.write_text("SNID,redshift,MWEBV,comment\na,0.1,0.02,x\nc,,0.03,\nz,0.4,0.1,\n")
    table, objects = read(csv_of(ROWS), object_metadata=read_object_metadata(path))
    assert [dict(item.light_curve().metadata) for item in objects] == [
        {"zspec": 0.1, "mwebv": 0.02}, {}, {"mwebv": 0.03},
    ]  # fmt: skip
    assert table.report.lines() == ["objects without a row of metadata: 1 of 3 (b)"]
    assert table.report.to_dict()["objects_without_metadata"] == 1
    numbered = [(index, *row[1:], 0.3) for index, row in enumerate(ROWS[:3])]
    given = read_object_metadata({"objid": np.array([0, 2]), "redshift": [0.1, 0.2]})
    _, objects = read(csv_of(numbered, (*NAMES, "redshift")), object_metadata=given)
    assert [item.metadata["zspec"] for item in objects] == [0.1, 0.3, 0.2]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"objid": ["a", "a"], "redshift": [0.1, 0.2]}, "object 'a' has two rows"),
        ({"objid": ["a"], "colour": [0.1]}, "no column has metadata, such as redshift or mwebv; it has objid, colour"),
        ({"first": ["a"], "redshift": [0.1]}, "no column has names of objects"),
        ({"objid": ["a", "b", "c", "d", "e", "f"], "redshift": [*"12345", "0.1?"]}, "'0.1\\?' in column 'redshift'"),
        ({"a": {"redshift": 0.1}}, "there is no metadata 'redshift'; they are zspec,"),
    ],
)
def test_metadata_of_objects_that_cannot_be_read_are_a_sentence(data: Any, sentence: str) -> None:
    with pytest.raises(TableError, match=sentence):
        TableOptions(object_metadata=read_object_metadata(data))


def test_metadata_columns_are_found_by_name() -> None:
    rows = [(*row, 0.03, 0.1, -999.0) for row in ROWS]
    item = read(csv_of(rows, (*NAMES, "mwebv", "redshift", "hostgal_zphot")))[1][0]
    assert item.metadata == {"mwebv": 0.03, "zspec": 0.1}
    assert item.light_curve().metadata == {"mwebv": 0.03, "zspec": 0.1}


def test_redshift_kept_for_training_is_said_to_be_no_metadata() -> None:
    rows = {
        "object_id": ["a"] * 2,
        "mjd": [1.0, 2.0],
        "band": ["g"] * 2,
        "flux_nJy": [1.0, 2.0],
        "flux_err_nJy": [1.0] * 2,
    }
    table = Table(rows | {"z_true": [0.1, 0.1]}, TableOptions(columns={"redshift": "z_true"}))
    (item,) = table
    assert (item.redshift, item.metadata) == (0.1, {})
    assert any("'z_true' is not given to the model" in str(line) for line in table.layout.guesses)


@pytest.mark.parametrize("held", [1_000_000, 2])
def test_metadata_that_differ_between_rows_of_an_object_add_a_warning(
    held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "HELD_POINTS", held)
    redshifts = {"a": ["", "0.1", "-9", "0.2", "0.3"], "b": ["0.5", "", "0.5", "0.50", ""]}
    rows = [(name, 60_000.0 + n, "g", 18.0, 0.05, redshifts[name][n]) for n in range(5) for name in "ab"]
    curves = {item.object_id: item.light_curve() for item in read(csv_of(rows, (*NAMES, "redshift")))[1]}
    assert {name: curve.metadata["zspec"] for name, curve in curves.items()} == {"a": 0.1, "b": 0.5}
    found = [(name, each.detail) for name, curve in curves.items() for each in curve.warnings if "conf" in each.reason]
    assert found == [("a", "rows have different values in column 'redshift': 0.1, which is used, and 0.2")]
    given = read(csv_of(rows, (*NAMES, "redshift")), object_metadata={"a": {"zspec": 0.4}, "b": {}})[1]
    assert [item.metadata["zspec"] for item in given if not item.conflicts] == [0.4, 0.5]


def test_implausible_redshift_is_not_used_and_adds_a_warning() -> None:
    rows = [(*row, -0.5) for row in ROWS]
    curve = read(csv_of(rows, (*NAMES, "redshift")))[1][0].light_curve()
    assert dict(curve.metadata) == {}
    assert [warning.reason for warning in curve.warnings] == ["implausible_metadata"]
    assert "zspec must be a redshift from -0.01 to 12, not -0.5" in curve.warnings[0].detail


def test_object_without_usable_points_has_an_error_that_says_why() -> None:
    rows = [*ROWS, ("d", 60_000.0, "UVW1", 18.0, 0.05)]
    _, objects = read(csv_of(rows))
    with pytest.raises(LightCurveError, match="UVW1"):
        objects[3].light_curve()


def test_reader_of_text_imports_no_table_library() -> None:
    code = (
        "import sys; from nightjar_alerts.tables import read_table; "
        "list(read_table(b'object_id,mjd,band,mag,mag_err\\na,60000,g,18,0.1\\n', name='t.csv')); "
        "print([m for m in ('pandas', 'pyarrow', 'astropy', 'fastapi') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["counts", "PDCSAP_FLUX"])
def test_counts_of_an_instrument_need_their_zero_point(name: str) -> None:
    rows = [(object_id, mjd, band, 1000.0 + step, 50.0) for step, (object_id, mjd, band, _, _) in enumerate(ROWS)]
    data = csv_of(rows, ("object_id", "mjd", "band", name, f"{name}_err"))
    with pytest.raises(TableQuestion, match="zero point") as question:
        read(data)
    assert question.value.option == "zero_point"
    _, objects = read(data, zero_point=23.9)
    assert objects[0].flux[0] == pytest.approx(1e6)


def test_flux_that_overflows_in_njy_is_left_out() -> None:
    rows = [("a", 60_000.0 + n, "g", flux, 1.0) for n, flux in enumerate((5.0, 1e305, 6.0))]
    table, objects = read(csv_of(rows, ("object_id", "mjd", "band", "flux", "flux_err")), flux_unit="Jy")
    assert int(objects[0].usable().sum()) == 2
    assert dict(table.report.unused) == {"no brightness": 1}


def test_json_with_lists_in_lists_has_missing_values() -> None:
    body = {"object_id": "a", "mjd": [1.0, 2.0], "band": ["g", "r"], "mag": [18.0, 19.0], "mag_err": [0.1, 0.1]}
    item = only(json.dumps({**body, "mwebv": [[1.0], [2.0]]}).encode(), "t.json")
    assert (len(item.light_curve()), item.metadata) == (2, {})


def test_table_position_is_the_middle_of_the_rows() -> None:
    rows = [
        *(("a", 60_000.0 + k, "g", 18.0, 0.05, ra, dec) for k, (ra, dec) in enumerate([(10, 1), (10.1, 9), (200, 2)])),
        *(("b", 60_000.0 + k, "g", 18.0, 0.05, ra, -5) for k, ra in enumerate([359.9, 0.1, "nan"])),
    ]
    found = {item.object_id: (item.ra, item.dec) for item in read_table(csv_of(rows, (*NAMES, "ra", "decl")))}
    assert found == {"a": (10.1, 2.0), "b": (0.1, -5.0)}
    curves = [item.light_curve() for item in read_table(csv_of(rows, (*NAMES, "ra", "decl")))]
    assert [(curve.ra, curve.dec) for curve in curves] == list(found.values())


@pytest.mark.parametrize("position", [("12:30:00", "-5:00:00"), (400, 5), (10, -95), ("", "")])
def test_table_position_that_is_not_in_degrees_is_left_out(position: tuple[object, object]) -> None:
    rows = [(*row, *position) for row in ROWS]
    for item in read_table(csv_of(rows, (*NAMES, "ra", "dec"))):
        assert (item.ra, item.dec) == (None, None)


def test_table_position_out_of_range_is_counted_and_named() -> None:
    rows = [(*row, 10, -95) for row in ROWS]
    table = read_table(csv_of(rows, (*NAMES, "ra", "dec")))
    objects = list(table)
    assert table.report.to_dict()["objects_without_position"] == len(objects)
    assert f"{len(objects)} of {len(objects)} objects ({objects[0].object_id}" in table.report.lines()[-1]
