"""Changes of what is served: one at a time, and one that fails leaves everything as it was.

A change is made of :class:`ChangeSteps`; whoever takes them holds :attr:`ChangeSteps.one_at_a_time`.

The rules, whoever asks for a change, an administrator or the watch over the folder:

- the newest version of a name answers for the name; a version that was loaded by hand, or that an alias names, is
  served besides under its exact name;
- after a rollback, or unloading, the watch takes up only a version newer than the one left, or another bundle of it;
- a canary is never promoted automatically;
- a bundle that failed is tried again when its files change, or by hand;
- what vanishes from the folder goes on being served: deleting files is no order to stop;
- what is changed by hand holds until the process ends. The settings are what it begins with.

**Versions on trial**: a canary answers a share of what is asked of a name, a shadow is asked the same and compared.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import structlog

from nightjar_alerts.service.engine.load import LoadedModel
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.registry.live import Canary, LiveModels, Served
from nightjar_alerts.service.registry.load import BundleFolders, BundleOnDisk, LoadFailed, Refused
from nightjar_alerts.service.registry.names import (
    DEFAULT,
    Reference,
    UnknownModel,
    version_key,
)
from nightjar_alerts.service.registry.shadow import Shadow

MOST_REMEMBERED = 10
"""Earlier versions that a rollback can go back to, for each name."""


class BundleIdentity(NamedTuple):
    """One bundle among all that ever had its name and version."""

    reference: Reference
    sha256: str


class ChangeSteps:
    """Undoable steps that changes are made of, and the history that they go back to.

    Attributes
    ----------
    one_at_a_time : held while a change is made.
    history : bundles that answered for each name before the present one, the latest last.
    left_bundles : the bundle of each name that was left by a rollback or by unloading.
    """

    def __init__(self, live: LiveModels, folders: BundleFolders) -> None:
        self.live, self.folders = live, folders
        # A change waits for loads between its steps; another must neither find nor undo half of it.
        self.one_at_a_time = asyncio.Lock()
        self.history: dict[str, list[BundleIdentity]] = {}
        self.left_bundles: dict[str, BundleIdentity] = {}

    def was_left(self, on_disk: BundleOnDisk) -> bool:
        """Return True if this bundle, or a newer one, was left by hand, so that it is not taken up by itself."""
        bundle = self.left_bundles.get(on_disk.reference.name)
        if bundle is None:
            return False
        mine, other = version_key(on_disk.reference.version), version_key(bundle.reference.version)
        return mine < other or (mine == other and on_disk.sha256 == bundle.sha256)

    def on_trial(self, reference: Reference) -> bool:
        """Return True if a version answers a canary's share."""
        canary = self.live.routes.canaries.get(reference.name)
        return canary is not None and canary.version == reference.version

    async def put(self, on_disk: BundleOnDisk) -> Served[Any]:
        """Serve a bundle under its exact name, unless that is so already. Raises LoadFailed."""
        served = self.live.served.get(on_disk.reference)
        if served is not None and served.bundle.sha256 == on_disk.sha256:
            return served
        if on_disk.task != "classification":
            raise self.folders.refuse(
                on_disk, f"the service serves classifiers only, this bundle is for {on_disk.task}"
            )
        return await self.live.put(await self.folders.load(on_disk))

    async def served(self, reference: Reference) -> Served[Any]:
        """Return the model that a reference means, loaded if need be. Raises UnknownModel, LoadFailed."""
        served = self.live.served.get(reference) if reference.version else self.live.answering(reference.name)
        if served is not None:
            return served
        if not reference.version:
            raise UnknownModel(str(reference))
        return await self.put(await self.folders.find(reference))

    async def bring_back(self, before: BundleIdentity) -> None:
        """Serve a bundle that was served before. Raises Refused when it is not there any more, LoadFailed."""
        served = self.live.served.get(before.reference)
        if served is not None and identity(served) == before:
            return
        on_disk = (await self.folders.look()).bundles.get(before.reference)
        if on_disk is None or on_disk.sha256 != before.sha256:
            raise Refused(f"{before.reference}, which answered before, is not in its folder any more")
        await self.put(on_disk)

    def answering(self, name: str) -> Served[Any]:
        """Return the version that answers for a name. Raises UnknownModel."""
        served = self.live.answering(name)
        if served is None:
            raise UnknownModel(name)
        return served

    def promote(self, reference: Reference) -> bool:
        """Let a served version answer for its name, unless the one that does is newer; return True if it now does."""
        name, version = reference
        current = self.live.routes.current.get(name)
        if current is not None and version_key(version) < version_key(current):
            return False
        if current is not None and current != version:  # what a rollback goes back to
            self._remember(self.live.served[Reference(name, current)])
        self.answer_with(reference)
        return True

    def answer_with(self, reference: Reference) -> None:
        """Let a version that is served answer for its name."""
        routes = self.live.routes
        if self.on_trial(reference):  # it answers everything now, not a share
            del routes.canaries[reference.name]
        routes.current[reference.name] = reference.version

    def _remember(self, served: Served[Any]) -> None:
        history = self.history.setdefault(served.reference.name, [])
        history.append(identity(served))
        del history[:-MOST_REMEMBERED]


