"""Boosted trees on features of the same objects: the baseline in the columns seen, left out and adapted.

Notable:

- the training set has the objects of the training part and their re-observations; half of the rows have a redshift;
- rows are weighted by class (`CLASS_POWER`), and within a class every cadence has the same weight, so that the survey
  does not reveal the class. Equal weights of 20 classes would favour rare classes over Ia;
- surveys are left out in groups (`GROUPS`). ``left out`` trains on nothing of the group: no object, no view of one of
  its objects, no view through its patterns. ``adapted`` has the last, which need no label;
- the 0.9 sets have thresholds fitted on the valid part, raw and through patterns, as far as the column allows.

Features are the statistics that the networks work out in their graph, and shapes and colours:

- curve, lag and period statistics (`models.networks.statistics`), NaN where one is not defined;
- shapes and colours at days from the maximum (``models.networks.statistics.shape_statistics``).

Shapes and colours contain neither brightness nor survey. Points are limited as in a bundle with default limits.

Legend: N rows or objects, F features, C classes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import lightgbm
import numpy as np
import torch
from numpy.typing import NDArray

from nightjar_alerts.models.lightcurve import Limits, RaggedBatch, Tokens, featurise
from nightjar_alerts.models.networks.statistics import curve_statistics, period_statistics
from nightjar_alerts.models.networks.statistics.curve_statistics import lag_statistics
from nightjar_alerts.models.networks.statistics.points import points
from nightjar_alerts.models.networks.statistics.shape_statistics import shape_statistics
from nightjar_alerts.models.photometry import BANDS
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.fit.boosting import boost
from nightjar_alerts.training.reobserve.patterns import family
from nightjar_alerts.training.score.confidence import conformal_quantile
from nightjar_alerts.training.sky.load import as_observed
from nightjar_alerts.training.sky.measure import Column, measure
from nightjar_alerts.training.sky.readers import LABELS_TO_MEASURE
from nightjar_alerts.training.sky.record import ContextPolicy, SurveySample, join
from nightjar_alerts.training.sky.scores import COVERAGE, SkyAnswers

Float32 = NDArray[np.float32]
LIMITS: Final = Limits()
BATCH: Final = 64
COLUMNS: Final = ("z_final", "z_final_err")
"""Without dust: its availability reveals the survey."""


def features_of(sky: SurveySample, reveal: ContextPolicy = "nothing") -> tuple[Float32, NDArray[np.intp]]:
    """Features (M, F) and the rows of ``sky`` that they belong to: objects without a usable point have none."""
    inputs = [(row, tokens) for row in range(len(sky)) if (tokens := tokens_of(sky, row, reveal)) is not None]
    order = sorted(range(len(inputs)), key=lambda place: len(inputs[place][1]))
    values: list[Float32 | None] = [None] * len(inputs)
    for start in range(0, len(order), BATCH):
        places = order[start : start + BATCH]
        block = _in_graph([inputs[place][1] for place in places])
        for place, row in zip(places, block, strict=True):
            values[place] = row
    rows = np.array([row for row, _ in inputs], dtype=np.intp)
    vectors = [value for value in values if value is not None]
    return (np.stack(vectors) if vectors else np.zeros((0, 0), np.float32)), rows


def tokens_of(sky: SurveySample, row: int, reveal: ContextPolicy, limits: Limits = LIMITS) -> Tokens | None:
    """Make an object the tokens of a network; None without a point."""
    curve = sky.curve(row, reveal)
    return featurise(curve, limits, "FLUXCAL", COLUMNS) if len(curve) else None


def _in_graph(tokens: Sequence[Tokens]) -> Float32:
    """Statistics of the networks and the revealed numbers, NaN where unknown."""
    padded = RaggedBatch.collate(tokens).padded()
    flux, flux_err, time = (torch.from_numpy(padded[name]) for name in ("flux", "flux_err", "time"))
    band, mask = torch.from_numpy(padded["band"]), torch.from_numpy(padded["mask"])
    metadata = padded["metadata"]
    redshift = torch.from_numpy(metadata[:, 0].copy())
    with torch.no_grad():
        curves = points(flux, flux_err, time, band, mask, len(BANDS))
        statistics = [
            curve_statistics.statistics(curves, redshift),
            lag_statistics(curves),
            period_statistics.period_statistics(curves),
            shape_statistics(curves, redshift),
        ]
    *blocks, shapes = (torch.where(part.mask_BK, part.value_BK, torch.nan).numpy() for part in statistics)
    return np.concatenate([*blocks, metadata, shapes], axis=1, dtype=np.float32)


GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "ztf": ("ztf_sn", "ztf_ia2018", "ztf_dr"),
    "des": ("spcc", "des3yr", "snls"),
    "ps1": ("ps1md", "foundation_dr1", "osc", "yse_dr1", "ps1_rrlyrae"),
    "near": ("csp_dr3", "cfa3", "cfa124", "kait", "loss", "slsne", "manytde"),
    "rest": ("elasticc", "s82_rrlyrae", "ogle_dn", "ogle_ews2025", "ogle2_ulens"),
}
"""Surveys that are left out together."""
CLASS_POWER: Final = 0.6
OF_A_SOURCE: Final = 1500
ROUNDS: Final = 160
PARAMETERS: Final[Mapping[str, Any]] = {
    "objective": "multiclass", "num_class": len(ELASTICC.names), "learning_rate": 0.08, "num_leaves": 24,
    "min_data_in_leaf": 20, "feature_fraction": 0.25, "bagging_fraction": 0.7, "bagging_freq": 1, "lambda_l2": 2.0,
    "max_bin": 63, "num_threads": 1, "verbosity": -1, "deterministic": True, "force_col_wise": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class FeatureRows:
    """Features of labelled rows and what decides who may train on them.

    ``value_NF``; ``label_N``; ``looks_N`` the survey that a row looks like; ``origin_N`` the source of its object;
    ``view_N`` whether it is a view.
    """

    value_NF: Float32
    label_N: NDArray[np.int64]
    looks_N: NDArray[np.str_]
    origin_N: NDArray[np.str_]
    view_N: NDArray[np.bool_]

    def save(self, path: Path) -> None:
        """Write to an npz without pickles."""
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, allow_pickle=False, **{name: getattr(self, name) for name in self.__slots__})

    def take(self, chosen: NDArray[np.bool_]) -> "FeatureRows":
        """Return the chosen rows."""
        return FeatureRows(*(getattr(self, name)[chosen] for name in self.__slots__))

    def allowed(self, column: Column, group: Sequence[str]) -> NDArray[np.bool_]:
        """Rows that a model of a column may see when the surveys of ``group`` are left out, (N,)."""
        if column == "seen":
            return np.ones(len(self.label_N), dtype=np.bool_)
        families = sorted({family(source) for source in group})
        own = np.isin(self.origin_N, group)
        return np.asarray(~own & (~np.isin(self.looks_N, families) if column == "left out" else self.view_N | ~own))


def read_rows(path: Path) -> FeatureRows:
    """Read what `FeatureRows.save` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        return FeatureRows(**{name: arrays[name] for name in FeatureRows.__slots__})


