"""Distribution of training light curves in a manifest."""

import numpy as np
import pytest

from nightjar_alerts.models.lightcurve import RaggedBatch
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.training.data.statistics import input_statistics


def batch() -> RaggedBatch:
    """Three light curves in FLUXCAL: two points in g; three in g and r; one in r. The second has a redshift."""
    metadata = np.full((3, len(METADATA_COLUMNS)), np.nan, np.float32)
    metadata[1, METADATA_COLUMNS.index("z_final")] = 0.1
    return RaggedBatch(
        offsets=np.array([0, 2, 5, 6]),
        time=np.zeros(6, np.float32),
        flux=np.array([10, -20, 1, 2, 4, 50], np.float32),
        flux_err=np.array([1, 3, 1, 0.5, 2, 10], np.float32),
        band=np.array([1, 1, 1, 2, 2, 2]),
        detected=np.ones(6, np.bool_),
        metadata=metadata,
    )


def test_input_statistics_of_known_light_curves_have_their_values() -> None:
    found = input_statistics(batch(), np.array([0, 1, -1]), ("Ia", "II"), bands=("g", "r"), flux_unit="FLUXCAL")
    njy = 10 ** (0.4 * 3.9)
    assert found.light_curves == 3
    assert found.largest_flux[2] == pytest.approx(20 * njy, rel=1e-4)
    assert found.largest_flux[0] == pytest.approx((4 + 0.1 * 16) * njy, rel=1e-4)
    assert found.error_ratio[2] == pytest.approx(0.2, rel=1e-4)  # of 2/20, 1/4 and 10/50
    assert found.points_per_band["g"][2] == 1
    assert found.points_per_band["r"][2] == 1
    assert found.missing_bands == pytest.approx({"g": 1 / 3, "r": 1 / 3}, abs=1e-5)
    assert found.missing_metadata["z_final"] == pytest.approx(2 / 3, abs=1e-5)
    assert found.missing_metadata["mwebv"] == 1
    assert found.classes == {"Ia": 0.5, "II": 0.5}


def test_input_statistics_without_metadata_columns_name_none() -> None:
    found = input_statistics(batch(), np.array([0, 1, 1]), ("Ia", "II"), bands=("g", "r"), flux_unit="nJy", columns=())
    assert found.missing_metadata == {}
