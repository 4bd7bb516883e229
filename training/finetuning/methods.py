"""Methods of fine-tuning, and the choice between them on inner folds of the labelled objects.

- ``trees``, ``large trees``: boosted trees on statistics and the embedding of the frozen network, in two sizes;
- ``heads``: new heads and a statistics branch on the frozen network;
- ``map``: the heads of the network, mapped to the new classes by a logistic regression, if it has statistics;
- ``heads and trees`` and the like: the mean log-probability of heads or map and the better trees;
- ``full``: heads, statistics branch and branches learn together. It takes a hundred times as long as the others, so it
  is fitted to the first fold, and to the other folds only if it is the best there.

A fold has related objects on one side and about equal shares of the classes. Every object is predicted by fits that do
not know it. The method with the largest macro-F1 over all complete light curves is chosen.

Legend: O objects, N light curves, C classes, E embedding of the branches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn.model_selection import StratifiedGroupKFold

from nightjar_alerts.models.common import replacing
from nightjar_alerts.models.lightcurve import Bool, Float32, Float64, Int64
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.parts.trees import Forest
from nightjar_alerts.models.networks.statistics.points import Statistics
from nightjar_alerts.training.finetuning.backbone import Backbone
from nightjar_alerts.training.fit.class_map import fit_class_map, mapped_logits
from nightjar_alerts.training.fit.heads import HeadInputs, embeddings_of, head_outputs
from nightjar_alerts.training.fit.labelled import LabelledDraws
from nightjar_alerts.training.fit.trees.forest import fit_forest, read_forest, save_forest, tree_logits
from nightjar_alerts.training.fit.trees.parameters import REGULAR, REGULAR_ROUNDS, SURVEYS_ROUNDS
from nightjar_alerts.training.fit.tuning import fit_heads
from nightjar_alerts.training.metrics import balanced_accuracy, confusion, macro_f1

FOLDS: Final = 3
TEST_FOLDS: Final = 5
TREES: Final[Mapping[str, tuple[Mapping[str, Any], int]]] = {
    "trees": (REGULAR, REGULAR_ROUNDS),
    "large trees": ({}, SURVEYS_ROUNDS),
}
"""Parameters and rounds of trees."""
AND: Final = " and "
"""Between the names of two methods whose log-probabilities are averaged."""

Rows = NDArray[np.intp]


class Predicted(NamedTuple):
    """Logits [N, C] of light curves, and the embedding of the branches [N, E] that they come from."""

    logits_NC: Float32
    embedding_NE: Float32


class Fitted(NamedTuple):
    """A fitted method: a forest, the network with heads, or the class map and its bias."""

    forest: Forest | None = None
    network: AstroMoE | None = None
    class_map: tuple[Float64, Float64] | None = None


@dataclass(frozen=True, eq=False)
class Tuning:
    """What methods are fitted to.

    Attributes
    ----------
    draws : light curves with their features.
    backbone : network that fine-tuning starts from.
    folder : where fits and predictions are stored.
    identity : text that identifies the light curves, the network and the seed.
    """

    draws: LabelledDraws
    backbone: Backbone
    classes: int
    folder: Path
    identity: str
    seed: int
    device: str = "cpu"
    steps: Mapping[str, int] | None = None

    def fit(self, method: str, rows: Rows, folder: Path) -> Fitted:
        """Fit a single method to some light curves; a fit that is stored in the folder is read."""
        draws, label = self.draws, self.draws.light_curves.label[rows]
        if method in TREES:
            if not (path := folder / f"{method}.npz").exists():
                changes, rounds = TREES[method]
                forest = fit_forest(
                    draws.inputs.columns[rows], label, self.classes,
                    seed=self.seed, rounds=rounds, weight_N=draws.weights(rows), **changes,
                )  # fmt: skip
                with replacing(path, ".npz") as partial:
                    save_forest(forest, partial)
            return Fitted(forest=read_forest(path))
        if method == "map":
            return Fitted(class_map=fit_class_map(draws.heads_NHC[rows], label, draws.weights(rows), self.classes))
        network, taken = self.backbone.with_heads(self.classes, self.seed)
        if not any(name.startswith("statistics") for name in taken):
            assert network.statistics is not None
            _, statistics = draws.inputs.rows(rows)
            network.statistics.fit(Statistics(*statistics))
        branches = self.backbone.branches if method == "full" else None
        fitted = fit_heads(
            network, draws, rows, folder / method,
            identity=self.identity, seed=self.seed, branches=branches, device=self.device,
            steps=(self.steps or {}).get(method),
        )  # fmt: skip
        return Fitted(network=fitted)

    def predict(self, method: str, fitted: Fitted, rows: Rows) -> Predicted:
        """Predict some light curves with a single method."""
        inputs = self.draws.inputs.take(rows)
        if fitted.forest is not None:
            return Predicted(tree_logits(fitted.forest, inputs.columns), inputs.embedding)
        if fitted.class_map is not None:
            return Predicted(mapped_logits(self.draws.heads_NHC[rows], *fitted.class_map), inputs.embedding)
        assert fitted.network is not None
        if method == "full":
            branches = Backbone(fitted.network, self.backbone.recipe, self.backbone.pretrained).branches
            embedding_NE = embeddings_of(branches, self.draws.light_curves.take(rows))
            inputs = HeadInputs(embedding_NE, inputs.value, inputs.is_known)
        return Predicted(head_outputs(fitted.network, inputs)[0], inputs.embedding)

    def predict_fold(self, method: str, fold: int, learns_O: Bool, held_out_O: Bool) -> Predicted:
        """Return predictions of the objects that a fold holds out; those in the folder are read."""
        folder = self.folder / f"fold-{fold}"
        if not (path := folder / f"{method}.predicted.npz").exists():
            fitted = self.fit(method, self.draws.rows(learns_O), folder)
            predicted = self.predict(method, fitted, self.draws.rows(held_out_O))
            with replacing(path, ".npz") as partial:
                np.savez(partial, allow_pickle=False, **predicted._asdict())
        with np.load(path, allow_pickle=False) as arrays:
            return Predicted(arrays["logits_NC"], arrays["embedding_NE"])


def split(label_O: Int64, group_O: Int64, folds: int, seed: int) -> Int64:
    """Return the fold of each object: groups stay together, and classes are shared out evenly."""
    fold_O = np.zeros(len(label_O), dtype=np.int64)
    parts = StratifiedGroupKFold(folds, shuffle=True, random_state=seed).split(label_O, label_O, group_O)
    for fold, (_, held_out) in enumerate(parts):
        fold_O[held_out] = fold
    return fold_O


@dataclass(frozen=True, eq=False)
class Choice:
    """The chosen method, and what it predicted of the objects that its fits did not know.

    Attributes
    ----------
    scores : macro-F1 and balanced accuracy of each method over all folds, and the macro-F1 of each fold.
    rows : light curves, and out-of-fold predictions of them.
    learns_FO : objects that each fold learned from. fold_N : fold that holds out each light curve.
    """

    method: str
    scores: Mapping[str, dict[str, Any]]
    rows: Rows
    predicted: Predicted
    fold_N: Int64
    learns_FO: Sequence[Bool]


def choose(
    tuning: Tuning, learns_O: Bool, fold_O: Int64, say: Callable[[str], None] = lambda _: None, *, full: bool = True
) -> Choice:
    """Fit every method to the inner folds of some objects, and choose one.

    Parameters
    ----------
    learns_O : objects that may be learned from. fold_O : inner fold of each of them.
    full : whether full fine-tuning is tried.
    """
    folds = range(int(fold_O[learns_O].max()) + 1)
    held_out_FO = [learns_O & (fold_O == fold) for fold in folds]
    learns_FO = [learns_O & (fold_O != fold) for fold in folds]
    rows_F = [tuning.draws.rows(held_out_O) for held_out_O in held_out_FO]
    networks = ["heads", *(["map"] if tuning.draws.heads_NHC.shape[1] else [])]
    found: dict[str, list[Predicted]] = {}

    def predictions(method: str, fold: int) -> Predicted:
        return tuning.predict_fold(method, fold, learns_FO[fold], held_out_FO[fold])

    for method in (*TREES, *networks):
        say(f"fitting {method} to {len(folds)} inner folds")
        found[method] = [predictions(method, fold) for fold in folds]
    scores = {method: _scores(tuning, rows_F, parts) for method, parts in found.items()}
    trees = max(TREES, key=lambda name: float(scores[name]["macro_f1"]))
    for network in networks:
        name = f"{network}{AND}{trees}"
        found[name] = [pool(*pair) for pair in zip(found[network], found[trees], strict=True)]
        scores[name] = _scores(tuning, rows_F, found[name])
    if full:
        say("fine-tuning the whole network on the first fold")
        parts = [predictions("full", 0)]
        if _scores(tuning, rows_F, parts)["by fold"][0] >= max(score["by fold"][0] for score in scores.values()):
            say("fine-tuning the whole network on the other folds")
            parts += [predictions("full", fold) for fold in folds[1:]]
            found["full"] = parts
        scores["full"] = _scores(tuning, rows_F, parts)
    method = max(found, key=lambda name: float(scores[name]["macro_f1"]))
    rows = np.concatenate(rows_F)
    predicted = Predicted(*(np.concatenate(parts) for parts in zip(*found[method], strict=True)))
    return Choice(method, scores, rows, predicted, fold_O[tuning.draws.light_curves.group[rows]], learns_FO)


def pool(network: Predicted, trees: Predicted) -> Predicted:
    """Return the mean log-probability of a network and of trees."""
    logits_NC = (log_softmax(network.logits_NC, 1) + log_softmax(trees.logits_NC, 1)) / 2
    return Predicted(logits_NC.astype(np.float32), network.embedding_NE)


def _scores(tuning: Tuning, rows_F: Sequence[Rows], parts: Sequence[Predicted]) -> dict[str, Any]:
    """Return the scores of complete light curves; of the first folds only if there are no predictions of the others."""
    counts = []
    for rows, predicted in zip(rows_F, parts, strict=False):
        complete = rows < tuning.draws.objects
        label = tuning.draws.light_curves.label[rows[complete]]
        counts.append(confusion(label, predicted.logits_NC[complete].argmax(1), tuning.classes))
    whole = np.sum(counts, axis=0)
    return {
        "macro_f1": macro_f1(whole),
        "balanced_accuracy": balanced_accuracy(whole),
        "by fold": [macro_f1(count) for count in counts],
    }


def fit_choice(tuning: Tuning, choice: Choice, learns_O: Bool, rows: Rows) -> Predicted:
    """Fit the chosen method to all objects that may be learned from, and predict other light curves."""
    learning, folder = tuning.draws.rows(learns_O), tuning.folder / "final"
    parts = [tuning.predict(method, tuning.fit(method, learning, folder), rows) for method in choice.method.split(AND)]
    return parts[0] if len(parts) == 1 else pool(*parts)
