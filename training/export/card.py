"""Model cards: training data, scores, calibration, intended use and limits of a bundle.

A card is written from the bundle's manifest and the reports of ``evaluate`` and ``baseline``; the scores are added to
the manifest. Sections on calibration, prediction sets and novelty are written if the bundle has them.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from nightjar_alerts.models.bundle import CARD, Bundle, Calibration, Manifest, load_bundle, write_manifest
from nightjar_alerts.models.common import markdown_table
from nightjar_alerts.models.lightcurve import Int64
from nightjar_alerts.training.score.figures import confusion_figure

SHARES = """The probabilities assume the class shares that the manifest names as its prior; use those of your survey
(`options.prior`), or multiply by the ratio of the shares and normalise, before adding them up over a population."""
BALANCED = """The probabilities assume equally common classes: multiply them by the rates of your survey relative to a
uniform mix, and normalise, before adding them up over a population."""
BETWEEN = """Training drew classes in proportion to their share of the training data to the power {power:.2f}, so rare
classes are predicted more often than their share; the temperature was fitted on the natural shares of the data. For
another survey, or before adding probabilities up over a population, divide them by that power of the shares, multiply
by your rates and normalise."""

KEPT = {"newest": "the newest", "around_maximum": "those around the brightest detection"}

NEARER = {
    "mahalanobis": "lie nearer (Mahalanobis) to the mean of their nearest class",
    "fitted": "score lower on a small perceptron trained to separate known objects from outliers",
}


def confidence_sections(manifest: Manifest) -> list[str]:
    """Return the sections on calibration, prediction sets and novelty."""
    sections = [_calibration(manifest), _sets(manifest), _novelty(manifest)]
    return [section for section in sections if section]


def _calibration(manifest: Manifest) -> str:
    calibration, fit = manifest.calibration, manifest.metrics.get("calibration")
    if calibration.method == "none" or fit is None:
        return "## Calibration\n\nNone: the probabilities are the network's own."
    return f"""## Calibration

{_method(calibration)}.
It is inside the graph and was fitted on views of {fit["objects"]:,} objects of the {calibration.split} split.

{_before_and_after(fit)}

{_priors(manifest)}"""


def _priors(manifest: Manifest) -> str:
    if manifest.prior is not None:
        return SHARES
    balance = manifest.recipe.get("batch", {}).get("balance", 1.0)
    return BALANCED if balance == 1 else BETWEEN.format(power=1 - balance)


def _method(calibration: Calibration) -> str:
    if not calibration.coefficients:
        return f"One temperature, {calibration.temperature:.3f}"
    terms = " + ".join(
        f"({value:.4f})" + ("", " ln n", " (ln n)^2")[power] for power, value in enumerate(calibration.coefficients)
    )
    return f"The temperature of n observations, exp({terms}); the best single one is {calibration.temperature:.3f}"


def _before_and_after(fit: dict[str, Any]) -> str:
    names = {"all": "all", **_ranges([int(start) for start in fit["after"] if start != "all"])}
    rows = (
        [
            name,
            f"{fit['after'][key]['rows']:.0f}",
            f"{fit['before'][key]['ece']:.4f}",
            f"{fit['after'][key]['ece']:.4f}",
            f"{fit['after'][key]['ece_by_chance']:.4f}",
        ]
        for key, name in names.items()
    )
    header = ["detections", "views", "ECE before", "after", "by chance"]
    return f"""Expected calibration error of these views (15 bins), and what a perfectly calibrated network would have
by chance:

{markdown_table(header, rows, numbers=True)}"""


def _sets(manifest: Manifest) -> str:
    sets = manifest.prediction_sets
    if sets is None:
        return ""
    names = _ranges(sorted({group.detections for group in sets.groups}))
    strata = any(group.bands or group.novelty for group in sets.groups)
    rows = (
        [
            names[str(group.detections)],
            *([f"{group.bands}", f"{group.novelty:g}"] if strata else []),
            *(f"{value:.4f}" for value in group.largest),
        ]
        for group in sets.groups
    )
    header = ["detections", *(["bands from", "novelty from"] if strata else [])]
    header += [f"{100 * coverage:g} %" for coverage in sets.coverages]
    return f"""## Prediction sets

