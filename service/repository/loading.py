"""From a folder to a model that is verified and warm, in a thread that stands back for those that answer requests.

At start a model is loaded as fast as it goes. While others answer, it is loaded in a thread of low priority, so that
hashing, golden outputs and warm-up take the time that nobody else wants. Threads of the runtime's own would inherit
that priority for good: where runs have such threads (``threads_per_run`` above 1), loading keeps the usual one.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from models.bundle import Task
from service.inference.layout import Layout
from service.inference.loaded import LoadedModel, load_model
from service.inference.measurements import usual_folder
from service.settings import Settings

LOW_PRIORITY = 5
"""Added to the niceness of a thread: it gets about a third of what an equal would, and all of what is left over. Less,
and on a crowded machine a version that is needed now would take minutes to load."""


class Models(NamedTuple):
    """What a process serves from the start: a classifier and, where configured, others for certain work."""

    classifier: LoadedModel
    forecaster: LoadedModel | None = None
    fallback: LoadedModel | None = None
    ztf: LoadedModel | None = None


def load_one(settings: Settings, path: Path, task: Task) -> LoadedModel:
    """Load a bundle on the provider that the settings name, disturbing nobody. Raises BundleError, ProviderError."""
    wish = Layout(settings.workers, settings.threads_per_run or 1, settings.groups_in_flight)
    return load_model(path, settings.provider, task=task, wish=wish, folder=_folder(settings))


def load_first(settings: Settings, path: Path, task: Task) -> LoadedModel:
    """Load a bundle while nobody is answered, and try out how the machine is best used for it; raises likewise."""
    wish = Layout(settings.workers, settings.threads_per_run, settings.groups_in_flight)
    folder, tune = _folder(settings), settings.autotune
    return load_model(path, settings.provider, task=task, wish=wish, folder=folder, tune=tune)


def _folder(settings: Settings) -> Path | None:
    return settings.measurements_folder or usual_folder()


def load_configured(settings: Settings) -> Models:
    """Load the bundles that the settings name; raises likewise."""
    forecast, fallback, ztf = settings.forecast_bundle, settings.fallback_bundle, settings.bundle_for_ztf
    return Models(
        load_first(settings, settings.bundle, "classification"),
        None if forecast is None else load_first(settings, forecast, "forecast"),
        None if fallback is None else load_first(settings, fallback, "classification"),
        None if ztf is None else load_first(settings, ztf, "classification"),
    )


LoadOne = Callable[[Settings, Path, Task], LoadedModel]


class QuietLoader:
    """Loads bundles: one after the other and standing back, once ``quiet``; as fast as it goes until then."""

    def __init__(self, settings: Settings, load: LoadOne = load_one) -> None:
        self._settings, self._load = settings, load
        self.quiet = False
        prepare = stand_back if settings.threads_per_run <= 1 else lambda: None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="load", initializer=prepare)

    async def load(self, path: Path, task: Task) -> LoadedModel:
        """A verified, warm model. Raises BundleError, ProviderError."""
        thread = self._thread if self.quiet else None
        return await asyncio.get_running_loop().run_in_executor(thread, self._load, self._settings, path, task)

    def close(self) -> None:
        """End the thread; a load under way is finished for nobody."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def stand_back() -> None:
    """Lower the priority of the calling thread, where the system has such a thing for threads (Linux)."""
    if hasattr(os, "setpriority"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
