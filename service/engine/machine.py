"""The machine that the process runs on."""

import os
from pathlib import Path


def usable_cores(control_group: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of cores that this process may use; a container or ``taskset`` may limit it.

    Parameters
    ----------
    control_group : directory with the limits of the container (Linux cgroup v2).
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = map(int, (control_group / "cpu.max").read_text().split())
    except (OSError, ValueError):  # no such file, or no limit
        return cores
    return max(1, min(cores, quota // period))
