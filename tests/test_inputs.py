"""What the Python calls accept: units, times and missing values in dictionaries of columns."""

from datetime import UTC, date, datetime, timedelta, timezone
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightjar_alerts import LightCurve
from nightjar_alerts.core.errors import InvalidLightCurve
from nightjar_alerts.core.request import Options
from nightjar_alerts.core.serializer import light_curve_out
from nightjar_alerts.inputs import call_options, decode_inputs, is_table_file, read_request
from nightjar_alerts.tables import TableOptions
from support.curves import NO_TABLES

MJD = [60_000.25, 60_001.5, 60_002.75]
DATES = [datetime(2023, 2, 24, 23, 59, 23) + timedelta(days=days) for days in (0.25, 1.5, 2.75)]
"""In UTC, 37 s behind TAI."""
BODY: dict[str, Any] = {"mjd": MJD, "flux": [1e3, 2e3, 3e3], "flux_err": [100.0] * 3, "band": ["g", "r", "i"]}


def read(**changes: Any) -> LightCurve | InvalidLightCurve:
    body = {name: value for name, value in {**BODY, **changes}.items() if value is not None}
    (curve,) = decode_inputs(list(read_request(body, {}).inputs))
    assert isinstance(curve, LightCurve | InvalidLightCurve)
    return curve


def assert_times(times: Any) -> None:
    curve = read(mjd=times)
    assert isinstance(curve, LightCurve), str(curve)
    np.testing.assert_allclose(curve.mjd, MJD, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "times",
    [
        DATES,
        [time.replace(tzinfo=UTC).astimezone(timezone(timedelta(hours=2))) for time in DATES],
        [time.isoformat() for time in DATES],
        np.array(DATES, "datetime64[s]"),
        list(np.array(DATES, "datetime64[ns]")),
        np.array(MJD, object),
        tuple(MJD),
    ],
    ids=["datetime", "with a zone", "text", "numpy", "list of numpy", "objects", "tuple"],
)
def test_times_of_python_and_numpy_become_mjd(times: Any) -> None:
    assert_times(times)


def test_times_of_pandas_become_mjd() -> None:
    pandas = pytest.importorskip("pandas", reason=NO_TABLES)
    for times in (pandas.Series(DATES), pandas.Series(DATES).dt.tz_localize("UTC"), pandas.DatetimeIndex(DATES)):
        assert_times(times)
    assert_times(pandas.Series(MJD, dtype="Float64"))


def test_times_of_astropy_become_mjd_in_tai() -> None:
    time, units = (
        pytest.importorskip("astropy.time", reason=NO_TABLES),
        pytest.importorskip("astropy.units", reason=NO_TABLES),
    )
    tai = time.Time(MJD, format="mjd", scale="tai")
    for times in (tai, tai.utc, time.Time(tai.tdb.jd, format="jd", scale="tdb"), list(tai), MJD * units.d):
        assert_times(times)
    assert_times(time.Time(MJD, format="mjd", scale="local"))


@pytest.mark.parametrize(
    ("changes", "pointer", "reason"),
    [
        ({"mjd": [*DATES[:2], "soon"]}, "/mjd/0", "not_a_number"),
        ({"mjd": ["60000.5", "60001.5", "60002.5"]}, "/mjd/0", "not_a_number"),
        ({"mjd": [60_000.0, date(2023, 2, 26), 60_002.0]}, "/mjd/1", "not_a_number"),
        ({"mjd": np.array([*DATES[:2], "NaT"], "datetime64[s]")}, "/mjd/2", "not_finite"),
        ({"flux": np.array([1.0, None, 2.0], object)}, "/flux/1", "not_a_number"),
    ],
)
def test_values_that_are_no_times_or_numbers_are_named(changes: Any, pointer: str, reason: str) -> None:
    invalid = read(**changes)
    assert isinstance(invalid, InvalidLightCurve)
    assert (invalid.pointer, invalid.reason) == (pointer, reason)


