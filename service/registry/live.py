"""Models that answer: which one is asked for what, the right to ask it, and how it leaves.

A table (:class:`Routes`) says which version of which model answers for each name. A canary is a share of what is asked
of a name, answered by another version of the same model. Whose turn that is depends on the key alone (an object, a
client), so the same object always gets the same version, and an object that the canary answered at 5 % is still
answered by it at 20 %.

Whoever asks a model holds a :class:`Lease` while doing so. A model that has been replaced is not asked by anybody new,
and is stopped and freed when the last lease on it ends: no request ever meets an engine that has closed.

A :class:`ModelChooser` says whom to ask about each light curve of a request that names no model:

1. the alias of the light curve's survey where there is one, else ``default``;
2. if the light curve lies outside the domain that its bundle states (bands, brightness, survey), the first of the
   other aliases of :data:`service.registry.names.CLASSIFIERS`, in their order, whose bundle states a domain that
   holds it;
3. if there is none, nobody: the light curve is ``abstained``, with the reason and the model to name.

A bundle that states no domain is asked about every light curve that comes to it, and never in the place of another.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence, Sized
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import structlog

from nightjar_alerts.models.bundle import Bundle, Manifest, Task
from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError
from nightjar_alerts.models.runtime import Provider
from nightjar_alerts.service.dataplane import DataPlane, InferOptions, Outcome, Skipped
from nightjar_alerts.service.engine.engine import Engine
from nightjar_alerts.service.engine.load import LoadedModel
from nightjar_alerts.service.process import give_memory_back
from nightjar_alerts.service.registry.names import (
    CLASSIFIERS,
    DEFAULT,
    NotReady,
    Reference,
    Role,
    UnknownModel,
)
from nightjar_alerts.service.registry.shadow import Shadow

ItemT = TypeVar("ItemT", bound=Sized)
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Served(Generic[ItemT]):
    """A bundle with everything that answers in its name.

    Attributes
    ----------
    count : called with the role in which the model was asked and the number of light curves.
    leases : leases in force; counted on the event loop alone, so without a lock.
    reference : exact name of the model, with its version.
    """

    loaded: LoadedModel
    engine: Engine
    plane: DataPlane[ItemT]
    count: Callable[[Role, int], None] = lambda role, items: None
    leases: int = 0
    reference: Reference = field(init=False)
    _free: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Begin without a lease."""
        self._free.set()
        self.reference = Reference(self.bundle.manifest.name, self.bundle.manifest.version)

    @property
    def bundle(self) -> Bundle:
        """Bundle that is served."""
        return self.loaded.bundle

    @property
    def provider(self) -> Provider:
        """Execution provider that runs it."""
        return self.loaded.provider

    @property
    def task(self) -> Task:
        """Task that it was trained for."""
        return self.bundle.manifest.task

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


class Copies(Protocol[ItemT_contra]):
    """Receiver of copies of requests with their answers; must not raise, wait, or take long."""

    def offer(
        self, items: Sequence[ItemT_contra | LightCurveError | Skipped], outcomes: Sequence[Outcome], live: Engine
    ) -> None:
        """Take a copy of a request, or ignore it."""