The most probable class, and every class whose probability is at least 1 minus the threshold, hold the true one as
often as the column states ({100 * sets.default:g} % unless another is requested), on average over objects and views
like those of the {sets.split} split; not for every class, nor for objects of other classes.

{markdown_table(header, rows, numbers=True)}"""


def _novelty(manifest: Manifest) -> str:
    novelty = manifest.novelty
    if novelty is None:
        return ""
    names = _ranges(list(novelty.by_detections))
    rows = ([name, f"{novelty.by_detections[int(key)]:.4f}"] for key, name in names.items())
    alarms = f"{100 * novelty.false_alarm_rate:.1f} %"
    table = markdown_table(["detections", "false alarms"], rows, numbers=True)
    by_length = f" By number of detections:\n\n{table}" if names else ""
    return f"""## Novelty

The share of {novelty.objects:,} {novelty.split} objects, in such views, that
{NEARER[novelty.method]}, over
{novelty.reference_objects:,} training objects. Beyond {novelty.threshold:g} lie
{alarms} of these views of known objects: false alarms.{by_length}"""


def _ranges(starts: list[int]) -> dict[str, str]:
    """Return the names of groups by their first number: {"3": "3 to 4", "5": "5 or more"}."""
    names = {str(start): str(start) if end == start + 1 else f"{start} to {end - 1}" for start, end in pairwise(starts)}
    return names | {str(start): f"{start} or more" for start in starts[-1:]}


def draw_confusion(path: Path, confusion_CC: Int64, classes: Sequence[str], title: str) -> None:
    """Write the confusion matrix as a PNG, rows normalised to percent of the true class."""
    support_C1 = confusion_CC.sum(1, keepdims=True)
    percent_CC = 100 * confusion_CC / np.maximum(support_C1, 1)
    confusion_figure(percent_CC, classes, support_C1[:, 0].tolist(), title).savefig(path)


PICTURE = "confusion.png"
SCORES = {
    "macro_f1": "macro-F1",
    "balanced_accuracy": "balanced accuracy",
    "top_2": "true class in top 2",
    "log_loss": "log loss",
    "brier": "Brier",
    "ece": "ECE",
}

Report = Mapping[str, Any]

USE = """## Intended use

Ranking and filtering of alerts for follow-up, tests of brokers and pipelines, and a starting point for training on real
labels. The service converts alerts of Rubin, ZTF and ELAsTiCC to its inputs. Its accuracy is known only for the surveys
in the scores above, and it has no classes other than its own.

## What it must not be used for

- as a spectroscopic label, or as evidence for a discovery, without confirmation
- for rates, populations or cosmological samples: class shares, redshifts and hosts of its training data are not natural
- for objects outside its classes: it was not trained on artefacts, Solar System objects or stars of high proper motion,
  and assigns them one of its classes with confidence
- on images, spectra, or photometry that is not difference flux against a template"""

SIMULATED = """Light curves of this project's simulator (`nightjar-train simulate`{version}, seed {seed}) only: no
survey data, no data of the ELAsTiCC challenge."""

SIMULATED_LIMITS = """## Known limits

- Trained and scored on simulated objects only; it has not been validated on labelled real alerts.
- The simulator is simplified: analytic light curves and blackbody colours at effective wavelengths, no artefacts, no
  bad subtractions, no variable host centres.
- Comparison with other sets: medians of peak, duration, redshift, colours and points per band of Ia, II and IIb agree
  with ELAsTiCC's (0.3 mag, 0.15 mag in colour, a factor of 1.4), with r-i of Ia and II 0.1 mag too red, no II beyond
  redshift 0.6 and more faint objects. At equal redshift
  tidal disruptions are 0.2 to 0.35 mag bluer, stripped-envelope supernovae 0.8 mag fainter and active nuclei 1.5 mag
  brighter than MALLORN's. Kilonovae, periodic and eruptive stars, lenses, CART, ILOT, PISN, SLSN, 91bg, Iax and all
  host metadata have not been compared.
