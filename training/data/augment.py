"""Views of a light curve as one survey would have it at one time: fixed for evaluation, random for training.

Notable:

- a :class:`View` is plain data and :func:`apply_view` is pure, so that evaluation uses the same views as random
  training ("with g and r only", "without metadata", "at the third detection");
- masked temporal augmentation (MTA) is that of ATAT (Cabrera-Vives et al. 2024): keep what was observed until a day
  drawn from a short list, counted from the trigger; observations before the trigger always stay;
- alerts are sent at detections, so a share of the draws ends at a detection instead of a day, log-uniform in its
  number: half of a broker's traffic is about objects with few detections;
- real alerts are incomplete. ZTF observes g, r and sometimes i, sends 30 days of history, and detections without forced
  photometry; neither ZTF nor Rubin sends the 64 ELAsTiCC metadata. Each is dropped independently, and a further
  share of the draws drops all that ZTF lacks;
- ZTF is shallower, so what it detects is brighter: its views multiply fluxes and errors by one factor, which is the
  same object nearer, at the same signal to noise. A network that never saw such errors would read them as brightness.

Degradations, for training only: brightness, errors, bands, points and metadata that vary from survey to survey.

Notable:

- every draw is independent of the class: what is missing in some surveys only would reveal the survey, and with it the
  class (trees with missing dust called ZTF's supernovae superluminous);
- an object made brighter or fainter is at another distance, so it loses its redshift;
- fainter light curves may be noisier: errors keep their ratio to the flux, or grow;
- an object without a redshift may get that of a nearby galaxy, as happens for Galactic alerts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy.special import ndtri

from nightjar_alerts.models.lightcurve import Bool, LightCurve
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import BANDS

SATURATION: Final = 3.6e7  # nJy, 12.5 mag: nothing is made brighter than this
FAINTEST: Final = 300.0  # nJy, 25.2 mag: of the brightest point
_REDSHIFT: Final = ("z_final", "z_final_err")
_DUST: Final = ("mwebv", "mwebv_err")


class DegradeConfig(BaseModel):
    """Shares of the draws that lose, or gain, something."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    brightness: float = Field(default=0.5, ge=0, le=1, description="elsewhere")
    magnitudes: tuple[float, float] = Field(default=(-6.0, 3.0), description="range of the change, negative: brighter")
    noisier: float = Field(default=0.25, ge=0, le=1, description="with errors of up to five times theirs")
    misjudged: float = Field(default=0.35, ge=0, le=1, description="with stated errors that are wrong")
    wild: float = Field(default=0.2, ge=0, le=1, description="with wild points")
    offset: float = Field(default=0.2, ge=0, le=1, description="with zero points and templates that are off")
    bands: float = Field(default=0.35, ge=0, le=1, description="without some of the bands")
    thinned: float = Field(default=0.3, ge=0, le=1, description="without some of the points")
    late: float = Field(default=0.2, ge=0, le=1, description="without their beginning")
    early: float = Field(default=0.35, ge=0, le=1, description="that end at a detection")
    detected_only: float = Field(default=0.3, ge=0, le=1)
    no_metadata: float = Field(default=0.45, ge=0, le=1)
    no_host: float = Field(default=0.3, ge=0, le=1)
    no_dust: float = Field(default=0.7, ge=0, le=1)
    no_redshift: float = Field(default=0.25, ge=0, le=1)
    noisy_redshift: float = Field(default=0.2, ge=0, le=1)
    wrong_redshift: float = Field(default=0.03, ge=0, le=1)
    strange_redshift: float = Field(default=0.15, ge=0, le=1, description="of a galaxy nearby, where there is none")


def degrade(curve: LightCurve, config: DegradeConfig, rng: np.random.Generator) -> LightCurve:
    """Return a light curve as another survey might have it; as it is where no detection would be left."""
    chance = dict(zip(sorted(DegradeConfig.model_fields), rng.random(len(DegradeConfig.model_fields)), strict=True))
    changed = _cut(curve, config, chance, rng)
    changed = _elsewhere(changed, config, chance, rng)
    changed = _mismeasured(changed, config, chance, rng)
    return replace(changed, metadata=_degraded_metadata(changed.metadata, config, chance, rng))