def identity(served: Served[Any]) -> BundleIdentity:
    """Identify the bundle of a served model."""
    return BundleIdentity(served.reference, served.bundle.sha256)


class Changes:
    """Changes to what is served under which name; canaries and shadows are those of :class:`Trials`."""

    def __init__(self, steps: ChangeSteps) -> None:
        self._steps = steps
        self._live, self._folders = steps.live, steps.folders

    async def begin(self, loaded: LoadedModel, alias: str) -> None:
        """Serve what the settings name, under the alias too."""
        served = await self._live.put(loaded)
        self._folders.singles.append(loaded.bundle.path)  # looked at from now on, as the folder is
        self._steps.promote(served.reference)
        self._live.routes.aliases[alias] = Reference(served.reference.name)

    async def sync(self, *, retry: bool = False) -> list[Reference]:
        """Take up what is new in the folders; returns what was loaded. A failure is noted, and the rest goes on.

        Parameters
        ----------
        retry : whether to try again what failed before although its files are the same.
        """
        async with self._steps.one_at_a_time:
            await self._folders.look()
            loaded_references = []
            for on_disk in list(self._news()):  # a list, as each step changes what the generator walks over
                if retry or not self._folders.failed_before(on_disk):
                    try:
                        await self._steps.put(on_disk)
                    except LoadFailed:  # noted where it was loaded; the others have no part in it
                        continue
                    if not self._steps.on_trial(on_disk.reference):
                        self._steps.promote(on_disk.reference)
                    await self._live.tidy()
                    loaded_references.append(on_disk.reference)
            return loaded_references

    async def load(self, reference: Reference) -> Reference:
        """Serve a version, the newest when none is named; returns which. It answers for its name unless it is older.

        Raises
        ------
        UnknownModel, LoadFailed
            When there is no such bundle, or it cannot be served.
        """
        async with self._steps.one_at_a_time:
            on_disk = await self._folders.find(reference)
            await self._steps.put(on_disk)
            self._steps.left_bundles.pop(reference.name, None)  # whoever loads by hand wants new versions again
            if not self._steps.promote(on_disk.reference):
                self._live.exact_references.add(on_disk.reference)
            await self._live.tidy()
            return on_disk.reference

    async def unload(self, reference: Reference) -> None:
        """Stop serving a version, or, where none is named, all versions of a model. Raises UnknownModel, Refused."""
        async with self._steps.one_at_a_time:
            current = self._steps.answering(reference.name)
            if reference.version:
                self._drop_version(reference)
            else:
                self._drop_model(current)
            await self._live.tidy()

    async def rollback(self, name: str) -> Reference:
        """Let the version answer again that answered before the present one; returns it.

        Raises
        ------
        UnknownModel, Refused, LoadFailed
            When nothing is served under the name, no earlier version is known, or it is not there any more.
        """
        async with self._steps.one_at_a_time:
            current, history = self._steps.answering(name), self._steps.history.get(name, [])
            if not history:
                raise Refused(f"nothing answered for {name} before {current.reference.version}")
            before = history[-1]
            await self._steps.bring_back(before)
            history.pop()  # only now: bringing it back may have failed
            self._steps.left_bundles[name] = identity(current)  # or the next look at the folder would take it up again
            self._steps.answer_with(before.reference)
            await self._live.tidy()
            return before.reference

    async def set_alias(self, alias: str, target: Reference) -> None:
        """Give a model another name. Raises UnknownModel, Refused, LoadFailed."""
        async with self._steps.one_at_a_time:
            if alias in self._live.routes.current:
                raise Refused(f"{alias} is the name of a model")
            await self._steps.served(target)
            self._live.routes.aliases[alias] = target
            await self._live.tidy()

    async def end_alias(self, alias: str) -> None:
        """Take an alias away. Raises UnknownModel, Refused."""
        async with self._steps.one_at_a_time:
            if alias not in self._live.routes.aliases:
                raise UnknownModel(alias)
            if alias == DEFAULT:
                raise Refused("without it, requests that name no model could not be answered")
            del self._live.routes.aliases[alias]
            await self._live.tidy()

    def _news(self) -> Iterator[BundleOnDisk]:
        """List bundles of the folders that should be served and are not."""
        contents, routes = self._folders.contents, self._live.routes
        for name, newest in contents.newest().items():
            current = routes.current.get(name)
            if self._steps.on_trial(newest.reference) or self._steps.was_left(newest):
                continue
            if current is None or version_key(newest.reference.version) > version_key(current):
                yield newest
        for reference, served in self._live.served.items():
            on_disk = contents.bundles.get(reference)
            if on_disk is not None and on_disk.sha256 != served.bundle.sha256:
                yield on_disk

    def _drop_version(self, reference: Reference) -> None:
        routes = self._live.routes
        if reference not in self._live.served:
            raise UnknownModel(str(reference))
        if reference in routes.needed():
            raise Refused(f"requests are led to {reference}, by its name, an alias or as a canary")
        self._live.exact_references.discard(reference)

    def _drop_model(self, served: Served[Any]) -> None:
        name, routes = served.reference.name, self._live.routes
        aliases = sorted(alias for alias, target in routes.aliases.items() if target.name == name)
        if aliases:
            raise Refused(f"aliases lead to {name}: {', '.join(aliases)}")
        # After a rollback the folder holds a newer version than the one that answers. Neither may come back by itself.
        newest = self._folders.contents.newest().get(name)
        on_disk = None if newest is None else BundleIdentity(newest.reference, newest.sha256)
        self._steps.left_bundles[name] = max(
            filter(None, (identity(served), on_disk)), key=lambda each: version_key(each[0].version)
        )
        self._live.exact_references = {reference for reference in self._live.exact_references if reference.name != name}
        routes.canaries.pop(name, None)
        del routes.current[name]


