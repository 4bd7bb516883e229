"""Targets without labels: masked observations for reconstruction, and later observations for forecasts.

**Reconstruction**: a fraction ``probed`` of each row's observations is to be reconstructed. Of these, ``hidden`` have
no values, ``random`` have the values of another observation of the row and ``same`` are unchanged (the scheme of BERT,
which ASTROMER uses, Donoso-Oliva et al. 2023). A masked autoencoder (RoMAE) has ``hidden = 1``.

Notable: ASTROMER's paper and its released code count differently. In the paper 30, 10 and 10 % of the window are
hidden, random and same. The code rounds up one after the other and takes ``random`` from the rest after ``same``, which
gives 32, 8 and 10 %. ``counting = "exact"`` (the default) is the paper, ``"sequential"`` the code.

Legend: B rows, L length. Padding is never probed. A row of two or more observations keeps one that is not hidden.

**Forecasts**: a light curve is truncated at an alert, and the target is the flux of later visits.

Notable:

- the history has the observations up to one of the object's alerts; queries are the times and bands of later visits,
  targets their measured fluxes. The history is truncated before it is featurised, so windows and triggers are those of
  the shorter light curve;
- every later visit within the horizon is a target, detected or not. With detections only, sources would never fade;
- the history ends at the k-th detection with k log-uniform, as in ``training.data.augment``, since early forecasts
  matter most;
- a view (fewer bands, no forced photometry ...) applies to the history, not to the queries;
- the draws of an object depend on one number of the generator, so they do not change those of other objects.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from nightjar_alerts.models.lightcurve import (
    Bool,
    Float32,
    Float64,
    Int64,
    LightCurve,
    Limits,
    RaggedBatch,
    Tokens,
    featurise,
)
from nightjar_alerts.models.networks.network import Masking
from nightjar_alerts.models.photometry import FluxUnit, njy_to
from nightjar_alerts.training.data.augment import AugmentationConfig, apply_view, draw_view
from nightjar_alerts.training.data.sample import Sample

_TOLERANCE = 1e-9  # 0.55 * 100 is 55.00000000000001, whose ceiling should be 55


class MaskingConfig(BaseModel):
    """Fractions of masked observations; the defaults are those of the ASTROMER paper."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    probed: float = Field(default=0.5, gt=0, le=1, description="fraction to reconstruct; the number is rounded up")
    hidden: float = Field(default=0.6, ge=0, le=1, description="fraction of the probed without values")
    random: float = Field(default=0.2, ge=0, le=1, description="fraction of the probed with another's values")
    same: float = Field(default=0.2, ge=0, le=1, description="fraction of the probed that is unchanged")
    counting: Literal["exact", "sequential"] = Field(
        default="exact", description="sequential, as released: ceil(same), then ceil(random of the rest), then hidden"
    )

    @model_validator(mode="after")
    def _fractions_add_up(self) -> Self:
        if abs(self.hidden + self.random + self.same - 1.0) > _TOLERANCE:
            raise ValueError("hidden, random and same are fractions of the probed and must add up to 1")
        return self


class ObservationCounts(NamedTuple):
    """Observations per row, each int64 [B]; the others of the probed are unchanged."""

    probed_B: Int64
    hidden_B: Int64
    random_B: Int64


def draw_masking(mask_BL: Bool, config: MaskingConfig, rng: np.random.Generator) -> Masking:
    """Draw the observations to reconstruct.

    Parameters
    ----------
    mask_BL : True for a real observation, anywhere in the row; a row may have none.
    """
    counts = count_masking(mask_BL.sum(1), config)
    order_BL = np.argsort(np.where(mask_BL, rng.random(mask_BL.shape), 2.0), axis=1)
    rank_BL = np.argsort(order_BL, axis=1)  # a random order of the row's observations, padding last
    probed_BL = rank_BL < counts.probed_B[:, None]
    hidden_BL = rank_BL < counts.hidden_B[:, None]
    shuffled_BL = (rank_BL < (counts.hidden_B + counts.random_B)[:, None]) & ~hidden_BL
    source_BL = np.where(shuffled_BL, _other_observation(mask_BL, rng), np.arange(mask_BL.shape[1]))
    return Masking(torch.from_numpy(probed_BL), torch.from_numpy(hidden_BL), torch.from_numpy(source_BL))


def count_masking(length_B: Int64, config: MaskingConfig) -> ObservationCounts:
    """Count how many of ``length_B`` observations are probed, hidden and replaced."""
    probed_B = _ceil(config.probed * length_B)
    split = _sequential if config.counting == "sequential" else _exact
    hidden_B, random_B = split(probed_B, config)
    all_hidden_B = (hidden_B == length_B) & (length_B > 1)  # then one observation is not probed
    return ObservationCounts(probed_B - all_hidden_B, hidden_B - all_hidden_B, random_B)


def _exact(probed_B: Int64, config: MaskingConfig) -> tuple[Int64, Int64]:
    """Round the cumulative fractions, so that every count is within one of its fraction, and the sum is right."""
    hidden_B = _ceil(config.hidden * probed_B - 0.5)
    return hidden_B, _ceil((config.hidden + config.random) * probed_B - 0.5) - hidden_B


def _sequential(probed_B: Int64, config: MaskingConfig) -> tuple[Int64, Int64]:
    rest_B: Int64 = probed_B - _ceil(config.same * probed_B)
    random_B = _ceil(config.random * rest_B)
    return rest_B - random_B, random_B


def _ceil(value_B: NDArray[np.floating]) -> Int64:
    whole_B: Int64 = np.ceil(value_B - _TOLERANCE).astype(np.int64)
    return whole_B


