"""The report as one HTML file that needs nothing else: no scripts, no fonts, no network; pictures are inside.

On a phone the page keeps its width: tables and drawings scroll sideways within it, at a size that can be read.

Written from the JSON reports alone, so that a page can be drawn again years later. Sections that were not measured say
so instead of being absent.
"""

import base64
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from training.score import figures, maps

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: #1a1a1a; background: #fff;
  max-width: 1160px; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.8rem 0 .4rem; padding-top: .6rem; border-top: 1px solid #ddd; }
p { max-width: 75ch; } .about, figcaption { color: #444; font-size: .92rem; } code { font-size: .9em; }
.about { overflow-wrap: anywhere; } a { color: #0064a0; }
nav { font-size: .92rem; margin: 1rem 0; } nav a { display: inline-block; margin: .15rem 1rem .15rem 0; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .8rem; margin: 1.2rem 0; }
.numbers div { border: 1px solid #ddd; border-radius: 6px; padding: .6rem 1rem; }
.numbers b { display: block; font-size: 1.45rem; font-weight: 600; white-space: nowrap; }
.numbers small { font-size: .9rem; font-weight: 400; } .numbers span { color: #444; font-size: .87rem; }
.wide { overflow-x: auto; } details { margin: .8rem 0; } summary { cursor: pointer; }
table { border-collapse: collapse; font-size: .86rem; margin: .8rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .45rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #eee; }
th:first-child, td:first-child { text-align: left; font-weight: 400; }
thead th, thead th:first-child { font-weight: 600; white-space: normal; border-bottom: 2px solid #bbb;
  vertical-align: bottom; }
tbody tr:nth-child(even) { background: #f7f8fa; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; }
@media (max-width: 760px) { .wide img { max-width: none; width: 760px; } }
@media print { h2 { break-after: avoid; } figure, table { break-inside: avoid; } nav { display: none; } }
"""


def document(title: str, head: str, sections: Mapping[str, str]) -> str:
    """Return the page; ``head`` and the sections are HTML already, the title and the names of sections are not."""
    links = "".join(f'<a href="#{_anchor(name)}">{escape(name)}</a>' for name in sections)
    body = "".join(f'<h2 id="{_anchor(name)}">{escape(name)}</h2>{part}' for name, part in sections.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><h1>{escape(title)}</h1>{head}<nav>{links}</nav>{body}</body></html>\n"
    )


def figure(drawn: Figure, caption: str, kind: str = "svg") -> str:
    """Return a drawing inside the page; many marks are smaller as PNG, everything else is sharp as SVG."""
    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "nightjar"}):  # the same report gives the same bytes
        drawn.savefig(stream, format=kind, dpi=130, metadata={"Date": None} if kind == "svg" else None)
    mime = "image/svg+xml" if kind == "svg" else "image/png"
    source = f"data:{mime};base64,{base64.b64encode(stream.getvalue()).decode()}"
    words = escape(caption)
    return (
        f'<figure><div class="wide"><img src="{source}" alt="{words}"></div><figcaption>{words}</figcaption></figure>'
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table, the first cell of every row its heading; cells are HTML already."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = "".join(
        f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"
        for first, *rest in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def details(summary: str, content: str) -> str:
    """Content that is opened on request."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def about(words: str) -> str:
    """Return a paragraph of explanation, HTML already."""
    return f'<p class="about">{words}</p>'


def value(score: Mapping[str, Any], digits: int = 3) -> str:
    """Mean ± spread; an en dash where nothing was measured."""
    if score["mean"] is None:
        return "–"
    mean = f"{score['mean']:.{digits}f}"
    return mean if score["spread"] is None else f"{mean} ± {score['spread']:.{digits}f}"


def tiles(numbers: Iterable[tuple[Mapping[str, Any], int, str]]) -> str:
    """Return the few numbers to look at first: score, digits and label of each."""
    boxes = []
    for score, digits, label in numbers:
        mean, _, spread = value(score, digits).partition(" ± ")
        small = f" <small>± {spread}</small>" if spread else ""
        boxes.append(f"<div><b>{mean}{small}</b><span>{escape(label)}</span></div>")
    return f'<div class="numbers">{"".join(boxes)}</div>'


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


Report = Mapping[str, Any]
COLUMNS = {
    "macro_f1": "macro-F1",
    "balanced_accuracy": "balanced accuracy",
    "auroc": "AUROC",
    "top_2": "top 2",
    "log_loss": "log loss",
    "brier": "Brier",
    "ece": "ECE",
    "hierarchical_f1": "hierarchical F1",
}
METHODS = {"lac": "LAC", "aps": "APS", "raps": "RAPS"}
STABILITY = {
    "flip_rate": "flip rate: share of steps that change the class",
    "flips_per_object": "changes per object",
    "never_flipped": "share of objects whose first answer is their last",
}


def read_baselines(paths: Sequence[Path]) -> list[Report]:
    """Read reports of ``baseline``."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def write_page(path: Path, report: Report, baselines: Sequence[Report] = ()) -> None:
    """Write the page.

    Raises
    ------
    ValueError
        When the report and a baseline were not scored on the same objects.
    """
    if any(report["data"] != baseline["data"] for baseline in baselines):
        raise ValueError("the report and the baseline were not scored on the same objects")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(report, baselines), encoding="utf-8")


def page(report: Report, baselines: Sequence[Report] = ()) -> str:
    """Return the whole document."""
    sections = {
        "Scores": _views(report, baselines),
        "Against time": _time(report, baselines),
        "Classes against time": _classes(report),
        "Levels of the taxonomy": _hierarchy(report),
        "Confusion": _confusion(report),
        "Calibration": _calibration(report),
        "Abstention": _abstention(report),
        "Stability": _stability(report),
        "Prediction sets": _sets(report),
        "Novelty": _novelty(report),
        "Experts": _experts(report),
        "Embedding": _embedding(report),
    }
    return document(f"{report['models'][0]['name']}: evaluation", _head(report), sections)


def _head(report: Report) -> str:
    data, models = report["data"], report["models"]
    names = ", ".join(escape(one["name"]) for one in models)
    spread = f" Numbers are means ± sample standard deviations over {len(models)} training runs: {names}."
    unseen = f" Classes left out of training: {escape(', '.join(report['left_out']))}." if report["left_out"] else ""
    source = about(
        f"{data['split_objects']:,} objects of {len(report['classes'])} classes: the {escape(data['split'])} split of "
        f"<code>{escape(data['name'])}</code> (sha256 <code>{data['sha256'][:12]}</code>).{unseen}"
        f"{spread if len(models) > 1 else ' One training run.'}"
    )
    everything, sets = report["views"]["everything"], report["conformal"]
    first = [(everything["macro_f1"], 3, "macro-F1, complete light curves")]
    first += [(report["detections"][n]["macro_f1"], 3, f"macro-F1 at {n} detections") for n in ("3", "10")]
    first.append((everything["ece"], 3, "calibration error (ECE)"))
    if sets is not None:
        first.append((sets["methods"]["lac"]["mean_size"], 2, f"classes in a {sets['stated_coverage']:.0%} set"))
    return source + tiles(first)


def _views(report: Report, baselines: Sequence[Report]) -> str:
    rows = []
    for name, scores in report["views"].items():
        rows.append([escape(name), *_cells(scores)])
        rows += [
            [f"&emsp;{escape(one['models'][0]['name'])}", *_cells(one["views"][name])]
            for one in baselines
            if name in one["views"]
        ]
    explained = about(
        "The same objects, shown as different surveys would send them; an object without a detection in a view is left "
        "out of it, because no alert would have been sent. Log loss is in nats, Brier is summed over classes, ECE has "
        "15 bins; for these three, lower is better."
    )
    return explained + table(["what is shown", "objects", *COLUMNS.values()], rows)


def _cells(scores: Report) -> list[str]:
    """Return number of objects and every score; an older report may lack some."""
    absent = {"mean": None, "spread": None}
    return [f"{scores['objects']['mean']:.0f}", *(value(scores.get(key, absent)) for key in COLUMNS)]


def _time(report: Report, baselines: Sequence[Report]) -> str:
    parts = []
    for axis, words in (
        ("days", "The light curve ends so many days after its first detection; what was observed before it stays."),
        ("detections", "The light curve ends at its n-th detection; objects with fewer are shown in full."),
    ):
        lines = {"with metadata": report[axis], "without metadata": report[f"{axis}_no_metadata"]}
        lines |= {f"{one['models'][0]['name']}, with metadata": one[axis] for one in baselines if axis in one}
        drawn = figures.series_figure(axis, lines)
        parts.append(about(words) + figure(drawn, f"Scores against the {figures.AXES[axis]}."))
        for label, key in (("with metadata", axis), ("without metadata", f"{axis}_no_metadata")):
            rows = [[step, *_cells(scores)] for step, scores in report[key].items()]
            parts.append(details(f"Numbers, {label}", table([axis, "objects", *COLUMNS.values()], rows)))
    return "".join(parts)


def _classes(report: Report) -> str:
    rows = [[escape(name), "–" if score is None else f"{score:.3f}"] for name, score in report["f1"].items()]
    explained = about("Which classes are recognised early, and which only once the light curve is long, or never.")
    drawn = maps.class_f1_figure(report["f1_growing"], report["classes"], report["families"])
    shown = figure(drawn, "F1 of each class in percent, families together; with metadata.")
    return explained + shown + details("F1 of each class, complete light curves", table(["class", "F1"], rows))


def _hierarchy(report: Report) -> str:
    groups = "; ".join(f"{len(names)} groups: {', '.join(names)}" for names in report["levels"].values())
    explained = about(
        f"A Type Ia taken for a Type Ib/c is right about its family. Probabilities are summed into the groups of each "
        f"level ({escape(groups or 'this taxonomy has none')}) and the most probable group is compared with the true "
        f"one; hierarchical F1 counts the ancestors that the predicted and the true class share."
    )
    return explained + figure(figures.hierarchy_figure(report), "F1 at each level of the taxonomy, with metadata.")


def _confusion(report: Report) -> str:
    section, support_C = report["confusion_runs"], np.array(report["confusion"]).sum(1)
    order_C, borders = maps.family_order(report["families"])
    median, low, high = (np.array(section[k], dtype=np.float64)[order_C][:, order_C] for k in ("median", "low", "high"))
    several = section["runs"] > 1
    drawn = maps.confusion_figure(
        median,
        [report["classes"][index] for index in order_C],
        support_C[order_C].tolist(),
        "percent of each true class",
        (low, high) if several else None,
        borders,
    )
    bounds = " and ".join(f"{percentile}th" for percentile in section["percentiles"])
    what = f"Median over {section['runs']} runs, small: distance to the {bounds} percentile" if several else "One run"
    explained = about("What each true class (row) is taken for (column); lines part the families of the taxonomy.")
    return explained + figure(drawn, f"{what}; complete light curves; cells below half a percent are blank.", "png")


def _calibration(report: Report) -> str:
    explained = about(
        "When the network says 0.8, is it right four times in five? Points on the diagonal are; where they lie below "
        "it, the network is too sure of itself."
    )
    caption = f"Reliability of {report['models'][0]['name']}, with metadata; bars are one-sigma intervals (Wilson)."
    return explained + figure(figures.reliability_figure(report["reliability_early"]), caption)


def _abstention(report: Report) -> str:
    explained = about(
        "What is gained by answering only the objects that the network is most certain about. Macro-F1 averages over "
        "the classes that are still answered, and may fall where hard classes keep a few objects."
    )
    return explained + figure(figures.abstention_figure(report["abstention"]), "Answers against coverage.")


def _stability(report: Report) -> str:
    section = {name: part for name, part in report["stability"].items() if part is not None}
    explained = about(
        "How often the most probable class changes as the light curve grows, and when it settles: at the first step "
        "after which it never changes again, which is known in hindsight only."
    )
    if not section:
        return explained + about("Not measured: no object is shown by every step.")
    rows = [[label, *(value(part[key], 2) for part in section.values())] for key, label in STABILITY.items()]
    settled = {"median_step": "half of all objects", "median_step_right": "half of those that end up right"}
    rows += [
        [f"{label} have settled at", *(_step(part[key]["mean"], axis) for axis, part in section.items())]
        for key, label in settled.items()
    ]
    drawn = figures.stability_figure(report["stability"])
    header = ["", *(f"over {name}" for name in section)]
    by_class = details("By class", _stability_by_class(report["classes"], section))
    return explained + figure(drawn, "Objects that have settled.") + table(header, rows) + by_class


def _stability_by_class(classes: Sequence[str], section: Report) -> str:
    header = ["class", *(f"{what} over {axis}" for axis in section for what in ("flip rate", "half settled,"))]
    rows = []
    for index, name in enumerate(classes):
        found = [(axis, part["by_class"].get(str(index), [None, None])) for axis, part in section.items()]
        cells = [("–" if one[0] is None else f"{one[0]:.2f}", _step(one[1], axis)) for axis, one in found]
        rows.append([escape(name), *(cell for pair in cells for cell in pair)])
    return table(header, rows)


def _step(step: float | None, axis: str) -> str:
    """Days or detections with their unit; a mean over runs may lie between two steps."""
    return "–" if step is None else f"{step:.3g} {axis if step != 1 else axis.removesuffix('s')}"


def _sets(report: Report) -> str:
    section = report["conformal"]
    if section is None:
        return about("Not measured: it takes a validation split that is not the one scored.")
    stated = f"{section['stated_coverage']:.0%}"
    rows = []
    for name, found in section["methods"].items():
        kind, _, by_class = name.partition(", ")
        keys = ("coverage", "worst_class_coverage", "mean_size", "empty", "single")
        label = METHODS[kind] + (", one threshold per class" if by_class else "")
        rows.append([label, *(value(found[key], 2 if key == "mean_size" else 3) for key in keys)])
    explained = about(
        f"Instead of one class, a set of classes that holds the true one {stated} of the time (split conformal "
        f"prediction). LAC takes every class above one probability; APS and RAPS take classes from the most probable "
        f"down until enough probability is gathered. Thresholds were fitted to {section['validation_objects']:,} "
        f"validation objects and hold only for light curves like those: the left panel shows what is left otherwise."
    )
    header = ["method", "coverage", "worst class", "classes per set", "empty sets", "single class"]
    drawn = figures.sets_figure(section, report["classes"])
    return explained + table(header, rows) + figure(drawn, f"Sets of LAC; dashed: the stated {stated}.")


def _novelty(report: Report) -> str:
    section = report["novelty"]
    if section is None:
        return about(
            "Not measured: it takes models trained without some of the classes, named with <code>--left-out</code>."
        )
    explained = about(
        f"Does an object of a class that the network never learned look strange to it? {section['objects']:,} objects "
        f"of the left-out classes against those of the known ones. Mahalanobis and nearest neighbours measure how far "
        f"the embedding lies from those of training; the other two look at the probabilities alone."
    )
    rows = [[escape(name), value(score["all"])] for name, score in section["scores"].items()]
    drawn = figures.novelty_figure(section, report["classes"])
    return explained + figure(drawn, "AUROC by left-out class.") + table(["score", "AUROC, all left out"], rows)


def _experts(report: Report) -> str:
    section = report["experts"]
    if section is None:
        return about("None of these models is a mixture of experts.")
    how = {
        "tokens": "The experts chosen for every observation of complete light curves, counted by band and by class.",
        "batches": "How the load of the experts divides when the bundle is shown objects of one class only, and light "
        "curves cut down to one band.",
    }
    explained = about(
        f"Which bands and classes each expert serves. {how[section['measured']]} Every row sums to 1; rows alike mean "
        f"experts that do not specialise."
    )
    drawn = maps.experts_figure(section, report["classes"], report["families"])
    return explained + figure(drawn, f"Bands above, classes below, of {section['model']}.")


def _embedding(report: Report) -> str:
    section = report["embedding"]
    if section is None:
        return about("Not drawn: too few objects, or no embedding.")
    parts = [about("Objects that the network takes to be alike lie side by side; complete light curves.")]
    for name, place in section.items():
        parts.append(figure(maps.embedding_figure(place, report["families"], name), f"By family: {name}.", "png"))
        parts.append(figure(maps.class_map_figure(place, report["classes"]), f"By class: {name}.", "png"))
    return "".join(parts)
