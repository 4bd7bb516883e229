"""The two tasks a network may have been trained for, each as what it wants from and makes of its graph.

    program = program_of(bundle.manifest)

A program knows nothing of queues, threads or HTTP; the engine and the data plane know nothing of probabilities or
fluxes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.bundle import Manifest
from models.forecast import Queries, make_queries, pad_queries
from models.lightcurve import Float64, Int64, LightCurve, RaggedBatch, Tokens, featurise
from models.units import FluxUnit
from service.engine.batch import Arrays, Question, Row


@dataclass(frozen=True, slots=True, eq=False)
class ForecastItem:
    """A light curve and where its flux is wanted.

    Attributes
    ----------
    mjd : shape (q,), days, TAI, in the order asked; checked by :func:`models.forecast.check_queries`.
    band : shape (q,), index into :data:`models.bands.FILTERS`.
    flux_unit : unit of the answer.
    """

    curve: LightCurve
    mjd: Float64
    band: Int64
    flux_unit: FluxUnit

    def __len__(self) -> int:
        """Return the number of observations and of times asked for."""
        return len(self.curve) + len(self.mjd)

    @property
    def object_id(self) -> str:
        """Name of the object, empty when unknown."""
        return self.curve.object_id


class _Program:
    """Base of the tasks: the history, of which a network sees ``most_points`` observations at most."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.most_points = manifest.limits.max_points_per_band * len(manifest.bands)

    def _history(self, curve: LightCurve) -> Tokens:
        wanted = self.manifest
        return featurise(curve, wanted.limits, wanted.flux_unit, wanted.metadata_columns, wanted.band_map)


class Classification(_Program):
    """A light curve in, class probabilities and an embedding out, and its novelty where the network tells it."""

    answered: Final = "classified"

    def curve(self, item: LightCurve) -> LightCurve:
        """Return the item itself."""
        return item

    def longest(self, item: LightCurve) -> int:
        """Observations of the light curve, as far as the network's limits allow."""
        return min(len(item), self.most_points)

    def prepare(self, item: LightCurve) -> Question:
        """Featurise. Raises LightCurveError when no observation is in a band of the network."""
        return Question(self._history(item))

    def made_up(self, curve: LightCurve) -> Question:
        """Make a question for the warm-up."""
        return self.prepare(curve)

    def assemble(self, questions: Sequence[Question]) -> Arrays:
        """Return the inputs of :meth:`models.lightcurve.RaggedBatch.padded`."""
        return RaggedBatch.collate([question.tokens for question in questions]).padded()

    def rows(self, inputs: Arrays) -> dict[str, tuple[int, ...]]:
        """Return the outputs that a graph must have, with the shape of their rows."""
        rows: dict[str, tuple[int, ...]] = {
            "probabilities": (len(self.manifest.classes.names),),
            "embedding": (self.manifest.embedding_dim,),
        }
        return rows if self.manifest.novelty is None else rows | {"novelty": ()}

    def split(self, outputs: Arrays, questions: Sequence[Question]) -> list[Row | None]:
        """``probabilities`` (classes,), ``embedding`` (dim,) and perhaps ``novelty`` (), all float32 and finite."""
        names = ("probabilities", "embedding") + (() if self.manifest.novelty is None else ("novelty",))
        answered = {name: outputs[name] for name in names}
        _check_rows(len(questions), *answered.values())
        finite = np.logical_and.reduce(
            [np.isfinite(value).all(axis=tuple(range(1, value.ndim))) for value in answered.values()]
        )
        return [
            {name: np.array(value[row]) for name, value in answered.items()} if finite[row] else None
            for row in range(len(questions))
        ]


class Forecasting(_Program):
    """A light curve and times in, the flux to expect at each of them and its standard error out."""

    answered: Final = "forecast"

    def curve(self, item: ForecastItem) -> LightCurve:
        """Return its history."""
        return item.curve

    def longest(self, item: ForecastItem) -> int:
        """Observations of the light curve, as far as the network's limits allow, and its queries."""
        return min(len(item.curve), self.most_points) + len(item.mjd)

    def prepare(self, item: ForecastItem) -> Question:
        """Featurise. Raises LightCurveError when no observation is in a band of the network."""
        tokens = self._history(item.curve)
        return Question(tokens, make_queries(tokens, item.mjd, item.band, self.manifest.band_map, limit=len(item.mjd)))

    def made_up(self, curve: LightCurve) -> Question:
        """Make a question for the warm-up, a quarter of it queries in the days after the history."""
        tokens = self._history(curve)
        ahead = np.arange(1 + len(tokens) // 3)
        return Question(
            tokens, Queries((tokens.time[-1] + 1 + ahead).astype(np.float32), np.resize(tokens.band, len(ahead)))
        )

    def assemble(self, questions: Sequence[Question]) -> Arrays:
        """Return the inputs of the history and those of :func:`models.forecast.pad_queries`."""
        inputs = RaggedBatch.collate([question.tokens for question in questions]).padded()
        return inputs | pad_queries([question.queries for question in questions])

    def rows(self, inputs: Arrays) -> dict[str, tuple[int, ...]]:
        """Return the outputs that a graph must have, with the shape of their rows."""
        queries = inputs["query_mask"].shape[1]
        return {"forecast_flux": (queries,), "forecast_flux_err": (queries,)}

    def split(self, outputs: Arrays, questions: Sequence[Question]) -> list[Row | None]:
        """``forecast_flux``, ``forecast_flux_err`` (queries,), finite and no error negative, in the network's unit."""
        flux, flux_err = outputs["forecast_flux"], outputs["forecast_flux_err"]
        _check_rows(len(questions), flux, flux_err)
        return [
            self._row(flux[row, : len(q.queries)], flux_err[row, : len(q.queries)]) for row, q in enumerate(questions)
        ]

    @staticmethod
    def _row(flux: NDArray[np.float32], flux_err: NDArray[np.float32]) -> Row | None:
        if not (np.isfinite(flux).all() and np.isfinite(flux_err).all() and (flux_err >= 0).all()):
            return None
        return {"forecast_flux": flux.copy(), "forecast_flux_err": flux_err.copy()}


def _check_rows(expected: int, *outputs: NDArray[np.float32]) -> None:
    for output in outputs:
        if len(output) != expected:
            raise ValueError(f"the graph answered {len(output)} rows to {expected} light curves")


TaskProgram = Classification | Forecasting


def program_of(manifest: Manifest) -> TaskProgram:
    """Return the program of a bundle's task."""
    return Classification(manifest) if manifest.task == "classification" else Forecasting(manifest)