def _other_observation(mask_BL: Bool, rng: np.random.Generator) -> Int64:
    """Return for each observation the index of a random other one of the row; its own index if it is the only one."""
    index_BL = np.argsort(~mask_BL, axis=1, kind="stable")  # the row's observations first, in order
    number_BL = mask_BL.cumsum(1) - 1
    length_B1 = mask_BL.sum(1, keepdims=True)
    other_BL = rng.integers(0, np.broadcast_to(np.maximum(length_B1 - 1, 1), mask_BL.shape))
    other_BL = np.where(length_B1 > 1, other_BL + (other_BL >= number_BL), number_BL)
    source_BL: Int64 = np.take_along_axis(index_BL, np.maximum(other_BL, 0), axis=1)
    return source_BL


class ForecastingConfig(BaseModel):
    """Limits of the queries of an object."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    horizon_days: float = Field(default=60.0, gt=0, description="maximum time between the alert and a query")
    max_queries: int = Field(default=32, ge=1, description="maximum number of queries, a random subset")


class Queries(NamedTuple):
    """Times and bands of the forecasts of one light curve, sorted by time, then band.

    ``time`` float32 (q,), days since the first observation of the featurised history; ``band`` int64 (q,).
    """

    time: Float32
    band: Int64


def make_queries(tokens: Tokens, mjd: Float64, band: Int64) -> Queries:
    """Return sorted queries, so that forecasts do not depend on their order; times are subtracted in float64."""
    order = np.lexsort((band, mjd))
    return Queries((mjd[order] - tokens.origin_mjd).astype(np.float32), band[order])


def pad_queries(batch: Sequence[Queries]) -> dict[str, NDArray[Any]]:
    """Pad queries of several histories at the end with zeros: inputs ``query_time``, ``query_band``, ``query_mask``."""
    lengths = np.array([len(queries.time) for queries in batch])
    mask = np.arange(lengths.max()) < lengths[:, None]
    time, band = np.zeros(mask.shape, dtype=np.float32), np.zeros(mask.shape, dtype=np.int64)
    time[mask] = np.concatenate([queries.time for queries in batch])
    band[mask] = np.concatenate([queries.band for queries in batch])
    return {"query_time": time, "query_band": band, "query_mask": mask}


@dataclass(frozen=True, slots=True, eq=False)
class ForecastQuestion:
    """A history, queries, and the observations of the queries.

    Attributes
    ----------
    tokens : the featurised history.
    queries : times and bands, sorted by ``make_queries``.
    flux, flux_err : shape (q,), the observations of the queries and their standard errors, in the network's flux unit.
    """

    tokens: Tokens
    queries: Queries
    flux: Float32
    flux_err: Float32


def forecastable(dataset: Sample, horizon_days: float) -> Int64:
    """Return the rows of the objects with an observation within the horizon after a detection."""
    row_P = np.repeat(np.arange(len(dataset)), np.diff(dataset.offsets))
    first = np.flatnonzero(np.diff(row_P, prepend=-1).astype(np.bool_) | (np.diff(dataset.mjd, prepend=np.nan) != 0))
    row_V, mjd_V = row_P[first], dataset.mjd[first]  # a visit has all points of one time
    alert_V = np.logical_or.reduceat(dataset.detected, first)
    followed_V = (row_V[1:] == row_V[:-1]) & (np.diff(mjd_V) <= horizon_days)
    return np.unique(row_V[:-1][alert_V[:-1] & followed_V])


def cut_times(curve: LightCurve, horizon_days: float) -> Float64:
    """Return the sorted times of the detections that have a later observation within the horizon."""
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
) -> ForecastQuestion | None:
    """Truncate a light curve at a random alert; None if no alert has a later observation within the horizon."""
    own = np.random.default_rng(rng.integers(2**63))
    cuts = cut_times(curve, config.horizon_days)
    if not len(cuts):
        return None
    cut = cuts[int((len(cuts) + 1) ** own.random()) - 1]
    later = np.flatnonzero((curve.mjd > cut) & (curve.mjd <= cut + config.horizon_days))
    queries = np.sort(own.permutation(later)[: config.max_queries])
    history = curve.rows(curve.mjd <= cut)
    # The brightness of a view is not used, since it would have to scale the targets, too.
    view = draw_view(history, augmentation, own).model_copy(update={"brightness": 1.0})
    return make_question(curve, queries, apply_view(history, view) or history, limits, flux_unit)


def make_question(
    curve: LightCurve, indices: NDArray[np.integer], history: LightCurve, limits: Limits, flux_unit: FluxUnit
) -> ForecastQuestion:
    """Return the question for the observations ``indices`` of ``curve``, given a history of the same object."""
    tokens = featurise(history, limits, flux_unit, ())
    order = indices[np.lexsort((curve.band[indices], curve.mjd[indices]))]
    return ForecastQuestion(
        tokens=tokens,
        queries=make_queries(tokens, curve.mjd[order], curve.band[order]),
        flux=njy_to(curve.flux[order], flux_unit).astype(np.float32),
        flux_err=njy_to(curve.flux_err[order], flux_unit).astype(np.float32),
    )


def pad_questions(questions: Sequence[ForecastQuestion]) -> dict[str, NDArray[Any]]:
    """Return padded inputs of a forecaster, ``target_flux`` and ``target_flux_err`` [batch, queries], padded with 0."""
    arrays = RaggedBatch.collate([question.tokens for question in questions]).padded()
    del arrays["metadata"]
    arrays |= pad_queries([question.queries for question in questions])
    for name in ("flux", "flux_err"):
        target = np.zeros(arrays["query_mask"].shape, dtype=np.float32)
        target[arrays["query_mask"]] = np.concatenate([getattr(question, name) for question in questions])
        arrays[f"target_{name}"] = target
    return arrays
