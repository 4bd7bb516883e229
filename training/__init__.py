"""Training: simulated and labelled light curves, networks, trees, and bundles for the service.

The names below are the Python API. They are imported on first use, so that importing the package needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nightjar_alerts.training.finetuning.run import FinetuneResult, finetune

__all__ = ["FinetuneResult", "finetune"]

_MODULES = {
    "FinetuneResult": "nightjar_alerts.training.finetuning.run",
    "finetune": "nightjar_alerts.training.finetuning.run",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
