"""Thread priority of loading: normal at startup, low in the background."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from nightjar_alerts.service.process import LOW_PRIORITY, lower_thread_priority
from nightjar_alerts.service.registry.loader import BackgroundLoader
from nightjar_alerts.service.settings import CommonSettings
from support.edge import settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs priorities of threads, which only Linux has")

LOWEST = 19  # of all priorities


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def load(chosen: CommonSettings, path: Path) -> Any:
    return niceness()


@pytest.mark.serial
@pytest.mark.parametrize("background", [True, False])
async def test_background_loader_priority_is_lowered_in_the_background(background: bool) -> None:
    before = niceness()
    loader = BackgroundLoader(settings(), load)
    loader.background = background
    found: object = await loader.load(Path())
    assert found == (min(before + LOW_PRIORITY, LOWEST) if background else before)
    assert niceness() == before
    loader.close()


def test_lower_thread_priority_of_niced_thread_lowers_it_further() -> None:
    levels = list[int]()

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness() + 7)
        levels.append(niceness())
        lower_thread_priority()
        levels.append(niceness())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert levels[1] == min(levels[0] + LOW_PRIORITY, LOWEST)
