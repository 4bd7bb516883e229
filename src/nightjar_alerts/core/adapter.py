"""Conversion between light curves and arrays of the network: features, padded inputs, rows of the outputs.

:class:`Adapter` does not depend on queues or threads; runners do not depend on fluxes or probabilities.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts.core.failures import InferenceFailed
from nightjar_alerts.models.bundle import ROUTING_OUTPUTS, Manifest
from nightjar_alerts.models.lightcurve import LightCurve, RaggedBatch, Tokens, featurise

Arrays = dict[str, NDArray[Any]]

Graph = Callable[[Arrays], Arrays]
"""Maps graph inputs to graph outputs, both by name; called concurrently from several threads."""

Row = dict[str, NDArray[Any]]
"""Outputs of the network for one light curve, by name, without the batch axis."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelInput:
    """Input of the network for one light curve; its length is the number of points."""

    tokens: Tokens

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.tokens)


class Adapter:
    """Converts the inputs and outputs of a classifier. Safe to use from several threads."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.max_points = manifest.limits.max_points_per_band * len(manifest.bands)
        self._names = tuple(self.output_shapes())

    def max_length(self, curve: LightCurve) -> int:
        """Return an upper bound on the length of the model input of a light curve, without computing it."""
        return min(len(curve), self.max_points)

    def prepare(self, curve: LightCurve) -> ModelInput:
        """Featurise a light curve. Raises LightCurveError if it has no point in a band of the network."""
        manifest = self.manifest
        tokens = featurise(curve, manifest.limits, manifest.flux_unit, manifest.metadata_columns, manifest.band_map)
        return ModelInput(tokens)

    def assemble(self, inputs: Sequence[ModelInput]) -> Arrays:
        """Pad a batch; return the arrays of :meth:`models.lightcurve.RaggedBatch.padded`."""
        return RaggedBatch.collate([model_input.tokens for model_input in inputs]).padded()

    def output_shapes(self) -> dict[str, tuple[int | str, ...]]:
        """Return the shape of one row of each output that the graph must have."""
        shapes: dict[str, tuple[int | str, ...]] = {
            "probabilities": (len(self.manifest.classes.names),),
            "embedding": (self.manifest.embedding_dim,),
        }
        if self.manifest.novelty is not None:
            shapes["novelty"] = ()
        declared = {output.name: output.shape[1:] for output in self.manifest.outputs}
        return shapes | {name: declared[name] for name in ROUTING_OUTPUTS if name in declared}

    def split(self, outputs: Arrays, size: int) -> list[Row | InferenceFailed]:
        """Split the outputs of a batch into rows.

        Returns
        -------
        One row per light curve, copied so that it does not keep the whole batch in memory: the outputs of
        :meth:`output_shapes`, all float32. An error where a value is not finite.

        Raises
        ------
        KeyError, ValueError
            If an output is missing, or does not have ``size`` rows.
        """
        names = self._names
        for name in names:
            if len(outputs[name]) != size:
                raise ValueError(f"the graph returned {len(outputs[name])} rows of {name} for {size} light curves")
        # A sum of squares is finite only if every term is, and is faster than a mask of all values. If finite values
        # overflow it, the exact check below decides.
        if all(isfinite(np.vdot(outputs[name], outputs[name])) for name in names):
            finite = [True] * size
        else:
            finite_NB = [np.isfinite(outputs[name]).reshape(size, -1).all(axis=1) for name in names]
            finite = np.all(finite_NB, axis=0).tolist()
        return [
            {name: np.array(outputs[name][row]) for name in names} if is_finite else InferenceFailed()
            for row, is_finite in enumerate(finite)
        ]


def padded_length(arrays: Arrays) -> int:
    """Return the number of points that each light curve of a batch was padded to."""
    return int(arrays["mask"].shape[1])