class Lease(Generic[ItemT]):
    """A model, kept from being freed inside ``with``; may be entered more than once.

    Attributes
    ----------
    served : model that answers.
    role : ``canary`` where another version answers than the name stands for; else empty.
    """

    def __init__(self, served: Served[ItemT], role: Role = "", copies: Copies[ItemT] | None = None) -> None:
        self.served, self.role = served, role
        self._copies = copies

    def __enter__(self) -> "Lease[ItemT]":
        """Hold the model."""
        self.served.take()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Let it go."""
        self.served.give_back()

    @property
    def bundle(self) -> Bundle:
        """Bundle that answers."""
        return self.served.bundle

    async def infer(
        self, items: Sequence[ItemT | LightCurveError | Skipped], options: InferOptions | None = None
    ) -> list[Outcome]:
        """Ask, as :meth:`service.dataplane.DataPlane.infer` does; where the model has a shadow, it gets a copy."""
        outcomes = await self.served.plane.infer(items, options)
        self.served.count(self.role, len(items))
        if self._copies is not None:
            self._copies.offer(items, outcomes, self.served.engine)
        return outcomes


class Canary(NamedTuple):
    """A version on trial, and the percentage of requests that it answers."""

    version: str
    percent: float


class Choice(NamedTuple):
    """One version of a model, and the role in which it answers."""

    reference: Reference
    role: Role = ""


@dataclass(slots=True)
class Routes:
    """Table of names: the version that answers for each.

    Attributes
    ----------
    current : version that answers for each name.
    aliases : other names; one without a version follows ``current``.
    canaries : at most one for each name.
    """

    current: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, Reference] = field(default_factory=dict)
    canaries: dict[str, Canary] = field(default_factory=dict)

    def choose(self, name: str, key: str) -> Choice:
        """Choose the version that answers.

        Parameters
        ----------
        name : an alias, ``name`` or ``name@version``; what is named exactly has no canary.
        key : decides whether the canary answers; the same key always gets the same version.

        Raises
        ------
        UnknownModel
            When the name stands for nothing. That a version named exactly is served is not checked here.
        """
        reference = self.named(name)
        if reference.version:
            return Choice(reference)
        if reference.name not in self.current:
            raise UnknownModel(name)
        canary = self.canaries.get(reference.name)
        if canary is not None and fraction(reference.name, key) * 100 < canary.percent:
            return Choice(Reference(reference.name, canary.version), "canary")
        return Choice(Reference(reference.name, self.current[reference.name]))

    def named(self, name: str) -> Reference:
        """Resolve an alias or a name. Raises UnknownModel when it is neither."""
        if name in self.aliases:
            return self.aliases[name]
        try:
            return Reference.parse(name)
        except ValueError:
            raise UnknownModel(name) from None

    def for_survey(self, survey: str) -> str:
        """Name of the model for packets of a survey: an alias of that name where there is one."""
        return survey if survey in self.aliases else DEFAULT

    def needed(self) -> set[Reference]:
        """Versions that a request may be led to without naming them exactly."""
        references = {Reference(name, version) for name, version in self.current.items()}
        references |= {reference for reference in self.aliases.values() if reference.version}
        return references | {Reference(name, canary.version) for name, canary in self.canaries.items()}

    def aliases_of(self, reference: Reference) -> list[str]:
        """Aliases that lead to a version."""
        return sorted(
            alias
            for alias, target in self.aliases.items()
            if target.name == reference.name and (target.version or self.current.get(target.name)) == reference.version
        )


def fraction(name: str, key: str) -> float:
    """Hash a key to a number between 0 and 1, evenly, and differently for every name."""
    # Keys are chosen by clients: half a surrogate in one must not raise.
    digest = blake2b(f"{name}\n{key}".encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


log = structlog.get_logger(__name__)


class Opener(Protocol):
    """Gives models an engine and a data plane, and takes them away."""

    async def open(self, loaded: LoadedModel) -> Served[Any]:
        """Start to answer with a model."""

    async def close(self, served: Served[Any], timeout: float) -> None:
        """Stop a model that nobody asks any more, once what it still runs has ended."""


class LiveModels:
    """The models of a process and the right to ask them.

    Attributes
    ----------
    started : whether there is a model to ask.
    routes : which name leads to which of them.
    served : models by exact name.
    exact_references : models that are served although only their exact name leads to them.
    shadows : by the name of the model that they shadow.
    leaving : models that nobody new is led to, with requests still to answer.
    """

    def __init__(self, opener: Opener, drain_timeout: float) -> None:
        self._opener, self._drain_timeout = opener, drain_timeout
        self.started = False
        self.routes = Routes()
        self.served: dict[Reference, Served[Any]] = {}
        self.exact_references: set[Reference] = set()
        self.shadows: dict[str, Shadow] = {}
        self.leaving: set[Served[Any]] = set()
        self._tasks: set[asyncio.Task[object]] = set()

    def classifier(self, name: str = "", *, survey: str = "", key: str = "") -> Lease[LightCurve]:
        """Lease a classifier.

        Parameters
        ----------
        name : an alias, ``name`` or ``name@version``; empty for the one of the survey, or the default.
        survey : where the light curve comes from.
        key : name of the object, or else of the client: decides whether a canary answers.

        Raises
        ------
        UnknownModel, NotReady
            When no classifier is served under the name, or none at all yet.
        """
        self._check_started()
        return self.lease(name or self.routes.for_survey(survey), "classification", key)

    def of_any_task(self, name: str, key: str = "") -> Lease[Any]:
        """Lease a model of any task; raises as :meth:`classifier` does."""
        self._check_started()
        return self.lease(name, None, key)

    def _check_started(self) -> None:
        if not self.started:
            raise NotReady

    def lease(self, name: str, task: Task | None, key: str = "") -> Lease[Any]:
        """Lease a model. Raises UnknownModel when none of the task is served under the name."""
        choice = self.routes.choose(name, key)
        served = self.served.get(choice.reference)
        if served is None or task not in (None, served.task):
            raise UnknownModel(name)
        return Lease(served, choice.role, self._shadow(served))

    def _shadow(self, live: Served[Any]) -> Shadow | None:
        """Return the shadow of a model: only the version that answers for the name has one."""
        return self.shadows.get(live.reference.name) if live is self.answering(live.reference.name) else None

    def answering(self, name: str) -> Served[Any] | None:
        """Return the version that answers for the name of a model, not of an alias."""
        return self.served.get(Reference(name, self.routes.current.get(name, "")))

    async def put(self, loaded: LoadedModel) -> Served[Any]:
        """Serve a model under its exact name, in place of the one that was there."""
        served = await self._opener.open(loaded)
        before = self.served.get(served.reference)
        self.served[served.reference] = served
        if before is not None:  # only now: at no moment does a request find nobody
            self._leave(before)
        return served

    async def tidy(self) -> None:
        """Let go of every model that nothing leads to, and of shadows with nothing to be compared with."""
        needed = self.routes.needed() | self.exact_references
        for reference in [reference for reference in self.served if reference not in needed]:
            self._leave(self.served.pop(reference))
        for name in [name for name, shadow in self.shadows.items() if not self._comparable(name, shadow)]:
            await self.drop_shadow(name)

    async def drop_shadow(self, name: str) -> bool:
        """End the comparison with a shadow; return True if there was one."""
        shadow = self.shadows.pop(name, None)  # first: no new lease shall copy to a shadow that is about to stop
        if shadow is not None:
            await shadow.stop()
        return shadow is not None

    def forget_shadow(self, name: str) -> None:
        """Remove a shadow whose engine has died, without waiting for it."""
        self._begin(self.drop_shadow(name))

    async def close(self) -> None:
        """Finish what is queued, stop every thread."""
        await asyncio.gather(*(shadow.stop() for shadow in self.shadows.values()))
        for task in self._tasks:  # those that wait for leases: who is leaving is closed below, with all others
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        everything = [*self.served.values(), *self.leaving]
        await asyncio.gather(*(self._opener.close(served, self._drain_timeout) for served in everything))

    @property
    def engines(self) -> Iterable[Engine]:
        """Every engine that answers requests."""
        return [served.engine for served in (*self.served.values(), *self.leaving)]

    def _comparable(self, name: str, shadow: Shadow) -> bool:
        live = self.answering(name)
        return live is not None and live.bundle.manifest.classes.names == shadow.classes

    def _leave(self, served: Served[Any]) -> None:
        self.leaving.add(served)
        self._begin(self._free(served))

    def _begin(self, work: Coroutine[Any, Any, object]) -> None:
        # Held until it ends: the event loop itself refers to tasks only weakly.
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _free(self, served: Served[Any]) -> None:
        await served.free()
        await self._opener.close(served, self._drain_timeout)
        self.leaving.discard(served)
        log.info("model freed", model=str(served.reference), sha256=served.bundle.sha256)
        del served  # the last reference: the session goes with it, and only then is there memory to give back
        await asyncio.to_thread(give_memory_back)


OUTSIDE_DOMAIN: Final = "outside_domain"

Item = LightCurve | LightCurveError | Skipped


class LeaseOf(Protocol):
    """Function that leases a classifier, such as :meth:`LiveModels.classifier`."""

    def __call__(self, name: str = "", *, survey: str = "", key: str = "") -> Lease[LightCurve]:
        """Return a lease. Raises UnknownModel."""


class ModelChooser:
    """Choice of a model for each light curve of one request; the same model is always the same lease.

    Parameters
    ----------
    name : of the model that the request names, which is obeyed; empty where it names none.
    others : whether another model may be asked about a light curve outside the domain of the usual one.
    """

    def __init__(self, lease_of: LeaseOf, name: str = "", *, others: bool = True) -> None:
        self._lease_of, self._name, self._others = lease_of, name, others
        self._leases: dict[tuple[Reference, str], Lease[LightCurve]] = {}
        # Of a thousand packets most ask for the same model in the same way.
        self._lease_by_request: dict[tuple[str, str, str], Lease[LightCurve]] = {}

    def choose(self, item: Item, *, survey: str = "", key: str = "") -> tuple[Lease[LightCurve], Item]:
        """Return the model to ask and the item for it: a refusal in place of a light curve outside every domain.

        Parameters
        ----------
        survey : that the item comes from, where the item itself does not say.
        key : decides whether a canary answers.
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
        request = (name, survey, key)
        if request not in self._lease_by_request:
            lease = self._lease_of(name, survey=survey, key=key)
            # One lease for each model and role: what is asked is divided by it, and a canary's share stays apart.
            self._lease_by_request[request] = self._leases.setdefault((lease.served.reference, lease.role), lease)
        return self._lease_by_request[request]


