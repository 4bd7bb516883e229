"""Results of :class:`nightjar_alerts.Classifier` and :class:`nightjar_alerts.Client`.

    result = Classifier().classify(mjd=mjd, flux=flux, flux_err=flux_err, band=band)
    result.class_name, result.probabilities, result.prediction_set, result.unusual

    results = Classifier().classify("supernovae.csv")
    results.to_pandas()

A result has the fields of the service's JSON (docs/answers.md), and :meth:`Result.to_dict` returns them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts import pictures
from nightjar_alerts.models.lightcurve import LightCurve, LightCurveError
from nightjar_alerts.outputs import COLUMNS, arrow_table, astropy_table, open_output

SHOWN_ROWS = 20
"""Rows of a table of results in a notebook."""

Source = LightCurve | Callable[[], LightCurve | None] | None


class Result:
    """Result of one light curve: its classification, or the reason why there is none.

    Attributes
    ----------
    model : name, version and hash of the model, as in responses of the service.
    """

    __slots__ = ("_document", "_source", "model")

    def __init__(self, document: dict[str, Any], model: Mapping[str, str], source: Source = None) -> None:
        self._document, self._source = document, source
        self.model = model

    def __repr__(self) -> str:
        """Return the object id and the class, or the reason why there is none, in one line."""
        if not self.classified:
            return f"Result({self.object_id!r}, {self.status!r}, reason={self.reason!r}, detail={self.detail!r})"
        novel = "" if self.unusual is None else f", unusual={self.unusual}"
        warned = f", warnings={[warning['reason'] for warning in self.warnings]}" if self.warnings else ""
        return (
            f"Result({self.object_id!r}, {self.class_name!r}, confidence={self.confidence:.3f}, "
            f"prediction_set={self.prediction_set}{novel}{warned})"
        )

    def __eq__(self, other: object) -> bool:
        """Return True for a result with equal fields from the same model."""
        return isinstance(other, Result) and self.to_dict() == other.to_dict() and self.model == other.model

    __hash__ = None  # type: ignore[assignment]  # the fields of a result are not hashable

    @property
    def status(self) -> str:
        """``classified``, ``abstained`` (not for this model), ``rejected`` (invalid) or ``failed``."""
        return str(self._document["status"])

    @property
    def classified(self) -> bool:
        """True if the light curve has a class."""
        return self.status == "classified"

    @property
    def object_id(self) -> str:
        """Name of the object, empty if none was given."""
        return str(self._document.get("object_id", ""))

    @property
    def class_name(self) -> str | None:
        """Most probable class; None unless classified."""
        return self._document.get("class")

    @property
    def confidence(self) -> float | None:
        """Probability of the most probable class; None unless classified."""
        return self._document.get("confidence")

    @property
    def probabilities(self) -> dict[str, float]:
        """Probability of every class; they sum to 1. Empty unless classified."""
        return dict(self._document.get("probabilities", {}))

    @property
    def hierarchy(self) -> dict[str, float]:
        """Probability of every group of classes. Empty unless classified."""
        return dict(self._document.get("hierarchy", {}))

    @property
    def prediction_set(self) -> list[str] | None:
        """Classes in the prediction set, the most probable first; None if the model has no sets or it is unusual."""
        members = self._document.get("prediction_set")
        return None if members is None else list(members)

    @property
    def coverage(self) -> float | None:
        """Coverage of the prediction set: nominal probability that it contains the true class."""
        return self._document.get("coverage")

    @property
    def unusual(self) -> bool | None:
        """True if the light curve is unlike the training data; None if the model has no novelty score."""
        return self._document.get("unusual")

    @property
    def novelty(self) -> float | None:
        """Fraction of known objects that are less unusual, 0 to 1; None if the model has no novelty score."""
        return self._document.get("novelty")

    @property
    def evidence(self) -> list[str]:
        """Descriptions of the evidence from metadata that the probabilities include."""
        return list(self._document.get("evidence", ()))

    @property
    def embedding(self) -> NDArray[np.float32] | None:
        """Embedding of the network, shape (dim,); None unless requested."""
        values = self._document.get("embedding")
        return None if values is None else np.asarray(values, np.float32)

    @property
    def experts(self) -> dict[str, Any] | None:
        """Experts chosen for the observations, by layer and band; None unless requested and the model has experts."""
        return self._document.get("experts")

    @property
    def reason(self) -> str:
        """Machine-readable reason why there is no class; empty if classified."""
        return str(self._document.get("reason", ""))

    @property
    def detail(self) -> str:
        """Human-readable explanation of the reason; empty if classified."""
        return str(self._document.get("detail", ""))

    @property
    def errors(self) -> list[dict[str, str]]:
        """Invalid values, each with ``pointer``, ``reason`` and ``detail``."""
        return [dict(error) for error in self._document.get("errors", ())]

    @property
    def warnings(self) -> list[dict[str, str]]:
        """Probable errors in the values, such as a wrong unit, each with ``reason`` and ``detail``."""
        return [dict(warning) for warning in self._document.get("warnings", ())]

    @property
    def points_per_band(self) -> dict[str, int]:
        """Number of observations that the network saw, by band."""
        return dict(self._document.get("points_per_band", {}))

    @property
    def other_filters(self) -> dict[str, int]:
        """Number of observations that the network does not use because of their filter, by filter."""
        return dict(self._document.get("other_filters", {}))

    @property
    def light_curve(self) -> LightCurve | None:
        """Light curve that was classified; None if it could not be read."""
        if callable(self._source):
            self._source = self._source()
        return self._source

    def to_dict(self) -> dict[str, Any]:
        """Return the result with the fields of the service's JSON; do not modify the values of the dictionary."""
        document = self._document.copy()
        if isinstance(document.get("embedding"), np.ndarray):
            document["embedding"] = document["embedding"].tolist()
        return document

    def row(self, probabilities: bool = False) -> dict[str, Any]:
        """Return a row of a table: the values of :data:`COLUMNS` and, if requested, the probability of each class."""
        document = self._document
        row = {
            "object_id": self.object_id,
            "class": document.get("class"),
            "confidence": document.get("confidence"),
            "prediction_set": document.get("prediction_set"),
            "unusual": document.get("unusual"),
            "status": document["status"],
            "reason": document.get("reason", ""),
            "warnings": [warning["reason"] for warning in document.get("warnings", ())],
        }
        return row | document.get("probabilities", {}) if probabilities else row

    def plot(self, ax: Any = None) -> Any:
        """Draw the light curve and the most probable classes with matplotlib; returns the axes.

        Parameters
        ----------
        ax : axes for the light curve only. By default a new figure has axes for both, which are returned as an array.
        """
        return pictures.draw(self, ax)

    def to_svg(self) -> str:
        """Return a picture of the light curve and the most probable classes as SVG."""
        return pictures.svg(self)

    def _repr_html_(self) -> str:
        """Return the picture for a notebook."""
        return self.to_svg()