log = structlog.get_logger(__name__)


class Trials:
    """Canaries and shadows: begun and ended one at a time, in turn with all other changes."""

    def __init__(self, steps: ChangeSteps, metrics: Metrics) -> None:
        self._steps, self._metrics = steps, metrics
        self._live, self._folders = steps.live, steps.folders

    async def set_canary(self, name: str, version: str, percent: float) -> None:
        """Let a version answer a percentage of what is asked of a name. Raises UnknownModel, Refused, LoadFailed."""
        async with self._steps.one_at_a_time:
            current, reference = self._steps.answering(name), Reference(name, version)
            if reference == current.reference:
                raise Refused(f"{reference} answers for {name} already")
            served = await self._steps.served(reference)
            if _classes(served.loaded) != _classes(current.loaded):
                await self._live.tidy()  # it may have been loaded for this alone
                raise Refused(f"{reference} has other classes than {current.reference}: one name cannot mean both")
            self._live.routes.canaries[name] = Canary(version, percent)
            await self._live.tidy()

    async def end_canary(self, name: str) -> None:
        """Let one version answer everything again. Raises UnknownModel when there is no canary."""
        async with self._steps.one_at_a_time:
            if self._live.routes.canaries.pop(name, None) is None:
                raise UnknownModel(f"canary of {name}")
            await self._live.tidy()

    async def set_shadow(self, name: str, reference: Reference, share: float) -> None:
        """Ask another classifier a share of what is asked of a name. Raises UnknownModel, Refused, LoadFailed."""
        async with self._steps.one_at_a_time:
            current = self._steps.answering(name)
            if current.task != "classification":
                raise Refused("only classifiers can be compared")
            served = self._live.served.get(reference)
            # Loaded before the present shadow is dropped: when it cannot be, that one goes on.
            loaded = served.loaded if served else await self._folders.load(await self._folders.find(reference))
            if set(_classes(loaded)) != set(_classes(current.loaded)):
                raise Refused(f"{reference} has other classes than {current.reference}: there is nothing to compare")
            await self._live.drop_shadow(name)
            shadow = Shadow(loaded, _classes(current.loaded), share, self._metrics, self._on_shadow_death(name))
            await shadow.start()
            self._live.shadows[name] = shadow

    async def end_shadow(self, name: str) -> None:
        """Compare a model with nothing any more. Raises UnknownModel when it has no shadow."""
        async with self._steps.one_at_a_time:
            if not await self._live.drop_shadow(name):
                raise UnknownModel(f"shadow of {name}")

    def _on_shadow_death(self, name: str) -> Callable[[BaseException], None]:
        def drop(error: BaseException) -> None:
            log.error("the shadow died", model=name, exc_info=error)
            self._live.forget_shadow(name)

        return drop


def _classes(loaded: LoadedModel) -> Sequence[str]:
    taxonomy = loaded.bundle.manifest.taxonomy
    return () if taxonomy is None else taxonomy.names
