"""The model card: what a bundle was trained on, how it scores, and what it must not be used for.

Written from the bundle's manifest and the reports of ``evaluate`` and ``baseline``, never by hand, so that its
numbers are those that were measured. The scores go into the manifest, which is hashed anew.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from models.bundle import CARD, Bundle, Manifest, load_bundle, write_manifest
from training.export.confidence_card import confidence_sections
from training.export.figures import draw_confusion
from training.export.forecast_card import forecast_sections
from training.export.markdown import table

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

Ranking and filtering of alerts for follow-up, tests of brokers and pipelines, and a starting point for training on
real labels. It takes alerts of Rubin, ZTF and ELAsTiCC.

## What it must not be used for

- as a spectroscopic label, or as evidence for a discovery, without confirmation
- for rates, populations or cosmological samples: the class mix, redshifts and hosts it was trained on are not the sky's
- for objects outside its classes: it knows no artefacts, Solar System objects or stars of high proper motion, and will
  name one of its own classes with confidence
- on images, spectra, or photometry that is not difference flux against a template"""

SIMULATED = """Light curves of this project's own simulator (`python -m training simulate`{version}, seed {seed}), and
nothing else: no survey data, no data of the ELAsTiCC challenge."""

SIMULATED_LIMITS = """## Known limits

- Trained and scored on simulated objects only; it has not been validated on labelled real alerts.
- The simulator is honest but simple: analytic light curves and blackbody colours at effective wavelengths, no
  artefacts, no bad subtractions, no variable host centres.
- Where it was compared with other sets (`python -m training.simulate.population_report`): medians of peak, duration,
  redshift, colours and points per band of Ia, II and IIb agree with ELAsTiCC's (0.3 mag, 0.15 mag in colour, a factor
  of 1.4), with r-i of Ia and II 0.1 mag too red, no II beyond redshift 0.6 and more faint objects. At equal redshift
  tidal disruptions are 0.2 to 0.35 mag bluer, stripped-envelope supernovae 0.8 mag fainter and active nuclei 1.5 mag
  brighter than MALLORN's. Kilonovae, periodic and eruptive stars, lenses, CART, ILOT, PISN, SLSN, 91bg, Iax and all
  host metadata had nothing to be compared with.
- ZTF is imitated by Rubin's light curves of brighter objects in g, r and sometimes i; bands of the same name are taken
  as the same band, without a colour correction.
- The final redshift is the host's spectroscopic or photometric one and is more often known than in a survey. The rows
  without metadata are those that concern Rubin and ZTF alerts as they are sent."""

IMPORTED_LIMITS = """## Known limits

- Trained and scored on one labelled set: its selection (what was bright enough to be followed up), its label errors and
  its cadence are in the scores, and other surveys have others.
- Objects whose labels were left out of the import are not among its classes and get one of them nevertheless."""


def write_card(path: Path, report: Report | None = None, baseline: Report | None = None) -> Bundle:
    """Write ``CARD.md``, and the confusion matrix when there is a report, into a bundle; returns it rehashed.

    Raises
    ------
    BundleError
        When the bundle is altered or unreadable.
    ValueError
        When the report and the baseline were not scored on the same objects.
    """
    manifest = load_bundle(path).manifest
    if report is not None and baseline is not None and report["data"] != baseline["data"]:
        raise ValueError("the report and the baseline were not scored on the same objects")
    if report is not None:
        title = f"{manifest.name} {manifest.version}: percent of each true class ({report['data']['split']} split)"
        draw_confusion(path / PICTURE, np.array(report["confusion"]), report["classes"], title)
        summary = {key: report[key] for key in ("data", "models", "views", "detections", "days", "f1")}
        manifest = manifest.model_copy(update={"metrics": {**manifest.metrics, report["data"]["split"]: summary}})
    if manifest.task == "forecast":
        identity, *rest = forecast_sections(manifest)
        sections = [identity, _data(manifest), *rest]
    else:
        scores = _scores(manifest, report, baseline)
        limits = IMPORTED_LIMITS if "import" in manifest.data else SIMULATED_LIMITS
        sections = [_identity(manifest), _data(manifest), *scores, *confidence_sections(manifest), USE, limits]
    (path / CARD).write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    return write_manifest(path, manifest)


