"""Bundles are loaded in a thread that stands back once others are answered, and in nobody's way before."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from nightjar_alerts.models.bundle import Task
from nightjar_alerts.service.registry.load import LOW_PRIORITY, QuietLoader, stand_back
from nightjar_alerts.service.settings import CommonSettings
from support.edge import settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")

LOWEST = 19  # of all priorities


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def load(chosen: CommonSettings, path: Path, task: Task) -> Any:
    return niceness()


@pytest.mark.serial
@pytest.mark.parametrize(
    ("quiet", "threads", "lowered"), [(True, 1, True), (True, 0, True), (False, 1, False), (True, 2, False)]
)
async def test_a_loading_thread_stands_back(quiet: bool, threads: int, lowered: bool) -> None:
    before = niceness()
    loader = QuietLoader(settings(threads_per_run=threads), load)
    loader.quiet = quiet
    found: object = await loader.load(Path(), "classification")
    assert found == (min(before + LOW_PRIORITY, LOWEST) if lowered else before)
    assert niceness() == before
    loader.close()


def test_a_thread_of_a_process_that_stands_back_does_so_all_the_more() -> None:
    levels = list[int]()

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness() + 7)
        levels.append(niceness())
        stand_back()
        levels.append(niceness())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert levels[1] == min(levels[0] + LOW_PRIORITY, LOWEST)
