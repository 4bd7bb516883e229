"""Model cards: training data, scores, calibration, intended use and limits of a bundle.

A card is rendered from the bundle's manifest and the reports of ``evaluate`` and ``baseline``, or of the
cross-validation of ZTF's types. The texts are in ``card.md.jinja`` and ``card_scores.md.jinja``.
"""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any, Final, Literal

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from nightjar_alerts.models.bundle import CARD, Bundle, Calibration, Manifest, load_bundle, write_manifest
from nightjar_alerts.models.common import markdown_table
from nightjar_alerts.models.lightcurve import Int64
from nightjar_alerts.models.photometry import magnitude_of
from nightjar_alerts.models.posterior import Domain
from nightjar_alerts.models.taxonomy import ZTF_SUPERNOVAE
from nightjar_alerts.training.score.figures import confusion_figure

Report = Mapping[str, Any]
Origin = Literal["finetuned", "surveys", "ztf types", "import", "simulated"]

TEMPLATES: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=False,  # Markdown
)
PICTURE: Final = "confusion.png"
TREES: Final = "boosted trees"
EVERY_PART: Final = "every part"
"""Value of ``learned_from`` in the manifest if :mod:`training.fit.ztf_types` fitted to all objects."""

SCORES: Final = {
    "macro_f1": "macro-F1",
    "balanced_accuracy": "balanced accuracy",
    "top_2": "true class in top 2",
    "log_loss": "log loss",
    "brier": "Brier",
    "ece": "ECE",
}
KEPT: Final = {"newest": "the newest", "around_maximum": "those around the brightest detection"}
NEARER: Final = {
    "mahalanobis": "lie nearer (Mahalanobis) to the mean of their nearest class",
    "fitted": "score lower on a small perceptron trained to separate known objects from outliers",
}

# Licences as stated by the source. Data without a licence were used for training and scores, and are not shipped.
SOURCES: Final[Mapping[str, str]] = {
    "DES, SNLS, Pan-STARRS1 MD, CSP, CfA, KAIT, LOSS": "Pantheon+ (Scolnic+ 2022, Brout+ 2022) and the surveys' own",
    "Foundation": "Foley+ 2018, Jones+ 2019",
    "superluminous supernovae": "Gomez+ 2024 (MIT)",
    "tidal disruption events": "manyTDE (Mummery, van Velzen+)",
    "Open Supernova Catalog": "Guillochon+ 2017, with Villar+ 2020 and Hosseinzadeh+ 2020 for Pan-STARRS1",
    "Young Supernova Experiment": "Aleo+ 2023 (CC BY 4.0)",
    "ZTF supernovae, alerts by ALeRCE": "Bellm+ 2019, Forster+ 2021; no licence stated",
    "ZTF SNe Ia of 2018, forced": "Dhawan+ 2022; no licence stated",
    "ZTF DR3 periodic variables": "uiucsn/ztf-dr-vars (MIT), labels VSX",
    "Gaia alerts": "Hodgkin+ 2021, ESA Gaia, DPAC and the Photometric Science Alerts Team",
    "Catalina (CSS, MANTRA)": "Drake+ 2009, 2017, Neira+ 2020",
    "OGLE dwarf novae and lenses": "Mroz+ 2015, Udalski+ 1997, 2015",
    "EROS-1, Crater II (DECam), ASAS, VSX": "the EROS collaboration, Vivas+ 2020, Pojmanski 2002, Watson+ 2006",
    "Stripe 82 and Pan-STARRS RR Lyrae": "Sesar+ 2010, Ivezic+ 2007",
    "AT2017gfo": "the compilation of its discoverers' photometry",
    "ELAsTiCC (simulated)": "the DESC, Knop+ 2023, by way of Fink (Apache-2.0)",
    "MALLORN (simulated from real ones)": "arXiv:2512.04946; rules of the challenge",
    "SPCC (simulated)": "Kessler+ 2010",
    "this project's simulator": "`nightjar-train simulate`, surveys `rubin` and `any`",
}


def write_card(path: Path, report: Report | None = None, baseline: Report | None = None) -> Bundle:
    """Write ``CARD.md`` into a bundle, and the confusion matrix if the report has one; return it with its new hash.

    Parameters
    ----------
    report : report of ``evaluate``, on simulated objects or surveys, or of the cross-validation of ZTF's types. Scores
        of simulated objects are added to the manifest.
    baseline : report of ``baseline`` on the same simulated objects.

    Raises
    ------
    BundleError
        If the bundle is altered or unreadable.
    ValueError
        If the report and the baseline were not scored on the same objects.
    """
    manifest = load_bundle(path).manifest
    if baseline is not None and (report is None or report.get("data") != baseline["data"]):
        raise ValueError("the report and the baseline were not scored on the same objects")
    if report is not None and "views" in report:
        title = f"{manifest.name} {manifest.version}: percent of each true class ({report['data']['split']} split)"
        draw_confusion(path / PICTURE, np.array(report["confusion"]), report["classes"], title)
        summary = {key: report[key] for key in ("data", "models", "views", "detections", "days", "f1")}
        manifest = manifest.model_copy(update={"metrics": {**manifest.metrics, report["data"]["split"]: summary}})
    (path / CARD).write_text(card(manifest, report, baseline), encoding="utf-8")
    return write_manifest(path, manifest)


