"""Properties of each class: brightness, time scales, colours, periods, redshifts."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from nightjar_alerts.models.photometry import magnitude_of
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.simulate import galactic, photometry, transients
from nightjar_alerts.training.simulate.cadence import Visits
from nightjar_alerts.training.simulate.generate import VARIABLES, simulate_class
from nightjar_alerts.training.simulate.photometry import WAVELENGTH
from nightjar_alerts.training.simulate.transient_classes import KINDS, SED_NODES
from nightjar_alerts.training.simulate.transients import Events

N = 400
Floats = NDArray[np.float64]
G, R, Z = 1, 2, 4


def nearby(name: str, redshift: float = 0.02) -> Events:
    """Events of a class moved to one redshift, without any dust."""
    events = transients.draw(np.random.default_rng(0), KINDS[name], np.zeros(N), 61_000.0, 61_000.0)
    return replace(events, redshift=np.full(N, redshift), a_v=np.zeros(N))


def magnitudes(events: Events, phase: float, band: int) -> Floats:
    """Magnitudes below the peak flux at an observed phase in days; inf where there is no light yet."""
    own = np.arange(N)
    visits = Visits(N, own, events.peak_mjd + phase, np.full(N, band), np.zeros(N))
    with np.errstate(divide="ignore"):
        return np.asarray(-2.5 * np.log10(transients.flux(events, visits) / events.peak_flux))


def median(name: str, phase: float, band: int) -> float:
    return float(np.median(magnitudes(nearby(name), phase, band)))


def absolute(name: str) -> float:
    events = transients.draw(np.random.default_rng(0), KINDS[name], np.zeros(N), 61_000.0, 61_000.0)
    apparent = magnitude_of(events.peak_flux / (1.0 + events.redshift))
    return float(np.median(apparent - photometry.distance_modulus(events.redshift)))


def test_every_class_has_exactly_one_model() -> None:
    assert sorted([*KINDS, *VARIABLES]) == sorted(ELASTICC.names)
    for kinds in KINDS.values():
        assert sum(kind.population.share for kind in kinds) == pytest.approx(1.0)
        assert {len(kind.spectrum) for kind in kinds} == {len(SED_NODES)}


@pytest.mark.parametrize(
    ("name", "bright", "faint"),
    [
        ("SLSN", -22.5, -20.8), ("PISN", -21.8, -20.0), ("Ia", -19.6, -19.0), ("TDE", -20.5, -18.8),
        ("Ib/c", -19.0, -17.0), ("SN-like/Other", -18.5, -16.8), ("91bg", -18.3, -16.9), ("Iax", -18.6, -16.6),
        ("II", -19.3, -16.5), ("CART", -16.8, -15.2), ("KN", -16.8, -14.5), ("ILOT", -14.5, -11.5),
    ],
)  # fmt: skip
def test_peak_absolute_magnitudes(name: str, bright: float, faint: float) -> None:
    assert bright < absolute(name) < faint


def test_normal_ia_are_standard_candles_and_others_are_not() -> None:
    def scatter(name: str) -> float:
        events = transients.draw(np.random.default_rng(0), KINDS[name], np.zeros(N), 61_000.0, 61_000.0)
        apparent = magnitude_of(events.peak_flux / (1.0 + events.redshift))
        return float(np.std(apparent - photometry.distance_modulus(events.redshift)))

    assert scatter("Ia") < 0.25 < scatter("Iax")


def test_there_is_no_light_before_the_explosion() -> None:
    for name in KINDS:
        assert np.isinf(magnitudes(nearby(name), -600.0, R)).all(), name
        assert np.isfinite(magnitudes(nearby(name), 0.0, R)).all(), name


def decline_in_15_days(name: str) -> float:
    """Magnitudes lost in g between its own maximum, some days after the light's, and 15 rest days later."""
    events = nearby(name)
    curve = {phase: float(np.median(magnitudes(events, 1.02 * phase, G))) for phase in range(-6, 12)}
    peak = min(curve, key=lambda phase: curve[phase])
    return float(np.median(magnitudes(events, 1.02 * (peak + 15), G))) - curve[peak]


def test_ia_decline_by_their_known_rate_and_91bg_faster() -> None:
    """Normal Ia lose 0.6 to 1.3 mag in 15 days; 91bg-like fade faster and are redder at maximum."""
    assert 0.6 < decline_in_15_days("Ia") < 1.3
    assert decline_in_15_days("91bg") > decline_in_15_days("Ia") + 0.3
    assert median("91bg", 0.0, G) - median("91bg", 0.0, R) > median("Ia", 0.0, G) - median("Ia", 0.0, R) + 0.2


def test_normal_ia_have_a_second_maximum_in_the_near_infrared() -> None:
    slope = {name: median(name, 27.0, Z) - median(name, 15.0, Z) for name in ("Ia", "Iax", "91bg")}
    assert slope["Ia"] < 0.6 < min(slope["Iax"], slope["91bg"])


