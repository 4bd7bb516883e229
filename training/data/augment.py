"""Augmentation: views of a light curve as one survey has it at one time, fixed for evaluation, random for training.

Notable:

- a :class:`View` is plain data and :func:`apply_view` is a pure function, so that evaluation uses the same views as
  training ("with g and r only", "without metadata", "at the third detection");
- masked temporal augmentation (MTA) is that of ATAT (Cabrera-Vives et al. 2024): keep observations up to a random day
  of a short list, counted from the trigger; observations before the trigger are always kept;
- alerts are sent at detections, so some draws end at a detection instead of a day, log-uniform in its number, since
  half of a broker's alerts are of objects with few detections;
- real alerts are incomplete. ZTF observes g, r and sometimes i, and sends 30 days of history without forced photometry;
  neither ZTF nor Rubin sends the 64 ELAsTiCC metadata. Each is dropped independently, and further draws drop everything
  that ZTF lacks;
- ZTF is shallower, so the objects it detects are brighter: its views multiply fluxes and errors by one factor, as for
  the same object at a smaller distance with the same signal to noise.

Degradations, for training only: brightness, errors, bands, points and metadata that vary between surveys.

Notable:

- all draws are independent of the class. Otherwise values that are missing in some surveys only would reveal the
  survey, and with it the class (trees classified ZTF's supernovae as superluminous because their dust was missing);
- an object made brighter or fainter is at another distance, so it loses its redshift;
- fainter light curves may be noisier: errors keep their ratio to the flux, or grow;
- an object without a redshift may get that of a nearby galaxy, as happens for Galactic alerts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from scipy.special import ndtri

from nightjar_alerts.models.lightcurve import Bool, LightCurve
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.photometry import BANDS

SATURATION: Final = 3.6e7  # nJy, 12.5 mag; largest flux after scaling
FAINTEST: Final = 300.0  # nJy, 25.2 mag; smallest flux of the brightest point after scaling
_REDSHIFT: Final = ("z_final", "z_final_err")
_DUST: Final = ("mwebv", "mwebv_err")


class DegradeConfig(BaseModel):
    """Probabilities of the degradations of a light curve."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    brightness: float = Field(default=0.5, ge=0, le=1, description="change of brightness")
    magnitudes: tuple[float, float] = Field(default=(-6.0, 3.0), description="range of that change; negative: brighter")
    noisier: float = Field(default=0.25, ge=0, le=1, description="errors larger by a factor of up to five")
    misjudged: float = Field(default=0.35, ge=0, le=1, description="inaccurate reported errors")
    wild: float = Field(default=0.2, ge=0, le=1, description="outlying points")
    offset: float = Field(default=0.2, ge=0, le=1, description="errors of zero points and templates")
    bands: float = Field(default=0.35, ge=0, le=1, description="some bands missing")
    thinned: float = Field(default=0.3, ge=0, le=1, description="some points missing")
    late: float = Field(default=0.2, ge=0, le=1, description="beginning missing")
    early: float = Field(default=0.35, ge=0, le=1, description="end at a detection")
    detected_only: float = Field(default=0.3, ge=0, le=1)
    no_metadata: float = Field(default=0.45, ge=0, le=1)
    no_host: float = Field(default=0.3, ge=0, le=1)
    no_dust: float = Field(default=0.7, ge=0, le=1)
    no_redshift: float = Field(default=0.25, ge=0, le=1)
    noisy_redshift: float = Field(default=0.2, ge=0, le=1)
    wrong_redshift: float = Field(default=0.03, ge=0, le=1)
    strange_redshift: float = Field(
        default=0.15, ge=0, le=1, description="redshift of a nearby galaxy, for objects without a redshift"
    )


def degrade(curve: LightCurve, config: DegradeConfig, rng: np.random.Generator) -> LightCurve:
    """Return a light curve as another survey might have it, with at least one detection."""
    chance = dict(zip(sorted(DegradeConfig.model_fields), rng.random(len(DegradeConfig.model_fields)), strict=True))
    changed = _cut(curve, config, chance, rng)
    changed = _rescale(changed, config, chance, rng)
    changed = _mismeasure(changed, config, chance, rng)
    return replace(changed, metadata=_degraded_metadata(changed.metadata, config, chance, rng))


