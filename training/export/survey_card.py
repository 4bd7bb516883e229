"""Model card of a bundle trained on real surveys: training data with citations, scores, calibration and limits.

The scores come from the JSON report of ``sky measure`` (20 classes) or ``sky fit-ztf6 --folds`` (ZTF's six)::

    nightjar-train sky card build/astro-moe-elasticc --report build/sky.json
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Final

import numpy as np

from nightjar_alerts.models.bundle import CARD, Bundle, Manifest, load_bundle, write_manifest
from nightjar_alerts.models.common import markdown_table
from nightjar_alerts.models.taxonomy import ZTF_SUPERNOVAE
from nightjar_alerts.training.export.card import USE, confidence_sections, identity


def seeds_section(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a section with the mean and standard deviation over seeds, on the validation part."""
    cells = [
        [row["title"], "; ".join(f"{name} {mean:.3f} ± {sd:.3f}" for name, (mean, sd) in row["figures"].items())]
        for row in rows
        if row["figures"]
    ]
    about = (
        f"Mean and standard deviation over {rows[0]['seeds']} seeds of heads and trees on one backbone, including the "
        "released one, on the *validation* part. The variation between backbones is not included."
    )
    return f"## Variation between seeds\n\n{about}\n\n{markdown_table(['set', 'figures'], cells)}\n"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int | str) else f"{value:.3f}"


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

TREES: Final = "boosted trees"
EVERY_PART: Final = "every part"  # manifest value of ``learned_from`` if `training.fit.ztf_types` fitted to all objects

LIMITS: Final = """## Known limits

- Classes with few real examples (TDE, SLSN, Ib/c, 91bg, Iax) or none (CART, ILOT, PISN, all kilonovae but one) depend
  on a simulator of analytic light curves and blackbodies.
- The class shares of training are a prior, named in the manifest. Use those of your survey (`options.prior`).
- Coverage holds for light curves like those it was measured on. Light curves out of distribution get no set.
- Labels of `tdecat` and of Rubin's alerts were used for evaluation only."""


LIMITS_OF_ZTF: Final = """## Known limits

- There are few objects of IIn and of both kinds of superluminous supernovae: their recall is uncertain by 0.1 to 0.2.
- It classifies supernovae only. Other objects get one of the six types unless they are flagged as out of distribution.
- The class shares of training are a prior, named in the manifest. Use those of your survey (`options.prior`).
- Coverage holds for light curves like those it was measured on. Light curves out of distribution get no set."""


def write_survey_card(path: Path, report: Mapping[str, Any] | None = None) -> Bundle:
    """Write ``CARD.md`` into a bundle of `training.sky`, with the scores of a report."""
    manifest = load_bundle(path).manifest
    of_ztf = manifest.classes.names == ZTF_SUPERNOVAE.names
    score = _scores_of_six if of_ztf else _scores
    sections = [
        identity(manifest),
        *_trees(manifest),
        _data_of_ztf(manifest) if of_ztf else _data(manifest),
        "## Scores\n\nNot measured." if report is None else score(report, manifest),
        *confidence_sections(manifest),
        USE,
        LIMITS_OF_ZTF if of_ztf else LIMITS,
    ]
    (path / CARD).write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    return write_manifest(path, manifest)


def _trees(manifest: Manifest) -> list[str]:
    """Describe the boosted trees of the ensemble; empty without trees."""
    blend = manifest.ensemble
    if blend is None:
        return []
    few, many = blend.weights(np.array(blend.lengths), np.zeros(2, dtype=np.bool_))
    weighted = f"""The logits are a weighted mean of both, fitted on the validation part: the weight of the trees is
{few:.2f} for {blend.lengths[0]} observations and {many:.2f} for {blend.lengths[1]:,}."""
    return [
        f"""## Boosted trees

{blend.trees:,} boosted trees (LightGBM, Ke+ 2017) of depth {blend.depth} at most use statistics of the light curve, in
the same graph. {"The logits are the mean of both." if blend.split == "none" else weighted}"""
    ]


