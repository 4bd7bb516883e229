"""The sections of a classifier's card on how far to believe it: calibration, prediction sets, novelty.

Written from the manifest; a bundle without one of them has no section about it.
"""

from itertools import pairwise
from typing import Any

from models.bundle import Manifest
from models.confidence import Calibration
from training.common import markdown_table

SHARES = """The probabilities assume the class shares that the manifest names as its prior; ask under your survey's own
(`options.prior`), or multiply by the ratio of the shares and normalise, before adding them up over a population."""
BALANCED = """The probabilities assume equally common classes: multiply them by the rates of your survey relative to a
uniform mix, and normalise, before adding them up over a population."""
BETWEEN = """Training drew each class as often as its share of the training data to the power {power:.2f}, between how
common it is there and equally often, so that rare classes are named more readily than their rate alone would allow;
the temperature was fitted on the data's own mix. For another survey, or before adding probabilities up over a
population, divide them by that power of the shares, multiply by your rates and normalise."""

NEARER = {
    "mahalanobis": "lie nearer (Mahalanobis) to the mean of their nearest class",
    "neighbours": "lie nearer to their neighbours among those trained on",
    "fitted": "look less strange to a small perceptron that learned to tell known objects from strangers",
}


def confidence_sections(manifest: Manifest) -> list[str]:
    """Return what the manifest says, section by section."""
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
often as the column states ({100 * sets.default:g} % unless another is asked for), on average over objects and views
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
    """Names of groups by their first number: {"3": "3 to 4", "5": "5 or more"}."""
    names = {str(start): str(start) if end == start + 1 else f"{start} to {end - 1}" for start, end in pairwise(starts)}
    return names | {str(start): f"{start} or more" for start in starts[-1:]}
