"""Scan the model repository for bundles, and load them.

A scan reads manifests only; loading a bundle verifies its hashes and golden outputs and warms it up. Bundles that
cannot be loaded are recorded with the reason.

At startup, bundles are loaded at full speed; later, one at a time in a low-priority thread, so that requests have
priority.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from pydantic import ValidationError

from nightjar_alerts.core.load import LoadedModel, load_model
from nightjar_alerts.models.bundle import MANIFEST, BundleError, Manifest, Task, read_manifest, version_key
from nightjar_alerts.models.runtime import ProviderError
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.process import lower_thread_priority
from nightjar_alerts.service.registry.names import Reference, UnknownModel
from nightjar_alerts.service.settings import CommonSettings

Fingerprint = tuple[tuple[str, int, int], ...]
"""Name, size and modification time of every file in a bundle's folder."""

log = structlog.get_logger(__name__)


class ChangeRejected(Exception):
    """The served models cannot be changed as requested; the message gives the reason."""


class LoadFailed(ChangeRejected):
    """A bundle cannot be loaded."""


@dataclass(frozen=True, slots=True)
class BundleOnDisk:
    """A bundle on disk; ``sha256`` is that of its manifest, which contains the hashes of all files."""

    reference: Reference
    task: Task
    path: Path
    sha256: str
    fingerprint: Fingerprint


@dataclass(slots=True)
class DirectoryContents:
    """Result of a scan: bundles found, and the reasons for folders that could not be read."""

    bundles: dict[Reference, BundleOnDisk] = field(default_factory=dict)
    unreadable: dict[Path, str] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """Names of the models."""
        return {reference.name for reference in self.bundles}

    def versions(self, name: str) -> list[BundleOnDisk]:
        """Return the bundles of a model, newest version first."""
        found = [bundle for reference, bundle in self.bundles.items() if reference.name == name]
        return sorted(found, key=lambda bundle: version_key(bundle.reference.version), reverse=True)


def scan(
    root: Path | None, extra_paths: Iterable[Path] = (), before: DirectoryContents | None = None
) -> DirectoryContents:
    """Find all bundles.

    Parameters
    ----------
    root : folder of bundles, in the layouts described in :mod:`service.registry`.
    extra_paths : folders of single bundles; the one in ``root`` is used if a bundle is in both.
    before : result of the previous scan; manifests of unchanged folders are not read again.
    """
    known = {bundle.path: bundle for bundle in before.bundles.values()} if before is not None else {}
    contents = DirectoryContents()
    for path, expected in _candidates(root):
        _add(contents, path, expected, known.get(path))
    for path in extra_paths:
        if (path / MANIFEST).is_file():
            _add(contents, path, None, known.get(path), optional=True)
    return contents


def _candidates(root: Path | None) -> Iterator[tuple[Path, Reference | None]]:
    """Yield folders with a manifest and, in the layout by version, the expected name and version."""
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
    contents: DirectoryContents,
    path: Path,
    expected: Reference | None,
    before: BundleOnDisk | None,
    optional: bool = False,
) -> None:
    if (escaped := str(path).encode(errors="backslashreplace").decode()) != str(path):
        contents.unreadable[Path(escaped)] = (
            "the folder's name is not UTF-8"  # it could not be encoded in JSON responses
        )
        return
    try:
        bundle = _read(path, before)
    except (OSError, ValidationError) as error:
        contents.unreadable[path] = f"no readable manifest: {error}"
        return
    reference = bundle.reference
    if expected is not None and expected != reference:
        contents.unreadable[path] = f"the manifest says {reference}, the folders say {expected}"
    elif reference not in contents.bundles:
        contents.bundles[reference] = bundle
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
    """Return the fingerprint of a folder; computed before its manifest is read, so that no change is missed."""
    files = [(entry.name, entry.stat()) for entry in sorted(path.iterdir()) if entry.is_file()]
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in files)


def load_one(settings: CommonSettings, path: Path) -> LoadedModel:
    """Load a classifier. Raises BundleError, ProviderError."""
    loaded = load_model(path, settings.provider, settings.native)
    log.info("kernels", model=loaded.bundle.manifest.name, native=list(loaded.kernels))
    return loaded


