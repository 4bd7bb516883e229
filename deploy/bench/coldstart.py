"""Cold start: from starting the process to the first 200 of ``/readyz``, which means loaded, verified and warmed up."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from deploy.bench.report import Numbers, spread
from service.commands.process import start


def measure(bundle: Path, repeats: int, say: Callable[[str], None]) -> Numbers:
    """Keys ``coldstart.*``. File caches are warm: the first start after an install or a boot takes longer."""
    seconds, memory = [], []
    for number in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            service = start(Path(folder), bundle)
            service.wait_ready()
            seconds.append(time.perf_counter() - began)
            memory.append(service.memory() / 1e6)
            service.stop()
        say(f"start {number + 1}/{repeats}: {seconds[-1]:.2f} s to ready")
    return {"coldstart.ready_s": spread(seconds), "coldstart.rss_mb": spread(memory)}
