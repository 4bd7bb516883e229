"""Bundles in folders, and how they are loaded: found by their manifests, verified and warmed up in a quiet thread.

Looking into folders reads manifests only; whether a bundle is sound is found out when it is loaded. What could not be
loaded is noted with the reason.

At start a model is loaded at full speed. While others answer, it is loaded in a thread of low priority, so that
hashing, golden outputs and warm-up take the time that nobody else wants. Threads of the runtime's own would inherit
that priority for good: where runs have such threads (``threads_per_run`` above 1), loading keeps the usual one.
"""

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import structlog
from pydantic import ValidationError

from nightjar_alerts.models.bundle import MANIFEST, BundleError, Manifest, Task, read_manifest
from nightjar_alerts.models.runtime import ProviderError
from nightjar_alerts.service.engine.load import LoadedModel, load_model
from nightjar_alerts.service.engine.machine import CoreLayout, usual_folder
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.registry.names import Reference, UnknownModel, version_key
from nightjar_alerts.service.settings import CommonSettings

Fingerprint = tuple[tuple[str, int, int], ...]
"""Name, size and time of change of every file in a bundle's folder."""


@dataclass(frozen=True, slots=True)
class BundleOnDisk:
    """A bundle on disk: which one it says it is. ``sha256`` is that of the manifest, hence of everything."""

    reference: Reference
    task: Task
    path: Path
    sha256: str
    fingerprint: Fingerprint


@dataclass(slots=True)
class FolderContents:
    """Every bundle that was found, and why others were not: reasons by folder."""

    bundles: dict[Reference, BundleOnDisk] = field(default_factory=dict)
    unreadable: dict[Path, str] = field(default_factory=dict)

    def newest(self) -> dict[str, BundleOnDisk]:
        """Return the newest version of every name."""
        newest: dict[str, BundleOnDisk] = {}
        for on_disk in sorted(self.bundles.values(), key=lambda on_disk: version_key(on_disk.reference.version)):
            newest[on_disk.reference.name] = on_disk
        return newest

    def versions(self, name: str) -> list[str]:
        """Versions of a model, the oldest first."""
        versions = [reference.version for reference in self.bundles if reference.name == name]
        return sorted(versions, key=version_key)


def scan(root: Path | None, singles: Iterable[Path] = (), before: FolderContents | None = None) -> FolderContents:
    """Look for bundles.

    Parameters
    ----------
    root : folder of bundles, in either layout that :mod:`service.registry` describes.
    singles : folders that are bundles themselves; what is also under ``root`` counts from there.
    before : what was there the last time; manifests of folders that are as they were are not read again.
    """
    before_by_path = {on_disk.path: on_disk for on_disk in before.bundles.values()} if before is not None else {}
    contents = FolderContents()
    for path, expected in _candidates(root):
        _add(contents, path, expected, before_by_path.get(path))
    for path in singles:
        if (path / MANIFEST).is_file():
            _add(contents, path, None, before_by_path.get(path), optional=True)
    return contents


def _candidates(root: Path | None) -> Iterator[tuple[Path, Reference | None]]:
    """Folders with a manifest and, in the layout by version, the name and version that it must state."""
    for folder in _folders(root):
        if (folder / MANIFEST).is_file():
            yield folder, None
            continue
        for inner in _folders(folder):
            if (inner / MANIFEST).is_file():
                yield inner, Reference(folder.name, inner.name)


def _folders(path: Path | None) -> list[Path]:
    if path is None or not path.is_dir():
        return []
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _add(
    contents: FolderContents,
    path: Path,
    expected: Reference | None,
    before: BundleOnDisk | None,
    optional: bool = False,
) -> None:
    if (escaped := str(path).encode(errors="backslashreplace").decode()) != str(path):
        contents.unreadable[Path(escaped)] = "the folder's name is no UTF-8"  # and no reply could repeat it
        return
    try:
        on_disk = _read(path, before)
    except (OSError, ValidationError) as error:
        contents.unreadable[path] = f"no readable manifest: {error}"
        return
    reference = on_disk.reference
    if expected is not None and expected != reference:
        contents.unreadable[path] = f"the manifest says {reference}, the folders say {expected}"
    elif reference not in contents.bundles:
        contents.bundles[reference] = on_disk
    elif not optional:
        contents.unreadable[path] = f"{reference} is also in {contents.bundles[reference].path}"


