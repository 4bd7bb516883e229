"""Cold start: from starting the process to the first 200 of ``/readyz``, which means loaded, verified and warmed up.

The very first start also finds out what runs cost on this machine; those after it recall that.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from deploy.bench.report import Numbers, spread
from service.commands.process import start


def measure(bundle: Path, repeats: int, say: Callable[[str], None]) -> Numbers:
    """Keys ``coldstart.*``. File caches are warm: the first start after an install or a boot takes longer."""
    seconds, memory = [], []
    with tempfile.TemporaryDirectory() as folder:
        first, _ = _start(Path(folder), bundle)
        say(f"first start: {first:.2f} s to ready")
        for number in range(repeats):
            taken, held = _start(Path(folder), bundle)
            seconds.append(taken)
            memory.append(held / 1e6)
            say(f"start {number + 1}/{repeats}: {taken:.2f} s to ready")
    return {
        "coldstart.first_s": first,
        "coldstart.ready_s": spread(seconds),
        "coldstart.rss_mb": spread(memory),
    }


def _start(folder: Path, bundle: Path) -> tuple[float, int]:
    """Seconds to ready, and bytes resident then; ``folder`` holds what starts remember."""
    began = time.perf_counter()
    service = start(folder, bundle, {"NIGHTJAR_MEASUREMENTS_FOLDER": str(folder / "measurements")})
    service.wait_ready()
    ready = time.perf_counter() - began
    held = service.memory()
    service.stop()
    return ready, held