def rows_of(raw: SurveySample, views: SurveySample, *, most: int = OF_A_SOURCE, seed: int = 0) -> FeatureRows:
    """Return the rows of one part: labelled objects and re-observations, a random half of them with a redshift.

    Parameters
    ----------
    most : raw objects of one class and source, so that one large set does not cost the time of all others.
    """
    rng = np.random.default_rng(seed)
    raw = as_observed(raw.take((raw.label >= 0) & ~np.isin(raw.source, sorted(LABELS_TO_MEASURE))))
    raw = raw.take(_at_most(raw, most, rng))
    sent_views = as_observed(views.take(~np.isin(views.raw_label, sorted(LABELS_TO_MEASURE))))
    both = join([raw, sent_views])
    is_view = np.arange(len(both)) >= len(raw)
    has_redshift = rng.random(len(both)) < 0.5
    blocks, order = [], []
    shares: dict[ContextPolicy, NDArray[np.bool_]] = {"nothing": ~has_redshift, "redshift": has_redshift}
    for reveal, chosen in shares.items():
        values, rows = features_of(both.take(chosen), reveal)
        blocks.append(values)
        order.append(np.flatnonzero(chosen)[rows])
    place = np.concatenate(order)
    origin = np.where(is_view, both.raw_label, both.source)[place]
    looks = np.array([family(str(source)) for source in both.source[place]])
    return FeatureRows(np.concatenate(blocks), both.label[place], looks, origin, is_view[place])