def shake(curve: LightCurve, rng: np.random.Generator) -> LightCurve:
    """Return a light curve as the same survey might have had it: up to two fifths fewer points, some noise, 0.15 mag.

    What a network sees often it knows by heart; shaken, no draw of an object is like another. Metadata stay.
    """
    is_kept = _still(curve, np.ones(len(curve), dtype=np.bool_), rng.random(len(curve)) < rng.uniform(0.6, 1.0))
    fewer = curve.rows(is_kept)
    scale = 10 ** (-0.4 * 0.15 * rng.standard_normal())
    flux, error = fewer.flux.astype(np.float64) * scale, fewer.flux_err.astype(np.float64) * scale
    more = error * np.exp(rng.uniform(0.0, np.log(1.4)))
    flux = flux + np.sqrt(more**2 - error**2) * rng.standard_normal(len(flux))
    return replace(fewer, flux=flux.astype(np.float32), flux_err=np.maximum(more, 1e-3).astype(np.float32))


def _cut(curve: LightCurve, config: DegradeConfig, chance: dict[str, float], rng: np.random.Generator) -> LightCurve:
    """Leave out bands, points and ends; each only where a detection is left."""
    is_kept = np.ones(len(curve), dtype=np.bool_)
    if chance["bands"] < config.bands:
        present = np.unique(curve.band)
        bands = rng.permutation(present)[: rng.integers(1, len(present) + 1)]
        is_kept = _still(curve, is_kept, np.isin(curve.band, bands))
    if chance["late"] < config.late:
        start = np.quantile(curve.mjd[is_kept], rng.uniform(0.0, 0.5))
        is_kept = _still(curve, is_kept, curve.mjd >= start)
    if chance["thinned"] < config.thinned:
        is_kept = _still(curve, is_kept, rng.random(len(curve)) < rng.uniform(0.25, 1.0))
    if chance["early"] < config.early:
        alerts = np.sort(curve.mjd[is_kept & curve.detected])
        last = alerts[min(len(alerts) - 1, int((len(alerts) + 1) ** rng.random()))] if len(alerts) else np.inf
        is_kept = _still(curve, is_kept, curve.mjd <= last)
    if chance["detected_only"] < config.detected_only:
        is_kept = _still(curve, is_kept, curve.detected)
    return curve.rows(is_kept)


def _still(curve: LightCurve, flags: Bool, also: Bool) -> Bool:
    """Both, or the first where the second leaves no detection."""
    both: Bool = flags & also
    return both if (both & curve.detected).any() else flags


def _elsewhere(
    curve: LightCurve, config: DegradeConfig, chance: dict[str, float], rng: np.random.Generator
) -> LightCurve:
    """Show an object at another distance, by another telescope, and noisier."""
    flux, error, metadata = curve.flux.astype(np.float64), curve.flux_err.astype(np.float64), curve.metadata
    if chance["brightness"] < config.brightness:
        most = float(np.abs(flux[curve.detected]).max(initial=1.0))
        low, high = np.sort([min(FAINTEST / most, 1.0), max(SATURATION / most, 1.0)])
        scale = np.clip(10 ** (-0.4 * rng.uniform(*config.magnitudes)), low, high)
        flux, error = flux * scale, error * scale
        metadata = {name: value for name, value in metadata.items() if name in _DUST}
    if chance["noisier"] < config.noisier:
        more = error * np.exp(rng.uniform(0.0, np.log(5.0)))
        flux = flux + np.sqrt(more**2 - error**2) * rng.standard_normal(len(flux))
        error = more
    detected = curve.detected & (np.abs(flux) >= 2.5 * error)
    if not detected.any():
        return curve
    return replace(
        curve,
        flux=flux.astype(np.float32),
        flux_err=np.maximum(error, 1e-3).astype(np.float32),
        detected=detected,
        metadata=metadata,
    )