class ModelNames:
    """Sets the field ``model`` of a call's results as in a response: only if it differs from the first result's."""

    def __init__(self) -> None:
        self._first: Mapping[str, str] | None = None

    def __call__(self, result: Result) -> Result:
        """Set or remove the field ``model`` of a result; return the result."""
        self._first = self._first or result.model
        result._document.pop("model", None)
        if result.model != self._first:
            result._document["model"] = result.model
        return result


def light_curve_error(errors: Sequence[Mapping[str, str]]) -> LightCurveError:
    """Return the exception for the first error of a light curve, with the others as notes."""
    first, *others = errors
    error = LightCurveError(first["pointer"], first["reason"], f"{first['pointer'].lstrip('/')}: {first['detail']}")
    for other in others:
        error.add_note(f"{other['pointer'].lstrip('/')}: {other['detail']}")
    return error


class Evolution:
    """Classification of an object after each of its detections.

    Attributes
    ----------
    model : name, version and hash of the model, as in responses of the service.
    light_curve : light curve that was classified; None if it could not be read.
    """

    def __init__(
        self, document: dict[str, Any], model: Mapping[str, str], light_curve: LightCurve | None = None
    ) -> None:
        self._document = document
        self.model, self.light_curve = model, light_curve

    def __repr__(self) -> str:
        """Return the object id, the last class and the number of changes of the class, in one line."""
        last = next((step for step in reversed(self.steps) if "class" in step), None)
        shown = "" if last is None else f"{last['class']!r} since MJD {self._class_since():.2f}, "
        return f"Evolution({self.object_id!r}, {shown}{len(self.steps)} steps, class_changes={self.class_changes})"

    def _class_since(self) -> float:
        first = next(step["mjd"] for step in self.steps if "class" in step)
        return float(first if self.last_change_mjd is None else self.last_change_mjd)

    @property
    def object_id(self) -> str:
        """Name of the object, empty if none was given."""
        return str(self._document["object_id"])

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Classification after each detection, with ``mjd``, ``detections`` and the fields of a result."""
        return list(self._document["steps"])

    @property
    def sampled(self) -> bool:
        """True if the steps are a sample of the detections."""
        return bool(self._document["sampled"])

    @property
    def class_changes(self) -> int:
        """Number of steps whose most probable class differs from that of the previous step."""
        return int(self._document["class_changes"])

    @property
    def last_change_mjd(self) -> float | None:
        """Time (MJD) of the last change of the class; None if it never changed."""
        mjd: float | None = self._document["last_change_mjd"]
        return mjd

    @property
    def recent_variation(self) -> float | None:
        """Mean total-variation distance of the successive posteriors of the last five steps; None for one step."""
        variation: float | None = self._document["recent_variation"]
        return variation

    def to_dict(self) -> dict[str, Any]:
        """Return the evolution with the fields of the service's JSON, without the model."""
        return self._document.copy()

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row per step: time, detections, class and a probability per class."""
        rows = [
            {name: value for name, value in step.items() if name != "probabilities"} | step.get("probabilities", {})
            for step in self.steps
        ]
        return _library("pandas").DataFrame(rows)

    def plot(self, ax: Any = None) -> Any:
        """Draw the probabilities of the most probable classes against time with matplotlib; returns the axes."""
        return pictures.draw_evolution(self, ax)

    def _repr_html_(self) -> str:
        """Return a table of the last steps for a notebook."""
        return pictures.html_steps(self, SHOWN_ROWS)


class Results(Sequence[Result]):
    """Results of several light curves, in the order of the input.

    Attributes
    ----------
    notes : sentences on how tables were read (meaning of columns, units, filters) and what was left out.
    """

    def __init__(self, results: Iterable[Result] = (), notes: Iterable[str] = ()) -> None:
        self._results = list(results)
        self.notes = list(notes)

    def __len__(self) -> int:
        """Return the number of results."""
        return len(self._results)

    @overload
    def __getitem__(self, index: int | str) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> "Results": ...
    def __getitem__(self, index: int | str | slice) -> "Result | Results":
        """Return the result at a position or of an object, or the results of a slice.

        Raises
        ------
        KeyError
            If no object has the name, or several results have it.
        """
        if isinstance(index, slice):
            return Results(self._results[index], self.notes)
        if not isinstance(index, str):
            return self._results[index]
        found = [result for result in self._results if result.object_id == index]
        if len(found) != 1:
            raise KeyError(f"{len(found) or 'no'} results have the object_id {index!r}")
        return found[0]

    def __iter__(self) -> Iterator[Result]:
        """Iterate over the results."""
        return iter(self._results)

    def __repr__(self) -> str:
        """Return the number of results by status and reason, and of the notes on the table."""
        notes = f"; {len(self.notes)} notes on how the table was read, see .notes" if self.notes else ""
        return f"Results({self.summary()}{notes})"

    def summary(self) -> str:
        """Return the number of results by status and reason, as ``14 classified, 1 rejected (not_finite)``."""
        return summary(self._results)

    @property
    def classes(self) -> list[str]:
        """Names of all classes in the results, in the order of the model."""
        return list(dict.fromkeys(name for result in self._results for name in result.probabilities))

    def rows(self, probabilities: bool = False) -> list[dict[str, Any]]:
        """Return a row per result: the columns :data:`COLUMNS` and, if requested, the probability of each class."""
        columns = dict.fromkeys((*COLUMNS, *(self.classes if probabilities else ())))
        return [columns | result.row(probabilities) for result in self._results]

    def to_pandas(self, probabilities: bool = False) -> Any:
        """Return a ``pandas.DataFrame`` of :meth:`rows`."""
        return _library("pandas").DataFrame(self.rows(probabilities), columns=self._columns(probabilities))

    def to_arrow(self, probabilities: bool = False) -> Any:
        """Return a ``pyarrow.Table`` of :meth:`rows`."""
        return arrow_table(self._results, self.classes if probabilities else ())

    def to_astropy(self, probabilities: bool = False) -> Any:
        """Return an ``astropy.table.Table`` of :meth:`rows`; missing values are masked."""
        return astropy_table(self._results, self.classes if probabilities else ())

    def write(self, path: str | Path, probabilities: bool = False) -> None:
        """Write a file; the suffix selects the format: ``.csv``, ``.jsonl`` (all fields), ``.parquet`` or ``.vot``."""
        with open_output(Path(path), self.classes if probabilities else ()) as output:
            output.write(self._results)

    def _columns(self, probabilities: bool) -> list[str]:
        return [*COLUMNS, *(self.classes if probabilities else ())]

    def _repr_html_(self) -> str:
        """Return a table for a notebook."""
        return pictures.html_table(self, SHOWN_ROWS)


def summary(results: Iterable[Result]) -> str:
    """Return the number of results by status and reason, the most frequent first."""
    counts = Counter((result.status, result.reason) for result in results)
    return summary_of(counts)


def summary_of(counts: Mapping[tuple[str, str], int]) -> str:
    """Return the numbers by status and reason as text, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    texts = [f"{count:,} {status}{f' ({reason})' if reason else ''}" for (status, reason), count in ordered]
    return ", ".join(texts) or "none"


def _library(name: str) -> Any:
    """Import an optional library. Raises ImportError with the command that installs it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"{name} is not installed: pip install {name.partition('.')[0]}") from error
