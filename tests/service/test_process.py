"""Malloc thresholds, tested in a separate process, as they apply to a whole process."""

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes
from nightjar_alerts.service.process import pin_malloc_thresholds, release_free_memory

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
        ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes, library.mallinfo2.restype = [ctypes.c_void_p], Info
if FIX:
    pin_malloc_thresholds()
library.free(library.malloc(4 << 20))  # glibc takes it as a sign to map nothing smaller any more
before = library.mallinfo2().hblks
block = library.malloc(3 << 20)
print(library.mallinfo2().hblks - before)
library.free(block)
release_free_memory()
"""


def _mapped(fix: bool, **environment: str) -> int:
    """Return how many mapped blocks a block of 3 MB adds after one of 4 MB was freed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PROGRAM.replace("FIX", str(fix))]
    return int(subprocess.run(command, env=inherited | environment, capture_output=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc: run on Linux, not Alpine")
def test_pin_malloc_thresholds_freed_block_does_not_raise_the_threshold() -> None:
    assert (_mapped(fix=False), _mapped(fix=True)) == (0, 1)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc: run on Linux, not Alpine")
def test_pin_malloc_thresholds_environment_has_precedence() -> None:
    assert _mapped(fix=True, MALLOC_MMAP_THRESHOLD_=str(8 << 20)) == 0