def _mismeasured(
    curve: LightCurve, config: DegradeConfig, chance: dict[str, float], rng: np.random.Generator
) -> LightCurve:
    """Errors that are wrong by object and band, nights that err together, wild points, zero points and templates."""
    flux, error = curve.flux.astype(np.float64), curve.flux_err.astype(np.float64)
    if chance["misjudged"] < config.misjudged:
        ratio = np.exp(rng.uniform(np.log(0.8), np.log(2.5)) + 0.15 * rng.standard_normal(len(BANDS)))[curve.band]
        share = rng.uniform(0.0, 0.7) * (rng.random() < 0.5)
        night = np.unique(np.floor(curve.mjd), return_inverse=True)[1]
        together = rng.standard_normal(night.max(initial=0) + 1)[night]
        deviate = np.sqrt(1 - share) * rng.standard_normal(len(flux)) + np.sqrt(share) * together
        unstated = rng.uniform(0.0, 0.01) * np.abs(flux).max(initial=0.0)
        flux = flux + np.hypot(error * np.sqrt(np.maximum(ratio**2 - 1.0, 0.0)), unstated) * deviate
        error = error / np.minimum(ratio, 1.0) * np.exp(0.05 * rng.standard_normal(len(flux)))
    if chance["wild"] < config.wild:
        wild = rng.random(len(flux)) < rng.uniform(0.0, 0.03)
        flux = flux + wild * error * rng.uniform(3.0, 12.0, len(flux)) * rng.choice((-1.0, 1.0), len(flux))
    if chance["offset"] < config.offset:
        flux = flux * (1 + 0.04 * rng.standard_normal(len(BANDS)))[curve.band]
        flux = flux - (rng.uniform(-0.03, 0.1) * (rng.random() < 0.5)) * np.abs(flux).max(initial=0.0)
    return replace(curve, flux=flux.astype(np.float32), flux_err=error.astype(np.float32))


def _degraded_metadata(
    metadata: Mapping[str, float], config: DegradeConfig, chance: dict[str, float], rng: np.random.Generator
) -> dict[str, float]:
    """Drop blocks, and make redshifts noisy, wrong or another object's."""
    if chance["no_metadata"] < config.no_metadata:
        return {}
    remaining = dict(metadata)
    gone = tuple(name for name in remaining if name.startswith("hostgal")) if chance["no_host"] < config.no_host else ()
    gone += _DUST if chance["no_dust"] < config.no_dust else ()
    gone += _REDSHIFT if chance["no_redshift"] < config.no_redshift else ()
    remaining = {name: value for name, value in remaining.items() if name not in gone}
    if "z_final" not in metadata and chance["strange_redshift"] < config.strange_redshift:
        remaining |= {"z_final": float(rng.gamma(2.5, 0.15) + 0.003)}
    if "z_final" in remaining:
        remaining |= _redshift(remaining, config, chance, rng)
    return remaining


def _redshift(
    metadata: dict[str, float], config: DegradeConfig, chance: dict[str, float], rng: np.random.Generator
) -> dict[str, float]:
    redshift, error = metadata["z_final"], metadata.get("z_final_err", 0.001)
    if chance["wrong_redshift"] < config.wrong_redshift:
        redshift, error = rng.gamma(2.0, 0.2) + 0.003, rng.choice((0.001, 0.05))
    elif chance["noisy_redshift"] < config.noisy_redshift:
        error = float(np.exp(rng.uniform(np.log(0.01), np.log(0.15)))) * (1 + redshift)
        redshift = max(redshift + error * rng.standard_normal(), 0.002)
    if rng.random() < 0.3:
        return {"z_final": float(redshift)}
    return {"z_final": float(redshift), "z_final_err": float(error)}


METADATA_BLOCKS: dict[str, frozenset[str]] = {
    "host": frozenset(name for name in METADATA_COLUMNS if name.startswith("hostgal")),
    "dust": frozenset(name for name in METADATA_COLUMNS if name.startswith("mwebv")),
    "redshift": frozenset(name for name in METADATA_COLUMNS if name.startswith("z_final") or "zspec" in name),
}


