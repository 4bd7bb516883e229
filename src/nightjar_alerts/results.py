"""Results of :class:`nightjar_alerts.Classifier` and :class:`nightjar_alerts.Client`.

    result = Classifier().classify(mjd=mjd, flux=flux, flux_err=flux_err, band=band)
    result.class_name, result.probabilities, result.prediction_set, result.unusual

    results = Classifier().classify("supernovae.csv")
    results.to_pandas()

A result has the fields of the service's JSON (docs/answers.md), which :mod:`nightjar_alerts.core.result` declares, and
:meth:`Result.to_dict` returns them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from nightjar_alerts import pictures
from nightjar_alerts.core.errors import FieldError
from nightjar_alerts.core.result import (
    Abstained,
    Classified,
    ClassifierProvenance,
    EvolutionFields,
    EvolutionStep,
    Experts,
    PhotometryWarning,
    ResultFields,
    Status,
    Subtype,
)
from nightjar_alerts.core.schemas import descriptions
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.outputs import COLUMNS, arrow_table, astropy_table, open_output

FORKED = (
    "this iterator was started in another process, whose threads a fork does not copy: call stream in the process that "
    "reads the results"
)
"""Message of the error of a stream that is continued after a fork."""
SHOWN_ROWS = 20
"""Rows of a table of results in a notebook."""

CurveSource = LightCurve | Callable[[], LightCurve | None] | None


_DESCRIPTIONS = descriptions(Classified, Abstained, EvolutionFields)
T = TypeVar("T")


class _Field(Generic[T]):
    """Read-only attribute of a result or an evolution: a field of :mod:`core.result`, which describes it.

    Parameters
    ----------
    absent : returns the value where the result does not have the field.
    """

    def __init__(self, absent: Callable[[], T]) -> None:
        self._absent = absent

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        text = _DESCRIPTIONS[name]
        self.__doc__ = f"{text[:1].upper()}{text[1:]}. {self._absent()!r} if the result does not have it."

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: "Result | Evolution", kind: type) -> T: ...
    def __get__(self, owner: "Result | Evolution | None", kind: type) -> T | Self:
        if owner is None:
            return self
        value: T | None = getattr(owner.fields, self._name, None)
        return self._absent() if value is None else value

    def __set__(self, owner: "Result | Evolution", value: T) -> None:
        raise AttributeError(f"{self._name} cannot be set")


def _none() -> None:
    return None


class Result:
    """Result of one light curve: its classification, or the reason why there is none.

    Attributes
    ----------
    fields : fields of the result as in the service's JSON (:mod:`nightjar_alerts.core.result`).
    model : name, version and hash of the model, as in responses of the service.
    input : file, or part of a file, of the light curve; empty if it was not read from a path.
    """

    __slots__ = ("_source", "fields", "input", "model")

    def __init__(
        self, fields: ResultFields, model: ClassifierProvenance, source: CurveSource = None, input: str = ""
    ) -> None:
        self.fields, self._source, self.input = fields, source, input
        self.model = copy(model)  # a model is shared by the results of all calls

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the result with its light curve."""
        return Result, (self.fields, self.model, self.light_curve, self.input)

    survey = _Field[str | None](_none)
    schema_version = _Field[str | None](_none)
    alert_id = _Field[str | None](_none)
    object_id = _Field[str](str)
    filters = _Field[dict[str, str]](dict)
    warnings = _Field[list[PhotometryWarning]](list)
    class_name = _Field[str | None](_none)
    class_id = _Field[int | None](_none)
    confidence = _Field[float | None](_none)
    probabilities = _Field[dict[str, float]](dict)
    hierarchy = _Field[dict[str, float]](dict)
    novelty = _Field[float | None](_none)
    unusual = _Field[bool | None](_none)
    prediction_set = _Field[list[str] | None](_none)
    coverage = _Field[float | None](_none)
    evidence = _Field[list[str]](list)
    points_per_band = _Field[dict[str, int]](dict)
    truncated = _Field[bool](bool)
    metadata_missing = _Field[int | None](_none)
    duplicates = _Field[int](int)
    other_filters = _Field[dict[str, int]](dict)
    dropped_points = _Field[dict[str, int]](dict)
    subtype = _Field[Subtype | None](_none)
    experts = _Field[Experts | None](_none)
    reason = _Field[str](str)
    detail = _Field[str](str)
    errors = _Field[list[FieldError]](list)

    def __repr__(self) -> str:
        """Return the object id and the class, or the reason why there is none, in one line."""
        if not self.classified:
            return f"Result({self.object_id!r}, {self.status!r}, reason={self.reason!r}, detail={self.detail!r})"
        novel = "" if self.unusual is None else f", unusual={self.unusual}"
        warned = f", warnings={[warning.reason for warning in self.warnings]}" if self.warnings else ""
        return (
            f"Result({self.object_id!r}, {self.class_name!r}, confidence={self.confidence:.3f}, "
            f"prediction_set={self.prediction_set}{novel}{warned})"
        )

    def __eq__(self, other: object) -> bool:
        """Return True for a result with equal fields from the same model."""
        return isinstance(other, Result) and self.to_dict() == other.to_dict() and self.model == other.model

    __hash__ = None  # type: ignore[assignment]  # the fields of a result are not hashable

    @property
    def status(self) -> Status:
        """``classified``, ``abstained`` (not for this model), ``rejected`` (invalid) or ``failed``."""
        return self.fields.status

    @property
    def classified(self) -> bool:
        """True if the light curve has a class."""
        return isinstance(self.fields, Classified)

    @property
    def embedding(self) -> NDArray[np.float32] | None:
        """Embedding of the network, shape (dim,); None unless requested."""
        values = getattr(self.fields, "embedding", None)
        return None if values is None else np.asarray(values, np.float32)

    @property
    def light_curve(self) -> LightCurve | None:
        """Light curve that was classified; None if it could not be read."""
        if callable(self._source):
            self._source = self._source()
        return self._source

    def to_dict(self) -> dict[str, Any]:
        """Return the result with the fields of the service's JSON."""
        return self.fields.to_dict()

    def row(self, probabilities: bool = False) -> dict[str, Any]:
        """Return a row of a table: the values of :data:`COLUMNS` and, if requested, the probability of each class."""
        row = {
            "object_id": self.object_id,
            "class": self.class_name,
            "confidence": self.confidence,
            "prediction_set": self.prediction_set,
            "unusual": self.unusual,
            "status": self.status,
            "reason": self.reason,
            "detail": self.detail,
            "pointer": self.errors[0].pointer if self.errors else "",
            "input": self.input,
            "warnings": [warning.reason for warning in self.warnings],
        }
        return row | self.probabilities if probabilities else row

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
        self._first: ClassifierProvenance | None = None

    def __call__(self, result: Result) -> Result:
        """Set or remove the field ``model`` of a result; return the result."""
        self._first = self._first or result.model
        result.fields.model = None if result.model == self._first else result.model
        return result


