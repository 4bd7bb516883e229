"""Model manager: loads, serves, replaces and unloads the models of a process.

    manager = ModelManager(settings, metrics, on_failure)
    await manager.start()
    handle = manager.router.select("ztf", routing_key=object_id)
    with acquired([handle]):
        outcomes = await handle.infer(curves, InferOptions(deadline))
    await manager.stop()

Changes are made one at a time, and a failed change has no effect. The rules for the admin API and for scans:

- The current version of a model is the newest one that loads, with a warning for each newer one that does not. A
  version that was loaded explicitly, or that an alias names, is also served under its exact name.
- A pinned version is the current one, even if there are newer ones, until it is unpinned or another version is loaded.
  A rollback pins the next older version. Pins survive a restart; see :mod:`service.registry.pins`.
- After an unload, a scan only loads versions newer than those on disk then, or another bundle of the newest of them.
- Canaries are never promoted automatically.
- A bundle that failed to load is retried when its files change, or on request.
- A bundle that is deleted from disk stays in service.
- All changes except pins are lost when the process ends.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import structlog

from nightjar_alerts.core.load import LoadedModel
from nightjar_alerts.models.bundle import BundleError, version_key
from nightjar_alerts.models.posterior import Posterior
from nightjar_alerts.routing import DEFAULT
from nightjar_alerts.service.cache import ResultCache
from nightjar_alerts.service.engine.engine import Engine
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.process import release_free_memory
from nightjar_alerts.service.registry.loader import (
    BackgroundLoader,
    BundleOnDisk,
    ChangeRejected,
    Failure,
    LoadFailed,
    LoadOne,
    ModelDirectory,
    load_one,
)
from nightjar_alerts.service.registry.names import NotReady, Reference, UnknownModel
from nightjar_alerts.service.registry.pins import FILE_NAME, Pins, read_pins, write_pins
from nightjar_alerts.service.registry.router import Canary, ModelRouter
from nightjar_alerts.service.registry.serving import ServedModel
from nightjar_alerts.service.registry.shadow import Shadow
from nightjar_alerts.service.settings import CommonSettings

log = structlog.get_logger(__name__)


class ModelManager:
    """Loads, serves, replaces and unloads models. Call every method on one event loop.

    Attributes
    ----------
    router : served models and their names.
    directory : bundles on disk, and failures to load them.
    pins : pinned versions by model name.
    draining : models without new requests that still process requests.

    Parameters
    ----------
    on_failure : called on the event loop with the reason when the engine of a served model has failed; the process
        must then be replaced.
    load : loads a bundle; called in a thread.
    """

    def __init__(
        self,
        settings: CommonSettings,
        metrics: Metrics,
        on_failure: Callable[[str], None],
        load: LoadOne = load_one,
    ) -> None:
        self._settings, self._metrics, self._on_failure = settings, metrics, on_failure
        self._loader = BackgroundLoader(settings, load)
        self._cache = ResultCache(settings.cache_bytes, metrics) if settings.cache_bytes else None
        self.router = ModelRouter()
        self.directory = ModelDirectory(settings.repository, self._loader, metrics)
        self.pins: Pins = {}
        self.draining: set[ServedModel] = set()
        self._lock = asyncio.Lock()
        self._exact: set[Reference] = set()  # served only under their exact name
        self._unloaded: dict[str, BundleOnDisk] = {}  # newest bundle of each unloaded model at the unload
        self._tasks: set[asyncio.Task[object]] = set()
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the bundles of the settings and of the model repository.

        Raises
        ------
        BundleError, ProviderError
            If a bundle of the settings cannot be served, an alias has an unknown target, or the pins cannot be read.
            Bundles of the repository that cannot be served are logged and skipped.
        """
        for alias, path in [(DEFAULT, self._settings.bundle), *self._settings.survey_bundles.items()]:
            loaded = await self._loader.load(path)
            model = await self._add(loaded)
            self.directory.extra_paths.append(loaded.bundle.path)
            if self._is_newer(model.reference):
                self._set_current(model.reference)
            self.router.aliases[alias] = Reference(model.reference.name)
        try:
            await self.reload()  # before the aliases, whose targets may be in the repository
        except ChangeRejected as error:
            raise BundleError(str(error)) from error
        for alias, target in self._settings.aliases.items():
            try:
                await self.set_alias(alias, Reference.parse(target))
            except (ChangeRejected, UnknownModel) as error:
                raise BundleError(f"the alias {alias} cannot lead to {target}: {error}") from error
        self._check_prior()
        for name, version in self.pins.items():
            if self.router.versions.get(name) != version:
                log.warning("pinned version not served", model=f"{name}@{version}")
        self.router.ready = self._loader.background = True
        if self._settings.repository_poll:
            self._watch = asyncio.create_task(self._poll_repository(self._settings.repository_poll))

    def _check_prior(self) -> None:
        """Raise BundleError if no model has the prior of the settings, most likely a typo."""
        name = self._settings.prior
        known = {prior for model in self.router.models.values() for prior in Posterior(model.bundle.manifest).names}
        if name and name not in known:
            raise BundleError(f"NIGHTJAR_PRIOR: no model has {name!r}; there are {', '.join(sorted(known))}")

    async def stop(self) -> None:
        """Finish the queued work and stop every engine."""
        # Polling and loading end first, so that no model is added while models are stopped.
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        self._loader.close()
        await asyncio.gather(*(shadow.stop() for shadow in self.router.shadows.values()))
        for task in self._tasks:  # they wait for draining models, which are stopped below
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        everything = [*self.router.models.values(), *self.draining]
        await asyncio.gather(*(model.stop(self._settings.drain_timeout) for model in everything))

    @property
    def started(self) -> bool:
        """True once the models are loaded."""
        return self.router.ready

    @property
    def default(self) -> ServedModel:
        """Model of requests that name none. Raises NotReady."""
        return self.router.select().model

    @property
    def served(self) -> list[ServedModel]:
        """All served models, those of the settings first. Raises NotReady."""
        if not self.started:
            raise NotReady
        return list(self.router.models.values())

    @property
    def failures(self) -> Iterable[Failure]:
        """Bundles that cannot be served."""
        return self.directory.failures.values()

    @property
    def engines(self) -> Iterable[Engine]:
        """Engines of all models, including draining ones."""
        return [model.engine for model in (*self.router.models.values(), *self.draining)]

    async def reload(self, *, retry: bool = False) -> list[Reference]:
        """Scan the directory, serve new versions and return them; bundles that fail to load are skipped.

        Parameters
        ----------
        retry : if True, retry failed bundles even if their files have not changed.

        Raises
        ------
        ChangeRejected
            If the pins cannot be read.
        """
        async with self._change():
            contents = await self.directory.scan()
            self.pins = await self._read_pins()
            loaded = [bundle.reference for bundle in list(self._replacements()) if await self._try_serve(bundle, retry)]
            for name in sorted(contents.names):
                for bundle in self._candidates(name):
                    if await self._try_serve(bundle, retry):
                        self._set_current(bundle.reference)
                        await self._unload_unreachable()  # now, so that replaced models do not accumulate in memory
                        loaded.append(bundle.reference)
                        break
            return loaded

    async def load(self, reference: Reference) -> Reference:
        """Serve a version, by default the newest, and return it; it becomes the current version unless it is older.

        A pin of another version is then removed. Raises UnknownModel, LoadFailed, ChangeRejected.
        """
        async with self._change():
            bundle = await self.directory.find(reference)
            await self._serve(bundle)
            name, version = bundle.reference
            if not self._is_newer(bundle.reference) and self.router.versions[name] != version:
                self._exact.add(bundle.reference)
                return bundle.reference
            if self.pins.get(name, version) != version:
                await self._write_pin(name, None)
            self._unloaded.pop(name, None)
            self._set_current(bundle.reference)
            return bundle.reference

    async def unload(self, reference: Reference) -> None:
        """Stop serving a version or, without a version, the whole model. Raises UnknownModel, ChangeRejected."""
        async with self._change():
            name = reference.name
            current = self._current(name)
            if reference.version:
                if reference not in self.router.models:
                    raise UnknownModel(str(reference))
                if reference in self.router.required():
                    raise ChangeRejected(f"requests are led to {reference}, by its name, an alias or as a canary")
                self._exact.discard(reference)
                return
            aliases = sorted(alias for alias, target in self.router.aliases.items() if target.name == name)
            if aliases:
                raise ChangeRejected(f"aliases lead to {name}: {', '.join(aliases)}")
            bundles = self.directory.contents.versions(name)
            path, sha256 = current.bundle.path, current.bundle.sha256
            bundles.append(BundleOnDisk(current.reference, "classification", path, sha256, ()))
            self._unloaded[name] = max(bundles, key=lambda bundle: version_key(bundle.reference.version))
            self._exact = {reference for reference in self._exact if reference.name != name}
            self.router.canaries.pop(name, None)
            del self.router.versions[name]

    async def rollback(self, name: str) -> Reference:
        """Pin the newest version older than the current one that loads, and return it.

        Raises
        ------
        UnknownModel, ChangeRejected
            If nothing is served under the name, no older version loads, or the pin cannot be written.
        """
        async with self._change():
            current = self._current(name).reference
            error = ChangeRejected(f"there is no version of {name} older than {current.version} on disk")
            for bundle in (await self.directory.scan()).versions(name):
                if version_key(bundle.reference.version) < version_key(current.version):
                    try:
                        await self._pin(bundle)
                    except LoadFailed as failure:
                        error = failure
                    else:
                        return bundle.reference
            raise error

    async def pin(self, reference: Reference) -> None:
        """Make a version the current one until it is unpinned. Raises UnknownModel, ChangeRejected."""
        async with self._change():
            self._current(reference.name)
            await self._pin(await self.directory.find(reference))

    async def unpin(self, name: str) -> None:
        """Remove a pin; the next scan may load a newer version. Raises UnknownModel, ChangeRejected."""
        async with self._change():
            self.pins = await self._read_pins()
            if name not in self.pins:
                raise UnknownModel(f"pin of {name}")
            await self._write_pin(name, None)

    async def set_alias(self, alias: str, target: Reference) -> None:
        """Set the target of an alias. Raises UnknownModel, ChangeRejected."""
        async with self._change():
            if alias in self.router.versions:
                raise ChangeRejected(f"{alias} is the name of a model")
            await self._loaded(target)
            self.router.aliases[alias] = target

    async def delete_alias(self, alias: str) -> None:
        """Delete an alias. Raises UnknownModel, ChangeRejected."""
        async with self._change():
            if alias not in self.router.aliases:
                raise UnknownModel(alias)
            if alias == DEFAULT:
                raise ChangeRejected("requests that name no model need the alias default")
            del self.router.aliases[alias]

    async def set_canary(self, name: str, version: str, percent: float) -> None:
        """Serve a percentage of the requests for a name by another version. Raises UnknownModel, ChangeRejected."""
        async with self._change():
            current, reference = self._current(name), Reference(name, version)
            if reference == current.reference:
                raise ChangeRejected(f"{reference} answers for {name} already")
            if (await self._loaded(reference)).classes != current.classes:
                raise ChangeRejected(f"{reference} has other classes than {current.reference}")
            self.router.canaries[name] = Canary(version, percent)

    async def delete_canary(self, name: str) -> None:
        """Remove the canary of a name. Raises UnknownModel if there is none."""
        async with self._change():
            if self.router.canaries.pop(name, None) is None:
                raise UnknownModel(f"canary of {name}")

    async def set_shadow(self, name: str, reference: Reference, share: float) -> None:
        """Mirror a share of the requests for a name to another model. Raises UnknownModel, ChangeRejected."""
        async with self._change():
            current, served = self._current(name), self.router.models.get(reference)
            # Loaded before the existing shadow is dropped, which stays if loading fails.
            loaded = served.loaded if served else await self.directory.load(await self.directory.find(reference))
            if set(loaded.bundle.manifest.classes.names) != set(current.classes):
                raise ChangeRejected(f"{reference} has other classes than {current.reference}")
            await self._drop_shadow(name)
            shadow = Shadow(loaded, current.classes, share, self._metrics, self._on_shadow_death(name))
            await shadow.start()
            self.router.shadows[name] = shadow

    async def delete_shadow(self, name: str) -> None:
        """Remove the shadow of a name. Raises UnknownModel if there is none."""
        async with self._change():
            if not await self._drop_shadow(name):
                raise UnknownModel(f"shadow of {name}")

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        """Hold the lock for one change; afterwards, even if it fails, unload models that are not needed."""
        async with self._lock:
            try:
                yield
            finally:
                await self._unload_unreachable()

    def _current(self, name: str) -> ServedModel:
        """Return the current model of a name. Raises UnknownModel."""
        model = self.router.current(name)
        if model is None:
            raise UnknownModel(name)
        return model

    def _is_newer(self, reference: Reference) -> bool:
        """Return True if a version is newer than the current one of its name, or there is none."""
        current = self.router.versions.get(reference.name)
        return current is None or version_key(reference.version) > version_key(current)

    def _set_current(self, reference: Reference) -> None:
        """Make a served version the current one of its name."""
        if self.router.is_canary(reference):  # it now serves all requests
            del self.router.canaries[reference.name]
        self.router.versions[reference.name] = reference.version

    def _candidates(self, name: str) -> list[BundleOnDisk]:
        """Return the bundles that may become the current version of a name, the preferred one first."""
        current, pin = self.router.versions.get(name), self.pins.get(name)
        bundles = [
            bundle
            for bundle in self.directory.contents.versions(name)
            if not self.router.is_canary(bundle.reference) and not self._is_unloaded(bundle)
        ]
        if current is None:  # if the pinned version does not load, prefer an older to a newer one
            return sorted(bundles, key=lambda bundle: _is_newer_than_pin(bundle, pin))
        if pin is not None:
            return [bundle for bundle in bundles if bundle.reference.version == pin != current]
        return [bundle for bundle in bundles if self._is_newer(bundle.reference)]

    def _is_unloaded(self, bundle: BundleOnDisk) -> bool:
        """Return True if a scan must not load a bundle, as it existed when its model was unloaded."""
        newest = self._unloaded.get(bundle.reference.name)
        if newest is None:
            return False
        version, newest_version = version_key(bundle.reference.version), version_key(newest.reference.version)
        return version < newest_version or (version == newest_version and bundle.sha256 == newest.sha256)

    def _replacements(self) -> Iterator[BundleOnDisk]:
        """Yield the bundles that replace a served version in place."""
        for reference, model in self.router.models.items():
            bundle = self.directory.contents.bundles.get(reference)
            if bundle is not None and bundle.sha256 != model.bundle.sha256:
                yield bundle

    async def _try_serve(self, bundle: BundleOnDisk, retry: bool) -> bool:
        """Serve a bundle under its exact name; return False if loading fails, or has failed and is not retried."""
        if not retry and self.directory.failed_before(bundle):
            return False
        try:
            await self._serve(bundle)
        except LoadFailed:  # logged and listed by the directory
            return False
        return True

    async def _serve(self, bundle: BundleOnDisk) -> ServedModel:
        """Return the served model of a bundle, loaded if necessary. Raises LoadFailed."""
        model = self.router.models.get(bundle.reference)
        if model is not None and model.bundle.sha256 == bundle.sha256:
            return model
        return await self._add(await self.directory.load(bundle))

    async def _loaded(self, reference: Reference) -> ServedModel:
        """Return the served model of a reference, loaded if necessary. Raises UnknownModel, LoadFailed."""
        if not reference.version:
            return self._current(reference.name)
        model = self.router.models.get(reference)
        return model if model is not None else await self._serve(await self.directory.find(reference))

    async def _add(self, loaded: LoadedModel) -> ServedModel:
        settings, metrics = self._settings, self._metrics
        model = await ServedModel.start(loaded, settings, metrics, self._cache, self._on_failure)
        before = self.router.models.get(model.reference)
        self.router.models[model.reference] = model
        if before is not None:  # only now, so that requests always find a model
            self._drain(before)
        return model

    async def _pin(self, bundle: BundleOnDisk) -> None:
        await self._serve(bundle)
        await self._write_pin(bundle.reference.name, bundle.reference.version)
        self._set_current(bundle.reference)

    async def _read_pins(self) -> Pins:
        try:
            return await asyncio.to_thread(read_pins, self.directory.root)
        except (OSError, ValueError) as error:
            raise ChangeRejected(f"{FILE_NAME} of the model repository cannot be read: {error}") from error

    async def _write_pin(self, name: str, version: str | None) -> None:
        """Write a pin, or remove it without a version. Raises ChangeRejected."""
        pins = await self._read_pins()
        pins.pop(name, None)
        if version is not None:
            pins[name] = version
        try:
            await asyncio.to_thread(write_pins, self.directory.root, pins)
        except OSError as error:
            raise ChangeRejected(f"{FILE_NAME} of the model repository cannot be written: {error}") from error
        self.pins = pins

    async def _unload_unreachable(self) -> None:
        """Unload models that no name refers to, and shadows whose model is gone or has other classes."""
        required = self.router.required() | self._exact
        for reference in [reference for reference in self.router.models if reference not in required]:
            self._drain(self.router.models.pop(reference))
        for name, shadow in list(self.router.shadows.items()):
            current = self.router.current(name)
            if current is None or current.classes != shadow.classes:
                await self._drop_shadow(name)

    async def _drop_shadow(self, name: str) -> bool:
        shadow = self.router.shadows.pop(name, None)  # first, so that no new handle mirrors to a stopped shadow
        if shadow is not None:
            await shadow.stop()
        return shadow is not None

    def _on_shadow_death(self, name: str) -> Callable[[BaseException], None]:
        def drop(error: BaseException) -> None:
            log.error("shadow died", model=name, exc_info=error)
            self._run(self._drop_shadow(name))

        return drop

    def _drain(self, model: ServedModel) -> None:
        self.draining.add(model)
        self._run(self._stop_when_unused(model))

    async def _stop_when_unused(self, model: ServedModel) -> None:
        await model.wait_unused()
        await model.stop(self._settings.drain_timeout)
        self.draining.discard(model)
        log.info("model unloaded", model=str(model.reference), sha256=model.bundle.sha256)
        del model  # the last reference: its session must be freed before memory can be released
        await asyncio.to_thread(release_free_memory)

    def _run(self, work: Coroutine[Any, Any, object]) -> None:
        # The event loop has only weak references to tasks.
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _poll_repository(self, seconds: float) -> None:
        """Reload every ``seconds`` seconds, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.reload()
            except Exception as error:  # the next scan may succeed
                log.error("model repository scan failed", exc_info=error)


def _is_newer_than_pin(bundle: BundleOnDisk, pin: str | None) -> bool:
    return pin is not None and version_key(bundle.reference.version) > version_key(pin)
