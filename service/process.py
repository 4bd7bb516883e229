"""Process setup: version, log, memory and priority of threads.

**Log.** One JSON object per line on standard error, with the request id and never with a body. Libraries that use the
standard ``logging`` (uvicorn) are logged in the same format.

**Memory.** Freed blocks are returned to the system (only on Linux with glibc).

glibc maps large blocks individually, so that each can be unmapped, but raises the size threshold for this, up to 32 MB,
whenever such a block is freed. Networks that are loaded and unloaded then leave holes in the arenas of many threads,
which ``malloc_trim`` cannot return: a service that loaded and unloaded a network once a minute grew by a megabyte each
time. With the threshold fixed at its initial value, the same service does not grow over dozens of changes, and is no
slower.
"""

import ctypes
import logging
import os
import sys
import threading
from contextlib import suppress
from typing import Any, Final

import structlog

from nightjar_alerts import __version__
from nightjar_alerts.service.settings import CommonSettings, unknown_settings, unused_settings

log = structlog.get_logger(__name__)


VERSION: Final[str] = __version__
LOW_PRIORITY: Final = 5
"""Increment of the niceness of a thread: it then gets about a third of the processor time of a normal thread, and all
idle time. With a higher niceness, loading a version on a busy machine would take minutes."""


_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


_TEXT = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
_JSON: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def configure_log(settings: CommonSettings) -> None:
    """Configure one log format and level for this package and its libraries."""
    text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *([_TEXT] if text else _JSON),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=settings.log_level.upper(), force=True)
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(settings.log_level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def warn_about_environment(settings: CommonSettings) -> None:
    """Log a warning for each environment variable that looks like a setting but has no effect on this process."""
    for name, nearest in unknown_settings(os.environ).items():
        log.warning("unknown setting", name=name, perhaps=nearest)
    for name in unused_settings(os.environ, type(settings)):
        log.warning("setting is not used by this command", name=name)


MMAP_THRESHOLD_BYTES: Final = 128 * 1024  # the initial value of glibc, see mallopt(3)
_THRESHOLDS: Final = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD


def pin_malloc_thresholds() -> None:
    """Fix the mmap and trim thresholds of malloc, unless the environment sets them; call it before threads start."""
    with suppress(AttributeError, OSError):  # another C library
        library = ctypes.CDLL(None)
        for name, parameter in _THRESHOLDS.items():
            if name not in os.environ:
                library.mallopt(parameter, MMAP_THRESHOLD_BYTES)


def release_free_memory() -> None:
    """Return free memory to the system; glibc would keep tens of megabytes of a closed model."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


SWITCH_SECONDS: Final = 2e-4
"""Seconds after which a thread must release the GIL to a waiting thread (``sys.setswitchinterval``).

With Python's default of 5 ms a core is often idle while its worker thread waits for the GIL after a run. A request
needs the GIL about fifteen times, a batch of a stream a dozen times. A request takes the same processor time as with
0.5 ms.
"""


def lower_thread_priority() -> None:
    """Lower the priority of the calling thread, on systems with priorities per thread (Linux)."""
    if hasattr(os, "setpriority"):
        thread = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + LOW_PRIORITY)
