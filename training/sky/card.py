"""The model card of a bundle for the real sky: its sources with whom to cite, and the table it was measured by.

python -m training sky card build/astro-moe-elasticc --report build/sky.json
"""

from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any, Final

import numpy as np

from models.bundle import CARD, Bundle, Manifest, load_bundle, write_manifest
from models.taxonomy import ZTF_SUPERNOVAE
from training.common import markdown_table
from training.export.card import USE, confidence_sections, identity
from training.sky.page import seeds_section

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
    "this project's simulator": "`python -m training simulate`, surveys `rubin` and `any`",
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
    score = _six if of_ztf else _table
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
    told = manifest.ensemble
    if told is None:
        return []
    few, many = told.weights(np.array(told.lengths), np.zeros(2, dtype=np.bool_))
    return [
        f"""## Trees beside the network

{told.trees:,} boosted trees (LightGBM, Ke+ 2017) of up to {told.depth} comparisons look at statistics of the light
curve, in the same graph. The logits are those of both, weighed as the validation part says: the trees count {few:.2f}
for {told.lengths[0]} observations, {many:.2f} for {told.lengths[1]:,}."""
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


def _six(report: Mapping[str, Any], manifest: Manifest) -> str:
    if "draws" in report:
        return _six_in_folds(report)
    told = report["bundles"][f"{manifest.name} {manifest.version}"]
    low, high = told["interval"]
    return f"""## Scores

{told["objects"]:,} objects of the test part that nothing was fitted to or chosen by, complete light curves without a
redshift, by `python -m training sky six`: macro-F1 over the six classes **{told["macro-F1"]:.3f}**. Boosted trees that
learned from the same training part have {told["trees"]:.3f} (mean of three seeds) on the same objects. The paired
difference is {told["difference"]:+.3f}, from {low:+.3f} to {high:+.3f} in 95 % of bootstrap draws."""


def _six_in_folds(report: Mapping[str, Any]) -> str:
    draws = list(report["draws"].values())
    shown = {"both, as shipped": ["both"], "its trees": ["trees inside"], "its heads": ["heads"]}
    for kind in draws[0]["difference"]:
        shown[f"boosted {kind} alone"] = [name for name in draws[0]["F1"] if name.rstrip("0123456789 ") == kind]
    classes = list(draws[0]["F1"]["both"])
    rows = []
    for title, names in shown.items():
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

The trees alone are those of `python -m training sky six`, and more regular ones, on the same statistics and shapes and
fitted to as many objects or more. Paired difference to them by draw, mean of their seeds, with 95 % of bootstrap draws:

{pairs}"""


def _table(report: Mapping[str, Any], manifest: Manifest) -> str:
    name = next((name for name in report["reports"] if manifest.version in name), next(iter(report["reports"])))
    rows = []
    for row in report["table"]:
        told = row["figures"]
        rows.append([row["title"], row["wanted"], _figures(told.get(name, {})), _figures(told.get(TREES, {}))])
    return f"""## On the real sky

Of objects of the test part, by `python -m training sky measure`; prior: {report["prior"]}. The test part was looked at
{report["looks"]}. Labels of Rubin's alerts and of TDECat trained nothing: in their rows "seen" holds for the surveys
alone. Beside it stand boosted trees trained on the same objects.

{markdown_table(["set", "wanted", f"{manifest.name} {manifest.version}", TREES], rows)}{_seeds(report)}"""


def _seeds(report: Mapping[str, Any]) -> str:
    """Say what other seeds give, where that was measured."""
    return "\n\n" + seeds_section(report["seeds"]).rstrip("\n") if report.get("seeds") else ""


def _figures(told: Mapping[str, Mapping[str, Any]]) -> str:
    """One cell: the columns in which a model was scored, trees' left-out and adapted ones aside."""
    shown = {column: values for column, values in told.items() if column == "seen"} or told
    cells = (
        f"{column}: " + ", ".join(f"{key} {_number(value)}" for key, value in values.items())
        for column, values in shown.items()
    )
    return "; ".join(cells) or "-"


def _number(value: Any) -> str:
    return "-" if value is None else str(value) if isinstance(value, int | str) else f"{value:.3f}"