def with_names(each: Iterable[Sequence[Result]], names: Sequence[str]) -> Iterator[Result]:
    """Yield the results of each input with its name; ``names`` has those of the inputs that have been read."""
    for index, results in enumerate(each):
        for result in results:
            result.input = names[index] if names else ""
            yield result


class Evolution:
    """Classification of an object after each of its detections.

    Attributes
    ----------
    fields : fields of the evolution as in the service's JSON (:class:`nightjar_alerts.core.result.EvolutionFields`).
    model : name, version and hash of the model, as in responses of the service.
    light_curve : light curve that was classified; None if it could not be read.
    """

    def __init__(
        self, fields: EvolutionFields, model: ClassifierProvenance, light_curve: LightCurve | None = None
    ) -> None:
        self.fields = fields
        self.model, self.light_curve = copy(model), light_curve

    def __eq__(self, other: object) -> bool:
        """Return True for an evolution with equal fields from the same model."""
        return isinstance(other, Evolution) and self.fields == other.fields and self.model == other.model

    __hash__ = None  # type: ignore[assignment]  # the fields are not hashable

    object_id = _Field[str](str)
    detections = _Field[int](int)
    sampled = _Field[bool](bool)
    class_changes = _Field[int](int)
    last_change_mjd = _Field[float | None](_none)
    recent_variation = _Field[float | None](_none)
    steps = _Field[list[EvolutionStep]](list)

    def __repr__(self) -> str:
        """Return the object id, the last class and the number of changes of the class, in one line."""
        classified = [step for step in self.steps if step.class_name is not None]
        since = self.last_change_mjd
        shown = ""
        if classified:
            shown = f"{classified[-1].class_name!r} since MJD {classified[0].mjd if since is None else since:.2f}, "
        return f"Evolution({self.object_id!r}, {shown}{len(self.steps)} steps, class_changes={self.class_changes})"

    def to_dict(self) -> dict[str, Any]:
        """Return the evolution with the fields of the service's JSON, without the model."""
        return self.fields.to_dict()

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row per step: time, detections, class and a probability per class."""
        rows = [
            {name: value for name, value in step.members().items() if name != "probabilities"}
            | (step.probabilities or {})
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

    def __eq__(self, other: object) -> bool:
        """Return True for equal results in the same order; notes do not count."""
        return self._results == list(other) if isinstance(other, Results) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # results are not hashable

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
        """Return the number of results by status and reason, of the notes on the table, and of assumptions in them."""
        notes = f"; {len(self.notes)} notes on how the table was read, see .notes" if self.notes else ""
        assumed = [note.partition("assumed: ")[2] for note in self.notes if "assumed: " in note]
        notes += f"; assumed: {'; '.join(assumed)}" if assumed else ""
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

    def write(self, path: str | Path, probabilities: bool = False, *, overwrite: bool = False) -> None:
        """Write a file; the suffix selects the format: ``.csv``, ``.jsonl`` (all fields), ``.parquet`` or ``.vot``.

        Raises
        ------
        FileExistsError
            If the file exists, unless ``overwrite`` is true.
        OutputError
            If the suffix is another one, the folder does not exist, or a library is missing.
        """
        if Path(path).exists() and not overwrite:
            raise FileExistsError(f"{path} exists: overwrite=True replaces it")
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


def summary_of(counts: Mapping[tuple[Status, str], int]) -> str:
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