def _read(path: Path, before: BundleOnDisk | None) -> BundleOnDisk:
    fingerprint = _fingerprint(path)
    if before is not None and before.fingerprint == fingerprint:
        return before
    text = read_manifest(path)
    manifest = Manifest.model_validate_json(text)
    sha256 = hashlib.sha256(text).hexdigest()
    return BundleOnDisk(Reference(manifest.name, manifest.version), manifest.task, path, sha256, fingerprint)


def _fingerprint(path: Path) -> Fingerprint:
    """Fingerprint of a folder; taken before the manifest is read, so that a change in between is seen next time."""
    files = [(entry.name, entry.stat()) for entry in sorted(path.iterdir()) if entry.is_file()]
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in files)


LOW_PRIORITY = 5
"""Added to the niceness of a thread, which then gets about a third of the time of an equal, and all that is left over.
With a still lower priority, a version that is needed now would take minutes to load on a crowded machine."""


class Models(NamedTuple):
    """Models that a process serves from the start: a classifier and, where configured, others for certain work.

    Attributes
    ----------
    of_surveys : classifiers of the packets of one survey, by its name.
    """

    classifier: LoadedModel
    of_surveys: Mapping[str, LoadedModel] = MappingProxyType({})


def load_one(settings: CommonSettings, path: Path, task: Task) -> LoadedModel:
    """Load a bundle on the provider of the settings, without trying layouts out. Raises BundleError, ProviderError."""
    wish = CoreLayout(settings.workers, settings.threads_per_run or 1, settings.groups_in_flight)
    return _load(settings, path, task, wish, tune=False)


def load_first(settings: CommonSettings, path: Path, task: Task) -> LoadedModel:
    """Load a bundle at start and try out how the machine is best used for it; raises as :func:`load_one` does."""
    wish = CoreLayout(settings.workers, settings.threads_per_run, settings.groups_in_flight)
    return _load(settings, path, task, wish, tune=settings.autotune)


def _load(settings: CommonSettings, path: Path, task: Task, wish: CoreLayout, tune: bool) -> LoadedModel:
    folder = settings.measurements_folder or usual_folder()
    loaded = load_model(path, settings.provider, task=task, wish=wish, folder=folder, tune=tune, native=settings.native)
    log.info("kernels", model=loaded.bundle.manifest.name, native=list(loaded.kernels))
    return loaded


def load_configured(settings: CommonSettings) -> Models:
    """Load the bundles that the settings name; raises as :func:`load_one` does."""
    return Models(
        load_first(settings, settings.bundle, "classification"),
        {name: load_first(settings, folder, "classification") for name, folder in settings.survey_bundles.items()},
    )


LoadOne = Callable[[CommonSettings, Path, Task], LoadedModel]


class QuietLoader:
    """Loads bundles: at full speed until ``quiet`` is set, then one at a time in a thread of low priority."""

    def __init__(self, settings: CommonSettings, load: LoadOne = load_one) -> None:
        self._settings, self._load = settings, load
        self.quiet = False
        # Threads that a session makes for itself inherit the priority of the thread that opens it, and would answer
        # requests with it later: so it is lowered only where a session makes none.
        prepare = stand_back if settings.threads_per_run <= 1 else lambda: None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="load", initializer=prepare)

    async def load(self, path: Path, task: Task) -> LoadedModel:
        """Load, verify and warm up a model. Raises BundleError, ProviderError."""
        thread = self._thread if self.quiet else None
        return await asyncio.get_running_loop().run_in_executor(thread, self._load, self._settings, path, task)

    def close(self) -> None:
        """End the thread; a load under way runs to its end, and its result is dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def stand_back() -> None:
    """Lower the priority of the calling thread, where the system has such a thing for threads (Linux)."""
    if hasattr(os, "setpriority"):
        thread = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + LOW_PRIORITY)


log = structlog.get_logger(__name__)


class Refused(Exception):
    """A change that would break something or cannot be made; the text says why."""


class LoadFailed(Refused):
    """A bundle that must not be served, or cannot be."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A bundle that could not be loaded: why, since when (seconds since 1970), and what its files were like."""

    path: Path
    reference: Reference | None
    reason: str
    since: float
    fingerprint: Fingerprint = ()


