"""Ranked lists of objects of a class for follow-up, as of ``nightjar classify --select CLASS --purity P``.

A bundle states purity and completeness of such lists (:mod:`nightjar_alerts.models.follow_up`). An object is listed if
its probability is at least the threshold for its duration; a class, class shares or purity that the bundle does not
state are refused or counted, never guessed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Final

from nightjar_alerts.models.follow_up import FEWEST, Cut, Estimate, FollowUp, days_since_detection, expected_true
from nightjar_alerts.results import Result

Stated = Mapping[str, Mapping[str, FollowUp]]
"""Lists of each model, by its SHA-256 and the name of the class shares."""
NOT_STATED: Final = "by a model that states no purity for the class"
OTHER_SHARES: Final = "under other class shares than those of the list"
NO_LIGHT_CURVE: Final = "without a light curve, so their duration is not known"
UNUSUAL: Final = "unusual, so no purity is stated"


class SelectionError(ValueError):
    """Class, class shares or purity for which there is no list."""


@dataclass(frozen=True, slots=True)
class Selected:
    """Object of the list; ``cut`` has the threshold that it passed."""

    name: str
    probability: float
    days: float
    cut: Cut


class FollowUpList:
    """List of the results that pass the threshold of a class for a purity.

    Parameters
    ----------
    stated : ``manifest.follow_up`` of each bundle, by its ``sha256``.
    purity : smallest purity, above 0 and below 1.
    prior : name of the class shares; empty for those of each result.

    Attributes
    ----------
    selected : objects of the list, in the order of the results.

    Raises
    ------
    SelectionError
        If no model states the purity of lists of this class under these class shares, or the purity is no fraction.
    TypeError
        If the purity is not a number.
    """

    def __init__(self, stated: Stated, class_name: str, purity: float, prior: str = "") -> None:
        self._stated, self._class, self._purity, self._prior = stated, class_name, purity, prior
        self._cuts: dict[tuple[str, str, float | None], Cut | None] = {}
        self._left_out = Counter[str]()
        self._without = Counter[float | None]()
        self._read = 0
        self._shares = {prior: None} if prior else dict[str, None]()
        self.selected: list[Selected] = []
        if not isinstance(purity, Real):
            raise TypeError(f"purity must be a number above 0 and below 1, such as 0.8, not {purity!r}")
        if not 0 < purity < 1:
            raise SelectionError(f"the purity {purity} is not above 0 and below 1")
        tables = [table for shares in stated.values() for name, table in shares.items() if not prior or name == prior]
        if not tables:
            names = sorted({name for shares in stated.values() for name in shares})
            if not names:
                raise SelectionError("no model states the purity of lists; use one whose manifest has follow_up")
            offered = f", but for {', '.join(names)}"
            raise SelectionError(f"no model states purity under the class shares {prior or 'of its own'}{offered}")
        known = [table for table in tables if class_name in table.classes]
        if not known:
            classes = ", ".join(dict.fromkeys(name for table in tables for name in table.classes))
            raise SelectionError(f"{class_name} is no class of the model; its classes are {classes}")
        if all(table.purest(class_name) is None for table in known):
            objects = max(horizon.objects for table in known for horizon in table.classes[class_name])
            why = f"fewer than {FEWEST} objects" if objects < FEWEST else "the class has no share"
            raise SelectionError(
                f"the purity of {class_name} is not stated under the class shares {prior or 'of the model'}: "
                f"{objects} measured objects, {why}"
            )

    def add(self, results: Sequence[Result], name: str = "") -> None:
        """Add the results of an input; ``name`` is used for objects without an id."""
        for result in results:
            if not result.classified:
                continue
            self._read += 1
            prior = result.model.prior or ""
            if self._prior and prior != self._prior:
                self._left_out[OTHER_SHARES] += 1
                continue
            self._shares[prior] = None
            table = self._stated.get(result.model.sha256, {}).get(prior)
            curve = result.light_curve
            if table is None or self._class not in table.classes:
                self._left_out[NOT_STATED] += 1
                continue
            if curve is None:
                self._left_out[NO_LIGHT_CURVE] += 1
                continue
            if result.unusual:
                self._left_out[UNUSUAL] += 1
                continue
            days = days_since_detection(curve)
            horizon = table.horizon(self._class, days)
            key = (result.model.sha256, prior, horizon.days)
            if key not in self._cuts:
                self._cuts[key] = table.cut(horizon, self._purity)
            cut, probability = self._cuts[key], result.probabilities[self._class]
            if cut is None:
                self._without[horizon.days] += 1
            elif probability >= cut.threshold:
                self.selected.append(Selected(result.object_id or name, probability, days, cut))

    @property
    def expected(self) -> Estimate:
        """Expected number of true members, with the 95 % interval."""
        return expected_true(one.cut for one in self.selected)

    def lines(self) -> Iterator[str]:
        """Yield the ranked list, what it is expected to hold, and what is not in it."""
        ranked = sorted(self.selected, key=lambda one: -one.probability)
        if ranked:
            yield f"{'rank':>4}  {'object':<24}  {'prob.':>5}  {'days':>7}"
        for rank, one in enumerate(ranked, start=1):
            yield f"{rank:>4}  {one.name:<24}  {one.probability:>5.2f}  {one.days:>7.1f}"
        median, low, high = self.expected
        yield (
            f"{self._class}: {len(ranked):,} of {self._read:,} classified light curves, of which {median:.1f} "
            f"({low:.1f} to {high:.1f}) are expected to be true under the class shares {', '.join(self._shares)}"
        )
        used = {cut for cut in self._cuts.values() if cut is not None}
        for cut in sorted(used, key=lambda cut: cut.days or float("inf")):
            yield (
                f"{_duration(cut.days)}: probability of at least {cut.threshold:g}, purity {_text(cut.purity)}, "
                f"completeness {_text(cut.completeness)}"
            )
        for days, count in sorted(self._without.items(), key=lambda item: item[0] or float("inf")):
            curves = "1 light curve" if count == 1 else f"{count:,} light curves"
            yield f"{_duration(days)}: no threshold has a purity of {self._purity:g}; {curves} not listed"
        for reason, count in self._left_out.items():
            yield f"not listed: {count:,} {reason}"


def _text(estimate: Estimate) -> str:
    return f"{estimate[0]:.2f} ({estimate[1]:.2f} to {estimate[2]:.2f})"


def _duration(days: float | None) -> str:
    return "longer light curves" if days is None else f"up to {days:g} days"