class View(BaseModel):
    """View of an object. The default shows everything."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bands: tuple[str, ...] = BANDS
    days_after_trigger: float | None = Field(default=None, ge=0, description="nothing later after the trigger")
    detections: int | None = Field(default=None, ge=1, description="nothing later than this detection")
    history_days: float | None = Field(default=None, gt=0, description="nothing older before the newest point")
    detected_only: bool = Field(default=False, description="no forced photometry")
    missing: tuple[str, ...] = Field(default=(), description="metadata blocks that are absent")
    brightness: float = Field(default=1.0, ge=1, description="factor on fluxes and errors: a shallower survey's view")


NO_METADATA = tuple(METADATA_BLOCKS)
LSST = View(missing=NO_METADATA)
# ZTF's errors are some 36 times (3.9 mag) those of a Rubin visit: 5 sigma at 20.6 instead of 24.5 mag.
ZTF = View(bands=("g", "r"), history_days=30.0, detected_only=True, missing=NO_METADATA, brightness=36.0)


class AugmentationConfig(BaseModel):
    """Shares of the training draws that lose something; see :func:`draw_view` for the order of the draws."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mta_days: tuple[float, ...] = Field(default=(8.0, 128.0, 2048.0), description="day horizons of MTA; empty = none")
    at_detection: float = Field(default=0.0, ge=0, le=1, description="end at a detection instead of a day")
    as_ztf: float = Field(default=0.0, ge=0, le=1, description="everything that a ZTF alert lacks, at once")
    ztf_brightness: tuple[float, float] = Field(default=(1.0, 1.0), description="range of the ZTF views' factor")
    ztf_with_i: float = Field(default=0.15, ge=0, le=1, description="share of the g, r views that have i as well")
    g_r_only: float = Field(default=0.0, ge=0, le=1)
    detected_only: float = Field(default=0.0, ge=0, le=1)
    short_history: float = Field(default=0.0, ge=0, le=1, description="30 days of history")
    no_metadata: float = Field(default=0.0, ge=0, le=1)
    no_host: float = Field(default=0.0, ge=0, le=1)
    no_redshift: float = Field(default=0.0, ge=0, le=1)
    degraded: float = Field(default=0.0, ge=0, le=1, description="seen as another survey might instead of all this")
    shaken: float = Field(default=0.0, ge=0, le=1, description="of what is not degraded: as the same survey might")
    few_bands: float = Field(default=0.0, ge=0, le=1, description="of all draws: in one of BAND_SUBSETS alone")
    prefix: float = Field(default=0.0, ge=0, le=1, description="of all draws: ends at a detection")
    prefix_detections: float = Field(default=0.5, ge=0, le=1, description="of these: detections alone")
    common_metadata: bool = Field(default=False, description="dust and redshift errors do not depend on the survey")
    degrade: DegradeConfig = DegradeConfig()


BAND_SUBSETS: Final = (
    *"ugrizY", *"griz", "ug", "ur", "gr", "gr", "gi", "gz", "ri", "rz", *("iz",) * 5, "zY", "iY",
    "ugr", "gri", "riz", "izY", "grz", "giz", "griz", "rizY",
)  # fmt: skip
"""Bands in which surveys and brokers deliver light curves, one after the other; those named twice are drawn twice as
often. The draw is the same for every class, so that missing bands are independent of the class."""
NEAREST: Final = 1
"""Places in `BANDS` by which a light curve of one band may move to another band."""
DUST: Final = (0.04, 0.9)
"""Median and scatter of ln of the dust, E(B-V) in magnitudes, drawn independently of the object."""
DUST_KNOWN, OWN_DUST = 0.4, 0.5
EXACT: Final = 0.02
"""Redshift errors below this are those of spectra; surveys state them in different ways."""


def restrict(curve: LightCurve, config: AugmentationConfig, rng: np.random.Generator) -> LightCurve:
    """Show what a broker has of a light curve: some bands, up to a detection, and metadata that name no survey.

    Every draw is the same for all classes and sources. Where a subset of bands would leave no detection, the light
    curve stays as it is; one that has a single band may be moved to an adjacent band.
    """
    chance, subset, position = rng.random(4), BAND_SUBSETS[rng.integers(len(BAND_SUBSETS))], rng.random()
    if chance[0] < config.few_bands:
        curve = _in_bands(curve, np.array([BANDS.index(name) for name in subset]), rng)
    if chance[1] < config.prefix:
        curve = _until_detection(curve, position, detections_alone=chance[2] < config.prefix_detections)
    return replace(curve, metadata=_common(curve.metadata, rng)) if config.common_metadata else curve


def _in_bands(curve: LightCurve, bands: NDArray[np.int64], rng: np.random.Generator) -> LightCurve:
    detected = np.unique(curve.band[curve.detected])
    if np.isin(detected, bands).any():
        return curve.rows(np.isin(curve.band, bands))
    if len(detected) == 1 and (near := bands[np.abs(bands - detected[0]) <= NEAREST]).size:
        only = curve.rows(curve.band == detected[0])
        return replace(only, band=np.full_like(only.band, rng.choice(near)))
    return curve


def _until_detection(curve: LightCurve, position: float, *, detections_alone: bool) -> LightCurve:
    """Cut after a detection, log-uniform in its number."""
    alerts = np.sort(curve.mjd[curve.detected])
    if not len(alerts):
        return curve
    number = min(len(alerts), int((len(alerts) + 1) ** position))
    is_kept = curve.mjd <= alerts[number - 1]
    return curve.rows(is_kept & curve.detected if detections_alone else is_kept)


