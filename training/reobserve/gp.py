"""A Gaussian process through the points of one object, in time and in the logarithm of wavelength.

The kernel is a product of two Matern-3/2 functions (Boone 2019, AJ 158, 257, who fits PLAsTiCC so), one of days, one
of ln(wavelength); the mean is a constant. Scales are the best of a small grid and one step between its points, then the
amplitude. Cost with 100 points: some milliseconds a fit, and less for a draw at a hundred places.

Legend: N points fitted, Q places asked for.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular

Float = NDArray[np.float64]

MAX_POINTS: Final = 120
WAVELENGTH_SCALES: Final = (0.25, 0.5, 1.0)
TIME_SCALES: Final = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
AMPLITUDES: Final = (0.7, 0.35, 1.4)
"""In units of the largest flux; the scales are chosen at the first."""
RELATIVE_ERROR: Final = 0.015
"""Of flux, added to every error: zero points and filters differ between telescopes."""
_JITTER: Final = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """A fitted process: what it was fitted to, and the factors that answers are made from.

    ``time_N`` days, ``log_wavelength_N`` ln(nm), ``mean`` nJy; ``amplitude`` nJy, ``days`` and ``width`` the scales.
    """

    time_N: Float
    log_wavelength_N: Float
    mean: float
    amplitude: float
    days: float
    width: float
    factor_NN: Float
    weight_N: Float

    def expected(self, time_Q: Float, log_wavelength_Q: Float) -> Float:
        """Posterior mean, nJy (Q,)."""
        return np.asarray(self._cross(time_Q, log_wavelength_Q) @ self.weight_N + self.mean)

    def draw(
        self, time_Q: Float, log_wavelength_Q: Float, rng: np.random.Generator, largest_sd_Q: Float
    ) -> tuple[Float, Float]:
        """One draw and the posterior standard deviation, both nJy (Q,).

        The draw's departure from the mean is scaled so that its spread nowhere exceeds ``largest_sd_Q``: what is not
        known of a faint object must not become structure in a view with small errors.
        """
        cross_QN = self._cross(time_Q, log_wavelength_Q)
        mean_Q = cross_QN @ self.weight_N + self.mean
        half_NQ = solve_triangular(self.factor_NN, cross_QN.T, lower=True, check_finite=False)
        covariance_QQ = self._kernel(time_Q, log_wavelength_Q, time_Q, log_wavelength_Q) - half_NQ.T @ half_NQ
        spread_Q = np.sqrt(np.maximum(np.diag(covariance_QQ), 0.0))
        shrink_Q = np.minimum(1.0, largest_sd_Q / np.maximum(spread_Q, 1e-30))
        covariance_QQ[np.diag_indices_from(covariance_QQ)] += 1e-6 * self.amplitude**2
        lower_QQ = cholesky(covariance_QQ, lower=True, check_finite=False)
        return mean_Q + shrink_Q * (lower_QQ @ rng.standard_normal(len(time_Q))), spread_Q

    def spread(self, time_Q: Float, log_wavelength_Q: Float) -> Float:
        """Posterior standard deviation, nJy (Q,)."""
        cross_QN = self._cross(time_Q, log_wavelength_Q)
        half_NQ = solve_triangular(self.factor_NN, cross_QN.T, lower=True, check_finite=False)
        return np.asarray(np.sqrt(np.maximum(self.amplitude**2 - (half_NQ**2).sum(0), 0.0)))

    def _cross(self, time_Q: Float, log_wavelength_Q: Float) -> Float:
        return self._kernel(time_Q, log_wavelength_Q, self.time_N, self.log_wavelength_N)

    def _kernel(self, time_A: Float, wave_A: Float, time_B: Float, wave_B: Float) -> Float:
        in_time = _matern(np.abs(time_A[:, None] - time_B[None, :]), self.days)
        in_wavelength = _matern(np.abs(wave_A[:, None] - wave_B[None, :]), self.width)
        return np.asarray(self.amplitude**2 * in_time * in_wavelength)


def fit_process(time_N: Float, log_wavelength_N: Float, flux_N: Float, error_N: Float, mean: float = 0.0) -> Process:
    """Fit amplitude and time scale to points, nJy; more than `MAX_POINTS` must have been thinned before.

    Raises
    ------
    ValueError
        When no hyperparameters give a positive definite covariance (points that are not finite).
    """
    if not (np.isfinite(flux_N).all() and np.isfinite(error_N).all()):
        raise ValueError("a process needs finite points")
    scale = float(np.abs(flux_N - mean).max()) or 1.0
    variance_N = error_N**2 + (RELATIVE_ERROR * flux_N) ** 2
    gap_NN = np.abs(time_N[:, None] - time_N[None, :])
    apart_NN = np.abs(log_wavelength_N[:, None] - log_wavelength_N[None, :])
    several = bool((apart_NN > 0).any())
    found: list[tuple[float, float, float]] = []
    for width in WAVELENGTH_SCALES if several else WAVELENGTH_SCALES[-1:]:
        colour_NN = _matern(apart_NN, width) * (AMPLITUDES[0] * scale) ** 2
        for days in TIME_SCALES:
            found.append((_log_likelihood(colour_NN * _matern(gap_NN, days), variance_N, flux_N - mean), days, width))
    _, best, width = max(found)
    days = _between([row[0] for row in found if row[2] == width], TIME_SCALES, best)
    shape_NN = _matern(apart_NN, width) * _matern(gap_NN, days)
    _, amplitude = max(
        (_log_likelihood(shape_NN * (share * scale) ** 2, variance_N, flux_N - mean), share * scale)
        for share in AMPLITUDES
    )
    covariance_NN = amplitude**2 * _matern(apart_NN, width) * _matern(gap_NN, days)
    covariance_NN[np.diag_indices_from(covariance_NN)] += variance_N + _JITTER * amplitude**2
    factor_NN = cholesky(covariance_NN, lower=True, check_finite=False)
    weight_N = cho_solve((factor_NN, True), flux_N - mean, check_finite=False)
    return Process(time_N, log_wavelength_N, mean, amplitude, days, width, factor_NN, weight_N)


def _matern(distance: Float, scale: float) -> Float:
    scaled = np.sqrt(3.0) / scale * distance
    return np.asarray((1.0 + scaled) * np.exp(-scaled))


def _log_likelihood(covariance_NN: Float, variance_N: Float, residual_N: Float) -> float:
    covariance_NN = covariance_NN + np.diag(variance_N)
    try:
        factor_NN = cholesky(covariance_NN, lower=True, check_finite=False, overwrite_a=True)
    except np.linalg.LinAlgError:
        return -np.inf
    white_N = solve_triangular(factor_NN, residual_N, lower=True, check_finite=False)
    return float(-0.5 * white_N @ white_N - np.log(np.diag(factor_NN)).sum())


def _between(likelihood: list[float], scales: tuple[float, ...], best: float) -> float:
    """Return the top of the parabola through the best scale and its neighbours, in the logarithm of the scale."""
    at = scales.index(best)
    if at in (0, len(scales) - 1):
        return best
    low, top, high = likelihood[at - 1 : at + 2]
    curvature = low - 2.0 * top + high
    if not np.isfinite(curvature) or curvature >= 0:
        return best
    step = float(np.log(scales[1] / scales[0]))
    return float(best * np.exp(np.clip(0.5 * (low - high) / curvature, -0.5, 0.5) * step))
