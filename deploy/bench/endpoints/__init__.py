"""Minimal endpoints of other model servers around the same network.

Each runs in an environment of its own (``peers.py`` makes it) and gets its model and address from environment
variables. The network is the same for all (:class:`Network`): JSON columns to a list of probabilities, alone or padded
together, by the service's own code for these steps, so that what differs between servers is the servers.
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
"""Light curves in a batch; 1 leaves batching out."""
BATCH_SECONDS: Final = 0.005
HOST: Final = "127.0.0.1"


class Network:
    """The bundle that the environment names, open on the CPU with one thread a run."""

    def __init__(self) -> None:
        bundle = load_bundle(Path(os.environ["ENDPOINT_BUNDLE"]))
        self._manifest, self._session = bundle.manifest, open_session(bundle.model)

    def read(self, columns: Mapping[str, Any]) -> Tokens:
        """Return a light curve as the network sees it."""
        manifest = self._manifest
        curve = LightCurve.from_columns(
            columns["mjd"], columns["flux"], columns["flux_err"], columns["band"], metadata=columns["metadata"]
        )
        return featurise(curve, manifest.limits, manifest.flux_unit, manifest.metadata_columns, manifest.band_map)

    def answer(self, batch: Sequence[Tokens]) -> list[list[float]]:
        """Probabilities of every class, for every light curve of a padded batch."""
        outputs = run(self._session, RaggedBatch.collate(batch).padded())
        answers: list[list[float]] = outputs["probabilities"].tolist()
        return answers
