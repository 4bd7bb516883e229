"""A stand-in for the network that answers with what it was asked, and can be held, poisoned or killed."""

import threading
from collections.abc import Callable, Mapping

import numpy as np

from nightjar_alerts.core.adapter import Arrays, ModelInput
from nightjar_alerts.models.bundle import Calibration, Manifest, Parameters
from nightjar_alerts.models.lightcurve import LightCurve, Limits, Tokens
from nightjar_alerts.models.metadata import METADATA_COLUMNS
from nightjar_alerts.models.taxonomy import ELASTICC


def model_input(marker: float, length: int = 10) -> ModelInput:
    """A model input that :class:`EchoGraph` distinguishes from others by its flux."""
    tokens = Tokens(
        time=np.arange(length, dtype=np.float32),
        flux=np.full(length, marker, dtype=np.float32),
        flux_err=np.ones(length, dtype=np.float32),
        band=np.zeros(length, dtype=np.int64),
        detected=np.ones(length, dtype=np.bool_),
        metadata=np.full(len(METADATA_COLUMNS), np.nan, dtype=np.float32),
        truncated=False,
        points_per_band=(length, 0, 0, 0, 0, 0),
        origin_mjd=60_000.0,
    )
    return ModelInput(tokens)


def poison() -> None:
    """Fail as a runtime would on an input it cannot handle."""
    raise ZeroDivisionError


class EchoGraph:
    """Probabilities are (marker, real length) of each row: a mix-up of rows, or a wrong mask, cannot go unseen.

    ``hold`` keeps runs from ending, ``on_marker`` does something to a run that holds a marker.
    """

    def __init__(self) -> None:
        self.batches: list[list[float]] = []
        self.on_marker: dict[float, Callable[[], object]] = {}
        self.started = threading.Semaphore(0)
        self._open = threading.Event()
        self._open.set()

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def __call__(self, inputs: Arrays) -> Arrays:
        markers, lengths = inputs["flux"][:, 0], inputs["mask"].sum(axis=1)
        self.batches.append(markers.tolist())
        self.started.release()
        assert self._open.wait(20)
        for marker in markers.tolist():
            self.on_marker.get(marker, lambda: None)()
        probabilities = np.stack([markers, lengths.astype(np.float32)], axis=1)
        return {
            "probabilities": probabilities,
            "embedding": np.repeat(markers[:, None], 4, axis=1),
            "input_expert_load": np.array([[3, 1]]),
            "expert_load": np.array([[2, 2], [0, 4]]),
        }

    @property
    def seen(self) -> list[float]:
        """Markers of every row that was run, in order."""
        return [marker for batch in self.batches for marker in batch]


def echo_manifest(limits: Limits | None = None) -> Manifest:
    """A manifest that feeds :class:`EchoGraph`: flux in nJy, as it comes."""
    return Manifest(
        name="echo",
        version="0.0.1",
        architecture="echo",
        taxonomy=ELASTICC,
        flux_unit="nJy",
        limits=limits or Limits(),
        metadata_columns=METADATA_COLUMNS,
        inputs=(),
        outputs=(),
        embedding_dim=4,
        parameters=Parameters(total=1, active=1),
        calibration=Calibration(method="none", temperature=1.0),
        recipe={},
        data={},
        metrics={},
        opset=20,
        created="",
        files={},
    )


def curve(marker: float, length: int = 10, metadata: Mapping[str, float] | None = None) -> LightCurve:
    """A light curve that :class:`EchoGraph` can tell from others by its flux."""
    column = np.ones(length)
    return LightCurve.from_columns(60_000 + np.arange(length), marker * column, column, ["r"] * length, None, metadata)