def _common(metadata: Mapping[str, float], rng: np.random.Generator) -> dict[str, float]:
    """Metadata whose dust and redshift error are drawn alike for every object.

    Half of the dust that is known is the object's own, with an error of a fifth; the rest is drawn.
    """
    known, own, drawn, noise, kind, error = rng.random(6)
    given = {name: value for name, value in metadata.items() if name not in _DUST}
    if known < DUST_KNOWN:
        median, scatter = DUST
        dust = median * np.exp(scatter * ndtri(drawn))
        if own < OWN_DUST and "mwebv" in metadata:
            dust = metadata["mwebv"] * np.exp(0.2 * ndtri(noise))
        given["mwebv"] = float(np.clip(dust, 0.0, 3.0))
    if "z_final" in given and given.get("z_final_err", 0.0) < EXACT:
        given.pop("z_final_err", None)
        if kind < 0.7:  # else not stated
            given["z_final_err"] = float(5e-4 * (EXACT / 5e-4) ** error)
    return given


def apply_view(curve: LightCurve, view: View) -> LightCurve | None:
    """Return the visible part of a light curve, or None when no detection is left: no alert would have been sent.

    The trigger is the first detection in the visible bands.
    """
    is_visible = _visible(curve, view)
    if is_visible is None:
        return None
    seen = curve.rows(is_visible)
    scale = np.float32(np.clip(SATURATION / np.abs(seen.flux).max(initial=1.0), 1.0, view.brightness))
    return replace(seen, flux=seen.flux * scale, flux_err=seen.flux_err * scale, metadata=_metadata(curve, view))


def _visible(curve: LightCurve, view: View) -> Bool | None:
    is_visible = np.isin(curve.band, [BANDS.index(name) for name in view.bands])
    alerts = np.sort(curve.mjd[is_visible & curve.detected])
    if not len(alerts):
        return None
    if view.days_after_trigger is not None:
        is_visible &= curve.mjd <= alerts[0] + view.days_after_trigger
    if view.detections is not None:
        is_visible &= curve.mjd <= alerts[min(view.detections, len(alerts)) - 1]
    if view.detected_only:
        is_visible &= curve.detected
    if view.history_days is not None:
        is_visible &= curve.mjd >= curve.mjd[is_visible].max() - view.history_days
    # A short history may end in forced photometry alone.
    return is_visible if (is_visible & curve.detected).any() else None


def _metadata(curve: LightCurve, view: View) -> dict[str, float]:
    gone: frozenset[str] = frozenset().union(*(METADATA_BLOCKS[block] for block in view.missing))
    return {name: value for name, value in curve.metadata.items() if name not in gone}


def draw_view(curve: LightCurve, config: AugmentationConfig, rng: np.random.Generator) -> View:
    """Draw what is visible of a training curve: where it ends, then the survey's absences.

    The number of random numbers consumed does not depend on the outcome, so one curve's draw never shifts another's.
    """
    chance = rng.random(8)
    position, day = rng.random(), rng.random()
    end = _draw_end(curve, config, at_detection=chance[0] < config.at_detection, position=position, day=day)
    if chance[1] < config.as_ztf:
        bands = ("g", "r", "i") if chance[2] < config.ztf_with_i else ("g", "r")
        low, high = config.ztf_brightness
        return ZTF.model_copy(update={**end, "bands": bands, "brightness": low * (high / low) ** chance[4]})
    if chance[3] < config.g_r_only:
        end["bands"] = ("g", "r", "i") if chance[2] < config.ztf_with_i else ("g", "r")
    return View(
        **end,
        detected_only=chance[4] < config.detected_only,
        history_days=30.0 if chance[5] < config.short_history else None,
        missing=_draw_missing(config, chance[6], chance[7]),
    )


def _draw_end(
    curve: LightCurve, config: AugmentationConfig, *, at_detection: bool, position: float, day: float
) -> dict[str, object]:
    if at_detection:
        # Log-uniform: the first ten detections of an object are as likely as the next ninety.
        return {"detections": max(1, int((np.count_nonzero(curve.detected) + 1) ** position))}
    if config.mta_days:
        return {"days_after_trigger": config.mta_days[int(day * len(config.mta_days))]}
    return {}


def _draw_missing(config: AugmentationConfig, everything: float, block: float) -> tuple[str, ...]:
    if everything < config.no_metadata:
        return NO_METADATA
    if block < config.no_host:
        return ("host",)
    return ("redshift",) if block < config.no_host + config.no_redshift else ()
