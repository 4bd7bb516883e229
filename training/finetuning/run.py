"""From a labelled table to a served model.

1. A fifth of the objects is left untouched; related objects are on one side.
2. A method is chosen on inner folds of the others (`methods`), and fitted to all of them.
3. Calibration, prediction sets and novelty are fitted to out-of-fold predictions (`bundle`).
4. The exported graph is compared with the network, and scored on the untouched fifth, beside the opponent.

Everything is kept in ``OUTPUT.work`` until the bundle is complete, so an interrupted call continues; the folder may be
removed afterwards.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from nightjar_alerts.models.bundle import MANIFEST, Bundle, BundleError, load_bundle, write_manifest
from nightjar_alerts.models.common import markdown_table, without_surrogates, write_atomic
from nightjar_alerts.models.lightcurve import Int64
from nightjar_alerts.tables import TableOptions
from nightjar_alerts.training.export.card import write_card
from nightjar_alerts.training.finetuning import bundle as bundles
from nightjar_alerts.training.finetuning.backbone import Backbone, find_backbone
from nightjar_alerts.training.finetuning.draws import draw, observe, with_features
from nightjar_alerts.training.finetuning.methods import FOLDS, TEST_FOLDS, Choice, Tuning, choose, split
from nightjar_alerts.training.finetuning.opponent import opponent_features, opponent_predictions
from nightjar_alerts.training.finetuning.table import read_labelled
from nightjar_alerts.training.fit.loop import require_device
from nightjar_alerts.training.fit.train import describe_transfer
from nightjar_alerts.training.metrics import (
    balanced_accuracy,
    confusion,
    f1_per_class,
    macro_f1,
    paired_macro_f1,
)
from nightjar_alerts.training.score.labelled import FINETUNED, LEARNED

BACKBONE: Final = "astro-moe-elasticc"
OPPONENT: Final = "class-weighted trees on hand-made features"
MAJORITY: Final = "majority class"
_SHOWN: Final = 8


@dataclass(frozen=True)
class FinetuneResult:
    """Result of `finetune`.

    Attributes
    ----------
    bundle, sha256 : folder and hash of the model.
    method : the chosen method.
    scores : macro-F1, balanced accuracy and F1 of each class of the untouched part, by model.
    folds : scores of each method on the inner folds.
    left_out : number of objects of the table that were not used, by reason.
    warnings : what the labels, and the fits to them, could not do.
    """

    bundle: Path
    sha256: str
    method: str
    scores: Mapping[str, Mapping[str, Any]]
    folds: Mapping[str, Mapping[str, Any]]
    left_out: Mapping[str, int]
    warnings: tuple[str, ...]


@dataclass
class _Clock:
    """Wall-clock and processor seconds of each stage."""

    seconds: dict[str, dict[str, float]] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        wall, processor = time.perf_counter(), time.process_time()
        yield
        spent = {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}
        self.seconds[name] = {kind: round(value, 2) for kind, value in spent.items()}


def finetune(
    table: Any,
    output: str | PathLike[str],
    *,
    label: str = "",
    group: str = "",
    backbone: str | PathLike[str] = BACKBONE,
    options: TableOptions | None = None,
    seed: int = 0,
    device: str = "cpu",
    threads: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> FinetuneResult:
    """Train a classifier on a labelled table and write it as a bundle.

    The same call after an interruption continues from ``OUTPUT.work``, with the same result.

    Parameters
    ----------
    table : path of a table, or a table in memory, as `nightjar_alerts.read_table` takes it.
    output : folder of the bundle; must not exist, or be empty.
    label : column of the class; may be left out if one column has a usual name.
    group : column of what related objects share, such as a host; objects within an arcsecond are always related.
    backbone : name of a shipped bundle, or folder of a bundle or run, whose network is the start.
    options : how to read the table.
    threads : torch threads; default: torch's choice.
    say : called with sentences on the progress.

    Raises
    ------
    TableError, LabelError, ValueError
        If the table cannot be read, has no usable labels, or ``output`` holds something else.
    ExportError
        If the exported graph differs from the network.
    """
    require_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    output, clock = Path(output), _Clock()
    with clock.stage("reading"):
        labelled, start = read_labelled(table, label=label, group=group, options=options), find_backbone(str(backbone))
        observed = observe(labelled, start)
    identity = _identity(labelled.fingerprint, start, seed, device)
    if (finished := _finished(output, identity)) is not None:
        say(f"{output} already holds this model")
        return finished
    left_out = {**labelled.left_out, **observed.left_out}
    warnings = [*labelled.warnings, *observed.warnings]
    for note in (*labelled.notes, *(f"warning: {warning}" for warning in warnings)):
        say(note)
    if left_out:
        say("objects left out: " + ", ".join(f"{count} {reason}" for reason, count in left_out.items()))
    label_O, group_O, classes = observed.label_O, labelled.group_O[observed.kept_O], labelled.classes
    counts = dict(zip(classes, np.bincount(label_O, minlength=len(classes)).tolist(), strict=True))
    say(f"{len(label_O)} objects: " + ", ".join(f"{name} {count}" for name, count in counts.items()))
    network, taken = start.with_heads(len(classes))
    say(describe_transfer(start.pretrained, network, taken).rstrip())
    folder = output.with_name(f"{output.name}.work") / identity[:12]
    with clock.stage("drawing"):
        drawn = draw(observed, seed)
    with clock.stage("features"):
        say(f"computing the features of {len(drawn)} light curves, {len(label_O)} of them complete")
        draws = with_features(drawn, start, folder)
    learns_O, inner_O = _parts(label_O, group_O, seed)
    tuning = Tuning(draws, start, len(classes), folder, identity, seed, device)
    with clock.stage("choice"):
        choice = choose(tuning, learns_O, inner_O, say)
    say(_table_of_methods(choice))
    data = {
        "name": without_surrogates(Path(table).name) if isinstance(table, str | Path) else "a table in memory",
        "sha256": labelled.fingerprint,
        "source": "a labelled table",
        "objects": int(learns_O.sum()),
        "classes": dict(zip(classes, np.bincount(label_O[learns_O], minlength=len(classes)).tolist(), strict=True)),
        "finetuned": {
            "identity": identity, "from": start.pretrained.origin, "method": choice.method, "label": labelled.label,
            "group": labelled.group, "left_out": left_out, "test_objects": int((~learns_O).sum()),
            "tensors": len(taken),
        },
    }  # fmt: skip
    with clock.stage("final fit and export"):
        made, parity, warning = bundles.export(
            tuning, choice, observed, learns_O, classes, _emptied(folder / "bundle"),
            name=name_of(output), data=data, say=say,
        )  # fmt: skip
    if warning:
        say(f"warning: {warning}")
        warnings.append(warning)
    with clock.stage("scores"):
        scores = _scores(made, tuning, observed, learns_O, inner_O, classes)
    made = _with_scores(made, scores, parity)
    report = {
        "bundle": without_surrogates(str(output)), "sha256": made.sha256, "method": choice.method, "scores": scores,
        "folds": dict(choice.scores), "left_out": left_out, "warnings": warnings,
        "notes": list(labelled.notes), "parity": parity, "seconds": clock.seconds,
        "threads": torch.get_num_threads(),
        LEARNED: sorted(curve.object_id for curve, learns in zip(observed.curves, learns_O, strict=True) if learns),
    }  # fmt: skip
    write_atomic(made.path / FINETUNED, (json.dumps(report, indent=1, ensure_ascii=False) + "\n").encode())
    output.parent.mkdir(parents=True, exist_ok=True)
    if output.exists():
        output.rmdir()  # it is empty
    made.path.rename(output)
    say(_table_of_scores(scores, int((~learns_O).sum())))
    say(f"{output} is complete; {folder.parent} may be removed")
    result = _finished(output, identity)
    assert result is not None
    return result


def name_of(output: Path) -> str:
    """Return the name of the bundle in a folder: its letters of ASCII and digits."""
    letters = (char if char.isascii() and char.isalnum() else "-" for char in output.name.lower())
    return "".join(letters).strip("-") or "model"


def _identity(fingerprint: str, start: Backbone, seed: int, device: str) -> str:
    """Return a hash of everything that decides the result."""
    digest = sha256(fingerprint.encode())
    digest.update(start.pretrained.sha256.encode())
    try:
        own = version("nightjar-alerts")
    except PackageNotFoundError:  # run from a source tree that was never installed
        own = "0"
    digest.update(json.dumps([seed, device, own]).encode())
    return digest.hexdigest()


def _finished(output: Path, identity: str) -> FinetuneResult | None:
    """Return the result in a folder, None for an empty one. Raises ValueError for a folder of something else."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    other = f"{output} holds something else; remove it or name another folder"
    if not (output / MANIFEST).is_file() or not (output / FINETUNED).is_file():
        raise ValueError(other)
    try:
        made = load_bundle(output)
    except BundleError as error:
        raise ValueError(f"{other} ({error})") from None
    if made.manifest.data.get("finetuned", {}).get("identity") != identity:
        raise ValueError(f"{output} holds a model of another table or other options; remove it or name another folder")
    try:
        report = json.loads((output / FINETUNED).read_text(encoding="utf-8"))
        return FinetuneResult(
            output, made.sha256, report["method"], report["scores"], report["folds"], report["left_out"],
            tuple(report["warnings"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{output / FINETUNED} is damaged; remove {output} and run the command again") from error


def _emptied(folder: Path) -> Path:
    """Return a folder without the files of an interrupted export."""
    for path in folder.glob("*"):
        path.unlink()
    return folder


def _parts(label_O: Int64, group_O: Int64, seed: int) -> tuple[Any, Int64]:
    """Return the objects to learn from, and their inner folds, -1 for others."""
    learns_O = split(label_O, group_O, TEST_FOLDS, seed) != 0
    inner_O = np.full(len(label_O), -1)
    inner_O[learns_O] = split(label_O[learns_O], group_O[learns_O], FOLDS, seed + 1)
    return learns_O, inner_O


def _scores(
    made: Bundle, tuning: Tuning, observed: Any, learns_O: Any, inner_O: Int64, classes: tuple[str, ...]
) -> dict[str, Any]:
    """Return the scores of the graph, of the opponent and of the majority class on the untouched objects."""
    test_O = ~learns_O
    truth = observed.label_O[test_O]
    order = [made.manifest.classes.names.index(name) for name in classes]
    p_NC = bundles.served_probabilities(made, tuning.draws.light_curves.take(np.flatnonzero(test_O)))[:, order]
    value_OF = opponent_features(observed.curves, observed.recipe)
    p_OC, rounds = opponent_predictions(value_OF, observed.label_O, learns_O, inner_O, len(classes), tuning.seed)
    named = {
        "model": p_NC.argmax(1),
        OPPONENT: p_OC[test_O].argmax(1),
        MAJORITY: np.full(len(truth), np.bincount(observed.label_O[learns_O]).argmax()),
    }
    scores: dict[str, Any] = {}
    for name, predicted in named.items():
        counts = confusion(truth, predicted, len(classes))
        scores[name] = {
            "macro_f1": macro_f1(counts),
            "balanced_accuracy": balanced_accuracy(counts),
            "f1": dict(zip(classes, f1_per_class(counts).tolist(), strict=True)),
        }
    difference = paired_macro_f1(truth, named["model"], named[OPPONENT], len(classes))
    scores[OPPONENT] |= {"rounds": rounds, "difference": list(difference)}
    return scores


def _with_scores(made: Bundle, scores: Mapping[str, Any], parity: Mapping[str, float]) -> Bundle:
    """Add the scores and the result of the parity test to the manifest and the card."""
    metrics = {**made.manifest.metrics, "test": dict(scores), "parity": dict(parity)}
    write_manifest(made.path, made.manifest.model_copy(update={"metrics": metrics}))
    return write_card(made.path)


def _table_of_methods(choice: Choice) -> str:
    rows = []
    for name, score in sorted(choice.scores.items(), key=lambda item: -item[1]["macro_f1"]):
        folds = score["by fold"]
        spread = f"± {np.std(folds):.3f}" if len(folds) > 1 else "first fold only"
        chosen = " (chosen)" if name == choice.method else ""
        rows.append([name + chosen, f"{score['macro_f1']:.3f}", spread, f"{score['balanced_accuracy']:.3f}"])
    return markdown_table(["method, on inner folds", "macro-F1", "over folds", "balanced accuracy"], rows)


def _table_of_scores(scores: Mapping[str, Any], objects: int) -> str:
    classes = list(scores["model"]["f1"])[:_SHOWN]
    rows = [
        [name, f"{score['macro_f1']:.3f}", f"{score['balanced_accuracy']:.3f}"]
        + [f"{score['f1'][kind]:.2f}" for kind in classes]
        for name, score in scores.items()
    ]
    return markdown_table([f"on {objects} untouched objects", "macro-F1", "balanced accuracy", *classes], rows)


def as_json(result: FinetuneResult) -> dict[str, Any]:
    """Return a result as JSON values."""
    return {**asdict(result), "bundle": str(result.bundle)}