def card(manifest: Manifest, report: Report | None = None, baseline: Report | None = None) -> str:
    """Return the text of a card."""
    origin = _origin(manifest)
    text = TEMPLATES.get_template("card.md.jinja").render(
        manifest=manifest,
        classes=manifest.classes.names,
        **_limits(manifest),
        trees=_trees(manifest),
        domain=_domain(manifest.domain),
        origin=origin,
        **_data(manifest, origin),
        scores=_scores(manifest, origin, report, baseline),
        calibration=_calibration(manifest),
        sets=_sets(manifest),
        novelty=_novelty(manifest),
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def _origin(manifest: Manifest) -> Origin:
    if "finetuned" in manifest.data:
        return "finetuned"
    if manifest.prior is not None:  # class shares are stated if several data files were mixed
        return "ztf types" if manifest.classes.names == ZTF_SUPERNOVAE.names else "surveys"
    return "import" if "import" in manifest.data else "simulated"


def _limits(manifest: Manifest) -> dict[str, str]:
    days, columns = manifest.limits.pre_trigger_days, len(manifest.metadata_columns)
    return {
        "window": "all history" if days is None else f"history from {days:g} days before the first detection",
        "kept": KEPT[manifest.limits.kept],
        "metadata": f"{columns} metadata columns, any of which may be missing" if columns else "no metadata",
    }


def _domain(domain: Domain | None) -> str:
    """Return the item of the list that states the domain; empty if none is stated."""
    if domain is None or domain.faintest_njy is None or domain.brightest_njy is None:
        return ""
    faintest, brightest = magnitude_of(domain.faintest_njy), magnitude_of(domain.brightest_njy)
    surveys = f", survey {', '.join(domain.surveys)}" if domain.surveys else ""
    stated = f"bands {', '.join(domain.bands)}, brightest point from {faintest:.1f} to {brightest:.1f} mag{surveys}"
    return f"- {stated}: other light curves are not classified"


def _trees(manifest: Manifest) -> dict[str, Any] | None:
    """Return the weights of the boosted trees of the ensemble; None without trees."""
    blend = manifest.ensemble
    if blend is None:
        return None
    few, many = blend.weights(np.array(blend.lengths), np.zeros(2, dtype=np.bool_)).tolist()
    return {"equal": blend.split == "none", "few": few, "many": many, "lengths": blend.lengths}


def _data(manifest: Manifest, origin: Origin) -> dict[str, Any]:
    data = manifest.data
    counts = ", ".join(f"{name} {count:,}" for name, count in data.get("classes", {}).items())
    drawn = "sampled from it" if origin == "surveys" else "of the fit of heads and trees"
    version = f" {data['simulator_version']}" if "simulator_version" in data else ""
    seed = data.get("simulator_seed", "not recorded")
    return {
        "data": {"objects": 0, "sha256": "", "pretrained": None} | data,
        "left_out": _listed(data.get("finetuned", {}).get("left_out", {})),
        "counts": counts,
        "counted": fill(f"- light curves {drawn}, by class: {counts}", 120, subsequent_indent="  "),
        "mixture": ", ".join(f"{share:.0%} {name}" for name, share in data.get("mixture", {}).items()),
        "sources": markdown_table(["source", "citation, licence"], [[name, cite] for name, cite in SOURCES.items()]),
        "every_part": data.get("learned_from") == EVERY_PART,
        "splits": ", ".join(f"{count:,} {name}" for name, count in data.get("splits", {}).items()),
        "imported": _imported(data) if "import" in data else "",
        "simulator": f"{version}, seed {seed}",
    }


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} ({count:,})" for reason, count in counts.items()) or "none"


