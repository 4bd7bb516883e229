"""Every way to change what is served. Changes happen one after the other, and one that fails has changed nothing.

The rules, whoever asks for a change, an administrator or the watch over the folder:

- the newest version of a name answers for the name; a version that was loaded by hand, or that an alias names, is
  served besides under its exact name;
- after a rollback, or unloading, only what is newer than what was left (or another bundle in its place) is taken up;
- a version that answers a canary's share is taken up for the rest by hand only;
- a bundle that failed is tried again when its files change, or by hand;
- what vanishes from the folder goes on being served: deleting files is no order to stop;
- what is changed by hand holds until the process ends. The settings are what it begins with.
"""

from collections.abc import Iterator
from typing import Any

from models.bundle import BundleError, Task
from service.inference.loaded import LoadedModel
from service.repository.folder import Found
from service.repository.intake import LoadFailed, Refused
from service.repository.references import Reference, version_key
from service.repository.routing import CLASSIFIERS, DEFAULT, FALLBACK, FORECAST, UnknownModel
from service.repository.served import Served
from service.repository.steps import Identity, Steps, identity


class Changes:
    """Changes to what is served under which name; trials are begun and ended by :mod:`service.repository.trials`."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._shelf, self._intake = steps.shelf, steps.intake

    async def begin(self, loaded: LoadedModel, alias: str) -> None:
        """Serve what the settings name, under the alias too."""
        served = await self._shelf.put(loaded)
        self._intake.singles.append(loaded.bundle.path)
        self._steps.promote(served.reference)
        self._shelf.routes.aliases[alias] = Reference(served.reference.name)

    async def begin_fallback(self, loaded: LoadedModel) -> None:
        """Serve what answers when a classifier is full: exactly this version, which answers for no name of its own.

        Raises
        ------
        BundleError
            When it is no other model than is served already, or has other classes than the default.
        """
        manifest, default = loaded.bundle.manifest, self._shelf.lease(DEFAULT, "classification").bundle.manifest
        reference = Reference(manifest.name, manifest.version)
        if reference in self._shelf.served:
            raise BundleError(f"{loaded.bundle.path}: {reference} cannot be its own fallback")
        if manifest.classes.names != default.classes.names:
            raise BundleError(f"{loaded.bundle.path}: a fallback needs the classes of {default.name} {default.version}")
        await self._shelf.put(loaded)
        self._shelf.routes.aliases[FALLBACK] = reference

    async def sync(self, *, retry: bool = False) -> list[Reference]:
        """Take up what is new in the folders; returns what was loaded. A failure is noted, and the rest goes on.

        Parameters
        ----------
        retry : also what failed before, although its files are the same.
        """
        async with self._steps.one_at_a_time:
            await self._intake.look()
            taken = []
            for found in list(self._news()):
                if retry or not self._intake.failed_before(found):
                    try:
                        await self._steps.put(found)
                    except LoadFailed:
                        continue
                    if not self._steps.on_trial(found.reference):
                        self._steps.promote(found.reference)
                    await self._shelf.tidy()
                    taken.append(found.reference)
            return taken

    async def load(self, wanted: Reference) -> Reference:
        """Serve a version, the newest when none is named; returns which. It answers for its name unless it is older.

        Raises
        ------
        UnknownModel, LoadFailed
            When there is no such bundle, or it cannot be served.
        """
        async with self._steps.one_at_a_time:
            found = await self._intake.find(wanted)
            await self._steps.put(found)
            self._steps.left.pop(wanted.name, None)
            if not self._steps.promote(found.reference):
                self._shelf.kept.add(found.reference)
            await self._shelf.tidy()
            return found.reference

    async def unload(self, wanted: Reference) -> None:
        """Serve a version no more, or without one a model in all its versions. Raises UnknownModel, Refused."""
        async with self._steps.one_at_a_time:
            live = self._steps.answering(wanted.name)
            if wanted.version:
                self._drop_version(wanted)
            else:
                self._drop_model(live)
            await self._shelf.tidy()

    async def rollback(self, name: str) -> Reference:
        """Let the version answer that did before the present one; returns which.

        Raises
        ------
        UnknownModel, Refused, LoadFailed
            When nothing is served under the name, no earlier version is known, or it is not there any more.
        """
        async with self._steps.one_at_a_time:
            live, history = self._steps.answering(name), self._steps.history.get(name, [])
            if not history:
                raise Refused(f"nothing answered for {name} before {live.reference.version}")
            before = history[-1]
            await self._steps.bring_back(before)
            history.pop()
            self._steps.left[name] = identity(live)
            self._steps.answer_with(before.reference)
            await self._shelf.tidy()
            return before.reference

    async def set_alias(self, alias: str, target: Reference) -> None:
        """Give a model another name. Raises UnknownModel, Refused, LoadFailed."""
        async with self._steps.one_at_a_time:
            if alias in self._shelf.routes.current:
                raise Refused(f"{alias} is the name of a model")
            served = await self._steps.served(target)
            wanted = _task_of(alias)
            if wanted is not None and served.task != wanted:
                await self._shelf.tidy()
                raise Refused(f"{alias} needs a model for {wanted}, {target} is one for {served.task}")
            self._shelf.routes.aliases[alias] = target
            await self._shelf.tidy()

    async def end_alias(self, alias: str) -> None:
        """Take an alias away. Raises UnknownModel, Refused."""
        async with self._steps.one_at_a_time:
            if alias not in self._shelf.routes.aliases:
                raise UnknownModel(alias)
            if alias == DEFAULT:
                raise Refused("without it, requests that name no model could not be answered")
            del self._shelf.routes.aliases[alias]
            await self._shelf.tidy()

    def _news(self) -> Iterator[Found]:
        """What the folders have that should be served and is not."""
        contents, routes = self._intake.contents, self._shelf.routes
        for name, newest in contents.newest().items():
            current = routes.current.get(name)
            if self._steps.on_trial(newest.reference) or self._steps.left_for(newest):
                continue
            if current is None or version_key(newest.reference.version) > version_key(current):
                yield newest
        for reference, served in self._shelf.served.items():
            found = contents.bundles.get(reference)
            if found is not None and found.sha256 != served.bundle.sha256:
                yield found

    def _drop_version(self, wanted: Reference) -> None:
        routes = self._shelf.routes
        if wanted not in self._shelf.served:
            raise UnknownModel(str(wanted))
        if wanted in routes.needed():
            raise Refused(f"requests are led to {wanted}, by its name, an alias or as a canary")
        self._shelf.kept.discard(wanted)

    def _drop_model(self, live: Served[Any]) -> None:
        name, routes = live.reference.name, self._shelf.routes
        aliases = sorted(alias for alias, target in routes.aliases.items() if target.name == name)
        if aliases:
            raise Refused(f"aliases lead to {name}: {', '.join(aliases)}")
        newest = self._intake.contents.newest().get(name)
        on_disk = None if newest is None else Identity(newest.reference, newest.sha256)
        self._steps.left[name] = max(
            filter(None, (identity(live), on_disk)), key=lambda each: version_key(each[0].version)
        )
        self._shelf.kept = {reference for reference in self._shelf.kept if reference.name != name}
        routes.canaries.pop(name, None)
        del routes.current[name]


def _task_of(alias: str) -> Task | None:
    """What a model needs to be for, to have an alias that requests are led to by themselves."""
    if alias in CLASSIFIERS:
        return "classification"
    return "forecast" if alias == FORECAST else None
