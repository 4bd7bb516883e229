"""Nightjar: real-time classification of astronomical alerts.

The names below are the public Python API. They are imported on first use, so that importing the package is cheap and
needs no web server, broker client or onnxruntime.

onnxruntime 1.29 and later report the machine and the graphs that it opens to Microsoft, unless the environment disables
this before onnxruntime is imported. Importing this package disables it.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nightjar_alerts.alerts.envelopes import read_packet
    from nightjar_alerts.alerts.packet import Packet, PacketError
    from nightjar_alerts.classifier import Classifier
    from nightjar_alerts.client import AsyncClient, Client, ClientError
    from nightjar_alerts.core.failures import ModelFailedError
    from nightjar_alerts.follow_up_list import FollowUpList, SelectionError
    from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError
    from nightjar_alerts.results import Evolution, Result, Results
    from nightjar_alerts.tables import TableError, TableOptions, TableQuestion, read_table

    __version__: str

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = [
    "AsyncClient",
    "Classifier",
    "Client",
    "ClientError",
    "Evolution",
    "FollowUpList",
    "LightCurve",
    "LightCurveError",
    "ModelFailedError",
    "Packet",
    "PacketError",
    "Result",
    "Results",
    "SelectionError",
    "TableError",
    "TableOptions",
    "TableQuestion",
    "__version__",
    "read_packet",
    "read_table",
]

_MODULES = {
    "AsyncClient": "nightjar_alerts.client",
    "Classifier": "nightjar_alerts.classifier",
    "Client": "nightjar_alerts.client",
    "ClientError": "nightjar_alerts.client",
    "Evolution": "nightjar_alerts.results",
    "FollowUpList": "nightjar_alerts.follow_up_list",
    "LightCurve": "nightjar_alerts.models.lightcurve",
    "LightCurveError": "nightjar_alerts.models.lightcurve",
    "ModelFailedError": "nightjar_alerts.core.failures",
    "Packet": "nightjar_alerts.alerts.packet",
    "PacketError": "nightjar_alerts.alerts.packet",
    "Result": "nightjar_alerts.results",
    "Results": "nightjar_alerts.results",
    "SelectionError": "nightjar_alerts.follow_up_list",
    "TableError": "nightjar_alerts.tables",
    "TableOptions": "nightjar_alerts.tables",
    "TableQuestion": "nightjar_alerts.tables",
    "read_packet": "nightjar_alerts.alerts.envelopes",
    "read_table": "nightjar_alerts.tables",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name == "__version__":
        value = _version()
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names as well, for interactive completion."""
    return sorted(globals().keys() | set(__all__))


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("nightjar-alerts")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0"
