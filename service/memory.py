"""How a process holds its memory: blocks that are freed go back to the system (Linux with glibc; elsewhere nothing).

Notable: glibc raises the size from which a block is mapped by itself, and can be unmapped by itself, whenever a large
one is freed, up to 32 MB. Networks that come and go then leave holes in arenas of many threads, which no trim gives
back: a service that loaded and left a network once a minute grew by a megabyte each time. Fixed where glibc starts,
the same service stays as it is after dozens of changes, and is no slower.
"""

import ctypes
import os
from contextlib import suppress
from typing import Final

LARGE_BYTES: Final = 128 * 1024  # where glibc starts, see mallopt(3)
_THRESHOLDS: Final = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD


def fix_thresholds() -> None:
    """Keep the size of a large block from growing; to be called before threads start. The environment goes first."""
    with suppress(AttributeError, OSError):  # another C library
        library = ctypes.CDLL(None)
        for name, parameter in _THRESHOLDS.items():
            if name not in os.environ:
                library.mallopt(parameter, LARGE_BYTES)


def give_memory_back() -> None:
    """Return to the system what a freed model has left behind, tens of megabytes; glibc would keep it for itself."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
