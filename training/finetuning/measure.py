"""Measure fine-tuning on labelled sets of real and simulated surveys, by five grouped folds, against the opponent.

Every object is predicted once, by a model that chose its method and was fitted without it. The sets are ZTF's
supernovae in six classes, Catalina's periodic variables, and MALLORN's five classes; of a larger set the most even
sample over the classes is drawn. Run again to resume::

    python -m nightjar_alerts.training.finetuning.measure DATA --set ztf_sn --from runs/short --work build/measure \\
        --report build/ztf_sn.json
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from sklearn.metrics import f1_score, precision_recall_curve

from nightjar_alerts.models.lightcurve import Bool, Float64, Int64
from nightjar_alerts.models.taxonomy import MALLORN
from nightjar_alerts.tables import TableOptions
from nightjar_alerts.training.finetuning.backbone import Backbone, find_backbone
from nightjar_alerts.training.finetuning.draws import draw, observe, with_features
from nightjar_alerts.training.finetuning.methods import FOLDS, TEST_FOLDS, Tuning, choose, fit_choice, split
from nightjar_alerts.training.finetuning.opponent import opponent_features, opponent_predictions
from nightjar_alerts.training.finetuning.table import LabelledCurves, read_labelled
from nightjar_alerts.training.fit.labelled import LabelledDraws
from nightjar_alerts.training.importers.surveys import ZTF_CLASSES, read_mallorn
from nightjar_alerts.training.metrics import (
    balanced_accuracy,
    confusion,
    f1_per_class,
    macro_f1,
    paired_macro_f1,
    softmax,
)

OBJECTS: Final = 3_000
LABELLED: Final = (50, 200, 1_000)
MIN_DETECTIONS: Final = 8


def ztf_supernovae(data: Path) -> LabelledCurves:
    """Read ZTF's supernovae with one of the six types and at least eight detections."""
    import pandas as pd

    objects = pd.read_csv(data / "ztf_sn" / "objects.csv")
    objects["label"] = objects["type"].map(lambda kind: ZTF_CLASSES.get(kind, ""))
    points = pd.read_csv(data / "ztf_sn" / "photometry.csv.gz")
    detections = points[points["upperlimit"] == 0].groupby("object_id").size()
    known = objects[(objects["label"] != "") & (objects["object_id"].map(detections).fillna(0) >= MIN_DETECTIONS)]
    known = known.drop_duplicates("object_id", keep=False)
    chosen = known.iloc[even_sample(known["label"].to_numpy())]
    return read_labelled(points.merge(chosen[["object_id", "label"]], on="object_id"), label="label")


def catalina(data: Path) -> LabelledCurves:
    """Read Catalina's periodic variables, total magnitudes in V."""
    import pandas as pd

    table = pd.read_parquet(data / "css_south_periodic" / "css_periodic_full.parquet")
    chosen = table.iloc[even_sample(table["class"].to_numpy())][
        ["object_id", "class", "ra", "dec", "mjd", "mag", "magerr"]
    ]
    return read_labelled(chosen, label="class", options=TableOptions(band="V", flux_kind="total"))


def mallorn(data: Path) -> LabelledCurves:
    """Read MALLORN's labelled objects with redshift and dust; parents of the simulations are not published."""
    found = read_mallorn(data / "mallorn")
    return LabelledCurves(
        found.curves, found.label_N, np.arange(len(found)), MALLORN.names, "difference", "SpecType", "", {}, ()
    )


SETS: Final[Mapping[str, Callable[[Path], LabelledCurves]]] = {
    "ztf_sn": ztf_supernovae, "css_south_periodic": catalina, "mallorn": mallorn,
}  # fmt: skip


def even_sample(label_N: Any) -> Int64:
    """Return at most `OBJECTS` random rows, as many of each class as evenness allows, in their order."""
    rng = np.random.default_rng(0)
    rows = {label: rng.permutation(np.flatnonzero(label_N == label)) for label in sorted(set(label_N.tolist()))}
    most = max(cap for cap in range(1, OBJECTS + 1) if sum(min(cap, len(one)) for one in rows.values()) <= OBJECTS)
    return np.sort(np.concatenate([one[:most] for one in rows.values()]))