def perturb(curve: LightCurve, rng: np.random.Generator) -> LightCurve:
    """Return a light curve as the same survey might have had it: up to two fifths fewer points, some noise, 0.15 mag.

    It makes every draw of an object different, so that a network cannot memorise objects. Metadata are unchanged.
    """
    is_kept = _with_detection(
        curve, np.ones(len(curve), dtype=np.bool_), rng.random(len(curve)) < rng.uniform(0.6, 1.0)
    )
    fewer = curve.rows(is_kept)
    scale = 10 ** (-0.4 * 0.15 * rng.standard_normal())
    flux, error = fewer.flux.astype(np.float64) * scale, fewer.flux_err.astype(np.float64) * scale
    larger = error * np.exp(rng.uniform(0.0, np.log(1.4)))
    flux = flux + np.sqrt(larger**2 - error**2) * rng.standard_normal(len(flux))
    return replace(fewer, flux=flux.astype(np.float32), flux_err=np.maximum(larger, 1e-3).astype(np.float32))


def _cut(curve: LightCurve, config: DegradeConfig, chance: dict[str, float], rng: np.random.Generator) -> LightCurve:
    """Remove bands, points and ends, each only if a detection is left."""
    is_kept = np.ones(len(curve), dtype=np.bool_)
    if chance["bands"] < config.bands:
        present = np.unique(curve.band)
        bands = rng.permutation(present)[: rng.integers(1, len(present) + 1)]
        is_kept = _with_detection(curve, is_kept, np.isin(curve.band, bands))
    if chance["late"] < config.late:
        start = np.quantile(curve.mjd[is_kept], rng.uniform(0.0, 0.5))
        is_kept = _with_detection(curve, is_kept, curve.mjd >= start)
    if chance["thinned"] < config.thinned:
        is_kept = _with_detection(curve, is_kept, rng.random(len(curve)) < rng.uniform(0.25, 1.0))
    if chance["early"] < config.early:
        alerts = np.sort(curve.mjd[is_kept & curve.detected])
        last = alerts[min(len(alerts) - 1, int((len(alerts) + 1) ** rng.random()))] if len(alerts) else np.inf
        is_kept = _with_detection(curve, is_kept, curve.mjd <= last)
    if chance["detected_only"] < config.detected_only:
        is_kept = _with_detection(curve, is_kept, curve.detected)
    return curve.rows(is_kept)


def _with_detection(curve: LightCurve, flags: Bool, condition: Bool) -> Bool:
    """Return the points that satisfy both masks; the first mask alone if no detection would be left."""
    both: Bool = flags & condition
    return both if (both & curve.detected).any() else flags


def _rescale(
    curve: LightCurve, config: DegradeConfig, chance: dict[str, float], rng: np.random.Generator
) -> LightCurve:
    """Change brightness and noise, as for another distance or telescope; unchanged if no detection would be left."""
    flux, error, metadata = curve.flux.astype(np.float64), curve.flux_err.astype(np.float64), curve.metadata
    if chance["brightness"] < config.brightness:
        largest = float(np.abs(flux[curve.detected]).max(initial=1.0))
        low, high = np.sort([min(FAINTEST / largest, 1.0), max(SATURATION / largest, 1.0)])
        scale = np.clip(10 ** (-0.4 * rng.uniform(*config.magnitudes)), low, high)
        flux, error = flux * scale, error * scale
        metadata = {name: value for name, value in metadata.items() if name in _DUST}
    if chance["noisier"] < config.noisier:
        larger = error * np.exp(rng.uniform(0.0, np.log(5.0)))
        flux = flux + np.sqrt(larger**2 - error**2) * rng.standard_normal(len(flux))
        error = larger
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


