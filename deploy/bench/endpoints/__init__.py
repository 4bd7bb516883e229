"""Minimal endpoints of other model servers around the same network.

Each runs in its own environment, created by ``peers.py``, and gets its model and address from environment variables.
All use the same :class:`Network`, which maps JSON columns to probabilities, for one light curve or a padded batch, with
the code of the service. The results therefore differ only by the servers.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nightjar_alerts.models.bundle import load_bundle
from nightjar_alerts.models.lightcurve import LightCurve, RaggedBatch, Tokens, featurise
from nightjar_alerts.models.runtime import open_session, run

PORT: Final = int(os.environ.get("ENDPOINT_PORT", "8000"))
WORKERS: Final = int(os.environ.get("ENDPOINT_WORKERS", "1"))
BATCH: Final = int(os.environ.get("ENDPOINT_BATCH", "1"))
"""Maximum number of light curves in a batch; 1 disables batching."""
BATCH_SECONDS: Final = 0.005
HOST: Final = "127.0.0.1"


class Network:
    """Session of the bundle in the environment variable, on the CPU with one thread per run."""

    def __init__(self) -> None:
        bundle = load_bundle(Path(os.environ["ENDPOINT_BUNDLE"]))
        self._manifest, self._session = bundle.manifest, open_session(bundle.model)

    def read(self, columns: Mapping[str, Any]) -> Tokens:
        """Featurise a light curve."""
        manifest = self._manifest
        curve = LightCurve.from_columns(
            columns["mjd"], columns["flux"], columns["flux_err"], columns["band"], metadata=columns["metadata"]
        )
        return featurise(curve, manifest.limits, manifest.flux_unit, manifest.metadata_columns, manifest.band_map)

    def answer(self, batch: Sequence[Tokens]) -> list[list[float]]:
        """Return the class probabilities of every light curve of a batch."""
        outputs = run(self._session, RaggedBatch.collate(batch).padded())
        answers: list[list[float]] = outputs["probabilities"].tolist()
        return answers
