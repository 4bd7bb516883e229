"""Views of a light curve: what one survey would show of it at one moment, fixed for scoring or drawn for training.

Notable:

- a :class:`View` is plain data and :func:`apply_view` is pure, so that scoring asks the same questions that training
  drew at random ("with g and r only", "without metadata", "at the third detection");
- masked temporal augmentation (MTA) is that of ATAT (Cabrera-Vives et al. 2024): keep what was observed until a day
  drawn from a short list, counted from the trigger; observations before the trigger always stay;
- alerts are sent at detections, so a share of the draws ends at a detection instead of a day, log-uniform in its
  number: half of a broker's traffic is about objects with few detections;
- real alerts lack things. ZTF observes g, r and sometimes i, sends 30 days of history, and detections without forced
  photometry; neither ZTF nor Rubin sends the 64 ELAsTiCC metadata. Each absence is drawn on its own, and a further
  share of the draws has all of ZTF's absences together;
- ZTF is shallower, so what it detects is brighter: its views multiply fluxes and errors by one factor, which is the
  same object nearer, at the same signal to noise. A network that never saw such errors would read them as brightness.
"""

from dataclasses import replace

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from models.bands import BANDS
from models.lightcurve import Bool, LightCurve
from models.metadata import METADATA_COLUMNS
from training.data.degrade import DegradeConfig

METADATA_BLOCKS: dict[str, frozenset[str]] = {
    "host": frozenset(name for name in METADATA_COLUMNS if name.startswith("hostgal")),
    "dust": frozenset(name for name in METADATA_COLUMNS if name.startswith("mwebv")),
    "redshift": frozenset(name for name in METADATA_COLUMNS if name.startswith("z_final") or "zspec" in name),
}


class View(BaseModel):
    """What is visible of an object. The default shows everything."""

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
SATURATION = 3.6e7  # nJy, 12.5 mag: nothing is made brighter than this


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
    degrade: DegradeConfig = DegradeConfig()


def apply_view(curve: LightCurve, view: View) -> LightCurve | None:
    """Return the visible part of a light curve, or None when no detection is left: no alert would have been sent.

    The trigger is the first detection in the visible bands.
    """
    kept = _visible(curve, view)
    if kept is None:
        return None
    flux = curve.flux[kept]
    scale = np.float32(np.clip(SATURATION / np.abs(flux).max(initial=1.0), 1.0, view.brightness))
    return replace(
        curve,
        mjd=curve.mjd[kept],
        flux=flux * scale,
        flux_err=curve.flux_err[kept] * scale,
        band=curve.band[kept],
        detected=curve.detected[kept],
        metadata=_metadata(curve, view),
    )


def _visible(curve: LightCurve, view: View) -> Bool | None:
    kept = np.isin(curve.band, [BANDS.index(name) for name in view.bands])
    alerts = np.sort(curve.mjd[kept & curve.detected])
    if not len(alerts):
        return None
    if view.days_after_trigger is not None:
        kept &= curve.mjd <= alerts[0] + view.days_after_trigger
    if view.detections is not None:
        kept &= curve.mjd <= alerts[min(view.detections, len(alerts)) - 1]
    if view.detected_only:
        kept &= curve.detected
    if view.history_days is not None:
        kept &= curve.mjd >= curve.mjd[kept].max() - view.history_days
    # A short history may end in forced photometry alone.
    return kept if (kept & curve.detected).any() else None


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
