"""Training: simulated and labelled light curves, networks, trees, and bundles for the service.

The Python API is :mod:`nightjar_alerts.training.api`. The names below are loaded on first use, so that importing the
package needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nightjar_alerts.training.api import FinetuneResult, evaluate, finetune

__all__ = ["FinetuneResult", "evaluate", "finetune"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("nightjar_alerts.training.api"), name)