def tables() -> dict[str, Any]:
    """One light curve as the tables that Python programs have."""
    columns = {"object_id": ["a"] * 3, "mjd": MJD, "flux_njy": [1e3, 2e3, 3e3], "flux_err_njy": [100.0] * 3}
    columns["band"] = ["g", "r", "i"]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    made: dict[str, Any] = {"rows": rows}
    made["structured"] = np.array([tuple(row.values()) for row in rows], "U1, f8, f8, f8, U1")
    made["structured"].dtype.names = tuple(columns)
    pandas = pytest.importorskip("pandas", reason=NO_TABLES)
    made["pandas"] = pandas.DataFrame(columns)
    made["categorical"] = made["pandas"].astype({"band": "category", "flux_njy": "Float64"})
    made["records"] = made["pandas"].to_records()
    if find_spec("polars"):
        made["polars"] = import_module("polars").DataFrame(columns)
    table = pytest.importorskip("astropy.table", reason=NO_TABLES)
    made["derived"] = type("LightCurve", (table.QTable,), {"__module__": "lightkurve.lightcurve"})(columns)
    made["arrow"] = pytest.importorskip("pyarrow", reason=NO_TABLES).record_batch(columns)
    return made


def test_tables_of_python_are_recognised() -> None:
    for kind, table in tables().items():
        (curve,) = decode_inputs(list(read_request(table, {}).inputs))
        assert isinstance(curve, LightCurve), kind
        assert (curve.object_id, curve.mjd.tolist(), curve.flux.tolist()) == ("a", MJD, BODY["flux"]), kind


def test_bodies_in_a_list_are_no_rows_of_a_table() -> None:
    first, second = decode_inputs(list(read_request([{}, BODY], {}).inputs))
    assert isinstance(first, InvalidLightCurve)
    assert isinstance(second, LightCurve)
    single = read(mjd=60_000.0, flux=1.0)
    assert isinstance(single, InvalidLightCurve)
    assert single.reason == "not_a_list"


def test_metadata_that_are_nan_are_missing_and_bytes_are_names() -> None:
    curve = read(metadata={"zspec": float("nan"), "mwebv": np.float32(0.5)}, band=np.array([b"g", b"r", b"i"]))
    assert isinstance(curve, LightCurve)
    assert curve.metadata == {"mwebv": 0.5}


def test_groups_of_pandas_with_their_names_are_a_sentence() -> None:
    pandas = pytest.importorskip("pandas", reason=NO_TABLES)
    groups = pandas.DataFrame({**BODY, "name": "a"}).groupby("name")
    with pytest.raises(TypeError, match="give the groups without names"):
        list(read_request(groups, {}).inputs)


def test_quantities_are_converted_or_named() -> None:
    units = pytest.importorskip("astropy.units", reason=NO_TABLES)
    for flux in ([1, 2, 3] * units.uJy, [1 * units.uJy, 2e3 * units.nJy, 3 * units.uJy]):
        curve = read(flux=flux)
        assert isinstance(curve, LightCurve)
        np.testing.assert_allclose(curve.flux, BODY["flux"])
    magnitudes = {"flux": None, "flux_err": None, "mag": [20, 21, 22] * units.ABmag, "mag_err": [0.1] * 3 * units.mag}
    curve = read(**magnitudes)
    assert isinstance(curve, LightCurve)
    np.testing.assert_allclose(curve.flux, 10 ** (-0.4 * (np.array([20, 21, 22]) - 31.4)), rtol=1e-5)
    for changes, stated in (
        ({"flux": [1, 2, 3] * units.m}, "the unit is m"),
        ({"flux": units.Quantity([1, 2, 3])}, "the unit is dimensionless"),
        (magnitudes | {"mag": [20, 21, 22] * units.STmag}, r"the unit is mag\(ST\)"),
    ):
        invalid = read(**changes)
        assert isinstance(invalid, InvalidLightCurve)
        assert invalid.reason == "wrong_unit"
        assert str(invalid).startswith(stated.replace("\\", "")), str(invalid)


