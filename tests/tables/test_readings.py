"""Tables that look like others: units of errors, total flux, units and magnitudes without a name, repeated columns."""

from typing import Any

import numpy as np
import pytest

from nightjar_alerts.tables import Table, TableError, TableObject, TableOptions, TableQuestion, read_table

NAMES = ("name", "mjd", "filter", "mag", "err")


def csv_of(rows: Any, names: tuple[str, ...] = NAMES, separator: str = ",") -> bytes:
    return "\n".join(separator.join(map(str, row)) for row in [names, *rows]).encode()


def read(data: Any, name: str = "table.csv", **options: Any) -> tuple[Table, list[TableObject]]:
    table = read_table(data, TableOptions(**options), name=name)
    return table, list(table)


def question(data: Any, name: str = "table.csv", **options: Any) -> TableQuestion:
    with pytest.raises(TableQuestion) as caught:
        read(data, name, **options)
    return caught.value


def notes(table: Table) -> str:
    return "; ".join(map(str, table.guesses))


# Sources: magnitudes of a supernova that is seen for two months, and of a pulsating star


def supernova(name: str = "SN 1", days: int = 60, start: float = 60_300.0, step: float = 2.0) -> list[tuple[Any, ...]]:
    phases = np.arange(-14.0, days - 14.0, step)
    mags = 17.0 + np.where(phases < 0, 0.015 * phases**2, 0.07 * phases)
    return [
        (name, start + 14 + t, "gr"[k % 2], f"{mag:.3f}", 0.03)
        for k, (t, mag) in enumerate(zip(phases, mags, strict=True))
    ]


def pulsator(name: str = "V1", days: int = 40, start: float = 60_300.0, points: int = 40) -> list[tuple[Any, ...]]:
    times = start + np.linspace(0.0, days, points)
    mags = 16.0 - 0.4 * np.sin(2 * np.pi * times / 0.5613)
    return [
        (name, f"{t:.3f}", "gr"[k % 2], f"{mag:.3f}", 0.02) for k, (t, mag) in enumerate(zip(times, mags, strict=True))
    ]


# Units of each column


POINTS = [("a", 60_000.0 + n, "g", 100.0 + n, 5.0) for n in range(4)]


@pytest.mark.parametrize(
    ("flux", "flux_err", "scale", "scale_err"),
    [
        ("flux [uJy]", "flux_err [nJy]", 1e3, 1.0),
        ("flux [mJy]", "flux err [uJy]", 1e6, 1e3),
        ("flux_ujy", "flux_err_njy", 1e3, 1.0),
        ("flux_ujy", "err_ujy", 1e3, 1e3),
        ("flux (uJy)", "flux_err", 1e3, 1e3),
        ("flux", "flux_err (uJy)", 1e3, 1e3),
    ],
)
def test_flux_error_with_a_unit_of_its_own_is_converted_by_it(
    flux: str, flux_err: str, scale: float, scale_err: float
) -> None:
    _, (item,) = read(csv_of(POINTS, ("name", "mjd", "filter", flux, flux_err)))
    np.testing.assert_allclose(item.flux, [scale * row[3] for row in POINTS])
    np.testing.assert_allclose(item.flux_err, 5.0 * scale_err)


@pytest.mark.parametrize("name", ["magerr (mmag)", "mag_err [mmag]", "mag_err_mmag"])
def test_magnitude_error_in_millimagnitudes_is_converted(name: str) -> None:
    rows = [(*row[:4], 20.0) for row in supernova()]
    _, (item,) = read(csv_of(rows, (*NAMES[:4], name)))
    _, (expected,) = read(csv_of([(*row[:4], 0.02) for row in supernova()]))
    np.testing.assert_allclose(item.flux_err, expected.flux_err)


