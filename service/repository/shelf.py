"""What is served at the moment, who is asked for what, and how a model leaves: with the last request it answers."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

import structlog

from models.bundle import Task
from service.inference.engine import Engine
from service.inference.loaded import LoadedModel
from service.memory import give_memory_back
from service.repository.opening import Opener
from service.repository.references import Reference
from service.repository.routing import FALLBACK, Routes, UnknownModel
from service.repository.served import Lease, Served
from service.repository.shadow import Shadow

log = structlog.get_logger(__name__)


class Shelf:
    """The models of a process.

    Attributes
    ----------
    routes : which name leads to which of them.
    served : by exact name.
    kept : served although no name but their exact one leads to them.
    shadows : by the name of the model that they shadow.
    leaving : models that nobody new is led to, with requests still to answer.
    """

    def __init__(self, opener: Opener, drain_timeout: float) -> None:
        self._opener, self._drain_timeout = opener, drain_timeout
        self.routes = Routes()
        self.served: dict[Reference, Served[Any]] = {}
        self.kept: set[Reference] = set()
        self.shadows: dict[str, Shadow] = {}
        self.leaving: set[Served[Any]] = set()
        self._tasks: set[asyncio.Task[object]] = set()

    def lease(self, name: str, task: Task | None, key: str = "") -> Lease[Any]:
        """The right to ask a model. Raises UnknownModel when none of the task is served under the name."""
        choice = self.routes.choose(name, key)
        served = self.served.get(choice.reference)
        if served is None or task not in (None, served.task):
            raise UnknownModel(name)
        fallback = self._fallback(served) if name in self.routes.aliases else None
        return Lease(served, choice.role, self._shadow(served), fallback)

    def _shadow(self, live: Served[Any]) -> Shadow | None:
        """What a model is compared with: only the version that answers for the name is."""
        return self.shadows.get(live.reference.name) if live is self.answering(live.reference.name) else None

    def _fallback(self, full: Served[Any]) -> Served[Any] | None:
        """Who may answer in the place of a classifier: another one that knows the same classes."""
        target = self.routes.aliases.get(FALLBACK)
        if target is None or full.task != "classification":
            return None
        other = self.served.get(target) if target.version else self.answering(target.name)
        if other is None or other is full or other.task != full.task:
            return None
        return other if other.bundle.manifest.classes.names == full.bundle.manifest.classes.names else None

    def answering(self, name: str) -> Served[Any] | None:
        """The version that answers for the name of a model, and for no alias."""
        return self.served.get(Reference(name, self.routes.current.get(name, "")))

    async def put(self, loaded: LoadedModel) -> Served[Any]:
        """Serve a model under its exact name, in place of the one that was there."""
        served = await self._opener.open(loaded)
        before = self.served.get(served.reference)
        self.served[served.reference] = served
        if before is not None:
            self._leave(before)
        return served

    async def tidy(self) -> None:
        """Let go of every model that nothing leads to, and of shadows with nothing to be compared with."""
        needed = self.routes.needed() | self.kept
        for reference in [reference for reference in self.served if reference not in needed]:
            self._leave(self.served.pop(reference))
        for name in [name for name, shadow in self.shadows.items() if not self._comparable(name, shadow)]:
            await self.drop_shadow(name)

    async def drop_shadow(self, name: str) -> bool:
        """End the comparison with a shadow; whether there was one."""
        shadow = self.shadows.pop(name, None)
        if shadow is not None:
            await shadow.stop()
        return shadow is not None

    def forget_shadow(self, name: str) -> None:
        """The same of one that has died."""
        self._begin(self.drop_shadow(name))

    async def close(self) -> None:
        """Finish what is queued, stop every thread."""
        await asyncio.gather(*(shadow.stop() for shadow in self.shadows.values()))
        for task in self._tasks:
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
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _free(self, served: Served[Any]) -> None:
        await served.free()
        await self._opener.close(served, self._drain_timeout)
        self.leaving.discard(served)
        log.info("model freed", model=str(served.reference), sha256=served.bundle.sha256)
        del served
        await asyncio.to_thread(give_memory_back)
