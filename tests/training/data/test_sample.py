"""The sample of many surveys: selection, sorting, files, and metadata by context."""

from pathlib import Path

import numpy as np
import pytest

from nightjar_alerts.training.data.sample import collect, join, read_sample, write_sample
from support.surveys import bump, pulsator


def test_take_keeps_the_points_of_each_object() -> None:
    sky = collect([bump("A", points=10), pulsator("B", points=20), bump("C", points=5, seed=3)])
    chosen = sky.take(np.array([2, 0]))
    assert chosen.object_id.tolist() == ["C", "A"]
    assert chosen.lengths.tolist() == [5, 10]
    np.testing.assert_array_equal(chosen.flux[chosen.points(1)], sky.flux[sky.points(0)])
    masked = sky.take(sky.source == "var")
    np.testing.assert_array_equal(masked.total_flux, sky.total_flux[sky.points(1)])


def test_collect_sorts_points_by_time() -> None:
    row = bump("A", points=10)
    row.mjd = row.mjd[::-1].copy()
    sky = collect([row])
    assert (np.diff(sky.mjd) >= 0).all()
    assert sky.curve(0).object_id == "A"


def test_keep_points_removes_objects_without_points() -> None:
    sky = collect([bump("A", points=10, bands="g"), bump("B", points=10, bands="r")])
    remaining = sky.keep_points(sky.band == 1)
    assert remaining.object_id.tolist() == ["A"]
    assert remaining.count(remaining.detected).tolist() == [int(sky.detected[sky.points(0)].sum())]


def test_sample_round_trips_without_pickles(tmp_path: Path) -> None:
    sky = collect([bump("A", z=0.1), pulsator("B")], ["g1", "g2"], [0, 2])
    write_sample(sky, tmp_path / "sky.npz")
    again = read_sample(tmp_path / "sky.npz")
    for name in ("offsets", "flux", "group", "part", "period", "metadata"):
        np.testing.assert_array_equal(getattr(again, name), getattr(sky, name))


def test_join_equals_collecting_all_objects() -> None:
    one, two = collect([bump("A")]), collect([pulsator("B")])
    both = join([one, two])
    np.testing.assert_array_equal(both.offsets, [0, 40, 120])
    np.testing.assert_array_equal(both.mjd[both.points(1)], two.mjd)


def test_metadata_of_depends_on_the_context() -> None:
    sky = collect([bump("A", z=0.1, mwebv=0.02), bump("B", z_phot=0.3, z_phot_err=0.05), bump("C")])
    assert sky.metadata_of(0, "nothing") == {}
    assert sky.metadata_of(0, "redshift") == pytest.approx({"mwebv": 0.02, "z_final": 0.1, "z_final_err": 0.001})
    assert sky.metadata_of(1, "redshift") == pytest.approx({"z_final": 0.3, "z_final_err": 0.05})
    assert sky.metadata_of(2, "everything") == {}


def test_limit_is_zero_flux_without_detection() -> None:
    row = bump("A", points=4)
    row.flux, row.detected = np.array([0.0, 5.0, 0.0, 7.0]), np.array([False, False, True, True])
    assert collect([row]).limit.tolist() == [True, False, False, False]