class BundleFolders:
    """Folders of bundles: what is in them, what could not be loaded, and the loading.

    Parameters
    ----------
    root : folder of bundles; None where there is none.

    Attributes
    ----------
    singles : folders that are bundles themselves, those of the settings.
    contents : of all of them when they were last looked at.
    failures : bundles that cannot be served, by folder.
    """

    def __init__(self, root: Path | None, loader: QuietLoader, metrics: Metrics) -> None:
        self._root, self._loader, self._metrics = root, loader, metrics
        self.singles: list[Path] = []
        self.contents = FolderContents()
        self.failures: dict[Path, Failure] = {}
        metrics.models_failing.set_function(lambda: len(self.failures))

    async def look(self) -> FolderContents:
        """See what is in the folders now."""
        self.contents = contents = await asyncio.to_thread(scan, self._root, self.singles, self.contents)
        there = contents.unreadable.keys() | {on_disk.path for on_disk in contents.bundles.values()}
        # A folder that was taken away counts as a failure no longer.
        self.failures = {path: failure for path, failure in self.failures.items() if path in there}
        for path, reason in contents.unreadable.items():
            if path not in self.failures or self.failures[path].reason != reason:  # else every look would log it anew
                self._fail(Failure(path, None, reason, time.time()))
        return contents

    async def find(self, reference: Reference) -> BundleOnDisk:
        """Find a bundle in the folders, the newest of its name when no version is named. Raises UnknownModel."""
        contents = await self.look()
        on_disk = contents.bundles.get(reference) if reference.version else contents.newest().get(reference.name)
        if on_disk is None:
            raise UnknownModel(str(reference))
        return on_disk

    def failed_before(self, on_disk: BundleOnDisk) -> bool:
        """Return True if these very files could not be loaded."""
        failure = self.failures.get(on_disk.path)
        return failure is not None and failure.fingerprint == on_disk.fingerprint

    async def load(self, on_disk: BundleOnDisk) -> LoadedModel:
        """Load, verify and warm up a bundle, off the event loop. Raises LoadFailed."""
        try:
            loaded = await self._loader.load(on_disk.path, on_disk.task)
            manifest = loaded.bundle.manifest
            if (manifest.name, manifest.version) != on_disk.reference:
                raise BundleError(f"{on_disk.path}: changed while it was being read")
        except Exception as error:  # of the runtime as well, whose exceptions share no base class
            expected = isinstance(error, BundleError | ProviderError)
            raise self.refuse(on_disk, str(error) if expected else f"{type(error).__name__}: {error}") from error
        self.failures.pop(on_disk.path, None)
        self._metrics.model_loads.labels("loaded").inc()
        log.info(
            "model loaded", model=str(on_disk.reference), sha256=on_disk.sha256, seconds=round(loaded.load_seconds, 3)
        )
        return loaded

    def refuse(self, on_disk: BundleOnDisk, reason: str) -> LoadFailed:
        """Note that a bundle is not served, and return the error to raise."""
        self._fail(Failure(on_disk.path, on_disk.reference, reason, time.time(), on_disk.fingerprint))
        return LoadFailed(reason)

    def _fail(self, failure: Failure) -> None:
        self.failures[failure.path] = failure
        self._metrics.model_loads.labels("failed").inc()
        named = str(failure.reference or failure.path.name)
        log.error("model not loaded", model=named, reason=failure.reason)