def test_magnitudes_in_millimagnitudes_are_refused() -> None:
    rows = [(*row[:3], 1000 * float(row[3]), 30) for row in supernova()]
    with pytest.raises(TableError, match=r"'mag \(mmag\)' are in mmag"):
        read(csv_of(rows, (*NAMES[:3], "mag (mmag)", "err (mmag)")))


def test_units_of_astropy_columns_convert_each_column() -> None:
    units = pytest.importorskip("astropy.units")
    table = pytest.importorskip("astropy.table").QTable(
        {"name": ["a"] * 4, "mjd": 60_000.0 + np.arange(4), "filter": ["g"] * 4}
    )
    table["flux"], table["flux_err"] = np.arange(100.0, 104.0) * units.uJy, np.full(4, 5000.0) * units.nJy
    _, (item,) = read(table)
    np.testing.assert_allclose(item.flux_err, 5000.0)
    np.testing.assert_allclose(item.flux[0], 100e3)


@pytest.mark.parametrize("unit", ["erg/s/cm2/A", "W m-2 Hz-1", "MJy"])
def test_unit_of_flux_that_is_not_supported_is_named(unit: str) -> None:
    rows = [("a", 60_000.0 + n, "g", 3e-16 + n * 1e-17, 3e-18) for n in range(4)]
    with pytest.raises(TableError) as caught:
        read(csv_of(rows, ("name", "mjd", "filter", f"flux ({unit})", "error")))
    assert repr(unit) in str(caught.value)
    assert "depth" not in str(caught.value)


def test_plasticc_columns_with_another_unit_are_a_question() -> None:
    names = ("object_id", "mjd", "passband", "flux", "flux_err", "detected_bool")
    rows = [(615, 60_000.0 + n, n % 6, 2.0 - 0.3 * n, 0.3, 0) for n in range(12)]
    assert question(csv_of(rows, names)).option == "flux_unit"
    _, (item,) = read(csv_of([(*row[:3], 40 * row[3], 40 * row[4], 0) for row in rows], names))
    np.testing.assert_allclose(item.flux_err, 12 * 36.3078, rtol=1e-4)


# Total or difference


def test_short_light_curves_of_variable_stars_are_of_total_flux() -> None:
    table, objects = read(csv_of(pulsator() + pulsator("V2")))
    assert {item.flux_kind for item in objects} == {"total"}
    assert "flux_kind=total" in notes(table)


def test_reading_of_the_flux_is_always_stated() -> None:
    table, objects = read(csv_of(supernova()))
    assert "flux_kind=difference" in notes(table)
    assert "total" not in {item.flux_kind for item in objects}
    table, _ = read(csv_of(supernova()), flux_kind="total")
    assert not any(guess.option == "flux_kind" for guess in table.guesses)


def test_table_of_supernovae_and_variable_stars_is_a_question_with_their_numbers() -> None:
    rows = [*supernova("a"), *supernova("b"), *supernova("c"), *pulsator("d"), *pulsator("e")]
    asked = question(csv_of(rows))
    assert asked.option == "flux_kind"
    assert {choice.value for choice in asked.choices} == {"difference", "total"}
    assert "3 " in asked.question
    assert "2 " in asked.question
    _, objects = read(csv_of(rows), flux_kind="difference")
    assert {item.flux_kind for item in objects} == {"difference"}


def test_kind_of_flux_is_decided_from_whole_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_alerts.tables.text.BATCH_ROWS", 16)
    rows = sorted([*pulsator("V1"), *pulsator("V2"), *pulsator("V3")], key=lambda row: float(row[1]))
    _, objects = read(csv_of(rows))
    assert [(len(item.mjd), item.flux_kind) for item in objects] == [(40, "total")] * 3


ATLAS = "###MJD m dm uJy duJy F err chi/N RA Dec x y maj min phi apfit mag5sig Sky Obs"


