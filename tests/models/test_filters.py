"""Names of filters as surveys, brokers and archives write them."""

import pytest

from nightjar_alerts.models.filters import known_filter, remedy_for
from nightjar_alerts.models.lightcurve import LightCurveError, band_column
from nightjar_alerts.models.photometry import FILTERS


@pytest.mark.parametrize("name", FILTERS)
def test_known_filter_of_its_own_name_returns_it(name: str) -> None:
    assert known_filter(name) == name


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Johnson V", "V"), ("johnson_b", "B"), ("Bessell-R", "R"), ("Cousins i", "I"), ("bessellux", "U"),
        ("V-Johnson", "V"), ("R_c", "R"), ("Ic", "I"), ("g-ZTF", "g"), ("ZTF_g", "g"), ("ztfr", "r"), ("zi", "i"),
        ("SDSS r'", "r"), ("sdss::z", "z"), ("PS1 R", "r"), ("lsstg", "g"), ("LSSTCam-y", "Y"), ("w-PS1", "w"),
        ("cyan-ATLAS", "c"), ("orange", "o"), ("ATLAS C", "c"), ("Gaia G", "G"), ("gaia::bp", "BP"), ("G_RP", "RP"),
        ("Clear-", "C"), ("unfiltered", "C"), ("uvotb", "B"), ("Swift V", "V"), ("y", "Y"), ("g′", "g"),
        ("g DECam SDSS c0001 4720.0 1520.0", "g"),
    ],
)  # fmt: skip
def test_known_filter_of_a_written_name_returns_the_filter(name: str, known: str) -> None:
    assert known_filter(name) == known


@pytest.mark.parametrize("name", ["", "F606W", "UVW1", "K", "Gaia V", "g r", "mag", "7", "bprp", "magr"])
def test_known_filter_of_another_name_returns_none(name: str) -> None:
    assert known_filter(name) is None


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("Johnson V", "send it as V"),
        ("ztfg", "send it as g"),
        ("q", "known bands are u, g,"),
        (3, "known bands are u, g,"),
    ],
)
def test_band_column_of_an_unknown_name_says_what_to_send(name: object, remedy: str) -> None:
    with pytest.raises(LightCurveError, match=remedy) as caught:
        band_column(["g", name])  # type: ignore[list-item]
    assert caught.value.pointer == "/band/1"


def test_remedy_for_a_long_name_looks_for_no_meaning() -> None:
    assert "known bands are" in remedy_for("johnson " * 10 + "V")
