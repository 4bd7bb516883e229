"""Tables: stated values are used, assumptions are reported, contradictions are questions or are counted."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightjar_alerts.tables import Table, TableError, TableOptions, TableQuestion, read_table

MJD = 58_000.0 + 2.0 * np.arange(6)
MAG = 18.0 + 0.1 * np.arange(6)


def csv(header: str, row: str, **columns: list[Any]) -> bytes:
    rows = [
        row.format(mjd=MJD[k], mag=MAG[k], band="gr"[k % 2], k=k, **{n: v[k % len(v)] for n, v in columns.items()})
        for k in range(6)
    ]
    return "\n".join([header, *rows]).encode()


def read(data: Any, **options: Any) -> Table:
    return read_table(data, TableOptions(**options), name="table.csv")


def notes(table: Table) -> str:
    return "\n".join(guess.text for guess in table.guesses)


@pytest.mark.parametrize("name", ["KIC", "TIC", "EPIC", "NSVS", "gaia", "objid"])
def test_numbers_of_a_catalogue_are_objects(name: str) -> None:
    data = csv(f"{name},mjd,band,mag,magerr", "{id},{mjd},{band},{mag},0.05", id=[757, 757, 757, 758, 758, 758])
    assert [item.object_id for item in read(data)] == ["757", "758"]


@pytest.mark.parametrize("name", ["number", "nr", "Obj_No", "objnum", "sn_num", "cand", "cluster"])
def test_numbers_that_may_be_objects_are_a_question(name: str) -> None:
    data = csv(f"{name},mjd,band,mag,magerr", "{id},{mjd},{band},{mag},0.05", id=[7, 7, 7, 8, 8, 8])
    with pytest.raises(TableQuestion, match="name the objects") as caught:
        read(data)
    assert caught.value.option == "columns.object_id"


@pytest.mark.parametrize("name", ["programid", "pid", "rcid", "fieldid", "expid", "candid", "ccdid", "qid", "visitid"])
def test_numbers_of_instruments_are_no_objects(name: str) -> None:
    data = csv(f"{name},mjd,band,mag,magerr", "{id},{mjd},{band},{mag},0.05", id=[1, 2])
    assert len(list(read(data))) == 1


def test_telescopes_in_a_column_of_sources_are_no_objects() -> None:
    data = csv("source,mjd,band,mag,magerr", "{id},{mjd},{band},{mag},0.05", id=["ZTF", "ATLAS", "P48"])
    assert len(list(read(data))) == 1


@pytest.mark.parametrize("gap", [b"", b",,,", b" ", b"\r\n# SN 2026b"])
def test_blocks_between_empty_lines_without_a_name_are_an_assumption(gap: bytes) -> None:
    header, *rows = csv("mjd,band,mag,magerr", "{mjd},{band},{mag},0.05").splitlines()
    data = b"\n".join([header, *rows[:3], gap, *rows[3:]])
    assert "assumed: the 2 blocks of rows between empty lines are one object" in notes(read(data))
    assert "blocks" not in notes(read(data, object_id="mine"))


def test_rows_with_an_empty_line_behind_each_are_no_blocks() -> None:
    data = csv("mjd,band,mag,magerr", "{mjd},{band},{mag},0.05").replace(b"\n", b"\n\n")
    assert "blocks" not in notes(read(data))


def test_keys_of_a_concatenation_are_objects() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"mjd": MJD, "band": ["g", "r"] * 3, "mag": MAG, "magerr": 0.05})
    assert [item.object_id for item in read(pd.concat({"a": frame, "b": frame}))] == ["a", "b"]
    assert [item.object_id for item in read(pd.concat({"a": frame, "b": frame}).to_csv().encode())] == ["a", "b"]


def test_different_values_at_one_time_are_counted() -> None:
    data = csv("name,mjd,band,mag,magerr", "a,{mjd},{band},{mag},0.01\na,{mjd},{band},17.0,0.01")
    table = read(data)
    list(table)
    assert table.report.contradictory == ["a"]
    assert "differ by more than their errors" in table.report.lines()[-1]


def test_repeated_rows_are_counted() -> None:
    row = "a,{mjd},{band},{mag},0.01"
    table = read(csv("name,mjd,band,mag,magerr", f"{row}\n{row}\n{row}"))
    (item,) = table
    curve = item.light_curve()
    assert table.report.to_dict()["repeated_points"] == curve.duplicates == 2 * len(curve.mjd)
    assert table.report.lines() == [
        f"repeated points left out: {curve.duplicates} with the time and filter of another one of their object, "
        "of which the most precise one is used"
    ]


def test_different_values_at_one_time_without_a_name_are_a_question() -> None:
    data = csv("mjd,band,mag,magerr,tile", "{mjd},{band},{mag},0.01,1\n{mjd},{band},17.0,0.01,2")
    with pytest.raises(TableQuestion, match="12 of 12 rows have other values of the same filter") as asked:
        read(data)
    assert [choice.value for choice in asked.value.choices] == ["tile", ""]
    assert len(list(read(data, columns={"object_id": "tile"}))) == 2
    assert len(list(read(data, columns={"object_id": ""}))) == 1


def test_few_different_values_at_one_time_are_an_assumption() -> None:
    rows = b"\n".join(b"%d,g,18.%d,0.01" % (58_000 + k, k % 7) for k in range(40))
    table = read(b"mjd,band,mag,magerr\n" + rows + b"\n58000,g,17.0,0.01\n")
    assert "assumed: the table is one object, although 2 of 41 rows" in notes(table)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("is_valid", "True", "False"),
        ("good", "1", "0"),
        ("use", "yes", "no"),
        ("saturated", "False", "True"),
        ("is_bad", "0", "1"),
        ("goodflag", "1", "0"),
    ],
)
def test_flag_whose_name_says_what_is_good_leaves_rows_out(name: str, good: str, bad: str) -> None:
    data = csv(f"name,mjd,band,mag,magerr,{name}", "a,{mjd},{band},{mag},0.05,{flag}", flag=[good, good, bad])
    table = read(data)
    (item,) = table
    assert item.rejected["flagged by the survey"].tolist() == [False, False, True] * 2
    assert f"flagged as bad in {name}" in notes(table)
    (kept,) = read(data, bad_flags={})
    assert kept.usable().all()
    (useless,) = read(csv(f"name,mjd,band,mag,magerr,{name}", f"a,{{mjd}},{{band}},{{mag}},0.05,{bad}"))
    assert useless.usable().all()  # a flag that leaves out every row says nothing


def test_rows_farther_apart_than_three_arcseconds_are_stated() -> None:
    data = csv("name,mjd,band,mag,magerr,ra,dec", "a,{mjd},{band},{mag},0.05,10.0,{dec}", dec=[20.0, 20.002])
    assert "rows of a are one object each, although they are farther apart" in notes(read(data))
    with pytest.raises(TableQuestion, match="differs by"):
        read(csv("mjd,band,mag,magerr,ra,dec", "{mjd},{band},{mag},0.05,10.0,{dec}", dec=[20.0, 20.002]))


def test_kind_that_nothing_shows_is_an_assumption() -> None:
    table = read(csv("name,mjd,band,mag,magerr", "a,{mjd},{band},{mag},0.05"))
    assert "assumed: difference flux; neither columns nor light curves show it" in notes(table)
    list(table)
    assert table.report.to_dict()["assumptions"] == 2  # and the magnitude system


def test_unit_of_an_option_counts_before_a_column_of_zero_points() -> None:
    data = csv("name,mjd,band,flux,flux_err,zp", "a,{mjd},{band},{mag},0.5,25.0")
    (item,) = read(data, flux_unit="uJy")
    np.testing.assert_allclose(item.flux, MAG * 1e3)
    with pytest.raises(TableError, match="leave one of them out"):
        read(data, flux_unit="uJy", columns={"zero_point": "zp"})


def test_unit_and_zero_point_that_contradict_each_other_are_a_question() -> None:
    with pytest.raises(TableQuestion, match="states 25") as caught:
        read(csv("name,mjd,band,flux (uJy),flux_err,zp", "a,{mjd},{band},{mag},0.5,25.0"))
    assert caught.value.option == "flux_unit"


@pytest.mark.parametrize(
    "options", [{"flux_unit": "uJy"}, {"zero_point": 25.0}, {"filter_numbers": "ztf", "band": "g"}]
)
def test_option_that_changes_nothing_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(TableError, match="changes nothing"):
        read(csv("name,mjd,mag,magerr", "a,{mjd},{mag},0.05"), **{"band": "r"} | options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mag_system": "AB"}, "mag_system is given and changes nothing"),
        ({"upper_limits": "use"}, "upper_limits is given and changes nothing, because no upper limit is read"),
        ({"limit_sigma": 3.0}, "limit_sigma is given and changes nothing, because upper_limits is not 'use'"),
        ({"filter_numbers": "ztf"}, "filter_numbers is given and changes nothing, because no filter is a number"),
        ({"mag_err": -1.0}, "mag_err is"),
    ],
)
def test_option_that_changes_nothing_in_a_table_of_fluxes_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TableError, match=message):
        read(csv("name,mjd,band,flux_ujy,flux_err", "a,{mjd},{band},{mag},0.5"), **options)


def test_band_of_a_table_with_columns_by_filter_is_refused() -> None:
    data = csv("SN,MJD,Vmag,e_Vmag,Bmag,e_Bmag", "a,{mjd},{mag},0.05,{mag},0.06")
    assert {str(name) for item in read(data) for name in item.band} == {"B", "V"}
    with pytest.raises(TableError, match="columns of several filters"):
        read(data, band="r")


def test_g_and_capital_r_without_johnson_filters_are_a_question() -> None:
    data = csv("name,mjd,band,mag,magerr", "a,{mjd},{b},{mag},0.05", b=["g", "R"])
    with pytest.raises(TableQuestion, match="ZTF or PTF") as caught:
        read(data)
    assert [choice.value for choice in caught.value.choices] == ["R=r", "R=R"]
    assert {str(name) for item in read(data, survey="ztf") for name in item.band} <= {"g", "r", "R"}


def test_filters_of_hubble_are_proposed_by_their_names() -> None:
    with pytest.raises(TableQuestion) as caught:
        read(csv("name,mjd,band,mag,magerr", "a,{mjd},{b},{mag},0.05", b=["F475W", "F110W"]))
    assert caught.value.choices[0].value == "F110W=1100,F475W=475"


def test_error_of_magnitudes_fills_missing_ones() -> None:
    data = csv("name,mjd,band,mag,magerr", "a,{mjd},{band},{mag},{e}", e=["0.05", ""])
    (item,) = read(data)
    assert item.usable().sum() == 3
    (filled,) = read(data, mag_err=0.2)
    assert filled.usable().sum() == 6


def test_open_supernova_catalog_rows_that_are_flagged_are_left_out() -> None:
    row: dict[str, Any] = {"u_time": "MJD", "band": "g", "magnitude": "19.2", "e_magnitude": "0.05", "system": "AB"}
    flags: list[dict[str, Any]] = [{"host": True}, {"kcorrected": True}, {"includeshost": True}, {"model": "SALT2"}]
    rows = [{**row, "time": str(56_610.1 + k)} | (flags[k] if k < 4 else {}) for k in range(8)]
    xray = {"time": ["55740.1", "55741.1"], "energy": ["0.3", "10"], "flux": "1.2e-14"}
    document = {"SN1": {"name": "SN1", "redshift": [{"value": "0.03"}], "photometry": [*rows, xray]}}
    (item,) = read_table(json.dumps(document).encode(), name="sn.json")
    assert item.usable().sum() == 4
    assert item.rejected["flagged by the survey"].sum() == 4
    assert item.metadata == {"zspec": 0.03}


FITS_NAMES = ("TIME", "CADENCENO", "PDCSAP_FLUX", "PDCSAP_FLUX_ERR", "QUALITY")


def test_tess_light_curve_is_total_flux_at_its_stated_times(tmp_path: Path) -> None:
    fits = pytest.importorskip("astropy.io.fits")
    values = np.full(5, 1e4, "f8")
    arrays = (1354.1 + np.arange(5), np.arange(5), values, values / 1e3, np.array([0, 0, 128, 0, 0]))
    columns = [
        fits.Column(name, "J" if name in ("CADENCENO", "QUALITY") else "D", array=array, unit=unit)
        for name, array, unit in zip(FITS_NAMES, arrays, ("d", None, "electron/s", "electron/s", None), strict=True)
    ]
    table = fits.BinTableHDU.from_columns(columns)
    table.header["OBJECT"], table.header["BJDREFI"], table.header["BJDREFF"] = "TIC 1", 2_457_000, 0.0
    table.writeto(tmp_path / "tess.fits")
    (item,) = read_table(tmp_path / "tess.fits", TableOptions(band="I"))
    assert (item.object_id, item.flux_kind, int(item.usable().sum())) == ("TIC 1", "total", 4)
    np.testing.assert_allclose(item.mjd, 1354.1 + np.arange(5) + 56_999.5)
    np.testing.assert_allclose(item.flux, 1e4 * 10 ** (-0.4 * (20.44 - 31.4)))


def test_unit_of_times_of_tess_is_read(tmp_path: Path) -> None:
    fits = pytest.importorskip("astropy.io.fits")
    units = ("BJD - 2457000, days", "mag", "mag")
    columns = [fits.Column(*column) for column in zip(("TIME", "MAG", "MAG_ERR"), "DDD", units, strict=True)]
    table = fits.BinTableHDU.from_columns(columns, nrows=3)
    table.data["TIME"], table.data["MAG"], table.data["MAG_ERR"] = 1354.5 + np.arange(3), 11.0 + np.arange(3), 0.1
    table.writeto(tmp_path / "tess.fits")
    (item,) = read_table(tmp_path / "tess.fits", TableOptions(band="I"))
    np.testing.assert_allclose(item.mjd, 58_354.0 + np.arange(3))


def test_seconds_from_a_date_in_keywords_of_fits_become_mjd(tmp_path: Path) -> None:
    fits = pytest.importorskip("astropy.io.fits")
    arrays = ((MJD - 51_910.0) * 86_400.0, MAG, np.full(6, 0.1))
    columns = zip(("TIME", "MAG", "MAG_ERR"), "DDD", ("s", "mag", "mag"), arrays, strict=True)
    table = fits.BinTableHDU.from_columns([fits.Column(n, f, unit=unit, array=data) for n, f, unit, data in columns])
    table.header["MJDREFI"], table.header["MJDREFF"] = 51_910, 0.0
    table.writeto(tmp_path / "swift.fits")
    (item,) = read_table(tmp_path / "swift.fits", TableOptions(band="U"))
    np.testing.assert_allclose(item.mjd, MJD)


@pytest.mark.parametrize(
    ("origin", "zero"), [("2455197.5", 55_197.0), ("MJD-origin", 0.0), ("JD-origin", -2_400_000.5)]
)
def test_origin_of_times_of_a_votable_counts(origin: str, zero: float) -> None:
    pytest.importorskip("astropy.io.votable")
    fields = (
        '<FIELD name="band" datatype="char" arraysize="*"/><FIELD name="obs_time" datatype="double" unit="d" ref="t"/>'
    )
    fields += "".join(f'<FIELD name="{name}" datatype="double" unit="mag"/>' for name in ("mag", "mag_error"))
    rows = "".join(f"<TR><TD>G</TD><TD>{t - zero}</TD><TD>18</TD><TD>0.1</TD></TR>" for t in MJD)
    system = f'<TIMESYS ID="t" timeorigin="{origin}" timescale="TCB" refposition="BARYCENTER"/>'
    table = f"<TABLE>{fields}<DATA><TABLEDATA>{rows}</TABLEDATA></DATA></TABLE>"
    space = "http://www.ivoa.net/xml/VOTable/v1.3"
    text = f'<VOTABLE version="1.4" xmlns="{space}"><RESOURCE>{system}{table}</RESOURCE></VOTABLE>'
    (item,) = read_table(text.encode(), TableOptions(), name="table.vot")
    np.testing.assert_allclose(item.mjd, MJD)


def test_lists_named_after_their_filters_are_of_these_filters() -> None:
    lists = {"mjd": list(MJD), "mag": list(MAG), "magerr": [0.1] * 6}
    data = json.dumps({"name": "SN 1", "photometry": {"g": lists, "r": lists}}).encode()
    (item,) = read_table(data, TableOptions(), name="table.json")
    assert sorted(item.light_curve().band.tolist()) == [1] * 6 + [2] * 6
    with pytest.raises(TableError, match=r"lists of several filters \(photometry.g, photometry.r\)"):
        read_table(data, TableOptions(band="g"), name="table.json")


def test_points_of_several_objects_in_one_row_are_a_question() -> None:
    points = [
        {"oid": f"ZTF{k % 2}", "mjd": MJD[k], "fid": 1, "magpsf": MAG[k], "sigmapsf": 0.1, "isdiffpos": 1}
        for k in range(6)
    ]
    data = json.dumps({"detections": points, "non_detections": [{"mjd": 57_990.0, "fid": 1, "diffmaglim": 20}]})
    with pytest.raises(TableQuestion, match=r"several names in 'detections.oid' \(ZTF0, ZTF1\)"):
        read_table(data.encode(), TableOptions(), name="table.json")
    (item,) = read_table(data.encode(), TableOptions(columns={"object_id": ""}), name="table.json")
    assert len(item.mjd) == 7


def test_names_in_the_first_row_of_each_object_only_are_a_question() -> None:
    data = csv("name,mjd,band,mag,err", "{name},{mjd},{band},{mag},0.1", name=["SN 1", "", "", "SN 2", "", ""])
    with pytest.raises(TableQuestion, match="'name' has several names, but only in some rows"):
        read(data)
    table = read(data, columns={"object_id": "name"})
    assert [item.object_id for item in table] == ["SN 1", "SN 2"]
    assert table.report.to_dict()["unused_points"] == {"without the name of an object": 4}


def test_total_flux_with_its_unit_in_the_name_is_total_flux() -> None:
    data = csv("name,mjd,band,totflux_ujy,totflux_err", "a,{mjd},{band},{mag},0.1")
    assert "the whole source" in notes(read(data))


def test_comments_between_rows_are_counted() -> None:
    head, *rows = csv("mjd,band,mag,err", "{mjd},{band},{mag},0.1").decode().splitlines()
    table = read("\n".join([head, "# SN 1", *rows[:3], "# SN 2", *rows[3:]]).encode())
    assert len(list(table)) == 1
    assert table.report.to_dict()["malformed_rows"] == {"a comment sign in front": 1}
    assert table.report.examples == ["table.csv, line 6: a comment sign in front"]


def test_flags_of_more_than_64_bits_are_refused() -> None:
    with pytest.raises(TableError, match="64 bits"):
        TableOptions(bad_flags={"flags": 2**63})


@pytest.mark.parametrize(
    ("names", "question"),
    [
        (["u", "v", "b", "y"], "Strömgren"),
        (["u", "v", "g", "r"], "SkyMapper"),
        (["g", "r", "X", "Y"], "YSE"),
    ],
)
def test_letters_that_surveys_use_for_other_filters_are_a_question(names: list[str], question: str) -> None:
    data = csv("name,mjd,filter,mag,magerr", "a,{mjd},{name},{mag},0.05", name=names)
    with pytest.raises(TableQuestion, match=question) as asked:
        read(data)
    assert asked.value.option == "filters"
    chosen = dict(pair.split("=") for pair in asked.value.choices[0].value.split(","))
    (item,) = read(data, filters=chosen)
    assert set(item.band[item.usable()]) <= {"g", "r", "u"}


def test_u_of_swift_is_u_of_johnson() -> None:
    data = csv("name,mjd,filter,mag,magerr", "a,{mjd},{name},{mag},0.05", name=["uvw1", "u", "b"])
    (item,) = read(data)
    assert item.band[item.usable()].tolist() == ["U", "B"] * 2


@pytest.mark.parametrize("names", ["Jmag,e_Jmag,Kmag,e_Kmag", "w1mpro,w1sigmpro,w2mpro,w2sigmpro"])
def test_columns_of_infrared_filters_are_named_and_not_read_as_another(names: str) -> None:
    with pytest.raises(TableError, match="infrared filters, which are not known"):
        read(csv(f"name,mjd,{names}", "a,{mjd},{mag},0.05,{mag},0.05"))


def test_flux_of_a_filter_with_few_magnitudes_has_its_own_zero_point() -> None:
    zero_points = {"G": 25.6874, "RP": 24.7479}
    bands = ["G", "G", "G", "G", "G", "RP"]
    rows = [
        f"4,{k},{band},{1700.0 + k},{MAG[k]},{10 ** (-0.4 * (MAG[k] - zero_points[band]))},1.0"
        for k, band in enumerate(bands)
    ]
    (item,) = read("\n".join(["source_id,transit_id,band,time,mag,flux,flux_error", *rows]).encode())
    expected = 10 ** (-0.4 * (MAG[5] + 0.356 - 31.4))
    np.testing.assert_allclose(item.flux[item.band == "RP"], expected, rtol=1e-4)


# Rules that sources opened in November 2026 showed to be missing

ROWS = [("a", 58_700.25 + 3 * k, "gr"[k % 2], 19.0 + 0.1 * k, 0.05) for k in range(6)]


def table_of(names: str, rows: Sequence[Sequence[object]]) -> bytes:
    return "\n".join([names, *(",".join(map(str, row)) for row in rows)]).encode()


@pytest.mark.parametrize("unit", ["10^-6 Jy", "1e-06 Jy", "10-6Jy", "10**-3 mJy", "1E-3 mJy", "10^{-6} Jy"])
def test_unit_with_a_power_of_ten_is_not_read_as_the_unit_alone(unit: str) -> None:
    rows = [(*row[:3], 100.0, 5.0) for row in ROWS]
    (item,) = read_table(table_of(f"name,mjd,band,flux ({unit}),flux_err ({unit})", rows), name="a.csv")
    np.testing.assert_allclose(item.flux, 1e5)
    np.testing.assert_allclose(item.flux_err, 5e3)


@pytest.mark.parametrize("unit", ["0.1 mJy", "mJy/beam", "log Jy", "10^6 Jy"])
def test_unit_that_only_contains_a_known_one_is_not_supported(unit: str) -> None:
    rows = [(*row[:3], 100.0, 5.0) for row in ROWS]
    with pytest.raises(TableError, match="not supported"):
        read_table(table_of(f"name,mjd,band,flux ({unit}),flux_err ({unit})", rows), name="a.csv")


def test_unit_in_brackets_among_others_is_of_logarithms_and_not_supported() -> None:
    head = "Name\tMJD\tBand\tFlux\te_Flux\n \td\t \t[mJy]\t[mJy]\n----\t---\t----\t----\t----\n"
    text = head + "\n".join("\t".join(map(str, (*row[:3], -1.3, 0.02))) for row in ROWS)
    with pytest.raises(TableError, match=r"\[mJy\]"):
        read_table(text.encode(), name="asu.tsv")


def test_distances_in_a_column_named_like_a_source_do_not_split_the_object() -> None:
    rows = [(*row[1:], 0.231 if k % 2 else 0.318) for k, row in enumerate(ROWS)]
    assert len(list(read_table(table_of("mjd,band,mag,err,dnearestrefsrc", rows), name="a.csv"))) == 1
    named = [(*row[1:], "null") for row in ROWS]
    (item,) = read_table(table_of("mjd,band,mag,err,nearest_src", named), name="a.csv")
    assert item.object_id == "a"


def test_numbers_of_filters_that_two_surveys_share_are_an_assumption() -> None:
    rows = [(*row[:2], 1 + k % 3, *row[3:]) for k, row in enumerate(ROWS)]
    table = read_table(table_of("name,mjd,filterID,mag,err", rows), name="vista.csv")
    assert any(guess.is_assumption and guess.option == "filter_numbers" for guess in table.guesses)


def test_column_of_names_of_filters_counts_before_one_of_numbers() -> None:
    rows = [(*row[:2], 6, *row[2:]) for row in ROWS]
    (item,) = read_table(table_of("name,mjd,band,band_name,mag,err", rows), name="a.csv")
    assert list(item.band) == [row[2] for row in ROWS]


@pytest.mark.parametrize("time", ["BJD(TT)-2440000.0", "BJD_TDB-2440000"])
def test_zero_of_times_behind_a_time_scale_counts(time: str) -> None:
    rows = [(*row[:1], row[1] + 0.5 - 40_000, *row[2:]) for row in ROWS]
    (item,) = read_table(
        table_of(f"name,{time},band,mag,err", rows), TableOptions(columns={"time": time}), name="a.csv"
    )
    np.testing.assert_allclose(item.mjd, [row[1] for row in ROWS], atol=1e-6)


def test_time_offset_is_in_days_whatever_the_format() -> None:
    rows = [(*row[:1], (row[1] - 40_587) * 86_400, *row[2:]) for row in ROWS]
    options = TableOptions(time_format="unix", time_offset=1.0)
    (item,) = read_table(table_of("name,time,band,mag,err", rows), options, name="a.csv")
    np.testing.assert_allclose(item.mjd, [row[1] + 1.0 for row in ROWS], atol=1e-6)


def test_antares_rows_of_rubin_are_not_converted_from_utc() -> None:
    names = "ant_mjd,ant_survey,ant_passband,ant_mag,ant_magerr"
    rows = [(row[1], 4, row[2], *row[3:]) for row in ROWS]
    (item,) = read_table(table_of(names, rows), name="lsst.csv")
    assert (item.survey, item.mjd[0]) == ("lsst", 58_700.25)
    (item,) = read_table(
        table_of(names, [(row[0], 1 + 3 * (k % 2), *row[2:]) for k, row in enumerate(rows)]), name="mixed.csv"
    )
    assert (item.survey, item.mjd[0]) == ("", 58_700.25)


def test_snoopy_file_without_time_zero_and_with_two_filters_is_read() -> None:
    text = b"SN1981D 0.005871 50.65992 -37.23272\nfilter B\n674.8593 12.94 0.11\nfilter V\n674.8593 12.74 0.05\n"
    table = read_table(text, name="SN1981D.txt")
    (item,) = table
    assert (list(item.band), item.metadata["zspec"]) == (["B", "V"], 0.005871)
    assert any(guess.is_assumption and guess.option == "time_offset" for guess in table.guesses)


@pytest.mark.parametrize("time", ["HJD-2450000", "MJD-50000"])
def test_zero_of_times_that_the_values_contradict_is_a_question(time: str) -> None:
    with pytest.raises(TableQuestion) as caught:
        read_table(table_of(f"name,{time},band,mag,err", list(ROWS)), name="a.csv")
    assert caught.value.option == "time_offset"


def test_files_of_several_objects_in_one_table_are_a_question() -> None:
    rows = [(f"SN{1 + k // 6}.dat", *row[1:]) for k, row in enumerate([*ROWS, *ROWS])]
    with pytest.raises(TableQuestion) as caught:
        read_table(table_of("file,mjd,band,mag,err", rows), name="a.csv")
    assert caught.value.option == "columns.object_id"


def test_rows_that_are_no_detections_are_limits() -> None:
    rows = [(*row, int(k == 2)) for k, row in enumerate(ROWS)]
    (item,) = read_table(table_of("name,mjd,band,mag,err,nondet", rows), name="a.csv")
    assert list(np.flatnonzero(item.rejected["upper limit"])) == [2]


def test_names_that_differ_in_capital_letters_only_are_an_assumption() -> None:
    rows = [("PTF11kly" if k % 2 else "PTF11KLY", *row[1:]) for k, row in enumerate([*ROWS, *ROWS])]
    table = read_table(table_of("name,mjd,band,mag,err", rows), name="a.csv")
    assert any(guess.is_assumption and "PTF11KLY and PTF11kly" in guess.text for guess in table.guesses)


def test_lightkurve_flux_that_is_normalized_is_a_question() -> None:
    rows = [(1_325.3 + k, 1.0 + 0.01 * (k % 3), 0.001, 0) for k in range(8)]
    with pytest.raises(TableQuestion) as caught:
        read_table(table_of("time,flux,flux_err,quality", rows), TableOptions(band="i"), name="qlp.csv")
    assert caught.value.option == "flux_unit"


def test_neowise_columns_are_named_as_infrared() -> None:
    rows = [(row[1], 12.0, 0.02, 11.9, 0.02) for row in ROWS]
    with pytest.raises(TableError, match="w1mpro, w2mpro are of infrared filters"):
        read_table(table_of("mjd,w1mpro,w1sigmpro,w2mpro,w2sigmpro", rows), name="neowise.csv")


@pytest.mark.parametrize(("name", "is_stated"), [("magpsf", True), ("mag_psf", False)])
def test_psf_magnitudes_are_of_difference_images_only_under_the_name_of_ztf(name: str, is_stated: bool) -> None:
    table = read_table(table_of(f"object_id,mjd,filter,{name},err", list(ROWS)), name="a.csv")
    (guess,) = [guess for guess in table.guesses if guess.option == "flux_kind"]
    assert guess.is_assumption != is_stated


def test_days_in_a_column_of_mjd_that_are_no_date_are_an_assumption() -> None:
    rows = [(row[0], row[1] - 50_000, *row[2:]) for row in ROWS]
    table = read_table(table_of("name,mjd,band,mag,err", rows), name="a.csv")
    assert any(guess.is_assumption and "unknown date" in guess.text for guess in table.guesses)