def atlas(rows: list[tuple[Any, ...]]) -> bytes:
    lines = [ATLAS]
    for _, mjd, _, mag, _ in rows:
        flux = 10 ** (-0.4 * (float(mag) - 23.9))
        lines.append(f"{mjd} {mag} 0.02 {flux:.1f} {0.02 * flux:.1f} o 0 1 150.1 2.2 1 2 3 4 5 6 19.3 20 01a")
    return "\n".join(lines).encode()


def test_atlas_photometry_of_the_target_image_is_of_total_flux() -> None:
    assert read(atlas(pulsator(days=180)), "v.txt")[1][0].flux_kind == "total"
    assert read(atlas(supernova()), "sn.txt")[1][0].flux_kind != "total"


def test_gaia_alert_of_a_supernova_is_not_of_total_flux() -> None:
    def alert(rows: list[tuple[Any, ...]]) -> bytes:
        lines = [f"2022-11-18 21:13:50,{float(mjd) + 2_400_000.5},{mag}" for _, mjd, _, mag, _ in rows]
        return "\n".join(["#Gaia26abc", "Date,JD(TCB),averagemag", *lines]).encode()

    assert read(alert(supernova(step=4.0)), "Gaia26abc.csv", mag_err=0.05)[1][0].flux_kind != "total"
    assert read(alert(pulsator()), "Gaia26abd.csv", mag_err=0.05)[1][0].flux_kind == "total"


def test_aavso_extended_format_is_of_total_flux_in_vega_magnitudes() -> None:
    header = "#TYPE=Extended\n#OBSCODE=ABC\n#SOFTWARE=X\n#DELIM=,\n#DATE=JD\n#OBSTYPE=CCD\n"
    names = "#NAME,DATE,MAG,MERR,FILT,TRANS,MTYPE,CNAME,CMAG,KNAME,KMAG,AMASS,GROUP,CHART,NOTES\n"
    rows = [
        f"XY LYR,{float(mjd) + 2_400_000.5},{mag},0.020,{'BV'[k % 2]},NO,STD,105,10.593,110,11.090,1.56,na,X1,na"
        for k, (_, mjd, _, mag, _) in enumerate(pulsator(days=60, points=8))
    ]
    table, (item,) = read((header + names + "\n".join(rows)).encode(), "aavso.txt")
    assert "AAVSO" in notes(table)
    assert (item.object_id, item.flux_kind) == ("XY LYR", "total")
    np.testing.assert_allclose(item.mjd[0], 60_300.0, atol=1e-4)


# Magnitudes


@pytest.mark.parametrize("name", ["brightness", "value"])
def test_brightness_without_evidence_is_a_question(name: str) -> None:
    names = ("name", "mjd", "filter", name, "error")
    fluxes = [("a", 60_000.0 + n, "g", value, 0.3) for n, value in enumerate((12.6, 14.4, 20.5, 29.8, 22.0, 16.1))]
    assert question(csv_of(fluxes, names)).option == "flux_unit"
    bright = [(*row[:3], 20 * row[3], 0.5) for row in fluxes]
    assert question(csv_of(bright, names)).option == "flux_unit"
    _, (item,) = read(csv_of(bright, names), flux_unit="uJy")
    np.testing.assert_allclose(item.flux[0], 252e3)


def test_unit_of_a_column_that_may_be_magnitudes_answers_the_question() -> None:
    data = csv_of([(*row[:4], 0.05) for row in supernova()], (*NAMES[:3], "Helligkeit", "Fehler"))
    assert question(data).option == "flux_unit"
    _, (item,) = read(data, flux_unit="uJy")
    np.testing.assert_allclose(item.flux, [1e3 * float(row[3]) for row in supernova()])


def test_brightness_with_errors_that_grow_towards_faint_magnitudes_is_a_magnitude() -> None:
    mags = np.linspace(17.0, 20.5, 12)
    rows = [
        ("a", 60_000.0 + n, "g", f"{mag:.3f}", f"{0.02 * 10 ** (0.4 * (mag - 17)):.3f}") for n, mag in enumerate(mags)
    ]
    _, (item,) = read(csv_of(rows, ("name", "mjd", "filter", "brightness", "error")))
    np.testing.assert_allclose(item.flux, 10 ** (-0.4 * (mags - 31.4)), rtol=1e-3)


