"""Fixtures shared by all tests, and the markers that sort tests into tiers (pyproject.toml describes them)."""

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from support.once import common_folder, made_once

if TYPE_CHECKING:
    from support.edge import Live

# A busy machine takes longer for an example than hypothesis allows by default.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# Before anybody imports torch: on few cores its threads wait for each other longer than they work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Recorded scores are those of the standard operators; tests of the native kernels enable them.
os.environ.setdefault("NIGHTJAR_NATIVE", "off")


SLOW_FIXTURES = frozenset({"pipeline", "confident_bundle", "finetuned"})
"""Fixtures that train a network or export one with every optional part; a test that uses one is slow."""


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their fixtures, and start with the files that hold slow tests."""
    slow_files = set()
    for item in items:
        if SLOW_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") is not None:
            slow_files.add(item.path)
    items.sort(key=lambda item: item.path not in slow_files)


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small untrained bundle, exported once a session by the real export."""
    pytest.importorskip("torch", reason="torch is missing: pip install 'nightjar-alerts[train]'")
    from support.bundles import untrained_bundle

    return made_once(common_folder(tmp_path_factory) / "tiny" / "0.0.1", untrained_bundle)


@pytest.fixture(scope="session")
def confident_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a bundle with novelty, prediction sets and a temperature that follows the length, likewise."""
    pytest.importorskip("torch", reason="torch is missing: pip install 'nightjar-alerts[train]'")
    from support.bundles import export_confident

    return made_once(common_folder(tmp_path_factory) / "confident" / "0.0.1", export_confident)


@pytest.fixture(scope="session")
def edge() -> Iterator["Live"]:
    """Service with the usual settings around a network that echoes, shared by all tests that change neither."""
    from support.edge import Network, live, loader

    with live(loader(Network())) as running:
        yield running


@pytest.fixture(scope="session")
def default_edge() -> Iterator["Live"]:
    """Service with the models that it has by default, shared likewise."""
    from nightjar_alerts.models.bundle import DEFAULT_BUNDLE
    from nightjar_alerts.service.registry.loader import load_one
    from support.edge import live

    with live(load_one, bundle=DEFAULT_BUNDLE, native="off") as running:
        yield running


@pytest.fixture(scope="session")
def tiny_edge(tiny_bundle: Path) -> Iterator["Live"]:
    """Service with the small untrained bundle, shared likewise."""
    from nightjar_alerts.service.registry.loader import load_one
    from support.edge import live

    with live(load_one, bundle=tiny_bundle) as running:
        yield running


@pytest.fixture(scope="session")
def native_library() -> Path:
    """Library of native kernels for this machine; built where the editable install has not done so."""
    from nightjar_alerts.models.native import LEVELS, NativeError, build, find

    if sys.platform != "linux" or platform.machine() not in LEVELS:
        pytest.skip("there are no native kernels for this machine: run on Linux on x86-64 or AArch64")
    try:
        return find()
    except NativeError:
        build()
        return find()


@pytest.fixture(scope="session", autouse=True)
def only_the_package_is_imported() -> Iterator[None]:
    """Fail the run when the top-level folders were imported under names of their own."""
    yield
    names = {name.partition(".")[0] for name in sys.modules}
    assert not names & {"models", "service", "training"}
