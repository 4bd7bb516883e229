"""The domain that a model was measured on, and which light curves lie outside."""

from typing import Any

import pytest
from pydantic import ValidationError

from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.photometry import BandMap
from nightjar_alerts.models.posterior import Domain

BANDS = BandMap(("g", "r", "i"), groups={"atlas:o": "r"})


def curve(flux: list[float], band: list[str], survey: str = "", **more: Any) -> LightCurve:
    n = len(flux)
    return LightCurve.from_columns([60_000.0 + day for day in range(n)], flux, [1.0] * n, band, survey=survey, **more)


def domain(**changes: Any) -> Domain:
    return Domain.model_validate({"bands": ["g", "r"], "measured_on": "tests", **changes})


@pytest.mark.parametrize(
    ("stated", "seen", "why"),
    [
        ({}, curve([10.0, 20.0], ["g", "r"]), ""),
        ({"surveys": ["ztf"]}, curve([10.0], ["g"], "ztf"), ""),
        ({"surveys": ["ztf"]}, curve([10.0], ["g"]), ""),  # nobody says where it comes from
        ({"surveys": ["ztf"]}, curve([10.0], ["g"], "lsst"), "measured on ztf, not on lsst"),
        ({}, curve([10.0, 5.0], ["i", "i"]), "at least 1 points in g, r"),
        ({}, curve([10.0], ["o"], "atlas"), ""),  # it stands for r
        ({}, curve([10.0], ["o"], "other"), "at least 1 points"),
        ({"fewest_points": 3}, curve([10.0, 20.0, 9.0], ["g", "r", "i"]), "at least 3 points"),
        ({"fewest_bands": 2}, curve([10.0, 20.0], ["g", "g"]), "at least 2 bands of g, r"),
        ({"faintest_njy": 50.0}, curve([10.0, 20.0], ["g", "r"]), "20 nJy (28.1 mag), measured from 50 nJy"),
        ({"brightest_njy": 50.0}, curve([10.0, -80.0], ["g", "r"]), "80 nJy (26.6 mag), measured up to 50 nJy"),
        ({"brightest_njy": 50.0}, curve([10.0, 800.0], ["g", "i"]), ""),  # brighter only where it does not look
    ],
)
def test_reasons(stated: dict[str, Any], seen: LightCurve, why: str) -> None:
    found = domain(**stated).outside(seen, BANDS)
    assert (why in found) if why else not found


def test_brightness_is_that_of_detections() -> None:
    seen = curve([10.0, 900.0], ["g", "r"], detected=[True, False])
    assert not domain(brightest_njy=100.0).outside(seen, BANDS)
    assert domain(brightest_njy=100.0).outside(curve([10.0, 900.0], ["g", "r"], detected=[False, False]), BANDS)


def test_limits_are_in_order() -> None:
    with pytest.raises(ValidationError, match="faintest_njy must be below"):
        domain(faintest_njy=5.0, brightest_njy=5.0)
