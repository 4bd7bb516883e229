"""Adapt the thresholds of a bundle to a survey with some of its unlabelled light curves.

Labelled objects, real ones from a folder or simulated ones, are re-observed with the cadence, bands, depth and noise
of the survey. The thresholds of the prediction sets and of `unusual` are refitted on the views of half of the objects,
and the bundle is scored before and after on the views of the other half. The weights of the network do not change.

Legend: N views.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.bundle import Bundle, load_bundle, write_manifest
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.models.posterior import Novelty, PredictionSets
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.confidence.sets import fit_sets_by_detections
from nightjar_alerts.training.data.dataset import read_dataset
from nightjar_alerts.training.data.reobserve.origins import read_colours
from nightjar_alerts.training.data.reobserve.patterns import CadenceLibrary, build_library
from nightjar_alerts.training.data.reobserve.templates import template_objects
from nightjar_alerts.training.data.reobserve.views import add_synthetic, find_origins, make_views
from nightjar_alerts.training.data.sample import PARTS, Sample, SurveyObject, collect, join
from nightjar_alerts.training.data.survey_readers import WAVELENGTH
from nightjar_alerts.training.data.surveys import as_observed, load_surveys
from nightjar_alerts.training.score.report import ServedPredictions
from nightjar_alerts.training.score.survey_scores import open_bundle, predict, summary
from nightjar_alerts.training.simulate.generate import simulate_objects

SURVEY: Final = "yours"
FALSE_ALARMS: Final = 0.05
"""Share of known objects that may be flagged as unusual."""
MIN_CURVES: Final = 20
SIMULATED_PER_CLASS: Final = 60
GALACTIC: Final = 1e-4
"""Redshifts below this are treated as those of stars."""


@dataclass(frozen=True, slots=True)
class Adaptation:
    """The adapted bundle, and its scores before and after on held-out views."""

    bundle: Bundle
    report: dict[str, Any]


def adapt(
    path: Path,
    like: Path,
    out: Path,
    *,
    origins: Path | None = None,
    number: int = 4000,
    version: str | None = None,
    seed: int = 0,
) -> Adaptation:
    """Write a new version of the bundle ``path`` to ``out``, adapted to the survey of the light curves ``like``.

    Parameters
    ----------
    like : Parquet file of ``import``; labels are ignored.
    origins : folder of labelled surveys, as for ``sample measure``; None: simulated objects.
    number : approximate number of views. version : version of the new bundle; default: the next patch.

    Raises
    ------
    ValueError
        If there are too few light curves, the bundle has other classes, or ``out`` is not empty.
    """
    bundle = load_bundle(path)
    if bundle.manifest.task != "classification" or bundle.manifest.classes.names != ELASTICC.names:
        raise ValueError(f"{path} does not have the {len(ELASTICC.names)} classes of the labelled objects")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} holds something already")
    library = library_of(read_dataset(like))
    objects, where = read_origins(origins, seed)
    fitted_origins = find_origins(objects, PARTS.index("train"), seed=seed, most=150)
    add_synthetic(fitted_origins, PARTS.index("train"), SIMULATED_PER_CLASS, seed=seed)
    colours = read_colours(None if origins is None else origins / "real" / "templates")
    views = as_observed(make_views(fitted_origins, library, number, seed=seed, colours=colours))
    predictions = predict(open_bundle(path), views, "nothing")
    views = views.take(predictions.rows_N)
    _, group_N = np.unique(views.group, return_inverse=True)
    fits = np.random.default_rng(seed).permutation(int(group_N.max()) + 1)[group_N] % 2 == 0
    sets, novelty = refit(bundle, predictions.take(fits), views.take(fits))
    new = _write(bundle, out, sets, novelty, version, {"like": like.name, "origins": where, "views": len(views)})
    held_out = views.take(~fits)
    report = {
        "bundle": f"{new.manifest.name} {new.manifest.version}",
        "of": f"{bundle.manifest.name} {bundle.manifest.version}",
        "like": {"file": like.name, **_cadence_figures(library)},
        "origins": {"from": where, "by class": fitted_origins.count()},
        "colours": "spectral templates" if colours.series else "slopes of the classes: no templates were given",
        "views": {"fitted": int(fits.sum()), "measured": len(held_out), "by class": _classes(views)},
        "before": _scores(path, held_out),
        "after": _scores(out, held_out),
    }
    return Adaptation(new, report)


def library_of(dataset: Sample) -> CadenceLibrary:
    """Return the cadences of unlabelled light curves. Raises ValueError if there are too few."""
    sample = collect(_objects(dataset))
    library = build_library(sample, name=lambda _: SURVEY)
    usable = len(library.rows.get(SURVEY, ()))
    if usable < MIN_CURVES:
        raise ValueError(f"{usable} light curves have five points or more; at least {MIN_CURVES} are needed")
    return library


def _objects(dataset: Sample) -> Iterator[SurveyObject]:
    nanometres = np.array([WAVELENGTH[band] for band in BANDS], dtype=np.float32)
    for row in range(len(dataset)):
        at = dataset.points(row)
        band = np.asarray(dataset.band[at], dtype=np.int8)
        yield SurveyObject(
            source=SURVEY,
            object_id=str(dataset.object_id[row]),
            mjd=dataset.mjd[at].astype(np.float64),
            flux=dataset.flux[at],
            flux_err=dataset.flux_err[at],
            band=band,
            detected=np.asarray(dataset.detected[at]),
            foreign=np.zeros(len(band), np.bool_),
            wavelength=nanometres[band],
            names=(str(dataset.object_id[row]),),
        )


def read_origins(folder: Path | None, seed: int) -> tuple[Sample, str]:
    """Return labelled objects and their provenance: the training part of real surveys, or simulated objects."""
    if folder is not None:
        sample, part = load_surveys(folder), PARTS.index("train")
        fits = template_objects(folder / "real" / "templates", part, 1, seed=seed)
        provenance = f"real surveys in {folder.name}" + (
            f", {len(fits)} objects made from published fits" if len(fits) else ""
        )
        return join([sample.take(sample.part == part), fits]), provenance
    nanometres = np.array([WAVELENGTH[band] for band in BANDS], dtype=np.float32)
    rows = [
        SurveyObject(
            source="simulated", object_id=drawn.object_id, mjd=drawn.mjd, flux=drawn.flux, flux_err=drawn.flux_err,
            band=drawn.band, detected=drawn.detected, foreign=np.zeros(len(drawn.band), np.bool_),
            wavelength=nanometres[drawn.band], label=ELASTICC.names.index(drawn.class_name), quality="simulated",
            z=drawn.redshift if drawn.redshift > GALACTIC else np.nan, names=(drawn.object_id,),
        )
        for drawn in simulate_objects(SIMULATED_PER_CLASS, seed + 1)
    ]  # fmt: skip
    return collect(rows), "simulated objects: no real origins were given"


def refit(bundle: Bundle, predictions: ServedPredictions, views: Sample) -> tuple[PredictionSets, Novelty | None]:
    """Refit the thresholds of the prediction sets and of novelty (`FALSE_ALARMS`); the latter is never lowered."""
    detections_N = views.detections
    object_N = np.unique(views.group, return_inverse=True)[1].astype(np.int64)
    fitted = fit_sets_by_detections(predictions.probabilities_NC, views.label, detections_N, object_N).sets
    sets = fitted.model_copy(update={"split": "views through the survey that it was adapted to"})
    novelty = bundle.manifest.novelty
    if novelty is not None and np.isfinite(predictions.novelty_N).all():
        level = max(novelty.threshold, float(np.quantile(predictions.novelty_N, 1.0 - FALSE_ALARMS)))
        changed: dict[str, Any] = {
            "threshold": min(level, 1.0),
            "false_alarm_rate": float((predictions.novelty_N > level).mean()),
            "by_detections": {},
            "split": sets.split,
            "objects": len(views),
        }
        novelty = novelty.model_copy(update=changed)
    return sets, novelty


def _write(
    bundle: Bundle, out: Path, sets: PredictionSets, novelty: Novelty | None, version: str | None, how: dict[str, Any]
) -> Bundle:
    """Copy the bundle and write its new manifest; graph and golden outputs are unchanged."""
    shutil.copytree(bundle.path, out, dirs_exist_ok=True)
    old = bundle.manifest
    major, minor, patch = old.version.split(".")
    update = {
        "version": version or f"{major}.{minor}.{int(patch) + 1}",
        "prediction_sets": sets,
        "novelty": novelty,
        "follow_up": {},  # measured with the thresholds of `unusual` before
        "data": {**old.data, "adapted": how},
    }
    return write_manifest(out, old.model_validate(old.model_dump() | _dumped(update)))


def _dumped(update: dict[str, Any]) -> dict[str, Any]:
    return {name: value.model_dump() if hasattr(value, "model_dump") else value for name, value in update.items()}


def _scores(path: Path, views: Sample) -> dict[str, Any]:
    """Return the scores of a bundle on views, overall and by number of detections."""
    predictions = predict(open_bundle(path), views, "nothing")
    detections_N: NDArray[np.int64] = views.detections[predictions.rows_N]
    label_N = views.label[predictions.rows_N]
    whole = summary(predictions, label_N)
    few = {
        f"{low} to {high} detections": _sets_only(predictions.take(here), label_N[here])
        for low, high in ((0, 4), (5, 9), (10, 19), (20, 10**9))
        if (here := (detections_N >= low) & (detections_N <= high)).any()
    }
    return {**whole, "by detections": few}


def _sets_only(predictions: ServedPredictions, label_N: NDArray[np.int64]) -> dict[str, Any]:
    scores = summary(predictions, label_N)
    return {name: scores[name] for name in ("objects", "top_1", "coverage", "size", "withheld", "sure_and_wrong")}


def _cadence_figures(library: CadenceLibrary) -> dict[str, Any]:
    """Return statistics of the survey's cadences."""
    sample = library.sample
    return {
        "curves": len(library.rows[SURVEY]),
        "points, median": float(np.median(sample.lengths)),
        "days, median": float(np.median([np.ptp(sample.mjd[sample.points(row)]) for row in range(len(sample))])),
        "bands": "".join(BANDS[number] for number in np.unique(sample.band)),
        "detections alone": library.only_detections[SURVEY],
    }


def _classes(views: Sample) -> dict[str, int]:
    counts = np.bincount(views.label, minlength=len(ELASTICC.names))
    return {name: int(count) for name, count in zip(ELASTICC.names, counts, strict=True) if count}
