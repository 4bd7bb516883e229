"""A classifier's light curves and answers as tensors."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from models.bundle import Manifest
from models.lightcurve import Float32, LightCurve
from models.units import FluxUnit
from service.dataplane import Outcome
from service.http.oip.curves import curve_inputs, read_curves
from service.http.oip.outcomes import OUTCOME_OUTPUTS, write_outcomes
from service.http.oip.signature import ANY, Received, Spec
from service.http.oip.tensors import Array, Tensor
from service.settings import Settings


class ClassifierTensors:
    """Observations in, a row of probabilities for each light curve out."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    @property
    def inputs(self) -> tuple[Spec, ...]:
        """What makes light curves."""
        return curve_inputs(self._manifest)

    @property
    def outputs(self) -> tuple[Spec, ...]:
        """``probabilities``, what became of each light curve, and the ``embedding`` when it is asked for."""
        classes = tuple(self._manifest.classes.names)
        return (
            Spec("probabilities", ("FP32",), (ANY, len(classes)), labels=classes),
            *OUTCOME_OUTPUTS,
            Spec("embedding", ("FP32",), (ANY, self._manifest.embedding_dim), optional=True),
        )

    def read(self, tensors: Mapping[str, Tensor], flux_unit: FluxUnit, settings: Settings) -> Received[LightCurve]:
        """Light curves of a request."""
        curves = read_curves(tensors, self._manifest, flux_unit, settings)
        return Received(curves.records(), curves.object_ids)

    def write(
        self, names: Collection[str], received: Received[LightCurve], outcomes: Sequence[Outcome]
    ) -> dict[str, Array]:
        """Outputs of these names, a row for each light curve, NaN where the network did not answer."""
        arrays: dict[str, Array] = dict(write_outcomes(names, received, outcomes))
        widths = {spec.name: spec.shape[1] for spec in self.outputs if len(spec.shape) == 2}
        return arrays | {name: _rows(outcomes, name, widths[name]) for name in names if name in widths}


def _rows(outcomes: Sequence[Outcome], name: str, width: int) -> Float32:
    rows = np.full((len(outcomes), width), np.nan, dtype=np.float32)
    for row, outcome in zip(rows, outcomes, strict=True):
        if outcome.prediction is not None:
            row[:] = outcome.prediction.outputs[name]
    return rows
