"""Choice of a model for each light curve of a request: the one named, else one measured on such light curves.

The rule, where a request names no model:

1. the alias of the light curve's survey where there is one, else ``default``;
2. if the light curve lies outside the domain that its bundle states (bands, brightness, survey), the first of the
   other aliases of :data:`service.registry.names.CLASSIFIERS`, in their order, whose bundle states a domain that
   holds it;
3. if there is none, nobody: the light curve is ``abstained``, with the reason and the model to name.

A bundle that states no domain has none to be outside of, and is never asked in the place of another.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from models.bundle import Manifest
from models.lightcurve import LightCurve, LightCurveError
from service.dataplane import AskOptions, Outcome, Refusal
from service.registry.live import Lease
from service.registry.names import CLASSIFIERS, UnknownModel

OUTSIDE_DOMAIN: Final = "outside_domain"

ItemT = TypeVar("ItemT", bound=Sized)
Item = LightCurve | LightCurveError | Refusal


class LeaseOf(Protocol):
    """The right to ask a classifier, as :meth:`service.registry.repository.ModelRepository.classifier` gives it."""

    def __call__(self, name: str = "", *, survey: str = "", key: str = "") -> Lease[LightCurve]:
        """Return it. Raises UnknownModel."""


class Leading:
    """Leads the light curves of one request; the same model is always the same lease.

    Parameters
    ----------
    name : of the model that the request names, which is obeyed; empty where it names none.
    others : whether light curves may be led to other models than the usual one, or are abstained at once.
    """

    def __init__(self, lease_of: LeaseOf, name: str = "", *, others: bool = True) -> None:
        self._lease_of, self._name, self._others = lease_of, name, others
        self._leases: dict[tuple[str, str], Lease[LightCurve]] = {}

    def lead(self, item: Item, *, survey: str = "", key: str = "") -> tuple[Lease[LightCurve], Item]:
        """Return the model to ask and the item to ask it, a refusal where none was measured on such light curves.

        Parameters
        ----------
        survey : that the item comes from, where the item itself does not say.
        key : what a canary's share is divided by.
        """
        survey = (item.survey if isinstance(item, LightCurve) else "") or survey
        usual = self._lease(self._name, survey, key)
        if self._name or not isinstance(item, LightCurve):
            return usual, item
        refusal = refused_outside(item, usual.bundle.manifest)
        if refusal is None:
            return usual, item
        other = self._measured_on(item, usual, key) if self._others else None
        if other is not None:
            return other, item
        return usual, refusal

    def _measured_on(self, curve: LightCurve, usual: Lease[LightCurve], key: str) -> Lease[LightCurve] | None:
        for alias in CLASSIFIERS:
            try:
                lease = self._lease(alias, "", key)
            except UnknownModel:
                continue
            manifest = lease.bundle.manifest
            if (
                lease.served is not usual.served
                and manifest.domain is not None
                and refused_outside(curve, manifest) is None
            ):
                return lease
        return None

    def _lease(self, name: str, survey: str, key: str) -> Lease[LightCurve]:
        lease = self._lease_of(name, survey=survey, key=key)
        return self._leases.setdefault((str(lease.served.reference), lease.role), lease)


def refused_outside(curve: LightCurve, manifest: Manifest) -> Refusal | None:
    """Return why a light curve outside a bundle's domain is not answered; None within, or where none is stated."""
    why = "" if manifest.domain is None else manifest.domain.outside(curve, manifest.band_map)
    if not why:
        return None
    detail = f"{manifest.name}: {why}; name the model {manifest.name} to ask it all the same"
    return Refusal("abstained", OUTSIDE_DOMAIN, detail)


@contextmanager
def held(leases: Iterable[Lease[ItemT]]) -> Iterator[None]:
    """Hold several models."""
    with ExitStack() as stack:
        for lease in leases:
            stack.enter_context(lease)
        yield


async def ask_each(
    leases: Sequence[Lease[ItemT]],
    items: Sequence[ItemT | LightCurveError | Refusal],
    options: AskOptions,
) -> list[Outcome]:
    """Ask a model for each item, in order; all of them are answered or, where one model refuses, none.

    Raises what :meth:`service.dataplane.DataPlane.ask` does.

    Parameters
    ----------
    leases : one for each item; the same object for all items of a model.
    """
    places: dict[Lease[ItemT], list[int]] = {}
    for place, lease in enumerate(leases):
        places.setdefault(lease, []).append(place)
    if len(places) == 1:
        return await leases[0].ask(items, options)
    asked = [asyncio.create_task(lease.ask(*_part(items, options, mine))) for lease, mine in places.items()]
    try:
        answers = await asyncio.gather(*asked)
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    outcomes: dict[int, Outcome] = {}
    for mine, part in zip(places.values(), answers, strict=True):
        outcomes |= zip(mine, part, strict=True)
    return [outcomes[place] for place in range(len(items))]


def _part(
    items: Sequence[ItemT | LightCurveError | Refusal], options: AskOptions, places: Sequence[int]
) -> tuple[list[ItemT | LightCurveError | Refusal], AskOptions]:
    surveys = options.surveys if isinstance(options.surveys, str) else [options.surveys[place] for place in places]
    return [items[place] for place in places], replace(options, surveys=surveys)