def measure(
    labelled: LabelledCurves, backbone: Backbone, work: Path, *, full: bool, curve: bool, seed: int = 0
) -> dict[str, Any]:
    """Return scores of the chosen methods and of the opponent over all folds, and what was chosen in each."""
    started, cpu = time.perf_counter(), time.process_time()
    observed = observe(labelled, backbone)
    label_O, group_O, classes = observed.label_O, labelled.group_O[observed.kept_O], len(labelled.classes)
    draws = with_features(draw(observed, seed), backbone, work / "features")
    value_OF = opponent_features(observed.curves, observed.recipe)
    test_O = split(label_O, group_O, TEST_FOLDS, seed)
    named_O, other_O, folds = np.zeros_like(label_O), np.zeros_like(label_O), []
    own_OC, opponent_OC = (np.zeros((len(label_O), classes), dtype=np.bool_) for _ in range(2))
    for fold in range(TEST_FOLDS):
        learns_O = test_O != fold
        inner_O = inner_folds(label_O, group_O, learns_O, seed)
        tuning = Tuning(draws, backbone, classes, work / f"outer-{fold}", f"{labelled.fingerprint} {fold}", seed)
        report = run_fold(tuning, learns_O, inner_O, ~learns_O, value_OF, full=full)
        named_O[~learns_O], other_O[~learns_O] = report.pop("named"), report.pop("opponent named")
        own_OC[~learns_O], opponent_OC[~learns_O] = report.pop("named alone"), report.pop("opponent named alone")
        folds.append(report)
        _say(f"fold {fold}: {report['method']}, macro-F1 {report['macro_f1']:.3f}, opponent {report['opponent']:.3f}")
    report = {
        "classes": labelled.counts,
        "objects": len(label_O),
        "draws": len(draws.light_curves),
        "method": _scores(label_O, named_O, own_OC, labelled.classes),
        "opponent": _scores(label_O, other_O, opponent_OC, labelled.classes),
        "difference of macro-F1 with 95 %": list(paired_macro_f1(label_O, named_O, other_O, classes, seed=seed)),
        "folds": folds,
    }
    if curve:
        report["labelled objects"] = _learning_curve(labelled, draws, backbone, value_OF, test_O, group_O, work, seed)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    minutes = {"wall": (time.perf_counter() - started) / 60, "processor": (time.process_time() - cpu) / 60}
    return {**report, "minutes of this start": minutes, "peak MiB": peak}


def inner_folds(label_O: Int64, group_O: Int64, learns_O: Bool, seed: int) -> Int64:
    """Return the inner fold of the objects to learn from, -1 for others."""
    inner_O = np.full(len(label_O), -1)
    inner_O[learns_O] = split(label_O[learns_O], group_O[learns_O], FOLDS, seed + 1)
    return inner_O


def run_fold(
    tuning: Tuning, learns_O: Bool, inner_O: Int64, held_out_O: Bool, value_OF: Any, *, full: bool
) -> dict[str, Any]:
    """Choose and fit on some objects; return the classes named for others by it and by the opponent, and scores."""
    path = tuning.folder / "report.json"
    if path.exists():
        stored: dict[str, Any] = json.loads(path.read_text())
        return {name: np.array(value) if "named" in name else value for name, value in stored.items()}
    started, label_O = time.process_time(), tuning.draws.label_O
    choice = choose(tuning, learns_O, inner_O, full=full)
    own_OC, complete_N = np.zeros((len(label_O), tuning.classes)), choice.rows < len(label_O)
    own_OC[choice.rows[complete_N]] = softmax(choice.predicted.logits_NC[complete_N])
    own_OC[held_out_O] = softmax(fit_choice(tuning, choice, learns_O, np.flatnonzero(held_out_O)).logits_NC)
    seconds = time.process_time() - started
    p_OC, rounds = opponent_predictions(value_OF, label_O, learns_O, inner_O, tuning.classes, tuning.seed)
    named, other, truth = own_OC[held_out_O].argmax(1), p_OC[held_out_O].argmax(1), label_O[held_out_O]
    report = {
        "method": choice.method,
        "inner": choice.scores,
        "macro_f1": macro_f1(confusion(truth, named, tuning.classes)),
        "opponent": macro_f1(confusion(truth, other, tuning.classes)),
        "rounds": rounds,
        "processor seconds": seconds,
        "named": named.tolist(),
        "opponent named": other.tolist(),
        "named alone": named_alone(own_OC, label_O, learns_O, held_out_O).tolist(),
        "opponent named alone": named_alone(p_OC, label_O, learns_O, held_out_O).tolist(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report))
    return {name: np.array(value) if "named" in name else value for name, value in report.items()}