def _at_most(sky: SurveySample, most: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return objects, with a maximum number of one class and source."""
    chosen = []
    for label in np.unique(sky.label):
        for source in np.unique(sky.source[sky.label == label]):
            chosen.append(rng.permutation(np.flatnonzero((sky.label == label) & (sky.source == source)))[:most])
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, dtype=np.intp)


def weights_of(rows: FeatureRows) -> NDArray[np.float64]:
    """Weight of every row: its class softly, its survey within the class evenly; mean 1, (N,)."""
    weight = np.zeros(len(rows.label_N))
    for label in np.unique(rows.label_N):
        mine = rows.label_N == label
        _, place, counts = np.unique(rows.looks_N[mine], return_inverse=True, return_counts=True)
        share = 1.0 / np.sqrt(counts[place])
        weight[mine] = share / share.sum() * mine.sum() ** CLASS_POWER
    return np.asarray(weight / weight.mean())


@dataclass(frozen=True, slots=True, eq=False)
class CalibratedTrees:
    """Boosted trees, and the largest 1 - p within a 0.9 set."""

    booster: lightgbm.Booster
    threshold: float

    def probabilities(self, value_NF: Float32) -> NDArray[np.float64]:
        """Shape (N, C)."""
        return np.asarray(self.booster.predict(value_NF, num_threads=1), dtype=np.float64)


def train(rows: FeatureRows, calibration: FeatureRows, *, seed: int = 0, rounds: int = ROUNDS) -> CalibratedTrees:
    """Boost trees on ``rows`` and fit the threshold of their sets on ``calibration``."""
    booster = boost(rows.value_NF, rows.label_N, PARAMETERS, seed=seed, rounds=rounds, weight_N=weights_of(rows))
    probabilities = np.asarray(booster.predict(calibration.value_NF, num_threads=1))
    return CalibratedTrees(booster, threshold_of(probabilities, calibration.label_N))


def threshold_of(p_NC: NDArray[np.float64], label_N: NDArray[np.int64]) -> float:
    """Return the largest 1 - p within a 0.9 set."""
    score = 1.0 - p_NC[np.arange(len(label_N)), label_N]
    score[p_NC.argmax(axis=1) == label_N] = 0.0  # the first class is always in the set
    return min(conformal_quantile(score, 1.0 - COVERAGE), 1.0)


@dataclass(slots=True)
class FeatureCache:
    """Features of the scored objects, computed once for all models."""

    features_by_key: dict[tuple[str, str], tuple[Float32, NDArray[np.intp]]] = field(default_factory=dict)

    def features(self, sky: SurveySample, reveal: ContextPolicy) -> tuple[Float32, NDArray[np.intp]]:
        """Return features of the objects of a sky, and which objects they are, as `features_of` does."""
        digest = sha256(sky.object_id.tobytes() + sky.source.tobytes() + sky.offsets.tobytes()).hexdigest()
        if (digest, reveal) not in self.features_by_key:
            self.features_by_key[digest, reveal] = features_of(sky, reveal)
        return self.features_by_key[digest, reveal]


def asker(
    models: Mapping[str, CalibratedTrees], cache: FeatureCache
) -> Callable[[SurveySample, ContextPolicy], SkyAnswers]:
    """Return a function that classifies each object with the model of its source.

    Parameters
    ----------
    models : by group of `GROUPS`, for the objects of its surveys alone; the one named "" answers about all.
    """

    def ask(sky: SurveySample, reveal: ContextPolicy) -> SkyAnswers:
        values, rows = cache.features(sky, reveal)
        probabilities = np.full((len(rows), len(ELASTICC.names)), np.nan)
        threshold = np.ones(len(rows))
        for group, trees in models.items():
            mine = np.ones(len(rows), np.bool_) if not group else np.isin(sky.source[rows], sources_of(group))
            if mine.any():
                probabilities[mine], threshold[mine] = trees.probabilities(values[mine]), trees.threshold
        is_answered = np.isfinite(probabilities[:, 0])
        inside = 1.0 - probabilities <= threshold[:, None]
        inside[np.arange(len(rows)), np.nan_to_num(probabilities).argmax(axis=1)] = True
        nothing = np.full(len(rows), np.nan)
        return SkyAnswers(rows, probabilities, inside, nothing, np.zeros(len(rows), np.bool_)).take(is_answered)

    return ask


def sources_of(group: str) -> list[str]:
    """Return sources of a group, and the families under which views look like them."""
    return sorted({*GROUPS[group], *(family(source) for source in GROUPS[group])})


def trees_report(
    parts: Mapping[str, FeatureRows],
    sky: SurveySample,
    views: SurveySample,
    *,
    seeds: Sequence[int] = (0,),
    left_out: Sequence[str] = tuple(GROUPS),
    rounds: int = ROUNDS,
    say: Callable[[str], None] = lambda _: None,
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
    name: str = "boosted trees",
) -> dict[str, Any]:
    """Train and score every column; the report that ``measure --reports`` reads.

    Parameters
    ----------
    parts : rows of ``train`` and ``valid``. views : views of the test part. left_out : groups to leave out.
    seeds : of the column ``seen``, which is left out without one.
    keep : called with the report so far when a column is done.
    name : of the model, in the report.
    """
    cache, reports = FeatureCache(), dict[str, Any]({name: {}})
    report = {"reports": reports, "rows": {part: len(rows.label_N) for part, rows in parts.items()}, "rounds": rounds}
    for seed in seeds:
        say(f"seen, seed {seed}")
        learned = train(parts["train"], parts["valid"], seed=seed, rounds=rounds)
        mine = name if seed == seeds[0] else f"{name}, seed {seed}"
        reports[mine] = {"seen": measure(mine, asker({"": learned}, cache), sky, views)}
        keep(report)
    columns: tuple[Column, ...] = ("left out", "adapted")
    for column in columns if left_out else ():
        models = {}
        for group in left_out:
            say(f"{column}, {group}")
            allowed = {part: rows.allowed(column, GROUPS[group]) for part, rows in parts.items()}
            some = {part: rows.take(allowed[part]) for part, rows in parts.items()}
            models[group] = train(some["train"], some["valid"], seed=seeds[0] if seeds else 0, rounds=rounds)
        reports[name][column] = measure(name, asker(models, cache), sky, views)
        keep(report)
    return report