- ZTF is represented by Rubin's light curves of brighter objects in g, r and sometimes i; bands of the same name are
  treated as the same band, without a colour correction.
- The final redshift is the host's spectroscopic or photometric one and is more often known than in a survey. The rows
  without metadata apply to Rubin and ZTF alerts, which have none."""

IMPORTED_LIMITS = """## Known limits

- Trained and scored on one labelled set: the scores depend on its selection (objects bright enough for follow-up), its
  label errors and its cadence, which differ in other surveys.
- Objects whose labels were left out of the import are not in its classes, but are assigned one of them."""


def write_card(path: Path, report: Report | None = None, baseline: Report | None = None) -> Bundle:
    """Write ``CARD.md``, and the confusion matrix if there is a report, into a bundle; return it with its new hash.

    Raises
    ------
    BundleError
        If the bundle is altered or unreadable.
    ValueError
        If the report and the baseline were not scored on the same objects.
    """
    manifest = load_bundle(path).manifest
    if report is not None and baseline is not None and report["data"] != baseline["data"]:
        raise ValueError("the report and the baseline were not scored on the same objects")
    if report is not None:
        title = f"{manifest.name} {manifest.version}: percent of each true class ({report['data']['split']} split)"
        draw_confusion(path / PICTURE, np.array(report["confusion"]), report["classes"], title)
        summary = {key: report[key] for key in ("data", "models", "views", "detections", "days", "f1")}
        manifest = manifest.model_copy(update={"metrics": {**manifest.metrics, report["data"]["split"]: summary}})
    scores = _scores(manifest, report, baseline)
    limits = IMPORTED_LIMITS if "import" in manifest.data else SIMULATED_LIMITS
    sections = [identity(manifest), _data(manifest), *scores, *confidence_sections(manifest), USE, limits]
    (path / CARD).write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    return write_manifest(path, manifest)


def read_report(path: Path | None) -> Report | None:
    """Read a JSON report; None stays None."""
    return None if path is None else json.loads(path.read_text(encoding="utf-8"))


def identity(manifest: Manifest) -> str:
    """Describe a classifier: classes, size, inputs and outputs."""
    parameters, limits, days = manifest.parameters, manifest.limits, manifest.limits.pre_trigger_days
    window = "all history" if days is None else f"history from {days:g} days before the first detection"
    return f"""# {manifest.name} {manifest.version}

A classifier of multiband light curves into the {len(manifest.classes.classes)} classes of {manifest.classes.name}:
{", ".join(manifest.classes.names)}.

- network: {manifest.architecture}, {parameters.total:,} parameters, of which one observation passes through
  {parameters.active:,}
- input: difference flux and its error in any of {", ".join(manifest.bands)}; {window}, at most
  {limits.max_points_per_band} observations of each band, {KEPT[limits.kept]}; {_metadata(manifest)}
- output: class probabilities and an embedding of {manifest.embedding_dim} numbers
- recipe: `{manifest.recipe.get("name")}`, seed {manifest.recipe.get("seed")}, resolved in `manifest.json`
- created: {manifest.created}"""


def _metadata(manifest: Manifest) -> str:
    count = len(manifest.metadata_columns)
    return f"{count} metadata columns, any of which may be missing" if count else "no metadata"


def _data(manifest: Manifest) -> str:
    data = manifest.data
    version = f" {data['simulator_version']}" if "simulator_version" in data else ""
    simulated = SIMULATED.format(version=version, seed=data.get("simulator_seed", "not recorded"))
    splits = ", ".join(f"{count:,} {name}" for name, count in data.get("splits", {}).items())
    classes = ", ".join(f"{name} {count:,}" for name, count in data.get("classes", {}).items())
    started = f"\n- started from the weights of the run `{data['pretrained']}`" if data.get("pretrained") else ""
    origin = _imported(data) if "import" in data else simulated
    return f"""## Training data