def _mismeasure(
    curve: LightCurve, config: DegradeConfig, chance: dict[str, float], rng: np.random.Generator
) -> LightCurve:
    """Add inaccurate errors by object and band, correlated errors by night, outliers, and zero point offsets."""
    flux, error = curve.flux.astype(np.float64), curve.flux_err.astype(np.float64)
    if chance["misjudged"] < config.misjudged:
        ratio = np.exp(rng.uniform(np.log(0.8), np.log(2.5)) + 0.15 * rng.standard_normal(len(BANDS)))[curve.band]
        share = rng.uniform(0.0, 0.7) * (rng.random() < 0.5)
        night = np.unique(np.floor(curve.mjd), return_inverse=True)[1]
        nightly = rng.standard_normal(night.max(initial=0) + 1)[night]
        deviate = np.sqrt(1 - share) * rng.standard_normal(len(flux)) + np.sqrt(share) * nightly
        unreported = rng.uniform(0.0, 0.01) * np.abs(flux).max(initial=0.0)
        flux = flux + np.hypot(error * np.sqrt(np.maximum(ratio**2 - 1.0, 0.0)), unreported) * deviate
        error = error / np.minimum(ratio, 1.0) * np.exp(0.05 * rng.standard_normal(len(flux)))
    if chance["wild"] < config.wild:
        is_outlier = rng.random(len(flux)) < rng.uniform(0.0, 0.03)
        flux = flux + is_outlier * error * rng.uniform(3.0, 12.0, len(flux)) * rng.choice((-1.0, 1.0), len(flux))
    if chance["offset"] < config.offset:
        flux = flux * (1 + 0.04 * rng.standard_normal(len(BANDS)))[curve.band]
        flux = flux - (rng.uniform(-0.03, 0.1) * (rng.random() < 0.5)) * np.abs(flux).max(initial=0.0)
    return replace(curve, flux=flux.astype(np.float32), flux_err=error.astype(np.float32))


def _degraded_metadata(
    metadata: Mapping[str, float], config: DegradeConfig, chance: dict[str, float], rng: np.random.Generator
) -> dict[str, float]:
    """Remove groups of columns, and make redshifts noisy or wrong, or use that of another object."""
    if chance["no_metadata"] < config.no_metadata:
        return {}
    remaining = dict(metadata)
    host = tuple(name for name in remaining if name.startswith("hostgal"))
    removed = host if chance["no_host"] < config.no_host else ()
    removed += _DUST if chance["no_dust"] < config.no_dust else ()
    removed += _REDSHIFT if chance["no_redshift"] < config.no_redshift else ()
    remaining = {name: value for name, value in remaining.items() if name not in removed}
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
    """View of an object. The default keeps everything."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bands: tuple[str, ...] = BANDS
    days_after_trigger: float | None = Field(default=None, ge=0, description="last day, counted from the trigger")
    detections: int | None = Field(default=None, ge=1, description="number of the last detection")
    history_days: float | None = Field(default=None, gt=0, description="days of history before the newest point")
    detected_only: bool = Field(default=False, description="no forced photometry")
    missing: tuple[str, ...] = Field(default=(), description="groups of metadata that are removed")
    brightness: float = Field(default=1.0, ge=1, description="factor on fluxes and errors, for a shallower survey")


NO_METADATA = tuple(METADATA_BLOCKS)
LSST = View(missing=NO_METADATA)
# ZTF's errors are some 36 times (3.9 mag) those of a Rubin visit: 5 sigma at 20.6 instead of 24.5 mag.
ZTF = View(bands=("g", "r"), history_days=30.0, detected_only=True, missing=NO_METADATA, brightness=36.0)


class AugmentationConfig(BaseModel):
    """Probabilities of the changes to a training light curve; :func:`draw_view` has their order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mta_days: tuple[float, ...] = Field(default=(8.0, 128.0, 2048.0), description="day horizons of MTA; empty = none")
    at_detection: float = Field(default=0.0, ge=0, le=1, description="end at a detection instead of a day")
    as_ztf: float = Field(default=0.0, ge=0, le=1, description="remove everything that a ZTF alert lacks")
    ztf_brightness: tuple[float, float] = Field(default=(1.0, 1.0), description="range of `brightness` of ZTF views")
    ztf_with_i: float = Field(default=0.15, ge=0, le=1, description="share of the views in g and r that also have i")
    g_r_only: float = Field(default=0.0, ge=0, le=1)
    detected_only: float = Field(default=0.0, ge=0, le=1)
    short_history: float = Field(default=0.0, ge=0, le=1, description="30 days of history")
    no_metadata: float = Field(default=0.0, ge=0, le=1)
    no_host: float = Field(default=0.0, ge=0, le=1)
    no_redshift: float = Field(default=0.0, ge=0, le=1)
    degraded: float = Field(default=0.0, ge=0, le=1, description="degrade instead of all changes above")
    perturbed: float = Field(
        default=0.0,
        ge=0,
        le=1,
        validation_alias=AliasChoices("perturbed", "shaken"),  # its name in the manifests of the shipped bundles
        description="perturb, for light curves that are not degraded",
    )
    few_bands: float = Field(default=0.0, ge=0, le=1, description="keep only one of BAND_SUBSETS, for all draws")
    prefix: float = Field(default=0.0, ge=0, le=1, description="end at a detection, for all draws")
    prefix_detections: float = Field(default=0.5, ge=0, le=1, description="keep only detections, for these draws")
    common_metadata: bool = Field(default=False, description="dust and redshift errors do not depend on the survey")
    degrade: DegradeConfig = DegradeConfig()


