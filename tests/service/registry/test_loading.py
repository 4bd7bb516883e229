"""Bundles are loaded in a thread that stands back once others are answered, and in nobody's way before."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from models.bundle import Task
from service.registry.load import LOW_PRIORITY, QuietLoader
from service.settings import Settings
from support.edge import settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def load(chosen: Settings, path: Path, task: Task) -> Any:
    return niceness()


@pytest.mark.parametrize(
    ("quiet", "threads", "lowered"), [(True, 1, True), (True, 0, True), (False, 1, False), (True, 2, False)]
)
async def test_a_loading_thread_stands_back(quiet: bool, threads: int, lowered: bool) -> None:
    before = niceness()
    loader = QuietLoader(settings(threads_per_run=threads), load)
    loader.quiet = quiet
    found: object = await loader.load(Path(), "classification")
    assert found == before + (LOW_PRIORITY if lowered else 0)
    assert niceness() == before
    loader.close()
