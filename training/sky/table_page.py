"""The page of the table of real surveys, and the card of a bundle for the real sky, which shows that table in short.

Both are written from the stored report, and nobody edits them by hand. The card names its sources with whom to cite::

    nightjar-train sky card build/astro-moe-elasticc --report build/sky.json
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Final

import numpy as np

from nightjar_alerts.models.bundle import CARD, Bundle, Manifest, load_bundle, write_manifest
from nightjar_alerts.models.common import markdown_table
from nightjar_alerts.models.taxonomy import ZTF_SUPERNOVAE
from nightjar_alerts.training.export.card import USE, confidence_sections, identity
from nightjar_alerts.training.sky.left_out import TWIN, WHOLE
from nightjar_alerts.training.sky.measure import COLUMNS
from nightjar_alerts.training.sky.scores import SURE

INTRODUCTION: Final = """# How right it is on the real sky

How often the default model names real objects rightly: of surveys that it learned from, and of surveys that nobody
labelled. Beside it stand boosted trees that learned from the same objects, and version 1.2.0, which had seen
simulations alone. Read [the table](#the-table) and [what falls short](#what-falls-short-and-why); every figure of every
model is in [set by set](#set-by-set), each survey and class in [`sky.json`](results/sky.json).

{contents}

The page is written by `nightjar-train sky page` from `{source}`; the figures there come from
`nightjar-train sky measure`, which asks every model through the featuriser and the prediction sets that are served.
"""
MEASURED: Final = f"""## How it is measured

**Objects** are those of the test part: 15 in a hundred of all physical objects, drawn by a hash. What several surveys
saw of one object is one group, all of it in the same part. Those scored show five points and two detections at least. A
*view* is an object as another survey would have seen it: at that survey's visits, in its bands, with its errors.

**Columns** are never mixed:

- *seen*: most of a source was in training;
- *left out*: nothing of the survey was;
- *adapted*: no object of the survey was, but its unlabelled light curves told when, in which bands and how precisely it
  observes, and views of other objects were made of that.

Labels of Rubin's alerts and TDECat trained nothing, in any column.

**A survey that nobody labelled.** The default has seen every survey. What it would say of a new one is told by models
that were trained without one of five groups of surveys at a time, and asked about that group:

- "{WHOLE}", adapted, is what to expect of the default there. It is the twin below, all of it trained on without
  the group, in 555 steps where the default had 13,800, with trees beside it, as the default has, that do not know the
  group either; one seed. ZTF left out for longer, and what the network says without trees, stand in
  [experiments](experiments.md#surveys-left-out).
- "{TWIN}", the twin: the default's kind of network. Its branches are those of 1.2.0, which saw
  simulations alone; its heads learned from real objects and views without the group (27,000 rows, one seed).

**Figures.** Class shares (prior): {{prior}}. "Among three" counts Ia, II and Ib/c alone; "balanced" is the mean over
classes; "withheld" is the share called unusual, which gets no set. "Sure and wrong" is a wrong first class with
p >= {SURE}, as a share of all answers; coverage and size are of the sets that were not withheld. "Trees before" are
figures of others' trees on other objects of the same surveys, for orientation, and "wanted" is what was aimed at with
those in view.

**How often the test part was looked at**: {{looks}}.
"""
FINGERPRINT: Final = """## Can the source of a supernova be told?

A model may learn which survey saw an object instead of what the object is. So trees are asked for the source of SNe Ia,
with the features that they classify by: from light curves as their surveys saw them, and from views, where the source
is that of the object and not that of the survey whose visits, bands and errors it is shown through. Balanced accuracy;
objects of the training part teach, those of the validation part are told, at most 250 of a source, and no source with
fewer than 80. Wanted of views: at most 0.3.

<!-- test: skip needs the data of the surveys -->
```bash
nightjar-train sky views --data DATA --classes Ia --part train --number 3600 --out build/views-ia.npz
nightjar-train sky views --data DATA --classes Ia --part valid --number 900 --out build/views-ia-valid.npz
nightjar-train sky fingerprint --data DATA --views build/views-ia.npz --views build/views-ia-valid.npz \\
    --about "views of Ia alone" --out build/fingerprint.json
```
"""
REASONS: Final[Mapping[str, str]] = {
    "broad": (
        "Long-lived objects: half of them are TDECat's, which trained nothing: disruptions that ZTF saw in g "
        "and r, blue and slow as many II are, and no curve says where in its galaxy something happened. Of "
        "superluminous supernovae those with half as many detections as the others are missed, for Ia and "
        "Ib/c. What is called SN-like and is not are these objects, nine of ten in the validation part, so "
        "the precision follows. What is missing of SN-like, of its worst bin and of Periodic is an object or "
        "two each."
    ),
    "mallorn": (
        "Seven of 19 disruptions of the validation part are missed, with a dozen detections each, and nuclei "
        "that show 100 days of their history. Five classes count alike, and one disruption more or less is a "
        "hundredth of the score; the trees give MALLORN's own objects a larger weight than the network does, "
        "which has thirty sources."
    ),
    "elasticc3": (
        "Missed by less than a hundredth where it is adapted. Of Ia two thirds to three quarters are named; of "
        "II, which reach further and fainter than those of any survey that was learned from, one in three, and "
        "the others are called SLSN, Ib/c and TDE in like numbers."
    ),
    "deep": (
        "Left out, DES and SNLS together: nothing else that deep was learned from, and Ia at these redshifts and "
        "Ib/c differ by a colour that simulations have wrong by a quarter of a magnitude (see the page on "
        "populations): those that are missed are named Ib/c, nearly all of them. Foundation misses by an object. "
        "Of those called Ia through these patterns two thirds are Ib/c, with 15 detections where the others have "
        "25: without a redshift an Ib/c near its maximum is a faint, red Ia."
    ),
    "poor": (
        "There are some hundred real superluminous supernovae and disruptions at all. Left out, disruptions are "
        "known from simulation and MALLORN for the most part (fits to the very objects are left out with them); "
        "those that are missed are called II and SLSN, and none of seven is named. Seen, those with few "
        "detections are missed, and one object is a recall of 0.05 or 0.14. TDECat: as in the first row."
    ),
    "yse": (
        "II left out: of those that are missed as many are called SLSN as all else together: slow plateaus "
        "without a redshift, from which an absolute brightness would follow. There are 16."
    ),
    "stars": (
        "Dwarf novae of OGLE come in I alone, as no other survey's do: left out, an outburst in one band is taken "
        "for a nucleus or an Ib/c by trees, which outvote the network (alone it names 0.43 of them in the "
        "validation part). Seen, four of six that are missed are taken for lenses: they show one outburst."
    ),
    "coverage": (
        "Raw sets hold the truth more often than wanted: thresholds are fitted on degraded light curves and "
        "views, too, which are harder, and are the same for all. Left out, sets of the whole network have one "
        "threshold, fitted on the surveys that it knows, and too few light curves look unusual to be withheld."
    ),
}
"""Why a row falls short of what was wanted, by its key; rows that are not here are met where they were asked for."""
TELLING: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "broad": ("real objects told as SN-like / long-lived / periodic, no redshift", ("SN-like", "Long", "Periodic")),
    "spcc": ("SPCC, first of 20 classes: no redshift / redshift", ("top-1, no z", "top-1, redshift")),
    "elasticc": ("ELAsTiCC, first of 20 classes: no metadata / all", ("top-1, no z", "top-1, everything")),
    "mallorn": ("MALLORN, five classes, with redshift: macro-F1", ("macro-F1",)),
    "ztf3": ("ZTF, first of 20 classes: mean of Ia, II and Ib/c", ("balanced",)),
    "spcc3": ("SPCC, the same", ("balanced",)),
    "elasticc3": ("ELAsTiCC, the same of Ia and II", ("balanced",)),
    "deep": ("Ia of", ("DES (21)", "SNLS (28)", "PS1 (39)", "Foundation (28)")),
    "poor": ("", ("Ia nearby (75)", "SLSN (22)", "TDE (7)", "TDE of TDECat (28)")),
    "yse": ("Young Supernova Experiment:", ("Ia (42)", "II (16)")),
    "stars": ("Stripe 82, OGLE:", ("RR Lyrae (79)", "Dwarf Novae (134)")),
    "periodic": ("periodic variables of ZTF: mean over three classes", ("macro recall",)),
    "views": ("views, mean of Ia, II and Ib/c: no redshift / redshift", ("balanced, no z", "balanced, z")),
    "rubin": ("Rubin:", ("AGN named", "one-class sets that miss")),
    "coverage": ("sets of 90 % that hold the truth: as observed / views", ("coverage, raw", "coverage, views")),
    "sure": ("sure and wrong: as observed / views", ("p >= 0.8, raw", "p >= 0.8, views")),
    "simulated": ("simulated objects: macro-F1", ("macro-F1",)),
}
"""Name of a row in the short table, and the figures that it shows; a name that does not name them has them appended."""
BESIDE: Final[Sequence[tuple[str, str]]] = (
    ("boosted trees", "seen"),
    (WHOLE, "adapted"),
    ("astro-moe-elasticc 1.2.0", "left out"),
)
"""Models beside the default in the short table, each in the column that says most."""


def write_page(report: Mapping[str, Any], source: str) -> str:
    """Return the page that is read, Markdown.

    Parameters
    ----------
    report : as `measure` stores it. source : name of its file, for the reader.
    """
    parts = [INTRODUCTION.format(source=source, contents="{contents}"), _short_table(report)]
    parts += [_reasons(report["table"])] if any(row["key"] in REASONS for row in report["table"]) else []
    parts += [MEASURED.format(prior=report["prior"], looks=report["looks"])]
    parts += [_all_figures(report)] if report["table"] else []
    parts += [_six_table(report["six"])] if report.get("six") else []
    parts += [seeds_section(report["seeds"])] if report.get("seeds") else []
    parts += [_fingerprint_section(report["fingerprint"])] if report.get("fingerprint") else []
    return _with_contents("\n".join(parts))


def _with_contents(page: str) -> str:
    """Fill in the list of a page's sections; their anchors are those that GitHub gives to headings."""
    titles = re.findall(r"^## (.+)$", page, re.MULTILINE)
    anchors = (re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles)
    links = (f"[{title}](#{anchor})" for title, anchor in zip(titles, anchors, strict=True))
    return page.replace("{contents}", "- " + " ·\n  ".join(links), 1)


def _short_table(report: Mapping[str, Any]) -> str:
    """Return the table that is read first: the telling figures of each row, of the default and three beside it."""
    models = [(next(iter(report["reports"]), ""), "seen"), *BESIDE]
    lines = []
    for row in report["table"]:
        title, names = TELLING[row["key"]]
        values = [row["figures"].get(name, {}).get(column, {}) for name, column in models]
        cells = [" / ".join(_short(one.get(figure)) for figure in names) if one else "-" for one in values]
        if not title or title.endswith((":", " of")):
            title = f"{title} {' / '.join(names)}".strip()
        lines.append([title, row["wanted"], *cells])
    head = ["set: figures of a cell, in this order", "wanted", *(f"{name}, {column}" for name, column in models)]
    about = """Shares that are right, but where a row says otherwise; numbers in brackets are objects. *Seen*: it
learned from other objects of these surveys. *Adapted*: from none of their objects, only from how they observe: expect
this of a survey that nobody labelled. *Left out*: nothing of them was known. A *view* is an object as another survey
would have seen it. Labels of Rubin's alerts and TDECat trained nothing, in any column."""
    return f"## The table\n\n{about}\n\n{markdown_table(head, lines)}\n"


def _short(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}" if 0 < value < 0.1 else f"{value:.2f}"


def _all_figures(report: Mapping[str, Any]) -> str:
    """Return a small table of every row: models below each other, figures side by side."""
    models = [(name, column) for name, columns in report["reports"].items() for column in COLUMNS if column in columns]
    parts = ["## Set by set\n"]
    for row in report["table"]:
        scores = {f"{name}, {column}": row["figures"].get(name, {}).get(column, {}) for name, column in models}
        scores = {title: one for title, one in scores.items() if any(one.get(key) for key in one)}
        columns = list(dict.fromkeys(key for one in scores.values() for key in one))
        lines = [[title, *(_number(one.get(key)) for key in columns)] for title, one in scores.items()]
        about = f"Wanted: {row['wanted']}. Trees before: {row['before']}.".replace("before: -.", "before: none.")
        parts.append(f"### {row['title']}\n\n{about}\n\n{markdown_table(['model', *columns], lines)}\n")
    return "\n".join(parts)


def _reasons(rows: Iterable[Mapping[str, Any]]) -> str:
    lines = [[row["title"], row["wanted"], REASONS[row["key"]]] for row in rows if row["key"] in REASONS]
    about = (
        "Of what is wanted left out, the column adapted of the whole network counts; what is wanted seen, or of "
        "nothing in particular, is asked of the model that is served. Rows that are not here are met. Withheld as "
        "unusual may be 5 % of known objects seen and 15 % left out: it stands with coverage, and is met in the mean "
        "over sets, though not for Rubin's objects (0.31) nor, left out and told their hosts, ELAsTiCC's (0.61). What "
        "was missed was looked at in the validation part."
    )
    return f"## What falls short, and why\n\n{about}\n\n{markdown_table(['set', 'wanted', 'reason'], lines)}\n"


def _six_table(report: Mapping[str, Any]) -> str:
    """ZTF's six classes: trees alone, and every bundle beside them on the objects that neither has seen."""
    if "draws" in report:
        return _six_folds_table(report)
    trees = report["trees"]
    lines = [
        "## ZTF supernovae, six classes (wanted: macro-F1 0.58, above the strongest trees by a paired bootstrap)\n",
        f"Boosted trees, {report['objects']} objects: {_number(trees['macro-F1'])} (spread {_number(trees['spread'])} "
        f"of {trees['seeds']} seeds).\n",
    ]
    rows = []
    for name, row in report["bundles"].items():
        interval = " to ".join(_number(edge) for edge in row["interval"])
        cells = [_number(row[key]) for key in ("objects", "macro-F1", "trees", "difference")]
        rows.append([name, *cells, interval])
    head = ["bundle", "objects neither has seen", "macro-F1", "trees there", "difference", "95 %"]
    return "\n".join(lines) + "\n" + markdown_table(head, rows) + "\n"


def seeds_section(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what other seeds give: mean and standard deviation of the figures of the validation part."""
    cells = [
        [row["title"], "; ".join(f"{name} {mean:.3f} ± {sd:.3f}" for name, (mean, sd) in row["figures"].items())]
        for row in rows
        if row["figures"]
    ]
    about = (
        f"Mean and standard deviation over {rows[0]['seeds']} seeds of heads and trees on one body, one of which "
        "ships, on the *validation* part, where choices were made. How far another seed of the body would move a "
        "figure is not in it."
    )
    return f"## What other seeds give\n\n{about}\n\n{markdown_table(['set', 'figures'], cells)}\n"


def _six_folds_table(report: Mapping[str, Any]) -> str:
    """ZTF's six classes in folds: what is shipped, its parts, and trees alone."""
    draws = list(report["draws"].values())
    names = list(draws[0]["macro-F1"])
    rows = [[name, *(_number(draw["macro-F1"][name]) for draw in draws)] for name in names]
    for kind in draws[0]["difference"]:
        ahead = ["{:+.3f} ({:+.3f} to {:+.3f})".format(*draw["difference"][kind]) for draw in draws]
        rows.append([f"both less {kind}, paired, 95 %", *ahead])
    head = ["macro-F1", *(f"draw {name} of the folds" for name in report["draws"])]
    about = (
        f"`astro-moe-ztf` in folds over the {report['objects']:,} objects that its branches have not learned from (the "
        "card tells how). Trees with a number are trees alone, by their seed, on the same statistics and shapes."
    )
    title = "## ZTF supernovae, six classes (wanted: macro-F1 0.58, above the strongest trees by a paired bootstrap)"
    why = (
        "It falls short of 0.58 for want of superluminous supernovae: there are 80 and 55 with a type, and F1 of "
        "theirs is half of that of Ia or less. What heads add to trees is less than what one fold differs from another."
    )
    return f"{title}\n\n{about}\n\n{markdown_table(head, rows)}\n\n{why}\n"


def _fingerprint_section(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return how well the source of SNe Ia is told, before and after re-observation."""
    rows = []
    for report in reports:
        for when, what in (("before", "light curves as their surveys saw them"), ("after", "views")):
            if f"{when}, sources" in report:
                sources = int(report[f"{when}, sources"])
                accuracies = [_number(report[f"{when}, {kind}"]) for kind in ("forest", "boosted trees")]
                rows.append([report.get("about") or "-", what, str(sources), f"{1 / sources:.3f}", *accuracies])
    head = ["run", "what is shown", "sources", "chance", "forest", "boosted trees"]
    return FINGERPRINT + "\n" + markdown_table(head, rows) + "\n"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int | str) else f"{value:.3f}"


# Terms are those that the source states; sets without a licence serve weights and figures alone.
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

TREES: Final = "boosted trees"
EVERY_PART: Final = "every part"  # what a bundle of `training.sky.six` has learned from

LIMITS: Final = """## Known limits

- Classes whose real examples are few (TDE, SLSN, Ib/c, 91bg, Iax) or none (CART, ILOT, PISN, kilonovae but one) rest on
  a simulator of analytic light curves and blackbodies.
- Class shares of training are a prior, named in the manifest; ask under your survey's own (`options.prior`).
- A promise of coverage holds for light curves like those it was measured on; what is called unusual gets no set.
- Labels of `tdecat` and of Rubin's alerts were never trained on; they measure."""


LIMITS_OF_ZTF: Final = """## Known limits

- Of IIn and both kinds of superluminous supernovae there are few objects: their recall is known within a tenth or two.
- It knows nothing but supernovae: what is none gets one of the six types all the same, unless it is called unusual.
- Class shares of training are a prior, named in the manifest; ask under your survey's own (`options.prior`).
- A promise of coverage holds for light curves like those it was measured on; what is called unusual gets no set."""


def write_sky_card(path: Path, report: Mapping[str, Any] | None = None) -> Bundle:
    """Write ``CARD.md`` into a bundle of `training.sky`, with a report of ``sky measure`` or ``sky six``."""
    manifest = load_bundle(path).manifest
    of_ztf = manifest.classes.names == ZTF_SUPERNOVAE.names
    score = _six_scores if of_ztf else _table
    sections = [
        identity(manifest),
        *_trees(manifest),
        _data_of_ztf(manifest) if of_ztf else _data(manifest),
        "## Scores\n\nNot measured yet." if report is None else score(report, manifest),
        *confidence_sections(manifest),
        USE,
        LIMITS_OF_ZTF if of_ztf else LIMITS,
    ]
    (path / CARD).write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    return write_manifest(path, manifest)


def _trees(manifest: Manifest) -> list[str]:
    """Describe what answers beside the network, in no lines where it answers alone."""
    blend = manifest.ensemble
    if blend is None:
        return []
    few, many = blend.weights(np.array(blend.lengths), np.zeros(2, dtype=np.bool_))
    return [
        f"""## Trees beside the network

{blend.trees:,} boosted trees (LightGBM, Ke+ 2017) of up to {blend.depth} comparisons look at statistics of the light
curve, in the same graph. The logits are those of both, weighed as the validation part says: the trees count {few:.2f}
for {blend.lengths[0]} observations, {many:.2f} for {blend.lengths[1]:,}."""
    ]


def _data(manifest: Manifest) -> str:
    data = manifest.data
    classes = ", ".join(f"{name} {count:,}" for name, count in data.get("classes", {}).items())
    mixture = ", ".join(f"{share:.0%} {name}" for name, share in data.get("mixture", {}).items())
    counted = fill(
        f"- light curves that the heads were last fitted on, by class: {classes}", 120, subsequent_indent="  "
    )
    return f"""## Training data

Real light curves of many surveys, real objects seen as other surveys would have seen them, and simulated ones; half of
all degraded as surveys degrade them (bands, points, ends, errors, brightness, redshift). Seven tenths of all physical
objects were trained on, 15 % chose and calibrated, 15 % were kept for the table.

- mixture: {mixture or "not recorded"}
{counted}

{markdown_table(["source", "to be cited, terms"], [[name, cite] for name, cite in SOURCES.items()])}"""


def _data_of_ztf(manifest: Manifest) -> str:
    classes = ", ".join(f"{name} {count:,}" for name, count in manifest.data.get("classes", {}).items())
    counted = fill(
        f"- light curves that heads and trees were fitted on, by class: {classes}", 120, subsequent_indent="  "
    )
    parts = _EVERY_PART if manifest.data.get("learned_from") == EVERY_PART else _TRAINING_PART
    return f"""## Training data

Supernovae of ZTF with a spectroscopic type, in g and r: alert photometry by way of ALeRCE (Bellm+ 2019, Forster+ 2021;
no licence stated), each object drawn several times, complete or as alerts would have shown it.
{parts}
The branches are those of `astro-moe-elasticc`, whose card names what they learned from.

{counted}"""


_TRAINING_PART: Final = """Heads and trees were fitted on the objects of the training part; the validation part chose,
weighed and calibrated; the test part was scored."""
_EVERY_PART: Final = """Trees look at statistics and shapes of the light curve, and were fitted on the objects of all
parts; the heads are those of the 20 classes, folded to six on the validation and test parts alone, which the branches
have not learned from. A fifth of these two parts was kept to weigh the two against each other and to calibrate."""


def _six_scores(report: Mapping[str, Any], manifest: Manifest) -> str:
    if "draws" in report:
        return _six_scores_in_folds(report)
    score = report["bundles"][f"{manifest.name} {manifest.version}"]
    low, high = score["interval"]
    return f"""## Scores

{score["objects"]:,} objects of the test part that nothing was fitted to or chosen by, complete light curves without a
redshift, by `nightjar-train sky six`: macro-F1 over the six classes **{score["macro-F1"]:.3f}**. Boosted trees that
learned from the same training part have {score["trees"]:.3f} (mean of three seeds) on the same objects. The paired
difference is {score["difference"]:+.3f}, from {low:+.3f} to {high:+.3f} in 95 % of bootstrap draws."""


def _six_scores_in_folds(report: Mapping[str, Any]) -> str:
    draws = list(report["draws"].values())
    models_by_title = {"both, as shipped": ["both"], "its trees": ["trees inside"], "its heads": ["heads"]}
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
    return f"""## Scores

In folds: what is shipped has learned from every object, so the same was fitted again without a fifth of the
{report["objects"]:,} objects that the branches have not learned from, in {len(draws)} draws of the fifths, and asked
about that fifth: complete light curves without a redshift. Another fifth weighed heads against trees. Macro-F1 (mean
and standard deviation over draws of the folds, and over seeds of the trees alone) and F1 of each class:

{markdown_table(["", "macro-F1", *classes], rows)}

The trees alone are those of `nightjar-train sky six`, and more regular ones, on the same statistics and shapes and
fitted to as many objects or more. Paired difference to them by draw, mean of their seeds, with 95 % of bootstrap draws:

{pairs}"""


def _table(report: Mapping[str, Any], manifest: Manifest) -> str:
    name = next((name for name in report["reports"] if manifest.version in name), next(iter(report["reports"])))
    rows = []
    for row in report["table"]:
        figures = row["figures"]
        rows.append([row["title"], row["wanted"], _cell(figures.get(name, {})), _cell(figures.get(TREES, {}))])
    return f"""## On the real sky

Of objects of the test part, by `nightjar-train sky measure`; prior: {report["prior"]}. The test part was looked at
{report["looks"]}. Labels of Rubin's alerts and of TDECat trained nothing: in their rows "seen" holds for the surveys
alone. Beside it stand boosted trees trained on the same objects.

{markdown_table(["set", "wanted", f"{manifest.name} {manifest.version}", TREES], rows)}{_seeds(report)}"""


def _seeds(report: Mapping[str, Any]) -> str:
    """Say what other seeds give, where that was measured."""
    return "\n\n" + seeds_section(report["seeds"]).rstrip("\n") if report.get("seeds") else ""


def _cell(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """One cell: the columns in which a model was scored, trees' left-out and adapted ones aside."""
    columns = {column: values for column, values in figures.items() if column == "seen"} or figures
    cells = (
        f"{column}: " + ", ".join(f"{key} {_number(value)}" for key, value in values.items())
        for column, values in columns.items()
    )
    return "; ".join(cells) or "-"