def named_alone(p_OC: Float64, label_O: Int64, learns_O: Bool, held_out_O: Bool) -> Bool:
    """Return whether each object that is held out is of each class, every class decided alone, [held-out objects, C].

    The threshold of a class has the largest F1 on the objects to learn from, whose probabilities are of inner folds.
    """
    named_OC = np.zeros((np.count_nonzero(held_out_O), p_OC.shape[1]), dtype=np.bool_)
    for label in range(p_OC.shape[1]):
        precision, recall, threshold = precision_recall_curve(label_O[learns_O] == label, p_OC[learns_O, label])
        f1 = 2 * precision * recall / np.maximum(precision + recall, np.finfo(np.float64).tiny)
        named_OC[:, label] = p_OC[held_out_O, label] >= threshold[f1[:-1].argmax()]
    return named_OC


def _learning_curve(
    labelled: LabelledCurves, draws: LabelledDraws, backbone: Backbone, value_OF: Any, test_O: Int64, group_O: Int64,
    work: Path, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Return the scores on the first fold with few labelled objects, as even over the classes as possible."""
    found = {}
    label_O, held_out = draws.label_O, np.flatnonzero(test_O == 0)
    rng = np.random.default_rng(seed)
    for number in LABELLED:
        learning = rng.permutation(np.flatnonzero(test_O != 0))
        rank = np.zeros(len(learning))  # of an object among those of its class
        for label in range(len(labelled.classes)):
            rank[label_O[learning] == label] = np.arange(np.count_nonzero(label_O[learning] == label))
        chosen = learning[np.argsort(rank, kind="stable")[:number]]
        objects = np.sort(np.concatenate([chosen, held_out]))
        part, learns = subset(draws, objects), np.isin(objects, chosen)
        inner = inner_folds(part.label_O, group_O[objects], learns, seed)
        tuning = Tuning(part, backbone, len(labelled.classes), work / f"labelled-{number}", f"{number}", seed)
        report = run_fold(tuning, learns, inner, ~learns, value_OF[objects], full=False)
        truth = part.label_O[~learns]
        difference = paired_macro_f1(truth, report["named"], report["opponent named"], tuning.classes)
        report = {name: value for name, value in report.items() if "named" not in name}
        found[str(number)] = {**report, "difference of macro-F1 with 95 %": list(difference)}
        _say(f"{number} labelled: {report['method']} {report['macro_f1']:.3f}, opponent {report['opponent']:.3f}")
    return found


def subset(draws: LabelledDraws, objects: Int64) -> LabelledDraws:
    """Return the light curves of some objects, whose numbers are their positions in ``objects``."""
    rows = np.flatnonzero(np.isin(draws.light_curves.group, objects))
    light_curves = draws.light_curves.take(rows)
    numbered = np.searchsorted(objects, light_curves.group)
    light_curves = replace(light_curves, group=numbered)
    return LabelledDraws(light_curves, draws.inputs.take(rows), draws.heads_NHC[rows])


def _scores(label_O: Int64, named_O: Int64, alone_OC: Bool, classes: tuple[str, ...]) -> dict[str, Any]:
    counts = confusion(label_O, named_O, len(classes))
    alone = [float(f1_score(label_O == label, alone_OC[:, label])) for label in range(len(classes))]
    return {
        "macro_f1": macro_f1(counts),
        "balanced_accuracy": balanced_accuracy(counts),
        "f1": dict(zip(classes, f1_per_class(counts).tolist(), strict=True)),
        "f1 of each class decided alone": dict(zip(classes, alone, strict=True)),
    }


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def main(arguments: list[str] | None = None) -> None:
    """Measure one set and write the report."""
    parser = argparse.ArgumentParser(description="Measure fine-tuning on a labelled set.")
    parser.add_argument("data", type=Path, help="folder of the sets")
    parser.add_argument("--set", choices=tuple(SETS), required=True, help="labelled set")
    parser.add_argument("--from", dest="backbone", required=True, help="as for `finetune`")
    parser.add_argument("--work", type=Path, required=True, help="folder for features and fits")
    parser.add_argument("--report", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--no-full", action="store_true", help="do not try to fine-tune the whole network")
    parser.add_argument("--curve", action="store_true", help="also score few labelled objects on the first fold")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    labelled = SETS[options.set](options.data)
    backbone = find_backbone(options.backbone)
    report = measure(labelled, backbone, options.work, full=not options.no_full, curve=options.curve)
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(json.dumps({"set": options.set, "from": options.backbone, **report}, indent=1) + "\n")


if __name__ == "__main__":
    main()