def test_magnitudes_that_are_all_negative_are_a_question() -> None:
    rows = [(*row[:3], float(row[3]) - 35.0, row[4]) for row in supernova()]
    asked = question(csv_of(rows))
    assert asked.option == "signed_magnitudes"
    assert "absolute" in asked.question


# Columns


def test_repeated_name_of_a_column_is_a_question() -> None:
    rows = [(*row, float(row[3]) - 3.0, 0.03) for row in supernova()]
    asked = question(csv_of(rows, (*NAMES, "mag", "err")))
    assert asked.option == "columns.mag"
    assert [choice.value for choice in asked.choices] == ["mag", "mag (2)"]
    _, (item,) = read(csv_of(rows, (*NAMES, "mag", "err")), columns={"mag": "mag (2)", "mag_err": "err (2)"})
    np.testing.assert_allclose(item.flux[0], 10 ** (-0.4 * (float(rows[0][5]) - 31.4)), rtol=1e-6)
    same = [(*row, row[3], row[4]) for row in supernova()]
    assert len(read(csv_of(same, (*NAMES, "mag", "err")))[1]) == 1


def test_columns_that_are_not_used_are_listed() -> None:
    rows = [(*row, "C" if k % 3 else "A", 7) for k, row in enumerate(supernova())]
    table, _ = read(csv_of(rows, (*NAMES, "quality", "seeing")))
    (note,) = [guess.text for guess in table.guesses if "not used" in guess.text]
    assert "quality" in note
    assert "seeing" in note
    assert "not used" not in notes(read(csv_of(supernova()))[0])


def test_magnitude_of_a_non_detection_is_a_limit() -> None:
    rows = [(*row, "yes" if k % 2 else "no") for k, row in enumerate(supernova())]
    table, (item,) = read(csv_of(rows, (*NAMES, "det")))
    assert table.report.unused == {"upper limit": sum(row[-1] == "no" for row in rows)}
    assert not item.usable()[0]


def test_time_of_day_in_its_own_column_belongs_to_the_date() -> None:
    rows = [("a", f"2025-03-{k + 1:02}", f"0{k}:30:00", "g", 17.0 + k, 0.03) for k in range(6)]
    asked = question(csv_of(rows, ("name", "date_obs", "time_utc", "filter", "mag", "err")))
    assert asked.option == "columns.time"
    assert "time_utc" in asked.question


def test_positions_of_several_objects_without_names_are_a_question() -> None:
    names = ("RA", "Dec", "mjd", "band", "mag", "e_mag")
    rows = [(200.5 if k % 2 else 10.1, -5.0, *row[1:]) for k, row in enumerate(supernova())]
    asked = question(csv_of(rows, names))
    assert asked.option == "columns.object_id"
    assert "RA" in asked.question
    one = [(200.5 + 1e-5 * k, -5.0, *row[1:]) for k, row in enumerate(supernova())]
    assert len(read(csv_of(one, names))[1]) == 1


def test_velocity_named_redshift_is_not_used() -> None:
    rows = [(*row, 3000.0) for row in supernova()]
    table, (item,) = read(csv_of(rows, (*NAMES, "redshift")))
    assert item.metadata == {}
    assert "redshift" in notes(table)
    _, (item,) = read(csv_of([(*row, 0.3) for row in supernova()], (*NAMES, "redshift")))
    assert item.metadata == {"zspec": 0.3}