def refused_outside(curve: LightCurve, manifest: Manifest) -> Skipped | None:
    """Return why a light curve outside a bundle's domain is not answered; None within, or where none is stated."""
    why = "" if manifest.domain is None else manifest.domain.outside(curve, manifest.band_map)
    if not why:
        return None
    detail = f"{manifest.name}: {why}; name the model {manifest.name} to ask it all the same"
    return Skipped("abstained", OUTSIDE_DOMAIN, detail)


class held(Generic[ItemT]):  # in place of an ExitStack, which costs as much as the rest of a lease
    """Hold several models inside a ``with`` block."""

    def __init__(self, leases: Iterable[Lease[ItemT]]) -> None:
        self._leases = tuple(leases)

    def __enter__(self) -> None:
        """Hold them."""
        for lease in self._leases:
            lease.__enter__()

    def __exit__(self, *_: object) -> None:
        """Let them go."""
        for lease in self._leases:
            lease.__exit__()


async def infer_many(
    leases: Sequence[Lease[ItemT]],
    items: Sequence[ItemT | LightCurveError | Skipped],
    options: InferOptions,
) -> list[Outcome]:
    """Ask a model for each item, in order; all of them are answered or, where one model refuses, none.

    Raises what :meth:`service.dataplane.DataPlane.infer` does.

    Parameters
    ----------
    leases : one for each item; the same object for all items of a model.
    """
    if len(set(leases)) == 1:
        return await leases[0].infer(items, options)
    places: dict[Lease[ItemT], list[int]] = {}
    for place, lease in enumerate(leases):
        places.setdefault(lease, []).append(place)
    tasks = [asyncio.create_task(lease.infer(*_part(items, options, mine))) for lease, mine in places.items()]
    try:
        answers = await asyncio.gather(*tasks)
    finally:  # after a refusal the others are asked for nothing: their light curves leave the queues
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    outcomes: dict[int, Outcome] = {}
    for mine, part in zip(places.values(), answers, strict=True):
        outcomes |= zip(mine, part, strict=True)
    return [outcomes[place] for place in range(len(items))]


def _part(
    items: Sequence[ItemT | LightCurveError | Skipped], options: InferOptions, places: Sequence[int]
) -> tuple[list[ItemT | LightCurveError | Skipped], InferOptions]:
    surveys = options.surveys if isinstance(options.surveys, str) else [options.surveys[place] for place in places]
    return [items[place] for place in places], replace(options, surveys=surveys)