BAND_SUBSETS: Final = (
    *"ugrizY", *"griz", "ug", "ur", "gr", "gr", "gi", "gz", "ri", "rz", *("iz",) * 5, "zY", "iY",
    "ugr", "gri", "riz", "izY", "grz", "giz", "griz", "rizY",
)  # fmt: skip
"""Subsets of bands in which surveys and brokers deliver light curves; those listed twice are drawn twice as often. The
draw is the same for every class, so that missing bands are independent of the class."""
MAX_BAND_SHIFT: Final = 1
"""Maximum distance in `BANDS` by which a light curve in one band may be moved to another band."""
DUST: Final = (0.04, 0.9)
"""Median and scatter of ln of the dust, E(B-V) in magnitudes, drawn independently of the object."""
DUST_KNOWN, OWN_DUST = 0.4, 0.5
EXACT: Final = 0.02
"""Redshift errors below this are treated as spectroscopic, since surveys report them in different ways."""


def restrict(curve: LightCurve, config: AugmentationConfig, rng: np.random.Generator) -> LightCurve:
    """Restrict a light curve to some bands and a first part, and replace metadata that would reveal the survey.

    All draws are independent of class and source. The bands are unchanged if a subset would leave no detection; a light
    curve with detections in one band may be moved to an adjacent band.
    """
    chance, subset, position = rng.random(4), BAND_SUBSETS[rng.integers(len(BAND_SUBSETS))], rng.random()
    if chance[0] < config.few_bands:
        curve = _in_bands(curve, np.array([BANDS.index(name) for name in subset]), rng)
    if chance[1] < config.prefix:
        curve = _until_detection(curve, position, detected_only=chance[2] < config.prefix_detections)
    return replace(curve, metadata=_common(curve.metadata, rng)) if config.common_metadata else curve


def _in_bands(curve: LightCurve, bands: NDArray[np.int64], rng: np.random.Generator) -> LightCurve:
    detected = np.unique(curve.band[curve.detected])
    if np.isin(detected, bands).any():
        return curve.rows(np.isin(curve.band, bands))
    if len(detected) == 1 and (near := bands[np.abs(bands - detected[0]) <= MAX_BAND_SHIFT]).size:
        only = curve.rows(curve.band == detected[0])
        return replace(only, band=np.full_like(only.band, rng.choice(near)))
    return curve


def _until_detection(curve: LightCurve, position: float, *, detected_only: bool) -> LightCurve:
    """Truncate after a detection, log-uniform in its number."""
    alerts = np.sort(curve.mjd[curve.detected])
    if not len(alerts):
        return curve
    number = min(len(alerts), int((len(alerts) + 1) ** position))
    is_kept = curve.mjd <= alerts[number - 1]
    return curve.rows(is_kept & curve.detected if detected_only else is_kept)


def _common(metadata: Mapping[str, float], rng: np.random.Generator) -> dict[str, float]:
    """Return metadata with dust and redshift error drawn from the same distribution for every object.

    Half of the dust values are those of the object with an error of 20 %; the others are random.
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
        if kind < 0.7:  # otherwise the error is missing
            given["z_final_err"] = float(5e-4 * (EXACT / 5e-4) ** error)
    return given


def apply_view(curve: LightCurve, view: View) -> LightCurve | None:
    """Return the visible part of a light curve; None if no detection is left, since there would be no alert.

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
    # A short history may have forced photometry only.
    return is_visible if (is_visible & curve.detected).any() else None


def _metadata(curve: LightCurve, view: View) -> dict[str, float]:
    removed: frozenset[str] = frozenset().union(*(METADATA_BLOCKS[block] for block in view.missing))
    return {name: value for name, value in curve.metadata.items() if name not in removed}


def draw_view(curve: LightCurve, config: AugmentationConfig, rng: np.random.Generator) -> View:
    """Draw a view of a training light curve: first its end, then missing bands, points and metadata.

    The number of random numbers does not depend on the outcome, so the draws of other light curves do not change.
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
