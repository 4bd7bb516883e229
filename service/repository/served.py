"""A model that answers, and the right to ask it.

Whoever asks a model holds a :class:`Lease` while doing so. A model that has been replaced is not asked by anybody new,
and is stopped and freed when the last lease on it ends: no request ever meets an engine that has closed.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from models.bundle import Bundle, Task
from models.lightcurve import LightCurve, LightCurveError
from models.runtime import Provider
from service.dataplane import AskOptions, DataPlane, Outcome, Refusal
from service.inference.engine import Engine
from service.inference.failures import EngineClosed, Overloaded
from service.inference.loaded import LoadedModel
from service.inference.programs import ForecastItem
from service.repository.references import Reference
from service.repository.routing import Role

ItemT = TypeVar("ItemT", bound=Sized)
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Served(Generic[ItemT]):
    """A bundle with everything that answers in its name; ``count`` is told of light curves asked, and in what role."""

    loaded: LoadedModel
    engine: Engine
    plane: DataPlane[ItemT]
    count: Callable[[Role, int], None] = lambda role, items: None
    leases: int = 0
    _free: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Nobody asks it yet."""
        self._free.set()

    @property
    def bundle(self) -> Bundle:
        """What is served."""
        return self.loaded.bundle

    @property
    def provider(self) -> Provider:
        """What runs it."""
        return self.loaded.provider

    @property
    def task(self) -> Task:
        """What it was trained for."""
        return self.bundle.manifest.task

    @property
    def reference(self) -> Reference:
        """Its name, exactly."""
        return Reference(self.bundle.manifest.name, self.bundle.manifest.version)

    def take(self) -> None:
        """Begin a lease."""
        self.leases += 1
        self._free.clear()

    def give_back(self) -> None:
        """End a lease."""
        self.leases -= 1
        if not self.leases:
            self._free.set()

    async def free(self) -> None:
        """Wait until nobody holds a lease."""
        await self._free.wait()


ServedClassifier = Served[LightCurve]
ServedForecaster = Served[ForecastItem]


class Copies(Protocol[ItemT_contra]):
    """Where copies of what was asked go, with what was answered; must not raise, wait, or take long."""

    def offer(
        self, items: Sequence[ItemT_contra | LightCurveError | Refusal], outcomes: Sequence[Outcome], live: Engine
    ) -> None:
        """Take a request, or let it pass."""


class Lease(Generic[ItemT]):
    """A model, kept from being freed inside ``with``; may be entered more than once.

    Attributes
    ----------
    served : who answers.
    role : why it is not the version that answers for its name; empty when it is, or was named exactly.

    Parameters
    ----------
    fallback : who answers when ``served`` is full, where a request allows it; the lease is on that one from then on.
    """

    def __init__(
        self,
        served: Served[ItemT],
        role: Role = "",
        copies: Copies[ItemT] | None = None,
        fallback: Served[ItemT] | None = None,
    ) -> None:
        self.served, self.role = served, role
        self._copies, self._fallback = copies, fallback
        self._entered = 0

    def __enter__(self) -> "Lease[ItemT]":
        """Hold the model."""
        self.served.take()
        self._entered += 1
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Let it go."""
        self.served.give_back()
        self._entered -= 1

    @property
    def bundle(self) -> Bundle:
        """What answers."""
        return self.served.bundle

    async def ask(
        self, items: Sequence[ItemT | LightCurveError | Refusal], options: AskOptions | None = None
    ) -> list[Outcome]:
        """Ask, as :meth:`service.dataplane.DataPlane.ask` does; where the model has a shadow, it gets a copy."""
        try:
            outcomes = await self.served.plane.ask(items, options)
        except Overloaded as full:
            if self._fallback is None or options is None or not options.fall_back:
                raise
            return await self._fall_back(self._fallback, full, items, options)
        self.served.count(self.role, len(items))
        if self._copies is not None:
            self._copies.offer(items, outcomes, self.served.engine)
        return outcomes

    async def _fall_back(
        self,
        other: Served[ItemT],
        full: Overloaded,
        items: Sequence[ItemT | LightCurveError | Refusal],
        options: AskOptions,
    ) -> list[Outcome]:
        """Ask the other one and, if it answers, hold that one instead. Raises Overloaded when both are full."""
        other.take()
        try:
            outcomes = await other.plane.ask(items, options)
        except Overloaded as too:
            raise Overloaded(min(full.retry_after, too.retry_after)) from full
        except EngineClosed:  # replaced since the lease began
            raise full from None
        finally:
            other.give_back()
        other.count("fallback", len(items))
        for _ in range(self._entered):
            other.take()
            self.served.give_back()
        self.served, self.role, self._copies, self._fallback = other, "fallback", None, None
        return outcomes


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