{origin}

- objects: {data.get("objects", 0):,} ({splits}), split by a hash of the object id
- per class: {classes}
- file: sha256 `{data.get("sha256", "")}`{started}"""


def _imported(data: Report) -> str:
    record = data["import"]
    report, command = record["report"], f"nightjar-train import {record['format']}"
    left_out = ", ".join(f"{reason} ({count:,})" for reason, count in report["dropped_objects"].items()) or "none"
    text = f"""Light curves of {data["source"]} (`{command}`), terms: {record["licence"]}.
Of {report["objects_read"]:,} objects {report["objects_written"]:,} were kept; left out: {left_out}."""
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _scores(manifest: Manifest, report: Report | None, baseline: Report | None) -> list[str]:
    if report is None:
        return ["## Scores\n\nNot scored yet."]
    sections = [_views(manifest, report), _early(report)]
    if baseline is not None:
        sections.append(_against(report, baseline))
    return [*sections, _classes(manifest, report)]


def _views(manifest: Manifest, report: Report) -> str:
    data = report["data"]
    header = ["view", "objects", *SCORES.values()]
    rows = (
        [view, f"{scores['objects']['mean']:.0f}", *(_value(scores[name]) for name in SCORES)]
        for view, scores in report["views"].items()
    )
    mix = "" if "import" in manifest.data else ", simulated, every class about equally common"
    return f"""## Scores

On the {data["split"]} split: {data["split_objects"]:,} objects that no training step saw{mix}.
{_runs(report["models"])} Expect lower scores on alerts of another survey or selection.

{markdown_table(header, rows, numbers=True)}

An object without a detection in a view is left out of it, since there would be no alert."""


def _runs(models: list[Report]) -> str:
    if len(models) == 1:
        return "One training run; the spread over seeds has not been measured."
    seeds = ", ".join(str(model["seed"]) for model in models)
    return f"Mean ± sample standard deviation over {len(models)} runs (seeds {seeds}; the first is this bundle)."


def _early(report: Report) -> str:
    full, bare = report["detections"], report["detections_no_metadata"]
    rows = ([key, _value(full[key]["macro_f1"]), _value(bare[key]["macro_f1"])] for key in full)
    days = ([key, _value(scores["macro_f1"])] for key, scores in report["days"].items())
    return f"""## Early classification

Macro-F1 of light curves that end at the n-th detection; objects with fewer detections are complete.

{markdown_table(["detections", "with metadata", "without"], rows, numbers=True)}

Macro-F1 of light curves that end a number of days after the first detection, with metadata:

{markdown_table(["days", "macro-F1"], days, numbers=True)}"""


def _against(report: Report, baseline: Report) -> str:
    trees = baseline["models"][0]
    series = {"views": "{}", "detections": "detections: {}", "detections_no_metadata": "detections: {}, no metadata"}
    rows = (
        [label.format(key), _value(scores["macro_f1"]), _value(baseline[name][key]["macro_f1"])]
        for name, label in series.items()
        for key, scores in report[name].items()
        if key in baseline.get(name, {})
    )
    return f"""## Comparison with trees

Macro-F1 of {trees["name"]} on {trees["features"]} features of the light curve and its metadata, trained on
{trees["examples"]:,} random views of the same training objects, scored on the same test objects.

{markdown_table(["view", "this network", trees["name"]], rows, numbers=True)}"""


def _classes(manifest: Manifest, report: Report) -> str:
    rows = ([name, "-" if score is None else f"{score:.3f}"] for name, score in report["f1"].items())
    return f"""## By class, complete light curves

![Confusion matrix of {manifest.name} {manifest.version}]({PICTURE})

{markdown_table(["class", "F1"], rows, numbers=True)}"""


def _value(score: Report) -> str:
    """Format a mean, with its spread if there is one."""
    return f"{score['mean']:.3f}" if score["spread"] is None else f"{score['mean']:.3f} ± {score['spread']:.3f}"
