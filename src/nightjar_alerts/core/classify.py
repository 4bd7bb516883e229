"""Classify items: the decisions between a light curve and its outcome, without input or output.

    featurise            items -> network inputs, or outcomes of what the network cannot classify
    (a runner)           network inputs -> results
    outcomes_of          results -> outcomes
    may_have_subtypes    light curves that the model of supernova types classifies as well
    with_subtypes        outcomes of both models, joined

:func:`classify` takes these steps for a runner in this process. The service takes them in
:mod:`service.inference` and :mod:`service.registry.serving`, since it awaits the engine between them, looks results up
in a cache and records metrics.

Types of a light curve from request to result:

    LightCurve        observations, validated             models.lightcurve
    ModelInput        features of one network             core.adapter
    Prediction        outputs of the network              core.items
    Outcome           prediction, or why there is none    core.items
    PosteriorResult   calibrated under a prior            models.posterior
    ResultFields      result as sent to clients           core.result
"""

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Generic, Protocol, TypeVar

from nightjar_alerts.core.adapter import Adapter, ModelInput
from nightjar_alerts.core.items import OUTSIDE_DOMAIN, Item, Outcome, RunResult, Skipped, outcome_of, skipped_outcome
from nightjar_alerts.core.runner import PendingRuns
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError
from nightjar_alerts.models.taxonomy import Taxonomy
from nightjar_alerts.routing import Route, may_be_supernova

T = TypeVar("T")
KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(slots=True, eq=False)
class Prepared:
    """A featurised light curve; ``seconds`` is the duration of featurising."""

    input: ModelInput
    curve: LightCurve
    seconds: float = 0.0


def within_domain(item: Item, outside: str) -> Item:
    """Return an item, or a :class:`Skipped` with the reason why it is outside every domain."""
    curve = item if isinstance(item, LightCurve) else None
    return Skipped("abstained", OUTSIDE_DOMAIN, outside, curve) if outside else item


def featurise(items: Sequence[Item], adapter: Adapter) -> list[Prepared | Outcome]:
    """Return the network input of each item, or its outcome if the network cannot classify it."""
    started = monotonic()
    prepared = [_prepare(item, adapter) for item in items]
    usable = prepared_of(prepared)
    seconds = (monotonic() - started) / max(1, len(usable))
    for each in usable:
        each.seconds = seconds
    return prepared


def _prepare(item: Item, adapter: Adapter) -> Prepared | Outcome:
    if not isinstance(item, LightCurve):
        return skipped_outcome(item)
    try:
        return Prepared(adapter.prepare(item), item)
    except LightCurveError as error:  # valid, but not for this network
        return Outcome("abstained", reason=error.reason, detail=str(error))


def prepared_of(items: Iterable[Prepared | Outcome]) -> list[Prepared]:
    """Return the items that the network runs on."""
    return [item for item in items if isinstance(item, Prepared)]


def outcomes_of(items: Iterable[Prepared | Outcome], results: Iterable[RunResult]) -> list[Outcome]:
    """Return one outcome per item, in order.

    Parameters
    ----------
    results : of the runs of :func:`prepared_of`, in its order.
    """
    remaining = iter(results)
    return [
        outcome_of(item.input, item.curve, next(remaining), item.seconds) if isinstance(item, Prepared) else item
        for item in items
    ]


def may_have_subtypes(outcome: Outcome, classes: Taxonomy) -> bool:
    """Return True if the model of supernova types should classify a light curve, too.

    Parameters
    ----------
    outcome : of the first model.
    classes : of the first model.
    """
    prediction = outcome.prediction
    return prediction is not None and may_be_supernova(prediction.outputs["probabilities"], classes)


def with_subtypes(outcomes: Sequence[Outcome], found: Mapping[int, Outcome]) -> list[Outcome]:
    """Return the outcomes with those of the model of supernova types, which are given by index."""
    return [
        replace(outcome, subtype=found[index]) if index in found else outcome for index, outcome in enumerate(outcomes)
    ]