def _imported(data: Report) -> str:
    record = data["import"]
    report, command = record["report"], f"nightjar-train import {record['format']}"
    left_out = _listed(report["dropped_objects"])
    source = "Imported light curves" if data["source"] == "not stated" else f"Light curves of {data['source']}"
    text = f"""{source} (`{command}`), terms: {record["licence"]}.
Of {report["objects_read"]:,} objects {report["objects_written"]:,} were kept; left out: {left_out}."""
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _calibration(manifest: Manifest) -> dict[str, Any] | None:
    """Return method and scores of the calibration; None without one."""
    calibration, fit = manifest.calibration, manifest.metrics.get("calibration")
    if calibration.method == "none" or fit is None:
        return None
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
    return {
        "method": _method(calibration),
        "objects": fit["objects"],
        "table": markdown_table(["detections", "views", "ECE before", "after", "by chance"], rows, numbers=True),
        "balance": manifest.recipe.get("batch", {}).get("balance", 1.0),
    }


def _method(calibration: Calibration) -> str:
    if not calibration.coefficients:
        return f"One temperature, {calibration.temperature:.3f}"
    terms = " + ".join(
        f"({value:.4f})" + ("", " ln n", " (ln n)^2")[power] for power, value in enumerate(calibration.coefficients)
    )
    return f"The temperature of n observations, exp({terms}); the best single one is {calibration.temperature:.3f}"


def _sets(manifest: Manifest) -> str:
    """Return the table of thresholds; empty without sets."""
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
    return markdown_table(header, rows, numbers=True)


def _novelty(manifest: Manifest) -> dict[str, str] | None:
    novelty = manifest.novelty
    if novelty is None:
        return None
    names = _ranges(list(novelty.by_detections))
    rows = ([name, f"{novelty.by_detections[int(key)]:.4f}"] for key, name in names.items())
    table = markdown_table(["detections", "false alarms"], rows, numbers=True) if names else ""
    return {"nearer": NEARER[novelty.method], "table": table}


def _ranges(starts: list[int]) -> dict[str, str]:
    """Return the names of groups by their first number: {"3": "3 to 4", "5": "5 or more"}."""
    names = {str(start): str(start) if end == start + 1 else f"{start} to {end - 1}" for start, end in pairwise(starts)}
    return names | {str(start): f"{start} or more" for start in starts[-1:]}


def _scores(manifest: Manifest, origin: Origin, report: Report | None, baseline: Report | None) -> str:
    """Return the sections on scores, for any kind of report."""
    if report is None and origin == "finetuned" and "test" in manifest.metrics:
        found: dict[str, Any] = {"kind": "finetuned", **_test_scores(manifest.metrics)}
    elif report is None:
        found = {"kind": "none"}
    elif "table" in report:
        found = {"kind": "surveys", **_survey_scores(report, manifest)}
    elif "draws" in report:
        found = {"kind": "folds", **_fold_scores(report)}
    else:
        found = {"kind": "views", **_view_scores(manifest, report, baseline)}
    template = TEMPLATES.get_template("card_scores.md.jinja")
    return template.render(manifest=manifest, origin=origin, report=report, picture=PICTURE, **found)


