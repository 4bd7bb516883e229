"""Microlensing: against closed forms, and against the images found by brute force."""

import numpy as np
import pytest
from numpy.typing import NDArray

from nightjar_alerts.training.simulate import galactic
from nightjar_alerts.training.simulate.cadence import Visits

Floats = NDArray[np.float64]


def test_magnification_is_the_textbook_one() -> None:
    gain = galactic.magnification(np.array([0.0, 0.0, 30.0]), np.array([1.0, 0.1, 0.1]))
    np.testing.assert_allclose(gain, [3.0 / np.sqrt(5.0), 10.037, 1.0], rtol=1e-3)


def shot_rays(source: complex, ratio: float, separation: float) -> float:
    """Magnification by inverse rays: the share of a fine image plane that the two lenses send into a small disc."""
    heavy, radius, half_width, n = 1.0 / (1.0 + ratio), 0.05, 2.5, 1600
    axis = np.linspace(-half_width, half_width, n)
    image = axis[None, :] + 1j * axis[:, None]
    right, left = ratio / (1.0 + ratio), heavy
    bent = image - right / np.conj(image - separation / 2) - left / np.conj(image + separation / 2)
    inside = np.abs(bent - source) < radius
    return float(inside.sum() * (2.0 * half_width / (n - 1)) ** 2 / (np.pi * radius**2))


@pytest.mark.parametrize(
    ("source", "ratio", "separation"), [(0.6 + 0.5j, 0.3, 0.8), (-0.5 + 0.7j, 1.0, 1.6), (0.02 + 0.1j, 0.5, 1.1)]
)
def test_two_lenses_magnify_as_ray_shooting_says(source: complex, ratio: float, separation: float) -> None:
    gain = galactic.binary_magnification(np.array([source]), np.array([ratio]), np.array([separation]))
    assert gain[0] == pytest.approx(shot_rays(source, ratio, separation), rel=0.05)


def test_two_close_lenses_act_as_one() -> None:
    distance = np.array([0.3, 1.0, 2.5])
    pair = galactic.binary_magnification(distance.astype(complex), np.full(3, 1.0), np.full(3, 0.01))
    np.testing.assert_allclose(pair, galactic.magnification(np.zeros(3), distance), rtol=1e-3)


def test_caustics_make_peaks_that_single_lenses_do_not_have() -> None:
    """Crossing the caustic of an equal pair, the magnification jumps; outside it no point exceeds a few times one."""
    x = np.linspace(-1.5, 1.5, 601)
    gain = galactic.binary_magnification((x + 0.15j).astype(np.complex128), np.full(601, 1.0), np.full(601, 1.0))
    steepest = np.abs(np.diff(np.log(gain))).max()
    single = galactic.magnification(x, np.full(601, 0.15))
    assert steepest > 5.0 * np.abs(np.diff(np.log(single))).max()
    assert (gain >= 1.0).all()


def test_events_are_achromatic_up_to_the_star_and_back_to_rest() -> None:
    n, days = 40, 1100
    own, mjd = np.repeat(np.arange(n), days), np.tile(60_600.0 + np.arange(days, dtype=float), n)
    ratio = []
    for band in (1, 4):
        visits = Visits(n, own, mjd, np.full(n * days, band), np.zeros(n * days))
        signal = galactic.microlensing(np.random.default_rng(1), visits, np.full(n, 0.02))
        total = (signal.difference + signal.steady).reshape(n, days)
        ratio.append(total / np.median(total, axis=1, keepdims=True))
        assert (total > 0).all()
    np.testing.assert_allclose(ratio[0], ratio[1], rtol=1e-9)
    assert np.mean(ratio[0].max(axis=1) > 1.2) > 0.7
