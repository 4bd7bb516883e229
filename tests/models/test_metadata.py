"""The 64 metadata columns and the surveys' ways of saying missing."""

import math

import numpy as np
import pytest

from nightjar_alerts.models.metadata import (
    METADATA_COLUMNS,
    SENTINELS,
    clean_metadata,
    implausible_metadata,
    metadata_row,
    network_metadata,
)


def test_there_are_64_distinct_columns_in_the_published_order() -> None:
    assert len(METADATA_COLUMNS) == len(set(METADATA_COLUMNS)) == 64
    assert METADATA_COLUMNS[0] == "hostgal2_ellipticity"
    assert METADATA_COLUMNS[30] == "hostgal_ellipticity"
    assert METADATA_COLUMNS[-4:] == ("mwebv", "mwebv_err", "z_final", "z_final_err")
    assert METADATA_COLUMNS[17:19] == ("hostgal2_zphot_q000", "hostgal2_zphot_q010")


@pytest.mark.parametrize("sentinel", [*SENTINELS, -9, 999, None, math.nan, math.inf, -math.inf, 1e39, -1e39, 10**400])
def test_sentinels_are_missing(sentinel: float | None) -> None:
    assert clean_metadata({"mwebv": sentinel, "z_final": 0.5}) == {"z_final": 0.5}


def test_unknown_names_are_dropped_and_ordinary_values_kept() -> None:
    assert clean_metadata({"ra": 1.0, "mwebv": 0, "z_final": -0.005}) == {"mwebv": 0.0, "z_final": -0.005}
    assert clean_metadata({"parallax": -9.1, "mwebv": -9.1, "z_final": -9.1, "hostgal_zspec": 12.5}) == {
        "parallax": -9.1
    }


@pytest.mark.parametrize(
    ("redshift", "plausible"), [(-0.5, False), (-0.005, True), (0.0, True), (12.0, True), (1e10, False)]
)
def test_implausible_redshifts_are_named(redshift: float, plausible: bool) -> None:
    found = implausible_metadata({"hostgal_zphot": redshift, "parallax": -3.0, "hostgal_zphot_err": 20.0})
    assert list(found) == ([] if plausible else ["hostgal_zphot"])


@pytest.mark.parametrize(
    ("name", "value", "detail"),
    [
        ("zspec_err", -1.0, "must be zero or positive, not -1"),
        ("hostgal_magerr_g", -0.1, "must be zero or positive, not -0.1"),
        ("hostgal_snsep", -4.0, "must be zero or positive, not -4"),
        ("mwebv", -0.2, "must be from 0 to 200, not -0.2"),
        ("mwebv", 1e9, "must be from 0 to 200, not 1e+09"),
        ("star_score", 2.0, "must be from 0 to 1, not 2"),
    ],
)
def test_values_out_of_range_are_named_and_missing(name: str, value: float, detail: str) -> None:
    assert implausible_metadata({name: value}) == {name: detail}
    assert clean_metadata({name: value}) == {}


def test_row() -> None:
    row = metadata_row({"b": 2.0}, ("a", "b"))
    assert row.dtype == np.float32
    assert np.isnan(row[0])
    assert row[1] == 2.0


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        ({"zspec": 0.03}, (0.03, 0.001)),
        ({"zspec": 0.03, "zspec_err": 0.0}, (0.03, 0.001)),
        ({"zspec": 0.03, "zspec_err": 0.0002, "z_final": 0.5, "z_final_err": 0.1}, (0.03, 0.0002)),
        ({"hostgal_zspec": 0.2}, (0.2, 0.001)),
        ({"hostgal_zphot": 0.4, "hostgal_zphot_err": 0.05}, (0.4, 0.05)),
        ({"hostgal_zphot": 0.4}, (math.nan, math.nan)),
        ({"z_final": 0.3, "hostgal_zspec": 0.2}, (0.3, math.nan)),
    ],
)
def test_network_metadata_any_redshift_is_z_final(sent: dict[str, float], seen: tuple[float, float]) -> None:
    row = network_metadata(sent, METADATA_COLUMNS)
    assert row[-2:] == pytest.approx(seen, nan_ok=True)
