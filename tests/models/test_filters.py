"""Names of filters as surveys, brokers and archives write them."""

import pytest

from nightjar_alerts.models.filters import known_filter
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
