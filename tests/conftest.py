"""Fixtures shared by every room."""

import os
import tempfile
from pathlib import Path

import pytest

from support import tiers
from support.once import common_folder, made_once

# Before anybody imports torch: on few cores its threads wait for each other longer than they work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A service that a test starts neither spends seconds on trying layouts out nor writes into the developer's home.
os.environ.setdefault("NIGHTJAR_AUTOTUNE", "false")
os.environ.setdefault(
    "NIGHTJAR_MEASUREMENTS_FOLDER", str(Path(tempfile.gettempdir()) / f"nightjar-tests-{os.getuid()}")
)


# Nor does it depend on whether the developer has built kernels of our own; tests of them ask for them.
os.environ.setdefault("NIGHTJAR_NATIVE", "off")


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tiers and begin with the slowest files; within a file the order stays."""
    first: dict[Path, int] = {}
    for item in items:
        tiers.mark(item)
        first[item.path] = min(tiers.place(item), first.get(item.path, len(tiers.SLOW)))
    items.sort(key=lambda item: first[item.path])


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small untrained bundle, exported once a session by the real export."""
    pytest.importorskip("torch", reason="making a bundle needs the [train] extra")
    from support.bundles import untrained_bundle

    return made_once(common_folder(tmp_path_factory) / "tiny" / "0.0.1", untrained_bundle)


@pytest.fixture(scope="session")
def confident_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a bundle with novelty, prediction sets and a temperature that follows the length, likewise."""
    pytest.importorskip("torch", reason="making a bundle needs the [train] extra")
    from support.bundles import export_confident

    return made_once(common_folder(tmp_path_factory) / "confident" / "0.0.1", export_confident)


@pytest.fixture(scope="session")
def native_library() -> Path:
    """Library of kernels of our own, built where it is not yet."""
    from nightjar_alerts.models.native import NativeError, build, compiler, find
    from support.native import BUILT

    try:
        compiler()
    except NativeError as error:
        pytest.skip(str(error))
    try:
        return find(BUILT)
    except NativeError:
        return build(BUILT)
