"""Make something once for all processes of a test session.

pytest-xdist gives every worker process its own session fixtures. What takes seconds to make and is only read afterwards
(an exported bundle, a trained run) is made by the worker that needs it first; the others wait for it.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def common_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all worker processes of this session share; without xdist, that of the only process."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return `folder` after `make` has filled it, in this process or in another.

    `make` gets the folder itself, since what it makes may remember its own path. A mark beside it tells the others that
    it is complete: one that failed half-way is made again.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = folder.with_name(f"{folder.name}.done")
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by a process that dies
        if not done.exists():
            make(folder)
            done.touch()
    return folder
