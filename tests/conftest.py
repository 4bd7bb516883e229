"""Fixtures shared by every room."""

import os
import tempfile
from pathlib import Path

import pytest

# Before anybody imports torch: on few cores its threads wait for each other longer than they work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A service that a test starts neither spends seconds on trying layouts out nor writes into the developer's home.
os.environ.setdefault("NIGHTJAR_AUTOTUNE", "false")
os.environ.setdefault(
    "NIGHTJAR_MEASUREMENTS_FOLDER", str(Path(tempfile.gettempdir()) / f"nightjar-tests-{os.getuid()}")
)


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small untrained bundle, exported once a session by the real export."""
    pytest.importorskip("torch", reason="making a bundle needs the [train] extra")
    from support.bundles import untrained_bundle

    return untrained_bundle(tmp_path_factory.mktemp("bundle") / "tiny" / "0.0.1").path


@pytest.fixture(scope="session")
def confident_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with novelty, prediction sets and a temperature that follows the length."""
    pytest.importorskip("torch", reason="making a bundle needs the [train] extra")
    from support.bundles import export_confident

    return export_confident(tmp_path_factory.mktemp("bundle") / "confident" / "0.0.1").path