def test_plateaus_hold_and_then_drop() -> None:
    events = nearby("II")
    plateau = events.kind == 0
    fading = magnitudes(events, 60.0, R)[plateau] - magnitudes(events, 20.0, R)[plateau]
    dropped = magnitudes(events, 160.0, R)[plateau] - magnitudes(events, 60.0, R)[plateau]
    assert abs(np.median(fading)) < 0.8
    assert np.median(dropped) > 2.0


def test_time_scales_are_in_order() -> None:
    fading = {name: median(name, 40.0, R) - median(name, 0.0, R) for name in KINDS}
    assert fading["KN"] > fading["CART"] > fading["Ib/c"] > fading["TDE"] > fading["SLSN"]
    assert fading["KN"] > 5.0
    late = {name: median(name, 150.0, G) - median(name, 0.0, G) for name in ("Ia", "SLSN", "PISN")}
    assert late["Ia"] > late["SLSN"] > late["PISN"]


def test_tidal_disruptions_stay_blue_and_supernovae_redden() -> None:
    colour = {
        name: [median(name, phase, G) - median(name, phase, R) for phase in (0.0, 60.0)] for name in ("TDE", "Ib/c")
    }
    assert max(colour["TDE"]) < 0.0
    assert colour["Ib/c"][1] - colour["Ib/c"][0] > 0.4


def test_superluminous_supernovae_are_blue_at_maximum_even_far_away() -> None:
    """Observed ones and magnetar fits have g-r near 0 nearby, and below 0.6 at redshift 1."""
    colour = {}
    for z in (0.2, 1.0):
        events = nearby("SLSN", z)
        colour[z] = float(np.median(magnitudes(events, 0.0, G) - magnitudes(events, 0.0, R)))
    assert -0.3 < colour[0.2] < 0.2
    assert colour[0.2] < colour[1.0] < 0.6


def test_distance_stretches_time_and_wavelength() -> None:
    """At 1 + z = lambda_z / lambda_r the z band sees what r sees at rest, slowed down by 1 + z."""
    stretch = WAVELENGTH[Z] / WAVELENGTH[R]
    near, far = nearby("SLSN", 0.0), nearby("SLSN", stretch - 1.0)
    np.testing.assert_allclose(magnitudes(near, 20.0, R), magnitudes(far, 20.0 * stretch, Z), rtol=1e-6, atol=1e-6)


def test_redshifts_follow_brightness() -> None:
    z = {
        n: np.median([o.redshift for o in simulate_class(n, 48, seed=4)]) for n in ("ILOT", "KN", "CART", "Ia", "SLSN")
    }
    assert z["ILOT"] < z["KN"] < z["Ia"] < z["SLSN"]
    assert z["ILOT"] < 0.08
    assert 0.25 < z["Ia"] < 0.7


def test_pulsator_shapes() -> None:
    phase = np.linspace(0.0, 1.0, 2001)
    sine, sawtooth = (galactic.skewed_sine(phase, np.full(2001, skew)) for skew in (0.01, 0.8))
    np.testing.assert_allclose(sine, 0.5 * np.sin(2.0 * np.pi * phase), atol=0.01)
    assert sawtooth.max() == pytest.approx(0.5, abs=1e-3)
    assert sawtooth.min() == pytest.approx(-0.5, abs=1e-3)
    steepest = {"rise": np.diff(sawtooth).max(), "fall": -np.diff(sawtooth).min()}
    assert steepest["rise"] > 3.0 * steepest["fall"]


def best_period(mjd: Floats, flux: Floats, error: Floats, low: float, high: float) -> tuple[float, float]:
    """Period of the best two-harmonic fit and the share of weighted variance that it explains."""
    weight = 1.0 / error
    target = (flux - np.average(flux, weights=weight**2)) * weight
    best = (0.0, 0.0)
    for frequency in np.arange(1.0 / high, 1.0 / low, 0.2 / np.ptp(mjd)):
        angle = 2.0 * np.pi * frequency * mjd
        basis = np.stack(
            [np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle), np.ones_like(mjd)], axis=1
        )
        basis *= weight[:, None]
        gram, moment = basis.T @ basis, basis.T @ target
        explained = float(moment @ np.linalg.solve(gram, moment) / (target @ target))
        best = max(best, (explained, 1.0 / frequency))
    return best[1], best[0]


def test_the_period_of_an_rr_lyrae_can_be_recovered() -> None:
    periods = []
    for source in simulate_class("RR Lyrae", 3, seed=8):
        band = np.bincount(source.band).argmax()
        rows = (source.band == band) & (source.mjd < source.trigger_mjd + 400.0)
        columns = (source.mjd[rows], source.flux[rows].astype(float), source.flux_err[rows].astype(float))
        periods.append(best_period(*columns, low=0.22, high=0.95))
    assert np.median([explained for _, explained in periods]) > 0.85
    assert 0.25 < np.median([period for period, _ in periods]) < 0.85


