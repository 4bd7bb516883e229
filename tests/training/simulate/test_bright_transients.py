"""Supernovae as ZTF's bright survey has them: what it sees of the sky, whom it classifies, and that a seed decides."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.models.taxonomy import ZTF_SUPERNOVAE
from nightjar_alerts.training.data.dataset import Dataset, read_dataset, read_notes
from nightjar_alerts.training.simulate.cadence import SURVEY_START
from nightjar_alerts.training.simulate.generate import simulate
from nightjar_alerts.training.simulate.transients import MIN_DETECTIONS, ZTF_KINDS, G, R, ztf_visits

PER_CLASS = 40


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(
        tmp_path_factory.mktemp("ztf") / "ztf.parquet", PER_CLASS, seed=3, survey="ztf", workers=2, progress=False
    )


@pytest.fixture(scope="module")
def data(path: Path) -> Dataset:
    return read_dataset(path)


def magnitudes(data: Dataset, index: int) -> NDArray[np.float64]:
    flux = data.flux[data.offsets[index] : data.offsets[index + 1]].astype(np.float64)
    return np.asarray(31.4 - 2.5 * np.log10(flux))


def test_the_classes_are_those_of_the_taxonomy_in_equal_numbers(data: Dataset) -> None:
    assert data.classes == ZTF_SUPERNOVAE.names == tuple(ZTF_KINDS)
    assert np.bincount(data.label).tolist() == [PER_CLASS] * len(ZTF_KINDS)
    assert len(set(data.object_id)) == len(data)


def test_shares_of_subtypes_add_up() -> None:
    for kinds in ZTF_KINDS.values():
        assert sum(kind.population.share for kind in kinds) == pytest.approx(1.0)


def test_only_alerts_in_g_and_r_without_metadata(data: Dataset) -> None:
    assert {BANDS[band] for band in data.band} == {"g", "r"}
    assert (data.flux > 2.0 * data.flux_err).all()
    assert np.diff(data.offsets).min() >= MIN_DETECTIONS
    assert np.isnan(data.metadata).all()


def test_classified_objects_are_bright(data: Dataset) -> None:
    peaks = np.array([magnitudes(data, index).min() for index in range(len(data))])
    assert 17.5 < np.median(peaks) < 19.0
    assert peaks.max() < 20.5


def test_medians_by_class_are_those_of_the_survey(data: Dataset) -> None:
    """Days between the tenth and the ninetieth per cent of the points, of 6,082 typed ZTF supernovae."""
    real = {"Ia": 33.5, "II": 61.0, "Ibc": 37.2, "IIn": 103.3, "SLSN-I": 63.6, "SLSN-II": 103.7}
    for label, name in enumerate(data.classes):
        curves = [data.mjd[data.offsets[i] : data.offsets[i + 1]] for i in np.flatnonzero(data.label == label)]
        days = np.median([np.diff(np.percentile(mjd, [10, 90]))[0] for mjd in curves])
        assert real[name] / 2.0 < days < real[name] * 1.6, name


def test_visits_stay_in_the_window_and_come_in_order() -> None:
    start = np.array([SURVEY_START + 50.0, SURVEY_START + 400.0])
    visits = ztf_visits(np.random.default_rng(0), 2, start, start + 200.0)
    assert set(visits.band.tolist()) == {G, R}
    assert ((visits.mjd >= start[visits.object_index]) & (visits.mjd <= start[visits.object_index] + 201.0)).all()
    for object_index in range(2):
        assert (np.diff(visits.mjd[visits.object_index == object_index]) > 0).all()
    assert np.median(visits.depth) == pytest.approx(20.05, abs=0.4)


def test_the_file_says_how_it_was_made_and_the_seed_alone_decides(path: Path, tmp_path: Path, data: Dataset) -> None:
    assert json.loads(read_notes(path)["simulation"])["options"] == {"survey": "ztf"}
    again = read_dataset(simulate(tmp_path / "a.parquet", 3, seed=3, survey="ztf", classes=["IIn"], progress=False))
    first = int(np.flatnonzero(data.label == ZTF_SUPERNOVAE.names.index("IIn"))[0])
    np.testing.assert_array_equal(
        again.flux[: again.offsets[3]], data.flux[data.offsets[first] : data.offsets[first + 3]]
    )
    with pytest.raises(ValueError, match="no class KN"):
        simulate(tmp_path / "b.parquet", 3, seed=3, survey="ztf", classes=["KN"], progress=False)
