"""ZTF's supernovae in six classes: bundles of that taxonomy and trees on the same objects, paired.

Trees learn from the training part alone. A bundle is scored on the objects of the test part that its own split left
for testing (the split of `training.data.dataset`, by the fractions in its recipe), so that neither has seen any. The
difference of macro-F1 is bootstrapped over objects, both models on the same draws.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import lightgbm
import numpy as np
from numpy.typing import NDArray

from models.bundle import Manifest, load_bundle
from models.taxonomy import ZTF_SUPERNOVAE
from training.importers.surveys import ZTF_CLASSES
from training.score.metrics import confusion, macro_f1
from training.sky.load import as_sent
from training.sky.record import PARTS, Sky
from training.sky.scores import ask_bundle
from training.sky.trees import features_of

Int = NDArray[np.int64]

NUMBER: Final = {name: number for number, name in enumerate(ZTF_SUPERNOVAE.names)}
ROUNDS: Final = 120
DRAWS: Final = 1000
PARAMETERS: Final[Mapping[str, Any]] = {
    "objective": "multiclass", "num_class": len(NUMBER), "learning_rate": 0.06, "num_leaves": 15,
    "min_data_in_leaf": 12, "feature_fraction": 0.2, "bagging_fraction": 0.7, "bagging_freq": 1, "lambda_l2": 3.0,
    "max_bin": 63, "num_threads": 1, "verbosity": -1, "deterministic": True, "force_col_wise": True,
}  # fmt: skip
POWER: Final = 0.4
"""Of class size in a class's weight: macro-F1 asks for rare classes as much as for Ia, but not at any price."""


def six_report(sky: Sky, bundles: Sequence[Path], *, seeds: Sequence[int] = (0, 1, 2)) -> dict[str, Any]:
    """Macro-F1 of trees and bundles, and the paired differences.

    Raises
    ------
    ValueError
        For a bundle of other classes.
    """
    six = as_sent(sky.take(sky.source == "ztf_sn"))
    label = np.array([NUMBER.get(ZTF_CLASSES.get(str(kind), ""), -1) for kind in six.raw_label], dtype=np.int64)
    six, label = six.take(label >= 0), label[label >= 0]
    learns, asked = six.part == PARTS.index("train"), six.part == PARTS.index("test")
    named = _trees(six, label, learns, asked, seeds)
    truth, test = label[asked], six.take(asked)
    scores = [_score(truth, row) for row in named]
    report: dict[str, Any] = {
        "objects": len(truth),
        "trees": {"macro-F1": float(np.mean(scores)), "spread": float(np.std(scores)), "seeds": len(scores)},
        "bundles": {},
    }
    for path in bundles:
        manifest = load_bundle(path).manifest
        if manifest.task != "classification" or manifest.classes.names != ZTF_SUPERNOVAE.names:
            raise ValueError(f"{path} does not tell the six classes of ZTF's supernovae apart")
        report["bundles"][f"{manifest.name} {manifest.version}"] = _of_bundle(path, manifest, test, truth, named)
    return report


def _trees(
    six: Sky, label: Int, learns: NDArray[np.bool_], asked: NDArray[np.bool_], seeds: Sequence[int]
) -> list[Int]:
    """Return the classes that trees of every seed name for the asked objects."""
    value_NF, rows = features_of(six)
    if len(rows) != len(six):
        raise ValueError("every object has a point, so every one has features")
    counts = np.bincount(label[learns], minlength=len(NUMBER))
    weight = counts[label[learns]].astype(np.float64) ** (POWER - 1.0)
    named = []
    for seed in seeds:
        data = lightgbm.Dataset(value_NF[learns], label[learns], weight=weight / weight.mean())
        booster = lightgbm.train({**PARAMETERS, "seed": seed}, data, num_boost_round=ROUNDS)
        named.append(np.asarray(booster.predict(value_NF[asked], num_threads=1)).argmax(axis=1).astype(np.int64))
    return named


def _of_bundle(path: Path, manifest: Manifest, test: Sky, truth: Int, named: Sequence[Int]) -> dict[str, Any]:
    """Macro-F1 of a bundle and of the trees on the objects that neither has seen, and the paired difference."""
    unseen = np.flatnonzero(left_for_testing(manifest, test.object_id))
    answers = ask_bundle(path, test.take(unseen), "nothing")
    rows = unseen[answers.rows_N]
    top = answers.probabilities_NC.argmax(axis=1).astype(np.int64)
    differences = [paired(truth[rows], top, trees[rows], seed) for seed, trees in enumerate(named)]
    middle = np.mean(differences, axis=0)
    return {
        "objects": len(rows),
        "macro-F1": _score(truth[rows], top),
        "trees": float(np.mean([_score(truth[rows], trees[rows]) for trees in named])),
        "difference": float(middle[0]),
        "interval": [float(middle[1]), float(middle[2])],
    }


def left_for_testing(manifest: Manifest, names: NDArray[np.str_]) -> NDArray[np.bool_]:
    """Objects that a bundle's own split left for testing; all where its recipe names no fractions."""
    data = manifest.recipe.get("data", {})
    if "fractions" not in data:
        return np.ones(len(names), dtype=np.bool_)
    turn = float(data.get("turn", 0.0))
    place = [int.from_bytes(sha256(str(name).encode()).digest()[:8], "big") / 2.0**64 for name in names]
    before = float(np.cumsum(data["fractions"])[1])
    return np.asarray((np.array(place) + turn) % 1.0 >= before)


def paired(truth: Int, one: Int, other: Int, seed: int = 0) -> tuple[float, float, float]:
    """Difference of macro-F1, and its central 95 % over bootstrap draws of the objects."""
    rng = np.random.default_rng(seed)
    draws = [rng.integers(0, len(truth), len(truth)) for _ in range(DRAWS)]
    differences = [_score(truth[rows], one[rows]) - _score(truth[rows], other[rows]) for rows in draws]
    low, high = np.quantile(differences, [0.025, 0.975])
    return _score(truth, one) - _score(truth, other), float(low), float(high)


def _score(truth: Int, named: Int) -> float:
    return macro_f1(confusion(truth, named, len(NUMBER)))
