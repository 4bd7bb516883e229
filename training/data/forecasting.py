"""Questions for forecasters: a light curve cut where an alert was sent, and later visits of the survey to predict.

Notable:

- a survey's own future answers: history is what had been observed when one of the object's alerts went out, queries are
  the times and bands of later visits, targets the fluxes measured there. Nothing after the cut reaches the history: it
  is cut before it is featurised, so windows and triggers are those of the shorter curve;
- every later visit within the horizon counts, detection or not. The detections alone would teach that sources never
  fade;
- cuts fall on the k-th detection with k log-uniform, as in ``training.data.augment``: a forecast is worth most early;
- a view (fewer bands, no forced photometry ...) thins the history, never the queries;
- what is drawn for an object is a function of one number taken from the generator, so one object's draw never shifts
  another's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from models.bands import BANDS
from models.forecast import Queries, make_queries, pad_queries, query_order
from models.lightcurve import Float32, Float64, Int64, LightCurve, Limits, RaggedBatch, Tokens, featurise
from models.units import FluxUnit, njy_to
from training.data.augment import AugmentationConfig, apply_view, draw_view
from training.data.dataset import Dataset


class ForecastingConfig(BaseModel):
    """What is asked about an object."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    horizon_days: float = Field(default=60.0, gt=0, description="later visits are asked for up to this long after")
    max_queries: int = Field(default=32, ge=1, description="of these at most so many, drawn at random")


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A history, what is asked, and what was observed.

    Attributes
    ----------
    tokens : the history, as the network sees it.
    queries : times and bands, sorted as ``make_queries`` does.
    flux, flux_err : shape (q,), the observations asked for and their standard errors, in the network's flux unit.
    """

    tokens: Tokens
    queries: Queries
    flux: Float32
    flux_err: Float32


def askable(dataset: Dataset, horizon_days: float) -> Int64:
    """Rows of the objects that have a detection after which something was observed within the horizon."""
    row_P = np.repeat(np.arange(len(dataset)), np.diff(dataset.offsets))
    first = np.flatnonzero(np.diff(row_P, prepend=-1).astype(np.bool_) | (np.diff(dataset.mjd, prepend=np.nan) != 0))
    row_V, mjd_V = row_P[first], dataset.mjd[first]  # visits: what was observed at one time is one
    alert_V = np.logical_or.reduceat(dataset.detected, first)
    followed_V = (row_V[1:] == row_V[:-1]) & (np.diff(mjd_V) <= horizon_days)
    return np.unique(row_V[:-1][alert_V[:-1] & followed_V])


def cut_times(curve: LightCurve, horizon_days: float) -> Float64:
    """Return times of the detections, in order, after which something was observed within the horizon."""
    alerts = np.unique(curve.mjd[curve.detected])
    visits = np.sort(curve.mjd)
    following = visits[np.minimum(np.searchsorted(visits, alerts, side="right"), len(visits) - 1)]
    return alerts[(following > alerts) & (following <= alerts + horizon_days)]


def draw_question(
    curve: LightCurve,
    limits: Limits,
    flux_unit: FluxUnit,
    config: ForecastingConfig,
    augmentation: AugmentationConfig,
    rng: np.random.Generator,
) -> Question | None:
    """Cut a light curve at a random alert; None when nothing was observed within the horizon of any."""
    own = np.random.default_rng(rng.integers(2**63))
    cuts = cut_times(curve, config.horizon_days)
    if not len(cuts):
        return None
    cut = cuts[int((len(cuts) + 1) ** own.random()) - 1]
    later = np.flatnonzero((curve.mjd > cut) & (curve.mjd <= cut + config.horizon_days))
    asked = np.sort(own.permutation(later)[: config.max_queries])
    history = seen_at(curve, cut)
    # A view's brightness would have to scale the targets too; the survey is the one that answers.
    view = draw_view(history, augmentation, own).model_copy(update={"brightness": 1.0})
    return ask(curve, asked, apply_view(history, view) or history, limits, flux_unit)


def seen_at(curve: LightCurve, mjd: float) -> LightCurve:
    """Return what had been observed by a time, that moment included."""
    seen = curve.mjd <= mjd
    columns = {name: getattr(curve, name)[seen] for name in ("mjd", "flux", "flux_err", "band", "detected")}
    return replace(curve, **columns)


def ask(
    curve: LightCurve, asked: NDArray[np.integer], history: LightCurve, limits: Limits, flux_unit: FluxUnit
) -> Question:
    """Ask for observations ``asked`` (indices into ``curve``) given a history of the same object."""
    tokens = featurise(history, limits, flux_unit, ())
    order = asked[query_order(curve.mjd[asked], curve.band[asked])]
    return Question(
        tokens=tokens,
        queries=make_queries(tokens, curve.mjd[order], curve.band[order], BANDS, len(order)),
        flux=njy_to(curve.flux[order], flux_unit).astype(np.float32),
        flux_err=njy_to(curve.flux_err[order], flux_unit).astype(np.float32),
    )


def pad_questions(questions: Sequence[Question]) -> dict[str, NDArray[Any]]:
    """Pad inputs of a forecaster, and ``target_flux`` and ``target_flux_err`` [batch, queries], 0 where padded."""
    arrays = RaggedBatch.collate([question.tokens for question in questions]).padded()
    del arrays["metadata"]
    arrays |= pad_queries([question.queries for question in questions])
    for name in ("flux", "flux_err"):
        target = np.zeros(arrays["query_mask"].shape, dtype=np.float32)
        target[arrays["query_mask"]] = np.concatenate([getattr(question, name) for question in questions])
        arrays[f"target_{name}"] = target
    return arrays
