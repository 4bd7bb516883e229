"""Input statistics of surveys for the manifest of a bundle, and error rates of the drift checks that use them.

Errors are injected into held-out objects of a survey. A window detects an error if the distance of that kind exceeds
the limit of :mod:`models.drift`. :func:`models.checks.photometry_warnings` checks the flux of single light curves.

Legend: N objects, W light curves of a window, K summary values of a light curve (:func:`models.drift.summary`).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from nightjar_alerts.models.bundle import Bundle, Manifest, SurveyStatistics, load_bundle, write_manifest
from nightjar_alerts.models.checks import photometry_warnings
from nightjar_alerts.models.common import markdown_table
from nightjar_alerts.models.drift import LIMITS, MIN_CURVES, WINDOW, InputReference, summary
from nightjar_alerts.models.lightcurve import Float32, Float64, Int64, LightCurve
from nightjar_alerts.training.data.sample import PARTS, Sample
from nightjar_alerts.training.data.statistics import DIGITS, quantiles
from nightjar_alerts.training.data.surveys import as_observed
from nightjar_alerts.training.score.report import rounded
from nightjar_alerts.training.score.survey_scores import open_bundle, predict

SOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    "crts": ("css", "crts_mantra"),
    "des": ("spcc", "des3yr"),
    "elasticc": ("elasticc",),
    "eros": ("eros1",),
    "gaia": ("gaia_alerts",),
    "lsst": ("mallorn",),
    "ogle": ("ogle_dn", "ogle_ews2025", "ogle2_ulens"),
    "panstarrs": ("ps1md", "foundation_dr1", "yse_dr1", "ps1_rrlyrae"),
    "ztf": ("ztf_sn", "ztf_dr", "ztf_ia2018"),
}
"""Sets of light curves of each survey, by the survey name used in requests."""
MIN_OBJECTS: Final = 100
MAX_REFERENCE, MAX_HELD_OUT = 4_000, 1_500
WINDOWS: Final = 1_000
MIN_OF_CLASS: Final = 10
COMMON: Final = 0.25
"""Largest fraction of a class for which an increase to one half counts as drift."""
FACTORS: Final = {"flux × 36": 36.0, "flux × 1000": 1e3, "flux / 36": 1 / 36, "flux / 1000": 1e-3}
UNIT_KINDS: Final = ("flux_scale", "error_ratio", "total_flux")
CODES: Final = ("implausible_depth", "total_flux")
UNIT_CODES: Final = {"implausible_depth", "magnitudes_as_flux"}
UNITS: Final = ("window", "window of alerts", "window of one class", "light curve")
"""Inputs of a check: 200 light curves; 200 that end at a random detection; 200 of one class; one light curve."""


def survey_statistics(sample: Sample, manifest: Manifest, seed: int = 0) -> dict[str, SurveyStatistics]:
    """Return the input statistics of each survey of :data:`SOURCES` that has `MIN_OBJECTS` labelled objects."""
    found = {}
    for survey in SOURCES:
        objects = _objects(sample, survey, "train", MAX_REFERENCE, seed)
        if np.count_nonzero(objects.label >= 0) >= MIN_OBJECTS:
            found[survey] = _statistics(_rows(objects, manifest), objects.label, manifest)
    return found


def _objects(sample: Sample, survey: str, part: str, number: int, seed: int) -> Sample:
    chosen = np.flatnonzero(np.isin(sample.source, SOURCES[survey]) & (sample.part == PARTS.index(part)))
    return as_observed(sample.take(np.sort(np.random.default_rng(seed).permutation(chosen)[:number])))


def _rows(objects: Sample, manifest: Manifest) -> Float64:
    return np.stack([summary(objects.curve(row, "everything"), manifest) for row in range(len(objects))])


def _statistics(rows_NK: Float64, label_N: Int64, manifest: Manifest) -> SurveyStatistics:
    bands, columns, classes = manifest.bands, manifest.metadata_columns, manifest.taxonomy.names
    points_NB, missing_M = rows_NK[:, 3 : 3 + len(bands)], rows_NK[:, 3 + len(bands) :].mean(0)
    lowest_N = rows_NK[~np.isnan(rows_NK[:, 2]), 2]
    count_C = np.bincount(label_N[label_N >= 0], minlength=len(classes))
    return SurveyStatistics(
        light_curves=len(rows_NK),
        flux_error=quantiles(rows_NK[:, 0]),
        error_ratio=quantiles(rows_NK[:, 1]),
        lowest_flux=quantiles(lowest_N) if len(lowest_N) >= MIN_CURVES else None,
        points_per_band={name: quantiles(points_NB[:, index]) for index, name in enumerate(bands)},
        missing_bands=_fractions(bands, (points_NB == 0).mean(0)),
        missing_metadata={name: value for name, value in _fractions(columns, missing_M).items() if value < 1},
        classes={name: value for name, value in _fractions(classes, count_C / count_C.sum()).items() if value > 0},
    )


def _fractions(names: tuple[str, ...], values: Float64) -> dict[str, float]:
    return dict(zip(names, values.round(DIGITS).tolist(), strict=True))


def add_statistics(bundle: Path, sample: Sample) -> Bundle:
    """Write the statistics of surveys into the manifest of a bundle."""
    manifest = load_bundle(bundle).manifest
    return write_manifest(
        bundle, manifest.model_copy(update={"survey_statistics": survey_statistics(sample, manifest)})
    )


def measure_drift(path: Path, sample: Sample, part: str, seed: int = 0) -> dict[str, Any]:
    """Return false alarm and detection rates of each survey of a bundle, for windows and for single light curves.

    Parameters
    ----------
    path : bundle with input statistics of surveys.
    part : part of the split to draw objects from, ``valid`` or ``test``.
    """
    model = open_bundle(path)
    manifest = model.manifest
    report = {}
    for survey in manifest.survey_statistics:
        objects = _objects(sample, survey, part, MAX_HELD_OUT, seed)
        if len(objects) < MIN_OBJECTS:
            continue
        predictions = predict(model, objects, "everything")
        class_N = np.full(len(objects), -1)
        class_N[predictions.rows_N] = predictions.probabilities_NC.argmax(1)
        report[survey] = {
            "light_curves": len(objects),
            **_HeldOut(objects, class_N, survey, manifest, seed).report(),
        }
    return rounded(report)  # type: ignore[no-any-return]


class _HeldOut:
    """Drift checks of one survey on held-out objects, as observed and with injected errors."""

    def __init__(self, objects: Sample, class_N: Int64, survey: str, manifest: Manifest, seed: int) -> None:
        self._reference = InputReference(manifest, manifest.survey_statistics[survey])
        self._manifest, self._bands, self._rng = manifest, len(manifest.bands), np.random.default_rng(seed)
        self._label_N, self._class_N = objects.label, class_N
        self._curves = [replace(objects.curve(row, "everything"), survey=survey) for row in range(len(objects))]
        self._rows_NK = self._summaries(self._curves)
        self._totals = [
            _with_total_flux(curve, objects.total_flux[objects.points(row)]) for row, curve in enumerate(self._curves)
        ]

    def report(self) -> dict[str, Any]:
        """Return the false alarm rates and the detection rates of injected errors, by unit."""
        return {"false alarms": self._false_alarms(), "caught": self._detection_rates()}

    def _false_alarms(self) -> dict[str, dict[str, float]]:
        histories = self._windows(self._summaries([_as_alert(curve, self._rng) for curve in self._curves]))
        warned = [_warnings(curve) for curve in self._curves]
        alarms = {
            "window": self._windows(self._rows_NK),
            "window of alerts": {kind: histories[kind] for kind in UNIT_KINDS},
            "light curve": {code: float(np.mean([code in found for found in warned])) for code in CODES},
        }
        counts = np.bincount(self._label_N[self._label_N >= 0])
        if (counts >= MIN_OF_CLASS).any():
            of_one = self._windows(self._rows_NK, np.flatnonzero(counts >= MIN_OF_CLASS), fraction=1.0)
            alarms["window of one class"] = {kind: of_one[kind] for kind in UNIT_KINDS}
        return alarms

    def _detection_rates(self) -> dict[str, dict[str, float | None]]:
        rates: dict[str, dict[str, float | None]] = {}
        for name, factor in FACTORS.items():
            scaled = [_scaled(curve, factor) for curve in self._curves]
            rates[name] = {
                "window": self._windows(self._summaries(scaled))["flux_scale"],
                "light curve": float(np.mean([bool(_warnings(curve) & UNIT_CODES) for curve in scaled])),
            }
        rates["total flux"] = {
            "window": self._windows(self._summaries(self._totals))["total_flux"],
            "light curve": float(np.mean(["total_flux" in _warnings(curve) for curve in self._totals])),
        }
        thinned = [_thinned(curve, self._rng) for curve in self._curves]
        rates["half of the points lost"] = {"window": self._windows(self._summaries(thinned))["points_per_band"]}
        first = 3 + self._bands
        band = 3 + int((self._rows_NK[:, 3:first] == 0).mean(0).argmin())
        column = first + int(self._rows_NK[:, first:].mean(0).argmin())
        rates["a band lost by half of the light curves"] = {"window": self._with_value(band, 0.0, "missing_bands")}
        rates["a metadata column lost by half of the light curves"] = {
            "window": self._with_value(column, 1.0, "missing_metadata")
        }
        counts = np.bincount(self._label_N[self._label_N >= 0])
        rare = np.flatnonzero((counts >= MIN_OF_CLASS) & (counts <= COMMON * counts.sum()))
        caught = self._windows(self._rows_NK, rare, fraction=0.5)["class_mix"] if len(rare) else None
        rates["half of the light curves of one class"] = {"window": caught}
        return rates

    def _with_value(self, column: int, value: float, kind: str) -> float | None:
        """Return the share of windows above the limit if half of the light curves get a value in a summary column.

        None if most light curves have that value already.
        """
        if (self._rows_NK[:, column] == value).mean() > 0.5:
            return None
        changed_NK = self._rows_NK.copy()
        changed_NK[self._rng.permutation(len(changed_NK)) % 2 == 0, column] = value
        return self._windows(changed_NK)[kind]

    def _summaries(self, curves: list[LightCurve]) -> Float64:
        return np.stack([summary(curve, self._manifest) for curve in curves])

    def _windows(self, rows_NK: Float64, classes: Int64 | None = None, fraction: float = 0.0) -> dict[str, float]:
        """Return the share of windows above the limit, by kind.

        Windows are drawn with replacement if there are fewer than 400 objects.

        Parameters
        ----------
        classes : classes to draw from, one for each window. fraction : share of the window replaced by that class.
        """
        number, above = len(rows_NK), dict.fromkeys(LIMITS, 0)
        for _ in range(WINDOWS):
            chosen_W = self._rng.choice(number, WINDOW, replace=number < 2 * WINDOW)
            if classes is not None:
                pool = np.flatnonzero(self._label_N == self._rng.choice(classes))
                chosen_W[: int(fraction * WINDOW)] = self._rng.choice(pool, int(fraction * WINDOW))
            distances = self._reference.distances(rows_NK[chosen_W], self._class_N[chosen_W])
            for kind, limit in LIMITS.items():
                above[kind] += distances[kind] > limit
        return {kind: count / WINDOWS for kind, count in above.items()}


def _warnings(curve: LightCurve) -> set[str]:
    return {found.reason for found in photometry_warnings(curve.mjd, curve.flux, curve.flux_err, curve.survey)}


def _scaled(curve: LightCurve, factor: float) -> LightCurve:
    scale = np.float32(factor)
    return replace(curve, flux=curve.flux * scale, flux_err=curve.flux_err * scale)


def _with_total_flux(curve: LightCurve, total_flux: Float32) -> LightCurve:
    """Return a light curve with total flux; if that is unknown, add a constant as bright as the brightest point."""
    if np.isfinite(total_flux).all():
        return replace(curve, flux=total_flux.astype(np.float32))
    return replace(curve, flux=curve.flux + np.abs(curve.flux).max())


def _thinned(curve: LightCurve, rng: np.random.Generator) -> LightCurve:
    """Return a light curve with about half of its points, at least one."""
    kept = rng.random(len(curve)) < 0.5
    kept[rng.integers(len(curve))] = True
    return curve.rows(kept)


def _as_alert(curve: LightCurve, rng: np.random.Generator) -> LightCurve:
    """Return the points up to a random detection, like the history in an alert."""
    detections = np.flatnonzero(curve.detected)
    return curve.rows(np.arange(len(curve)) <= rng.choice(detections)) if len(detections) else curve


def drift_page(report: Mapping[str, Any]) -> str:
    """Return the tables of a :func:`measure_drift` report in Markdown."""
    surveys = list(report)
    alarms, caught = (
        [
            [name, unit, *(_percent(report[survey][part].get(first, {}).get(second)) for survey in surveys)]
            for name, unit, first, second in rows
        ]
        for part, rows in (
            ("false alarms", [(f"`{kind}`", unit, unit, kind) for unit in UNITS for kind in (*LIMITS, *CODES[:1])]),
            ("caught", [(fault, unit, fault, unit) for fault in report[surveys[0]]["caught"] for unit in UNITS]),
        )
    )
    tables = (
        markdown_table([title, "unit", *surveys], [row for row in rows if set(row[2:]) != {"-"}])
        for title, rows in (("false alarms", alarms), ("caught", caught))
    )
    return "\n\n".join(tables) + "\n"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
