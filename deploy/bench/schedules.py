"""Bare onnxruntime at its best: everything known beforehand, and the schedule that does most.

A schedule says which curves share a run. Those tried are one by one, and the curves sorted by length and cut into
batches of so many padded observations. Batches begin with the longest, so that no caller is left with a long one at
the end. Inputs are made before the clock starts; what a schedule costs to find, and its inputs to pad, costs nothing.
That is more than any server can do, which has to take curves as they come: a service near it has little left to gain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnxruntime as ort

from deploy.bench.bare import Pace, pace
from deploy.bench.curves import Columns
from models.bundle import Manifest, load_bundle
from models.lightcurve import LightCurve, RaggedBatch, Tokens, featurise
from models.runtime import Run, open_session

BUDGETS = (0, 256, 512, 1024, 2048, 4096)
"""Padded observations in a batch; 0 stands for one by one."""
TRIALS = 2
SAMPLE = 1024  # curves that schedules are compared on


@dataclass(frozen=True, slots=True)
class Best:
    """The best schedule found for a network on this machine, ready to be timed on some curves.

    Attributes
    ----------
    budget : of :data:`BUDGETS`.
    inputs : of every run, in order.
    curves : in all of them.
    """

    session: ort.InferenceSession
    budget: int
    inputs: Sequence[Run]
    curves: int

    @classmethod
    def of(cls, folder: Path, curves: Sequence[Columns], callers: int) -> "Best":
        """Try every schedule with `callers` threads on (some of) the curves; keep the best for all of them."""
        bundle = load_bundle(folder)
        session = open_session(bundle.model)
        tokens = [tokens_of(curve, bundle.manifest) for curve in curves]
        some = tokens[:SAMPLE]
        ready = {budget: [_inputs(group) for group in cut(some, budget)] for budget in BUDGETS}
        rates = dict.fromkeys(BUDGETS, 0.0)
        for budget in [*BUDGETS] * (1 + TRIALS):  # the first run of a shape is dearer, and never the best
            rates[budget] = max(rates[budget], pace(session, ready[budget], callers, len(some)).per_second)
        best = max(BUDGETS, key=lambda budget: rates[budget])
        return cls(session, best, [_inputs(group) for group in cut(tokens, best)], len(tokens))

    def run(self, callers: int) -> Pace:
        """Run every curve once, with `callers` threads that share the session."""
        return pace(self.session, self.inputs, callers, self.curves)


def tokens_of(curve: Columns, manifest: Manifest) -> Tokens:
    """Return a light curve as the network sees it; the service's own way of making it."""
    record = LightCurve.from_columns(
        curve["mjd"], curve["flux"], curve["flux_err"], curve["band"], metadata=curve["metadata"]
    )
    return featurise(record, manifest.limits, manifest.flux_unit, manifest.metadata_columns, manifest.band_map)


def cut(tokens: Sequence[Tokens], budget: int) -> list[list[Tokens]]:
    """Batches of neighbours in length, the longest first, of at most `budget` padded observations or one curve."""
    groups: list[list[Tokens]] = []
    for one in sorted(tokens, key=len, reverse=True):
        if groups and (len(groups[-1]) + 1) * len(groups[-1][0]) <= budget:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def _inputs(group: Sequence[Tokens]) -> Run:
    return RaggedBatch.collate(group).padded()
