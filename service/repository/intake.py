"""From what lies in the folders to loaded models, with a note of everything that could not be loaded and why."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from models.bundle import BundleError
from models.runtime import ProviderError
from service.inference.loaded import LoadedModel
from service.metrics import Metrics
from service.repository.folder import Contents, Fingerprint, Found, scan
from service.repository.loading import QuietLoader
from service.repository.references import Reference
from service.repository.routing import UnknownModel

log = structlog.get_logger(__name__)


class Refused(Exception):
    """A change that would break something, or that there is nothing to make with; the text says what."""


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


class Intake:
    """The folders, and the way from there.

    Parameters
    ----------
    root : folder of bundles; None where there is none.

    Attributes
    ----------
    singles : folders that are bundles, those of the settings.
    contents : of all of them when they were last looked at.
    failures : bundles that cannot be served, by folder.
    """

    def __init__(self, root: Path | None, loader: QuietLoader, metrics: Metrics) -> None:
        self._root, self._loader, self._metrics = root, loader, metrics
        self.singles: list[Path] = []
        self.contents = Contents()
        self.failures: dict[Path, Failure] = {}
        metrics.models_failing.set_function(lambda: len(self.failures))

    async def look(self) -> Contents:
        """See what is in the folders now."""
        self.contents = contents = await asyncio.to_thread(scan, self._root, self.singles, self.contents)
        there = contents.unreadable.keys() | {found.path for found in contents.bundles.values()}
        self.failures = {path: failure for path, failure in self.failures.items() if path in there}
        for path, reason in contents.unreadable.items():
            if path not in self.failures or self.failures[path].reason != reason:
                self._fail(Failure(path, None, reason, time.time()))
        return contents

    async def find(self, wanted: Reference) -> Found:
        """A bundle that lies in the folders, the newest of its name when no version is named. Raises UnknownModel."""
        contents = await self.look()
        found = contents.bundles.get(wanted) if wanted.version else contents.newest().get(wanted.name)
        if found is None:
            raise UnknownModel(str(wanted))
        return found

    def failed_before(self, found: Found) -> bool:
        """Whether these very files could not be loaded."""
        failure = self.failures.get(found.path)
        return failure is not None and failure.fingerprint == found.fingerprint

    async def load(self, found: Found) -> LoadedModel:
        """Load, verify and warm up a bundle, off the event loop. Raises LoadFailed."""
        try:
            loaded = await self._loader.load(found.path, found.task)
            manifest = loaded.bundle.manifest
            if (manifest.name, manifest.version) != found.reference:
                raise BundleError(f"{found.path}: changed while it was being read")
        except Exception as error:  # of the runtime as well, whose exceptions share no base class
            expected = isinstance(error, BundleError | ProviderError)
            raise self.refuse(found, str(error) if expected else f"{type(error).__name__}: {error}") from error
        self.failures.pop(found.path, None)
        self._metrics.model_loads.labels("loaded").inc()
        log.info("model loaded", model=str(found.reference), sha256=found.sha256, seconds=round(loaded.load_seconds, 3))
        return loaded

    def refuse(self, found: Found, reason: str) -> LoadFailed:
        """Note that a bundle is not served, without having tried."""
        self._fail(Failure(found.path, found.reference, reason, time.time(), found.fingerprint))
        return LoadFailed(reason)

    def _fail(self, failure: Failure) -> None:
        self.failures[failure.path] = failure
        self._metrics.model_loads.labels("failed").inc()
        named = str(failure.reference or failure.path.name)
        log.error("model not loaded", model=named, reason=failure.reason)
