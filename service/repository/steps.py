"""The steps that changes are made of; whoever takes them holds :attr:`Steps.one_at_a_time`."""

import asyncio
from typing import Any, NamedTuple

from service.repository.folder import Found
from service.repository.intake import Intake, Refused
from service.repository.references import Reference, version_key
from service.repository.routing import UnknownModel
from service.repository.served import Served
from service.repository.shelf import Shelf

MOST_REMEMBERED = 10
"""Earlier versions that a rollback can go back to, for each name."""


class Identity(NamedTuple):
    """One bundle among all that ever had its name and version."""

    reference: Reference
    sha256: str


class Steps:
    """What changes have in common: the shelf, the intake, and what was served before.

    Attributes
    ----------
    one_at_a_time : held while a change is made.
    history : bundles that answered for each name, the latest last, without the one that does.
    left : the bundle of each name that was left by a rollback or by unloading.
    """

    def __init__(self, shelf: Shelf, intake: Intake) -> None:
        self.shelf, self.intake = shelf, intake
        self.one_at_a_time = asyncio.Lock()
        self.history: dict[str, list[Identity]] = {}
        self.left: dict[str, Identity] = {}

    def left_for(self, found: Found) -> bool:
        """Whether a bundle, or a newer one, was left by hand, so that it is not taken up by itself."""
        left = self.left.get(found.reference.name)
        if left is None:
            return False
        mine, other = version_key(found.reference.version), version_key(left.reference.version)
        return mine < other or (mine == other and found.sha256 == left.sha256)

    def on_trial(self, reference: Reference) -> bool:
        """Whether a version answers a canary's share."""
        canary = self.shelf.routes.canaries.get(reference.name)
        return canary is not None and canary.version == reference.version

    async def put(self, found: Found) -> Served[Any]:
        """Serve a bundle under its exact name, unless it is that already. Raises LoadFailed."""
        served = self.shelf.served.get(found.reference)
        if served is not None and served.bundle.sha256 == found.sha256:
            return served
        live = self.shelf.answering(found.reference.name)
        if live is not None and live.task != found.task:
            raise self.intake.refuse(found, f"{live.reference} is a model for {live.task}, this one for {found.task}")
        return await self.shelf.put(await self.intake.load(found))

    async def served(self, wanted: Reference) -> Served[Any]:
        """The model that a reference means, loaded if it has to be. Raises UnknownModel, LoadFailed."""
        served = self.shelf.served.get(wanted) if wanted.version else self.shelf.answering(wanted.name)
        if served is not None:
            return served
        if not wanted.version:
            raise UnknownModel(str(wanted))
        return await self.put(await self.intake.find(wanted))

    async def bring_back(self, before: Identity) -> None:
        """Serve a bundle that was served before. Raises Refused when it is not there any more, LoadFailed."""
        served = self.shelf.served.get(before.reference)
        if served is not None and identity(served) == before:
            return
        found = (await self.intake.look()).bundles.get(before.reference)
        if found is None or found.sha256 != before.sha256:
            raise Refused(f"{before.reference}, which answered before, is not in its folder any more")
        await self.put(found)

    def answering(self, name: str) -> Served[Any]:
        """The version that answers for a name. Raises UnknownModel."""
        served = self.shelf.answering(name)
        if served is None:
            raise UnknownModel(name)
        return served

    def promote(self, reference: Reference) -> bool:
        """Let a version that is served answer for its name, unless the one that does is newer; whether it does."""
        name, version = reference
        current = self.shelf.routes.current.get(name)
        if current is not None and version_key(version) < version_key(current):
            return False
        if current is not None and current != version:
            self._remember(self.shelf.served[Reference(name, current)])
        self.answer_with(reference)
        return True

    def answer_with(self, reference: Reference) -> None:
        """Let a version that is served answer for its name."""
        routes = self.shelf.routes
        if self.on_trial(reference):
            del routes.canaries[reference.name]
        routes.current[reference.name] = reference.version

    def _remember(self, served: Served[Any]) -> None:
        history = self.history.setdefault(served.reference.name, [])
        history.append(identity(served))
        del history[:-MOST_REMEMBERED]


def identity(served: Served[Any]) -> Identity:
    """Which bundle it is."""
    return Identity(served.reference, served.bundle.sha256)