def grouped(keys: Sequence[KeyT]) -> dict[KeyT, list[int]]:
    """Return the indices of each key, such as the items of each model."""
    groups: dict[KeyT, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return groups


def in_order(groups: Iterable[Sequence[int]], values: Iterable[Sequence[T]]) -> list[T]:
    """Return the values of all groups in the order of the indices of :func:`grouped`."""
    ordered: dict[int, T] = {}
    for indices, of_group in zip(groups, values, strict=True):
        ordered |= zip(indices, of_group, strict=True)
    return [ordered[index] for index in range(len(ordered))]


class Model(Hashable, Protocol):
    """A model as :func:`classify` uses it."""

    @property
    def bundle(self) -> Bundle:
        """Bundle of the model."""

    @property
    def adapter(self) -> Adapter:
        """Adapter of the bundle."""


ModelT = TypeVar("ModelT", bound=Model)
Steps = Generator[None, None, T]
"""A generator that returns T and yields while runs are pending, so that its caller can prepare others meanwhile."""


def classify(
    items: Sequence[Item], routes: Sequence[Route[ModelT]], start: Callable[[ModelT, list[ModelInput]], PendingRuns]
) -> Steps[list[Outcome]]:
    """Return one outcome per item, in order.

    Parameters
    ----------
    routes : models of each item.
    start : starts the runs of a model.

    Raises
    ------
    ModelFailedError
        If a model fails every run.
    """
    items = [within_domain(item, route.outside) for item, route in zip(items, routes, strict=True)]
    outcomes = yield from _classify_once(items, [route.model for route in routes], start)
    chosen = {
        index: route.subtypes
        for index, (route, outcome) in enumerate(zip(routes, outcomes, strict=True))
        if route.subtypes is not None and may_have_subtypes(outcome, route.model.bundle.manifest.classes)
    }
    if not chosen:
        return outcomes
    found = yield from _classify_once([items[index] for index in chosen], list(chosen.values()), start)
    return with_subtypes(outcomes, dict(zip(chosen, found, strict=True)))


def _classify_once(
    items: Sequence[Item], models: Sequence[ModelT], start: Callable[[ModelT, list[ModelInput]], PendingRuns]
) -> Steps[list[Outcome]]:
    """Return the outcome of each item by its model."""
    groups = grouped(models)
    prepared: list[list[Prepared | Outcome]] = []
    runs: list[PendingRuns] = []
    try:
        for model, indices in groups.items():
            prepared.append(featurise([items[index] for index in indices], model.adapter))
            inputs = [each.input for each in prepared_of(prepared[-1])]
            runs.append(start(model, inputs) if inputs else PendingRuns([]))
        if any(run.batches for run in runs):
            yield
        outcomes = [outcomes_of(group, run.results()) for group, run in zip(prepared, runs, strict=True)]
    finally:
        for run in runs:
            run.cancel()
    return in_order(groups.values(), outcomes)


class _Running(Generic[T]):
    """A generator that was started; ``results`` has its result once it has ended."""

    def __init__(self, steps: Steps[T]) -> None:
        self.steps = steps
        self.results: list[T] = []
        self.advance()

    def advance(self) -> None:
        """Continue until runs are pending, or to the end."""
        try:
            next(self.steps)
        except StopIteration as end:
            self.results.append(end.value)


def overlapped(blocks: Iterable[Steps[T]]) -> Generator[T]:
    """Yield the result of each block, in order. A block is prepared while the network runs for the ones before it.

    At most two blocks wait for the next one, and three if the model of subtypes runs for one of them. If the iterator
    of blocks raises, the results of the blocks before come first.
    """
    remaining = iter(blocks)
    running: deque[_Running[T]] = deque()
    failure: Exception | None = None
    try:
        while True:
            try:
                steps = next(remaining, None)
            except Exception as error:  # the iterator has ended, so the next call returns None
                failure, steps = error, None
            if steps is None and not running:
                break
            earlier = list(running)
            if steps is not None:
                running.append(_Running(steps))
            for block in earlier:
                if not block.results:
                    block.advance()
            while running and running[0].results:
                yield from running.popleft().results
        if failure is not None:
            raise failure
    finally:
        for block in running:
            block.steps.close()