def _data(manifest: Manifest) -> str:
    data = manifest.data
    classes = ", ".join(f"{name} {count:,}" for name, count in data.get("classes", {}).items())
    mixture = ", ".join(f"{share:.0%} {name}" for name, share in data.get("mixture", {}).items())
    counted = fill(f"- light curves sampled from it, by class: {classes}", 120, subsequent_indent="  ")
    return f"""## Training data

Real light curves of many surveys, real objects re-observed with the cadence of other surveys, and simulated ones; half
of them degraded (fewer bands or points, an early end, larger errors, fainter, redshift missing). 70 % of all physical
objects were used for training, 15 % for selection and calibration, 15 % for testing.

- mixture: {mixture or "not recorded"}
{counted}

{markdown_table(["source", "citation, licence"], [[name, cite] for name, cite in SOURCES.items()])}"""


def _data_of_ztf(manifest: Manifest) -> str:
    classes = ", ".join(f"{name} {count:,}" for name, count in manifest.data.get("classes", {}).items())
    counted = fill(f"- light curves of the fit of heads and trees, by class: {classes}", 120, subsequent_indent="  ")
    parts = _EVERY_PART if manifest.data.get("learned_from") == EVERY_PART else _TRAINING_PART
    return f"""## Training data

Supernovae of ZTF with a spectroscopic type, in g and r: alert photometry from ALeRCE (Bellm+ 2019, Forster+ 2021; no
licence stated). Each object is drawn several times, complete or truncated as in an alert.
{parts}
The branches are those of `astro-moe-elasticc`; its card describes their training data.

{counted}"""


_TRAINING_PART: Final = """Heads and trees were fitted to the training part. The validation part was used for selection,
ensemble weights and calibration, the test part for scores."""
_EVERY_PART: Final = """The trees use statistics and shapes of the light curve and were fitted to the objects of all
parts. The heads are those of the 20 classes followed by a linear map to six, fitted to the validation and test parts
only, which were not used to train the branches. A fifth of these two parts was held out for calibration."""


def _scores_of_six(report: Mapping[str, Any], _: Manifest) -> str:
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
    return f"""## Scores

The released model was fitted to every object, so the scores are from five-fold cross-validation over the
{report["objects"]:,} objects that the branches were not trained on, with {len(draws)} random splits; complete light
curves without a redshift. Equal weights of heads and trees were one of twelve combinations tried on these objects, so
their score is slightly optimistic. Macro-F1 (mean and standard deviation over splits, and over seeds of the trees
alone) and F1 of each class:

{markdown_table(["", "macro-F1", *classes], rows)}

The trees alone use the same statistics and shapes and are fitted to as many objects or more. Paired difference to them
for each split, mean over their seeds, with the central 95 % of bootstrap draws:

{pairs}"""


def _scores(report: Mapping[str, Any], manifest: Manifest) -> str:
    name = next((name for name in report["reports"] if manifest.version in name), next(iter(report["reports"])))
    rows = []
    for row in report["table"]:
        figures = row["figures"]
        rows.append([row["title"], row["wanted"], _cell(figures.get(name, {})), _cell(figures.get(TREES, {}))])
    return f"""## Scores on real surveys

Objects of the test part, by `nightjar-train sky measure`; prior: {report["prior"]}. Number of times that the test part
was used: {report["looks"]}. Labels of Rubin's alerts and of TDECat were used for evaluation only. The boosted trees
were trained on the same objects.

{markdown_table(["set", "target", f"{manifest.name} {manifest.version}", TREES], rows)}{_seeds(report)}"""


def _seeds(report: Mapping[str, Any]) -> str:
    """Return the section on seeds; empty if they were not measured."""
    return "\n\n" + seeds_section(report["seeds"]).rstrip("\n") if report.get("seeds") else ""


def _cell(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Format one cell: the column ``seen`` if there is one, else every column."""
    columns = {column: values for column, values in figures.items() if column == "seen"} or figures
    cells = (
        f"{column}: " + ", ".join(f"{key} {_number(value)}" for key, value in values.items())
        for column, values in columns.items()
    )
    return "; ".join(cells) or "-"