def _test_scores(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a fine-tuned model: scores on the untouched objects, and of all methods on inner folds."""
    test, methods = metrics["test"], metrics["methods"]
    classes = list(test["model"]["f1"])
    rows = [
        [name, *(f"{score[key]:.3f}" for key in ("macro_f1", "balanced_accuracy"))]
        + [f"{score['f1'][kind]:.2f}" for kind in classes]
        for name, score in test.items()
    ]
    folds = max(len(score["by fold"]) for score in methods.values())
    inner = [
        [name, f"{score['macro_f1']:.3f}", f"{np.std(score['by fold']):.3f}"]
        for name, score in methods.items()
        if len(score["by fold"]) == folds
    ]
    first = [[name, f"{score['macro_f1']:.3f}"] for name, score in methods.items() if len(score["by fold"]) < folds]
    return {
        "table": markdown_table(["", "macro-F1", "balanced accuracy", *classes], rows, numbers=True),
        "methods": markdown_table(["method", "macro-F1", "deviation over folds"], inner, numbers=True),
        "first_fold_only": first,
        "differences": [score["difference"] for score in test.values() if "difference" in score],
    }


def _view_scores(manifest: Manifest, report: Report, baseline: Report | None) -> dict[str, Any]:
    """Return the tables of a report on a held-out split in the views of surveys."""
    views = (
        [view, f"{scores['objects']['mean']:.0f}", *(_value(scores[name]) for name in SCORES)]
        for view, scores in report["views"].items()
    )
    full, bare = report["detections"], report["detections_no_metadata"]
    early = ([key, _value(full[key]["macro_f1"]), _value(bare[key]["macro_f1"])] for key in full)
    days = ([key, _value(scores["macro_f1"])] for key, scores in report["days"].items())
    by_class = ([name, "-" if score is None else f"{score:.3f}"] for name, score in report["f1"].items())
    return {
        "mix": "" if "import" in manifest.data else ", simulated, every class about equally common",
        "runs": _runs(report["models"]),
        "views": markdown_table(["view", "objects", *SCORES.values()], views, numbers=True),
        "detections": markdown_table(["detections", "with metadata", "without"], early, numbers=True),
        "days": markdown_table(["days", "macro-F1"], days, numbers=True),
        "trees": None if baseline is None else _against(report, baseline),
        "by_class": markdown_table(["class", "F1"], by_class, numbers=True),
    }


def _runs(models: list[Report]) -> str:
    if len(models) == 1:
        return "One training run; the spread over seeds has not been measured."
    seeds = ", ".join(str(model["seed"]) for model in models)
    return f"Mean ± sample standard deviation over {len(models)} runs (seeds {seeds}; the first is this bundle)."


def _against(report: Report, baseline: Report) -> dict[str, Any]:
    trees = baseline["models"][0]
    series = {"views": "{}", "detections": "detections: {}", "detections_no_metadata": "detections: {}, no metadata"}
    rows = (
        [label.format(key), _value(scores["macro_f1"]), _value(baseline[name][key]["macro_f1"])]
        for name, label in series.items()
        for key, scores in report[name].items()
        if key in baseline.get(name, {})
    )
    table = markdown_table(["view", "this network", trees["name"]], rows, numbers=True)
    return {**{key: trees[key] for key in ("name", "features", "examples")}, "table": table}


def _survey_scores(report: Mapping[str, Any], manifest: Manifest) -> dict[str, Any]:
    """Return the table of a report on surveys, and that of several seeds."""
    name = next((name for name in report["reports"] if manifest.version in name), next(iter(report["reports"])))
    rows = []
    for row in report["table"]:
        figures = row["figures"]
        rows.append([row["title"], row["wanted"], _cell(figures.get(name, {})), _cell(figures.get(TREES, {}))])
    return {
        "table": markdown_table(["set", "target", f"{manifest.name} {manifest.version}", TREES], rows),
        "seeds": _seeds(report.get("seeds") or ()),
    }


def _seeds(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of mean and standard deviation over seeds; empty if they were not measured."""
    cells = [
        [row["title"], "; ".join(f"{name} {mean:.3f} ± {sd:.3f}" for name, (mean, sd) in row["figures"].items())]
        for row in rows
        if row["figures"]
    ]
    return markdown_table(["set", "figures"], cells) if rows else ""


def _cell(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Format one cell: the column ``seen`` if there is one, else every column."""
    columns = {column: values for column, values in figures.items() if column == "seen"} or figures
    cells = (
        f"{column}: " + ", ".join(f"{key} {_number(value)}" for key, value in values.items())
        for column, values in columns.items()
    )
    return "; ".join(cells) or "-"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int | str) else f"{value:.3f}"


def _fold_scores(report: Report) -> dict[str, str]:
    """Return the tables of a cross-validation of ZTF's types."""
    draws = list(report["draws"].values())
    models_by_title = {"ensemble, as released": ["both"], "its trees": ["trees inside"], "its heads": ["heads"]}
    for kind in draws[0]["difference"]:
        models_by_title[f"boosted {kind} alone"] = [
            name for name in draws[0]["F1"] if name.rstrip("0123456789 ") == kind
        ]
    classes = list(draws[0]["F1"]["both"])
    rows = []
    for title, names in models_by_title.items():
        scores = [draw["macro-F1"][name] for draw in draws for name in names]
        each = [np.mean([draw["F1"][name][kind] for draw in draws for name in names]) for kind in classes]
        rows.append([title, f"{np.mean(scores):.3f} ± {np.std(scores):.3f}", *(f"{value:.2f}" for value in each)])
    pairs = "\n".join(
        f"- {kind}: " + "; ".join("{:+.3f} ({:+.3f} to {:+.3f})".format(*draw["difference"][kind]) for draw in draws)
        for kind in draws[0]["difference"]
    )
    return {"table": markdown_table(["", "macro-F1", *classes], rows), "pairs": pairs}


def _value(score: Report) -> str:
    """Format a mean, with its spread if there is one."""
    return f"{score['mean']:.3f}" if score["spread"] is None else f"{score['mean']:.3f} ± {score['spread']:.3f}"


def read_report(path: Path | None) -> Report | None:
    """Read a JSON report; None stays None."""
    return None if path is None else json.loads(path.read_text(encoding="utf-8"))


def draw_confusion(path: Path, confusion_CC: Int64, classes: Sequence[str], title: str) -> None:
    """Write the confusion matrix as a PNG, rows normalised to percent of the true class."""
    support_C1 = confusion_CC.sum(1, keepdims=True)
    percent_CC = 100 * confusion_CC / np.maximum(support_C1, 1)
    confusion_figure(percent_CC, classes, support_C1[:, 0].tolist(), title).savefig(path)
