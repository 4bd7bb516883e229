"""What became of each light curve, as tensors of texts; the same for every task."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from service.dataplane import Outcome
from service.http.oip.signature import ANY, Received, Spec
from service.http.oip.tensors import Array

OUTCOME_OUTPUTS = (
    Spec("status", ("BYTES",), (ANY,)),
    Spec("reason", ("BYTES",), (ANY,)),
    Spec("detail", ("BYTES",), (ANY,), optional=True),
    Spec("object_id", ("BYTES",), (ANY,), optional=True),
)


def write_outcomes(names: Collection[str], received: Received[Any], outcomes: Sequence[Outcome]) -> dict[str, Array]:
    """Those of :data:`OUTCOME_OUTPUTS` that are among ``names``, each of shape (light curves,)."""
    writers: dict[str, Callable[[], Sequence[bytes]]] = {
        "status": lambda: [outcome.status.encode() for outcome in outcomes],
        "reason": lambda: [outcome.reason.encode() for outcome in outcomes],
        "detail": lambda: [_detail(outcome).encode() for outcome in outcomes],
        "object_id": lambda: received.object_ids,
    }
    return {name: np.array(write(), dtype=object) for name, write in writers.items() if name in names}


def _detail(outcome: Outcome) -> str:
    """The reason in words, after a pointer to the value at fault within its light curve."""
    return f"{outcome.pointer}: {outcome.detail}" if outcome.pointer else outcome.detail
