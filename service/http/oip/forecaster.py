"""A forecaster's light curves, queries and answers as tensors."""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import numpy as np

from models.bundle import Manifest
from models.forecast import check_queries
from models.lightcurve import Float32, LightCurve, LightCurveError
from models.units import FluxUnit
from service.answers.writers import as_asked
from service.dataplane import Outcome
from service.engine.programs import ForecastItem
from service.http.oip.curves import (
    BAND_TYPES,
    OFFSETS,
    TIMES,
    WHY_FP64,
    band_indices,
    check_length,
    curve_inputs,
    read_curves,
    read_offsets,
)
from service.http.oip.outcomes import OUTCOME_OUTPUTS, write_outcomes
from service.http.oip.signature import ANY, Received, Spec
from service.http.oip.tensors import Array, Tensor, fault
from service.settings import Settings

FLUXES = {"flux": "forecast_flux", "flux_err": "forecast_flux_err"}  # our outputs, and the graph's


class ForecasterTensors:
    """Observations and queries in, a flux and its error for each query out."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    @property
    def inputs(self) -> tuple[Spec, ...]:
        """What makes light curves, and where their fluxes are wanted."""
        return (
            *curve_inputs(self._manifest),
            Spec("query_mjd", TIMES, (ANY,), why=WHY_FP64),
            Spec("query_band", BAND_TYPES, (ANY,)),
            Spec("query_offsets", OFFSETS, (ANY,), optional=True),
        )

    @property
    def outputs(self) -> tuple[Spec, ...]:
        """``flux`` and ``flux_err`` of every query, and what became of each light curve."""
        return (*(Spec(name, ("FP32",), (ANY,)) for name in FLUXES), *OUTCOME_OUTPUTS)

    def read(self, tensors: Mapping[str, Tensor], flux_unit: FluxUnit, settings: Settings) -> Received[ForecastItem]:
        """Light curves of a request, each with its queries."""
        curves = read_curves(tensors, self._manifest, flux_unit, settings)
        offsets = _query_offsets(tensors, len(curves))
        mjd, band = tensors["query_mjd"].values, tensors["query_band"].values
        items = [
            self._item(curve, mjd[slice(*part)], band[slice(*part)], flux_unit, settings.max_queries)
            for curve, part in zip(curves.records(), pairwise(offsets), strict=True)
        ]
        return Received(items, curves.object_ids, offsets)

    def _item(
        self, curve: LightCurve | LightCurveError, mjd: Array, band: Array, flux_unit: FluxUnit, limit: int
    ) -> ForecastItem | LightCurveError:
        if isinstance(curve, LightCurveError):
            return curve
        try:
            days, indices = check_queries(mjd, band_indices(band), self._manifest.band_map, limit)
        except LightCurveError as error:
            return LightCurveError(f"/query{error.pointer}", error.reason, str(error))
        return ForecastItem(curve, days, indices, flux_unit)

    def write(
        self, names: Collection[str], received: Received[ForecastItem], outcomes: Sequence[Outcome]
    ) -> dict[str, Array]:
        """Outputs of these names, fluxes in the order asked, NaN where the network did not answer."""
        arrays: dict[str, Array] = dict(write_outcomes(names, received, outcomes))
        return arrays | {name: self._fluxes(received, outcomes, FLUXES[name]) for name in names if name in FLUXES}

    def _fluxes(self, received: Received[ForecastItem], outcomes: Sequence[Outcome], output: str) -> Float32:
        fluxes = np.full(received.query_offsets[-1], np.nan, dtype=np.float32)
        parts = [slice(*part) for part in pairwise(received.query_offsets)]
        for item, outcome, part in zip(received.items, outcomes, parts, strict=True):
            if outcome.prediction is not None and isinstance(item, ForecastItem):
                sorted_flux = outcome.prediction.outputs[output]
                with np.errstate(over="ignore"):  # infinite in this unit: the client's choice of unit
                    fluxes[part] = as_asked(sorted_flux, item, self._manifest.flux_unit)
        return fluxes


def _query_offsets(tensors: Mapping[str, Tensor], batch: int) -> list[int]:
    total = len(tensors["query_mjd"])
    check_length(tensors, "query_band", total, "query")
    offsets = read_offsets(tensors, "query_offsets", total)
    if len(offsets) != batch + 1:
        pointer = tensors["query_offsets"].pointer if "query_offsets" in tensors else "/inputs"
        detail = f"query_offsets must have {batch + 1} values: one more than there are light curves"
        raise fault(pointer, "length_mismatch", detail)
    return offsets