@pytest.mark.parametrize("name", ["a.csv.xz", "a.tsv.gz", "a.ecsv.bz2", "a.vot.gz", "a.fts", "a.parq", "a.lc"])
def test_files_with_a_suffix_of_the_table_reader_are_tables(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(bytes(9))
    assert is_table_file(tmp_path / name, TableOptions())


def test_position_is_kept_and_returned() -> None:
    curve = read(ra=10.5, dec=-3)
    assert isinstance(curve, LightCurve)
    assert (curve.ra, curve.dec) == (10.5, -3.0)
    members = light_curve_out(curve)
    again = read(**members)
    assert isinstance(again, LightCurve)
    assert set(light_curve_out(again).keys()) == set(members.keys()) >= {"ra", "dec"}
    assert (again.ra, again.dec) == (10.5, -3.0)


def test_total_flux_is_returned_as_it_was_given_and_read_again_as_the_same() -> None:
    flux, band = [3000.0, 3100.0, 3500.0, 900.0, 800.0], ["g", "g", "g", "r", "r"]
    curve = read(
        mjd=[1.0, 2.0, 3.0, 1.5, 2.5], flux=flux, flux_err=[9.0] * 5, band=band, flux_kind="total", flux_unit="uJy"
    )
    assert isinstance(curve, LightCurve)
    assert curve.reference_flux == {"g": 3.1e6, "r": 8.5e5}
    members = light_curve_out(curve)
    assert members["flux"].tolist() == [1000.0 * value for value in flux]
    again = read(**members)
    assert isinstance(again, LightCurve)
    assert (again.flux.tolist(), again.detected.tolist()) == (curve.flux.tolist(), curve.detected.tolist())


def test_reference_of_filters_that_stand_for_one_is_unknown() -> None:
    filters = {"F475W": {"wavelength_nm": 475}, "F480X": {"wavelength_nm": 480}}
    bands = ["F475W", "F480X", "F480X"]
    curve = read(mjd=[1, 2, 3], flux=[9, 5, 6], flux_err=[1] * 3, band=bands, filters=filters, flux_kind="total")
    assert isinstance(curve, LightCurve)
    assert curve.total_flux() is None


@pytest.mark.parametrize("position", [{}, {"ra": None}, {"ra": float("nan"), "dec": np.float64("nan")}])
def test_position_that_is_unknown_is_left_out(position: dict[str, Any]) -> None:
    curve = read(**position)
    assert isinstance(curve, LightCurve)
    assert (curve.ra, curve.dec) == (None, None)
    assert "ra" not in light_curve_out(curve)


@pytest.mark.parametrize(
    ("position", "pointer", "reason"),
    [
        ({"ra": 10.0}, "/dec", "missing"),
        ({"dec": 10.0}, "/ra", "missing"),
        ({"ra": 360.5, "dec": 0.0}, "/ra", "less_than"),
        ({"ra": 0.0, "dec": -91}, "/dec", "greater_than"),
        ({"ra": "12:30:00", "dec": 1.0}, "/ra", "not_a_number"),
    ],
)
def test_position_that_is_invalid_is_named(position: dict[str, Any], pointer: str, reason: str) -> None:
    curve = read(**position)
    assert isinstance(curve, InvalidLightCurve)
    assert [(error.pointer, error.reason) for error in curve.errors] == [(pointer, reason)]


def test_keyword_that_is_misspelt_names_the_field() -> None:
    curve = read(fluxerr=[1.0] * 3)
    assert isinstance(curve, InvalidLightCurve)
    assert curve.errors[0].detail == "unknown field; send flux_err"


def test_call_options_of_the_body_come_first() -> None:
    options = call_options({"coverage": np.float32(0.5)}, coverage=0.9, embedding=np.True_, prior={"Ia": np.int64(2)})
    assert options == Options(coverage=0.5, embedding=True, prior={"Ia": 2})


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"speed": 1}, TypeError, "unknown options: speed; they are embedding, prior, coverage, experts"),
        ({"deadline_ms": 5}, TypeError, "unknown options: deadline_ms"),
        ({"embedding": "yes"}, TypeError, "embedding must be true or false"),
        ({"coverage": 1.0}, ValueError, "coverage must be less than 1"),
        ({"prior": "x" * 65}, ValueError, "prior must have at most 64 characters"),
    ],
)
def test_call_options_that_are_invalid_raise(given: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call_options(given)