# Messages


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (3, "17.2±0.03", "'17.2±0.03'"),
        (3, "1'234.5", '"1\'234.5"'),
        (3, "nan", "no values"),
        (1, "13/03/2025", "'13/03/2025'"),
    ],
)
def test_column_whose_values_are_not_read_is_named_with_a_value(place: int, value: str, message: str) -> None:
    rows = [(*row[:place], value, *row[place + 1 :]) for row in supernova()]
    asked = question(csv_of(rows, ("name", "date" if place == 1 else "mjd", *NAMES[2:])))
    assert message in asked.question
    assert repr(("name", "date" if place == 1 else "mjd", *NAMES[2:])[place]) in asked.question


def test_text_table_with_blanks_in_names_of_objects_is_read() -> None:
    lines = [f"SN 2026{name}  {60_300.0 + k:.2f}  g  {18 + 0.1 * k:.2f}  0.05" for name in "ab" for k in range(6)]
    _, objects = read("\n".join(["# name        MJD       band  mag   err", *lines]).encode(), "phot.dat")
    assert [item.object_id for item in objects] == ["SN 2026a", "SN 2026b"]


def test_text_table_with_decimal_commas_between_blanks_is_read() -> None:
    rows = [(*row[:3], str(row[3]).replace(".", ","), "0,03") for row in supernova("X")]
    _, (item,) = read(csv_of(rows, separator=" "), "phot.dat")
    np.testing.assert_allclose(item.flux, read(csv_of(supernova("X")))[1][0].flux, rtol=1e-6)


def test_metadata_without_light_curves_is_an_error_that_names_the_option() -> None:
    rows = [(615 + k, 10.0, -5.0, 0.2, 0.05) for k in range(6)]
    with pytest.raises(TableError, match="give it as object_metadata"):
        read(csv_of(rows, ("object_id", "ra", "decl", "hostgal_photoz", "hostgal_photoz_err")))


@pytest.mark.parametrize(("name", "zero"), [("MJD-60000", 60_000.0), ("BJD-2454833", 2_454_833.0 - 2_400_000.5)])
def test_times_counted_from_a_date_in_the_name_become_mjd(name: str, zero: float) -> None:
    rows = [(row[0], float(row[1]) - zero, *row[2:]) for row in supernova()]
    _, (item,) = read(csv_of(rows, ("name", name, *NAMES[2:])))
    np.testing.assert_allclose(item.mjd[0], 60_300.0, atol=1e-6)


def test_names_that_differ_in_every_row_are_a_question() -> None:
    rows = [(f"SN {k}", *row[1:]) for k, row in enumerate(supernova())]
    assert question(csv_of(rows, ("name", *NAMES[1:]))).option == "columns.object_id"
    _, items = read(csv_of(rows, ("name", *NAMES[1:])), columns={"object_id": "name"})
    assert len(items) == len(rows)
    numbered = [(k, *row[1:]) for k, row in enumerate(supernova())]
    table, _ = read(csv_of(numbered, ("id", *NAMES[1:])))
    assert any("the table holds one object" in guess.text for guess in table.guesses)


def test_logarithms_of_fluxes_are_not_read_as_fluxes() -> None:
    rows = [(*row[:3], 3.5, 0.02) for row in supernova()]
    assert question(csv_of(rows, (*NAMES[:3], "log_flux", "log_flux_err"))).option == "columns.flux"


def test_days_of_a_spreadsheet_are_a_question() -> None:
    rows = [(row[0], 45_702.0 + k, *row[2:]) for k, row in enumerate(supernova())]
    asked = question(csv_of(rows, ("name", "date", *NAMES[2:])))
    assert asked.option == "time_offset"
    _, (item,) = read(csv_of(rows, ("name", "date", *NAMES[2:])), time_offset=15_018.0)
    np.testing.assert_allclose(item.mjd[0], 60_720.0)


def test_names_in_latin_1_are_read() -> None:
    text = csv_of(supernova(), ("Objekt", "MJD", "Filter", "Größenklasse", "Fehler")).decode().encode("latin-1")
    table, (item,) = read(text, columns={"mag": "Größenklasse"})
    assert "Größenklasse" in table.header
    assert len(item.mjd) == 30
