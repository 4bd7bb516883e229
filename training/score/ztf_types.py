"""Cross-validation of a model of ZTF's supernovae in six classes, compared with trees alone.

Differences of macro-F1 are bootstrapped over objects, with the same draws for both models. Legend as in
`training.fit.ztf_types`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.models.lightcurve import Float32, Float64
from nightjar_alerts.training.confidence.ensemble import equal_weights, pooled
from nightjar_alerts.training.fit.class_map import mapped_logits
from nightjar_alerts.training.fit.labelled import POWER
from nightjar_alerts.training.fit.trees.forest import boost, tree_logits
from nightjar_alerts.training.fit.trees.parameters import REGULAR, REGULAR_ROUNDS, ZTF_TYPES, ZTF_TYPES_ROUNDS
from nightjar_alerts.training.fit.ztf_types import FOLDS, NUMBER, Int, SupernovaDraws, ZtfTypesFit, fit_ztf_types
from nightjar_alerts.training.metrics import confusion, macro_f1, paired_macro_f1, softmax

ALONE: Final[Mapping[str, tuple[int, Mapping[str, Any]]]] = {
    "trees": (ZTF_TYPES_ROUNDS, {}),
    "more regular trees": (REGULAR_ROUNDS, REGULAR),
}
"""Trees alone that what is fitted is compared with: rounds, and changes of `ZTF_TYPES`."""


def answers(fit: ZtfTypesFit, drawn: SupernovaDraws, rows: NDArray[np.intp]) -> dict[str, Float64]:
    """Probabilities [N, 6] of the trees inside, of the heads, and of both together."""
    trees_NC = tree_logits(fit.forest, drawn.statistics[rows])
    heads_NC = mapped_logits(drawn.heads_NHC[rows], fit.map_6C, fit.bias_6)
    length_N, unknown_N = drawn.light_curves.lengths[rows], np.zeros(len(rows), np.bool_)
    both_NC = pooled(equal_weights(fit.forest, length_N), trees_NC, heads_NC, length_N, unknown_N)
    named = {"trees inside": trees_NC, "heads": heads_NC, "both": both_NC}
    return {name: softmax(logits_NC) for name, logits_NC in named.items()}


def _boosted(
    value_NF: Float32, label_N: Int, other_MF: Float32, seeds: Sequence[int], rounds: int, **changes: Any
) -> list[Int]:
    """Fit trees with every seed to some light curves; return their predicted classes of others."""
    weight = np.bincount(label_N, minlength=len(NUMBER))[label_N].astype(np.float64) ** (POWER - 1.0)
    named = []
    for seed in seeds:
        parameters = {**ZTF_TYPES, "num_class": len(NUMBER), **changes}
        booster = boost(value_NF, label_N, parameters, seed=seed, rounds=rounds, weight_N=weight / weight.mean())
        named.append(np.asarray(booster.predict(other_MF, num_threads=1)).argmax(axis=1).astype(np.int64))
    return named


def paired(truth: Int, one: Int, other: Int, seed: int = 0) -> tuple[float, float, float]:
    """Return the difference of macro-F1, and its central 95 % over bootstrap draws of the objects."""
    return paired_macro_f1(truth, one, other, len(NUMBER), seed=seed)


def _score(truth: Int, named: Int) -> float:
    return macro_f1(confusion(truth, named, len(NUMBER)))


def folds(
    drawn: SupernovaDraws, *, draws: Sequence[int] = (0, 1, 2), seeds: Sequence[int] = (0, 1, 2)
) -> dict[str, Any]:
    """Cross-validate ``fit_ztf_types`` and trees alone on complete light curves.

    Parameters
    ----------
    draws : seeds of the folds, and of the trees inside. seeds : of the trees alone, of both kinds in `ALONE`.
    """
    rows, truth = np.flatnonzero(drawn.unlearned_O), drawn.label_O
    report: dict[str, Any] = {"objects": len(rows), "classes": np.bincount(truth[rows]).tolist(), "draws": {}}
    for draw in draws:
        named = _folded(drawn, draw, seeds)
        report["draws"][str(draw)] = compared(truth[rows], {name: top[rows] for name, top in named.items()}, seeds)
    return report


def compared(truth: Int, named: Mapping[str, Int], seeds: Sequence[int]) -> dict[str, Any]:
    """Return the scores of all models, and the lead of ``both`` over each kind of trees alone, mean over seeds."""
    pairs = {kind: [paired(truth, named["both"], named[f"{kind} {seed}"], seed) for seed in seeds] for kind in ALONE}
    return {
        "macro-F1": {name: _score(truth, top) for name, top in named.items()},
        "F1": {name: _each(truth, top) for name, top in named.items()},
        "difference": {
            kind: [float(value) for value in np.mean(differences, axis=0)] for kind, differences in pairs.items()
        },
    }


def _folded(drawn: SupernovaDraws, draw: int, seeds: Sequence[int]) -> dict[str, Int]:
    """Return the class that each model predicts for the objects that the branches have not learned from."""
    objects = len(drawn.unlearned_O)
    fold_O = np.random.default_rng(draw).permutation(drawn.group_O.max() + 1)[drawn.group_O] % FOLDS
    named = {name: np.zeros(objects, np.int64) for name in ("trees inside", "heads", "both")}
    named |= {f"{kind} {seed}": np.zeros(objects, np.int64) for kind in ALONE for seed in seeds}
    values_OF = drawn.statistics[:objects]
    for fold in range(FOLDS):
        tested_O = drawn.unlearned_O & (fold_O == fold)
        rows = np.flatnonzero(tested_O)  # complete light curves come first
        fit = fit_ztf_types(drawn, ~tested_O, seed=draw)
        for name, p_NC in answers(fit, drawn, rows).items():
            named[name][rows] = p_NC.argmax(axis=1)
        learned = values_OF[~tested_O], drawn.label_O[~tested_O]
        for kind, (rounds, changes) in ALONE.items():
            tops = _boosted(*learned, values_OF[rows], seeds, rounds, **changes)
            for seed, top in zip(seeds, tops, strict=True):
                named[f"{kind} {seed}"][rows] = top
    return named


def _each(truth: Int, named: Int) -> dict[str, float]:
    counts = confusion(truth, named, len(NUMBER))
    f1 = 2 * np.diag(counts) / np.maximum(counts.sum(0) + counts.sum(1), 1)
    return dict(zip(NUMBER, f1.tolist(), strict=True))
