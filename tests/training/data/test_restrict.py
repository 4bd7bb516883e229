"""Restricted light curves: the draws of bands, ends and metadata do not depend on the object."""

import numpy as np
import pytest

from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.training.data.augment import BAND_SUBSETS, AugmentationConfig, restrict

FEW = AugmentationConfig(few_bands=1.0)
EARLY = AugmentationConfig(prefix=1.0, prefix_detections=0.0)
ALONE = AugmentationConfig(prefix=1.0, prefix_detections=1.0)
COMMON = AugmentationConfig(common_metadata=True)


def curve(bands: str = "ugrizY", metadata: dict[str, float] | None = None) -> LightCurve:
    """Eight points in every band, every second one detected."""
    n = 8 * len(bands)
    return LightCurve.from_columns(
        mjd=60_000.0 + np.arange(n),
        flux=np.full(n, 100.0),
        flux_err=np.ones(n),
        band=[bands[place % len(bands)] for place in range(n)],
        detected=np.arange(n) // len(bands) % 2 == 0,
        metadata=metadata,
    )


def names(shown: LightCurve) -> str:
    return "".join(BANDS[number] for number in np.unique(shown.band))


def test_restrict_few_bands_shows_every_subset() -> None:
    seen = {names(restrict(curve(), FEW, np.random.default_rng(seed))) for seed in range(400)}
    assert seen == {"".join(name for name in BANDS if name in subset) for subset in BAND_SUBSETS}


def test_restrict_no_point_in_the_subset_keeps_the_curve() -> None:
    for seed in range(100):
        shown = restrict(curve("gr"), FEW, np.random.default_rng(seed))
        assert names(shown) in ("g", "r", "gr")
        assert shown.detected.any()


def test_restrict_a_single_band_moves_to_its_neighbours_at_most() -> None:
    seen = {names(restrict(curve("i"), FEW, np.random.default_rng(seed))) for seed in range(200)}
    assert seen == {"r", "i", "z"}


def test_restrict_prefix_ends_at_a_detection() -> None:
    whole = curve()
    counts = set()
    for seed in range(200):
        shown = restrict(whole, EARLY, np.random.default_rng(seed))
        assert shown.detected[np.argmax(shown.mjd)]
        assert len(shown) == np.count_nonzero(whole.mjd <= shown.mjd.max())
        counts.add(int(shown.detected.sum()))
    assert min(counts) == 1
    assert max(counts) > 12


def test_restrict_detections_alone_has_no_other_points() -> None:
    for seed in range(50):
        assert restrict(curve(), ALONE, np.random.default_rng(seed)).detected.all()


def test_restrict_dust_is_known_as_often_whether_the_survey_states_it_or_not() -> None:
    stated, missing = (
        np.array(
            [restrict(each, COMMON, np.random.default_rng(seed)).metadata.get("mwebv", -1.0) for seed in range(500)]
        )
        for each in (curve(metadata={"mwebv": 0.02}), curve())
    )
    assert np.array_equal(stated >= 0, missing >= 0)
    assert np.mean(stated >= 0) == pytest.approx(0.4, abs=0.07)


def test_restrict_redshift_errors_of_spectra_are_drawn_alike() -> None:
    one, other = (
        [restrict(each, COMMON, np.random.default_rng(seed)).metadata.get("z_final_err") for seed in range(100)]
        for each in (curve(metadata={"z_final": 0.1, "z_final_err": 0.001}), curve(metadata={"z_final": 0.1}))
    )
    assert one == other


def test_restrict_photometric_redshift_keeps_its_error() -> None:
    told = {"z_final": 0.5, "z_final_err": 0.08}
    shown = restrict(curve(metadata=told), COMMON, np.random.default_rng(1)).metadata
    assert {name: shown[name] for name in told} == told