LoadOne = Callable[[CommonSettings, Path], LoadedModel]
"""Loads the bundle in a folder, as :func:`load_one`; called in a thread."""


class BackgroundLoader:
    """Loads bundles in threads: at full speed until ``background`` is set, then one at a time at low priority."""

    def __init__(self, settings: CommonSettings, load: LoadOne = load_one) -> None:
        self._settings, self._load = settings, load
        self.background = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="load", initializer=lower_thread_priority)

    async def load(self, path: Path) -> LoadedModel:
        """Load, verify and warm up a model. Raises BundleError, ProviderError."""
        thread = self._thread if self.background else None
        return await asyncio.get_running_loop().run_in_executor(thread, self._load, self._settings, path)

    def close(self) -> None:
        """Stop the thread; a load in progress finishes, but its result is discarded."""
        self._thread.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Failure:
    """A bundle that could not be loaded; ``since`` is in seconds since 1970, ``fingerprint`` that of its files."""

    path: Path
    reference: Reference | None
    reason: str
    since: float
    fingerprint: Fingerprint = ()


class ModelDirectory:
    """Bundles of ``repository`` and of the settings: scanning, loading and failures.

    Parameters
    ----------
    root : model repository; None without one.

    Attributes
    ----------
    extra_paths : bundle folders in the settings.
    contents : result of the last scan.
    failures : bundles that cannot be served, by folder.
    """

    def __init__(self, root: Path | None, loader: BackgroundLoader, metrics: Metrics) -> None:
        self.root = root
        self._loader, self._metrics = loader, metrics
        self.extra_paths: list[Path] = []
        self.contents = DirectoryContents()
        self.failures: dict[Path, Failure] = {}
        metrics.watch_failing_models(lambda: len(self.failures))

    async def scan(self) -> DirectoryContents:
        """Scan the folders again."""
        self.contents = contents = await asyncio.to_thread(scan, self.root, self.extra_paths, self.contents)
        present = contents.unreadable.keys() | {bundle.path for bundle in contents.bundles.values()}
        self.failures = {path: failure for path, failure in self.failures.items() if path in present}
        for path, reason in contents.unreadable.items():
            if path not in self.failures or self.failures[path].reason != reason:  # log it once, not at every scan
                self._fail(Failure(path, None, reason, time.time()))
        return contents

    async def find(self, reference: Reference) -> BundleOnDisk:
        """Find a bundle, by default the newest version of the name. Raises UnknownModel."""
        contents = await self.scan()
        if reference.version:
            found = [contents.bundles[reference]] if reference in contents.bundles else []
        else:
            found = contents.versions(reference.name)
        if not found:
            raise UnknownModel(str(reference))
        return found[0]

    def failed_before(self, bundle: BundleOnDisk) -> bool:
        """Return True if loading a bundle failed and its files have not changed since."""
        failure = self.failures.get(bundle.path)
        return failure is not None and failure.fingerprint == bundle.fingerprint

    async def load(self, bundle: BundleOnDisk) -> LoadedModel:
        """Load, verify and warm up a bundle in a thread. Raises LoadFailed."""
        try:
            loaded = await self._loader.load(bundle.path)
            manifest = loaded.bundle.manifest
            if (manifest.name, manifest.version) != bundle.reference:
                raise BundleError(f"{bundle.path}: changed while it was being read")
        except Exception as error:  # the runtime's exceptions share no useful base class
            expected = isinstance(error, BundleError | ProviderError)
            reason = str(error) if expected else f"{type(error).__name__}: {error}"
            self._fail(Failure(bundle.path, bundle.reference, reason, time.time(), bundle.fingerprint))
            raise LoadFailed(reason) from error
        self.failures.pop(bundle.path, None)
        self._metrics.record_load(succeeded=True)
        log.info(
            "model loaded", model=str(bundle.reference), sha256=bundle.sha256, seconds=round(loaded.load_seconds, 3)
        )
        return loaded

    def _fail(self, failure: Failure) -> None:
        self.failures[failure.path] = failure
        self._metrics.record_load(succeeded=False)
        log.warning("model not loaded", model=str(failure.reference or failure.path.name), reason=failure.reason)
