"""Catalina light curves: cleaning, the labelled sample, windows and thinning."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar_alerts.training.experiments.encodings import (
    Catalina,
    CatalinaError,
    draw_sample,
    read_catalina,
    thinned_windows,
    training_windows,
)
from support.catalina import days, write_catalina
from support.shared import needs_shared, shared

NO_DATE = -2_409_998.5


@pytest.fixture
def data(tmp_path: Path) -> Catalina:
    curves = [("RRab", days(40 + i)) for i in range(12)] + [("EA", days(30)) for _ in range(4)]
    return read_catalina(write_catalina(tmp_path / "css.parquet", curves))


def test_no_dates_and_repeated_times_are_dropped_and_times_sorted(tmp_path: Path) -> None:
    times = [55_003.0, 55_001.0, NO_DATE, 55_001.0, 55_002.0, 55_004.0, 55_005.0]
    data = read_catalina(write_catalina(tmp_path / "css.parquet", [("EA", times), ("LPV", days(4))]))
    assert data.mjd.tolist() == [55_001.0, 55_002.0, 55_003.0, 55_004.0, 55_005.0]
    assert data.mag.tolist() == pytest.approx([15.01, 15.04, 15.0, 15.05, 15.06])  # the first of the two at 55,001
    assert data.classes == ("EA",)  # the other curve is too short


def test_other_files_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"mjd": [[1.0]]}), tmp_path / "other.parquet")
    with pytest.raises(CatalinaError, match="class, mag"):
        read_catalina(tmp_path / "other.parquet")


def test_lists_of_unequal_length_are_refused(tmp_path: Path) -> None:
    table = {"class": ["EA"], "mjd": [days(6)], "mag": [[1.0] * 5], "magerr": [[1.0] * 6]}
    pq.write_table(pa.table(table), tmp_path / "ragged.parquet")
    with pytest.raises(CatalinaError, match="differ in length"):
        read_catalina(tmp_path / "ragged.parquet")


def test_folds_are_stratified_and_disjoint_and_leave_the_rest_for_pretraining() -> None:
    label_N = np.repeat([0, 1, 2], [200, 40, 7])
    sample = draw_sample(label_N, per_class=20, n_folds=3, seed=4)
    assert len(set(np.concatenate([*sample.folds, sample.unlabelled]))) == 247
    counts = np.array([np.bincount(label_N[fold], minlength=3) for fold in sample.folds])
    assert counts.sum(0).tolist() == [30, 30, 7]  # 20 in training when one of three folds is held out
    assert np.ptp(counts, axis=0).max() <= 1
    assert (draw_sample(label_N, 20, 3, seed=4).folds[1] == sample.folds[1]).all()
    assert not np.array_equal(draw_sample(label_N, 20, 3, seed=5).folds[1], sample.folds[1])


def test_training_windows_are_consecutive_observations(data: Catalina) -> None:
    curves = training_windows(data, np.arange(16), 16, np.random.default_rng(0))
    assert curves.mag_BL.shape == (16, 16)
    assert (np.diff(curves.time_BL, axis=1) == 1).all()
    assert (curves.time_BL[:, 0] == 0).all()
    assert np.allclose(np.diff(curves.mag_BL, axis=1), 0.01, atol=1e-5)
    assert len(set(curves.mag_BL[:12, 0].tolist())) > 6  # their starts differ


def test_short_curves_are_padded(data: Catalina) -> None:
    curves = training_windows(data, np.array([0, 15]), 35, np.random.default_rng(0))
    assert curves.mask_BL.sum(1).tolist() == [35, 30]
    assert (curves.mag_BL[1, 30:] == 0).all()
    assert curves.label_B.tolist() == [1, 0]


def test_a_slower_cadence_sees_part_of_what_a_faster_one_sees(data: Catalina) -> None:
    indices = np.arange(16)
    magnitudes: list[list[set[float]]] = []
    for cadence in (1.0, 0.75, 0.5, 0.25):
        curves = thinned_windows(data, indices, 44, cadence, seed=1)
        counts = np.minimum(np.diff(data.offsets), 44)
        assert (curves.mask_BL.sum(1) == np.round(cadence * counts)).all()
        rows = zip(curves.mag_BL, curves.mask_BL, strict=True)
        magnitudes.append([set(row[mask].round(4).tolist()) for row, mask in rows])
    for denser, thinner in pairwise(magnitudes):
        assert all(few < many for few, many in zip(thinner, denser, strict=True))


def test_a_window_holds_the_first_observations(data: Catalina) -> None:
    curves = thinned_windows(data, np.array([3]), 10, 1.0, seed=0)
    assert curves.time_BL[0].tolist() == list(range(10))


@needs_shared
def test_the_real_table() -> None:
    data = read_catalina(shared("data", "css_south_periodic", "css_periodic_full.parquet"))
    assert len(data.classes) == 13
    assert data.mjd.min() > 53_000
    assert np.bincount(data.label).min() >= 10
