"""Random surveys: brightness does not reveal the class, and the seed determines the result."""

from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.dataset import read_dataset
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.simulate import anywhere, transients
from nightjar_alerts.training.simulate.anywhere import BRIGHTEST, moved
from nightjar_alerts.training.simulate.generate import simulate
from nightjar_alerts.training.simulate.transient_classes import KINDS

PER_CLASS = 40


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    path = tmp_path_factory.mktemp("any") / "any.parquet"
    return read_dataset(simulate(path, PER_CLASS, seed=3, survey="any", workers=1, progress=False))


def points(data: Sample, index: int) -> slice:
    return slice(int(data.offsets[index]), int(data.offsets[index + 1]))


def test_every_class_is_there_and_every_object_was_detected(data: Sample) -> None:
    assert np.bincount(data.label).tolist() == [PER_CLASS] * len(ELASTICC.names)
    for index in range(len(data)):
        assert data.detected[points(data, index)].sum() >= 1
        assert np.isfinite(data.flux[points(data, index)]).all()
        assert (data.flux_err[points(data, index)] > 0).all()


def test_every_class_is_bright_and_faint(data: Sample) -> None:
    brightest = np.array([31.4 - 2.5 * np.log10(np.abs(data.flux[points(data, i)]).max()) for i in range(len(data))])
    for label in range(len(ELASTICC.names)):
        mine = brightest[data.label == label]
        assert mine.min() < 18.0
        assert mine.max() > 21.0


def test_a_moved_explosion_keeps_its_luminosity() -> None:
    rng = np.random.default_rng(0)
    events = transients.draw(rng, KINDS["Ia"], np.full(200, 0.02), 60_000.0, 61_000.0)
    far = moved(rng, events)
    near = far.redshift < 0.03
    magnitude = 31.4 - 2.5 * np.log10(far.peak_flux / (1 + far.redshift))
    assert magnitude.min() < BRIGHTEST + 1.5
    assert near.any()
    assert np.corrcoef(magnitude, np.log(far.redshift))[0, 1] > 0.95


def test_surveys_differ_in_bands_and_depth() -> None:
    visits = anywhere.positions(np.random.default_rng(1), 300)
    bands = [len(np.unique(visits.band[visits.object_index == index])) for index in range(300)]
    assert min(bands) == 1
    assert max(bands) == 6
    assert (np.diff(visits.mjd)[np.diff(visits.object_index) == 0] >= 0).all()
    assert np.percentile(visits.depth, 99) - np.percentile(visits.depth, 1) > 5


def test_stated_errors_are_too_small_or_too_large() -> None:
    """True over stated error is 0.4 to 2.5 times: real surveys state too much as well as too little."""
    report = anywhere._report(np.random.default_rng(0), 4000)
    level = report.error_ratio.mean(axis=1)
    assert 0.3 < level.min() < 0.5
    assert 2.4 < level.max() < 3.5
    assert 0.05 < (level < 0.75).mean() < 0.2
    assert 0.35 < (level == 1.0).mean() < 0.45


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    files = [
        simulate(tmp_path / f"{number}.parquet", 5, 9, 1, False, classes=["II", "AGN"], survey="any")
        for number in range(2)
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