def read_report(path: Path | None) -> Report | None:
    """Read a JSON report; None stays None."""
    return None if path is None else json.loads(path.read_text(encoding="utf-8"))


def _identity(manifest: Manifest) -> str:
    parameters, limits, days = manifest.parameters, manifest.limits, manifest.limits.pre_trigger_days
    window = "all history" if days is None else f"history from {days:g} days before the first detection"
    return f"""# {manifest.name} {manifest.version}

A classifier of multiband light curves into the {len(manifest.classes.classes)} classes of {manifest.classes.name}:
{", ".join(manifest.classes.names)}.

- network: {manifest.architecture}, {parameters.total:,} parameters, of which one observation passes through
  {parameters.active:,}
- input: difference flux and its error in any of {", ".join(manifest.bands)}; {window}, at most the newest
  {limits.max_points_per_band} observations of each band; {_metadata(manifest)}
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
    told = data["import"]
    report, command = told["report"], f"python -m training import {told['format']}"
    left_out = ", ".join(f"{reason} ({count:,})" for reason, count in report["dropped_objects"].items()) or "none"
    text = f"""Light curves of {data["source"]} (`{command}`), terms: {told["licence"]}.
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
    header = ["what is shown", "objects", *SCORES.values()]
    rows = (
        [view, f"{scores['objects']['mean']:.0f}", *(_value(scores[name]) for name in SCORES)]
        for view, scores in report["views"].items()
    )
    mix = "" if "import" in manifest.data else ", simulated, every class about equally common"
    return f"""## Scores

On the {data["split"]} split: {data["split_objects"]:,} objects that no training step saw{mix}.
{_who(report["models"])} Expect lower scores on alerts of another survey or selection.

{table(header, rows)}

An object without a detection in a view is left out of it: no alert would have been sent."""


def _who(models: list[Report]) -> str:
    if len(models) == 1:
        return "One training run; the spread over seeds has not been measured."
    seeds = ", ".join(str(model["seed"]) for model in models)
    return f"Mean ± sample standard deviation over {len(models)} runs (seeds {seeds}; the first is this bundle)."


def _early(report: Report) -> str:
    full, bare = report["detections"], report["detections_no_metadata"]
    rows = ([key, _value(full[key]["macro_f1"]), _value(bare[key]["macro_f1"])] for key in full)
    days = ([key, _value(scores["macro_f1"])] for key, scores in report["days"].items())
    return f"""## Early classification

Macro-F1 when the light curve ends at its n-th detection; objects with fewer are shown whole.

{table(["detections", "with metadata", "without"], rows)}

The same when it ends so many days after its first detection, with metadata:

{table(["days", "macro-F1"], days)}"""


def _against(report: Report, baseline: Report) -> str:
    trees = baseline["models"][0]
    series = {"views": "{}", "detections": "detections: {}", "detections_no_metadata": "detections: {}, no metadata"}
    rows = (
        [label.format(key), _value(scores["macro_f1"]), _value(baseline[name][key]["macro_f1"])]
        for name, label in series.items()
        for key, scores in report[name].items()
        if key in baseline.get(name, {})
    )
    return f"""## Beside trees

Macro-F1 of {trees["name"]} on {trees["features"]} features of the light curve and its metadata, trained on
{trees["examples"]:,} random views of the same training objects, scored on the same test objects.

{table(["what is shown", "this network", trees["name"]], rows)}"""


def _classes(manifest: Manifest, report: Report) -> str:
    rows = ([name, "-" if score is None else f"{score:.3f}"] for name, score in report["f1"].items())
    return f"""## By class, everything shown

![Confusion matrix of {manifest.name} {manifest.version}]({PICTURE})

{table(["class", "F1"], rows)}"""


def _value(score: Report) -> str:
    """A mean, with its spread where there is one."""
    return f"{score['mean']:.3f}" if score["spread"] is None else f"{score['mean']:.3f} ± {score['spread']:.3f}"
