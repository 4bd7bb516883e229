"""The machine that the process runs on, and the number and size of concurrent runs that suit it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nightjar_alerts.core.policy import BatchLimits, max_items_for

if TYPE_CHECKING:  # importing onnxruntime is slow
    from nightjar_alerts.models.runtime import Provider

CPU_BATCH_TOKENS: Final = 1024  # beyond about a thousand points, activations leave the cache
CUDA_WORKERS: Final = 2  # one batch is assembled and copied while another is computed
CUDA_BATCH_TOKENS: Final = 32_768  # a GPU runs tens of thousands of points as fast as a thousand


def default_workers(provider: "Provider") -> int:
    """Return the number of concurrent runs for an execution provider."""
    return usable_cores() if provider == "cpu" else CUDA_WORKERS


def batch_limits(provider: "Provider", max_tokens: int = 0) -> BatchLimits:
    """Return the bounds on one batch; 0 padded points selects the default of the execution provider."""
    width = max_tokens or (CPU_BATCH_TOKENS if provider == "cpu" else CUDA_BATCH_TOKENS)
    return BatchLimits(max_tokens=width, max_items=max_items_for(width))


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