def test_rr_lyrae_swing_by_some_tenths_to_one_and_a_half_magnitudes() -> None:
    n, epochs = 300, 60
    own, mjd = np.repeat(np.arange(n), epochs), np.tile(61_000.0 + np.linspace(0.0, 9.7, epochs), n)
    visits = Visits(n, own, mjd, np.full(n * epochs, G), np.zeros(n * epochs))
    signal = galactic.rr_lyrae(np.random.default_rng(0), visits, np.full(n, 0.02))
    total = (signal.difference + signal.steady).reshape(n, epochs)
    assert (total > 0).all()
    amplitude = 2.5 * np.log10(total.max(axis=1) / total.min(axis=1))
    assert 0.3 < np.percentile(amplitude, 5) < np.median(amplitude) < np.percentile(amplitude, 95) < 1.7


def test_damped_walks_have_unit_variance_and_their_correlation_time() -> None:
    timescale = np.tile([50.0, 200.0], (300, 1))
    walk = galactic._damped_walk(np.random.default_rng(0), timescale)
    assert walk.shape[1:] == (300, 2)
    assert walk.std() == pytest.approx(1.0, abs=0.05)
    correlation = (walk[100:500] * walk[:400]).mean(axis=(0, 1))
    np.testing.assert_allclose(correlation, np.exp([-2.0, -0.5]), atol=0.06)
    together = np.corrcoef(walk[:, :, 0].ravel(), walk[:, :, 1].ravel())[0, 1]
    assert 0.6 < together < 0.95, "the bands of a nucleus feel the same shocks"


def test_quasars_vary_as_much_and_as_slowly_as_those_of_stripe_82() -> None:
    """Walks fitted to 9,079 in r: amplitude 0.122 mag (0.076 to 0.190), time scale 437 d (138 to 1,050) as observed."""
    rng = np.random.default_rng(0)
    redshift, r = galactic._nuclei(rng, 20_000)
    like = (r > 17.5) & (r < 20.5) & (redshift > 0.5) & (redshift < 3.0)
    redshift, absolute = redshift[like], (r - photometry.distance_modulus(redshift))[like]
    spread, timescale = galactic._variability(rng, absolute)
    rest = WAVELENGTH[R] / (4000.0 * (1.0 + redshift))
    amplitude, days = spread * rest**-0.479, timescale * (1.0 + redshift) * rest**0.17
    np.testing.assert_allclose(np.quantile(amplitude, [0.16, 0.5, 0.84]), [0.076, 0.122, 0.190], rtol=0.25)
    np.testing.assert_allclose(np.log10(np.quantile(days, [0.16, 0.5, 0.84])), [2.14, 2.64, 3.02], atol=0.2)
    assert 0.2 < np.corrcoef(np.log(amplitude), np.log(days))[0, 1] < 0.6  # there 0.44


def test_active_nuclei_vary_less_and_later_in_the_red() -> None:
    n, days = 60, 800
    own, mjd = np.repeat(np.arange(n), days), np.tile(60_600.0 + np.arange(days, dtype=float), n)
    curve = {}
    for band in (G, Z):
        visits = Visits(n, own, mjd, np.full(n * days, band), np.zeros(n * days))
        signal = galactic.active_nucleus(np.random.default_rng(2), visits, np.full(n, 0.02))
        curve[band] = -2.5 * np.log10((signal.difference + signal.steady).reshape(n, days))
    swing = {band: np.median(values.std(axis=1)) for band, values in curve.items()}
    assert swing[G] > 1.2 * swing[Z]
    steps = {band: np.diff(values, axis=1) for band, values in curve.items()}
    lag = [np.mean([np.corrcoef(g[:-25], z[k : k - 25 or None])[0, 1] for g, z in zip(steps[G], steps[Z], strict=True)])
           for k in range(25)]  # fmt: skip
    assert 1 <= int(np.argmax(lag)) <= 20


def test_flares_rise_at_once_and_decay() -> None:
    x = np.array([-2.0, -0.5, 0.0, 1.0, 10.0])
    flux = galactic.flare_template(x)
    assert flux[0] == 0.0
    assert flux[2] == pytest.approx(1.0, abs=0.01)
    assert 0.1 < flux[1] < 0.5
    assert flux[2] > flux[3] > flux[4] > 0.0


def test_dwarf_novae_are_blue_and_quiet_between_outbursts() -> None:
    n, days = 200, 700
    own, mjd = np.repeat(np.arange(n), days), np.tile(60_600.3 + np.arange(days, dtype=float), n)
    pair = []
    for band in (0, 4):
        visits = Visits(n, own, mjd, np.full(n * days, band), np.zeros(n * days))
        signal = galactic.dwarf_nova(np.random.default_rng(0), visits, np.full(n, 0.02))
        pair.append((signal.difference + signal.steady).reshape(n, days))
    outburst = pair[1] > 4.0 * np.median(pair[1], axis=1, keepdims=True)
    assert 0.005 < outburst.mean() < 0.4
    rows, columns = np.nonzero(outburst)
    ratio = pair[0][rows, columns] / pair[1][rows, columns]
    assert np.median(ratio) > 3.0 * np.median(pair[0] / pair[1])
