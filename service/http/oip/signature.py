"""Light curves as tensors: inputs and outputs of a classifier, and the checks of a request against them.

Observations are concatenated; offsets divide them. Faults of one light curve are that light curve's alone, as on the
other routes; only tensors that do not fit each other make the whole request unreadable.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from nightjar_alerts.models.bulk import light_curves
from nightjar_alerts.models.bundle import Manifest
from nightjar_alerts.models.lightcurve import Columns, LightCurve, LightCurveError, require
from nightjar_alerts.models.metadata import LARGEST, clean_metadata
from nightjar_alerts.models.photometry import BANDS, FluxUnit, filter_index
from nightjar_alerts.service.answers.replies import FieldError
from nightjar_alerts.service.dataplane import Outcome
from nightjar_alerts.service.http.edge.errors import INVALID, TOO_LARGE, ProblemError
from nightjar_alerts.service.http.forms import MAX_ID_LENGTH
from nightjar_alerts.service.http.oip.forms import Datatype, InputTensor, OutputRequest
from nightjar_alerts.service.http.oip.tensors import Array, Tensor, fault
from nightjar_alerts.service.settings import Settings

ANY = -1


@dataclass(frozen=True, slots=True)
class Spec:
    """An input or output.

    Attributes
    ----------
    datatypes : those that are accepted, first the one that the metadata state; an output has one.
    shape : ``ANY`` where the size varies.
    optional : an input that may be left out, or an output that is given only when it is asked for by name.
    why : for an input, text added to the error about a datatype that is not accepted.
    labels : for an output of shape (any, labels), what its columns are.
    """

    name: str
    datatypes: tuple[Datatype, ...]
    shape: tuple[int, ...]
    optional: bool = False
    why: str = ""
    labels: tuple[str, ...] = ()


class OutputForm(NamedTuple):
    """Form of an output: bytes or JSON, and texts for the ``top`` most probable labels unless that is 0."""

    binary: bool
    top: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Received:
    """The items of a request, in order, a good one or why it is not; and what its reply has to know of the request."""

    items: Sequence[LightCurve | LightCurveError]
    object_ids: Sequence[bytes]


def check_inputs(specs: Sequence[Spec], inputs: Sequence[InputTensor]) -> None:
    """Reject inputs that the model does not take, by their descriptions. Raises ProblemError (422) with every error."""
    spec_by_name = {spec.name: spec for spec in specs}
    faults = [
        error
        for place, described in enumerate(inputs)
        if (error := _input_fault(spec_by_name.get(described.name), described, f"/inputs/{place}"))
    ]
    names = {described.name for described in inputs}
    faults += [
        FieldError(pointer="/inputs", reason="missing", detail=f"the input {spec.name} is required")
        for spec in specs
        if not spec.optional and spec.name not in names
    ]
    if faults:
        raise ProblemError(INVALID, errors=faults)


def _input_fault(spec: Spec | None, described: InputTensor, pointer: str) -> FieldError | None:
    if spec is None:
        detail = "the model has no input of this name"
        return FieldError(pointer=f"{pointer}/name", reason="unknown_input", detail=detail)
    if described.datatype not in spec.datatypes:
        detail = f"{spec.name} must be {' or '.join(spec.datatypes)}{spec.why}"
        return FieldError(pointer=f"{pointer}/datatype", reason="wrong_datatype", detail=detail)
    shape = fitted_shape(described.shape, len(spec.shape))
    fits = len(shape) == len(spec.shape) and all(
        spec_size in (ANY, size) for spec_size, size in zip(spec.shape, shape, strict=True)
    )
    if not fits:
        detail = f"the shape of {spec.name} must be {list(spec.shape)}, where -1 stands for any size"
        return FieldError(pointer=f"{pointer}/shape", reason="wrong_shape", detail=detail)
    return None


def fitted_shape(shape: Sequence[int], rank: int) -> list[int]:
    """Return a shape without dimensions of 1 beyond ``rank``: codecs write a list of n values as [n, 1] or [1, n]."""
    sizes = list(shape)
    while len(sizes) > rank and 1 in sizes:
        del sizes[len(sizes) - 1 - sizes[::-1].index(1)]
    return sizes


def fitted(specs: Sequence[Spec], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return checked tensors in the shapes of the model's inputs."""
    rank_by_name = {spec.name: len(spec.shape) for spec in specs}
    return {
        name: Tensor(tensor.values.reshape(fitted_shape(tensor.values.shape, rank_by_name[name])), tensor.pointer)
        for name, tensor in tensors.items()
    }


def check_texts(inputs: Sequence[InputTensor], max_curves: int) -> None:
    """Refuse texts that nothing belongs to before they are made: sixteen million empty ones took 11 s and 0.5 GB.

    Raises ProblemError (422) where an input of texts, whose description was checked, has more rows than there are
    observations or light curves in a request.
    """
    most = max(max_curves, *(prod(each.shape) for each in inputs if each.name == "mjd"))
    for place, described in enumerate(inputs):
        if described.datatype == "BYTES" and prod(described.shape) > most:
            detail = f"{described.name} has {prod(described.shape)} rows, and nothing else has more than {most}"
            raise fault(f"/inputs/{place}/shape/0", "length_mismatch", detail)


def choose_outputs(
    specs: Sequence[Spec], requests: Sequence[OutputRequest], binary_default: bool
) -> dict[str, OutputForm]:
    """Choose the outputs to give, in the order asked; without any, those that are not optional.

    Raises
    ------
    ProblemError
        422 for an output that the model has not, that is asked for twice, or whose columns have no labels to be told.
    """
    if not requests:
        return {spec.name: OutputForm(binary_default) for spec in specs if not spec.optional}
    spec_by_name = {spec.name: spec for spec in specs}
    chosen: dict[str, OutputForm] = {}
    for place, output in enumerate(requests):
        pointer, parameters = f"/outputs/{place}", output.parameters
        if output.name not in spec_by_name:
            raise fault(f"{pointer}/name", "unknown_output", f"must be one of: {', '.join(spec_by_name)}")
        if output.name in chosen:
            raise fault(f"{pointer}/name", "duplicate", "this output is asked for twice")
        if parameters.classification and not spec_by_name[output.name].labels:
            raise fault(f"{pointer}/parameters/classification", "unexpected", "its columns are not classes")
        binary = binary_default if parameters.binary_data is None else parameters.binary_data
        chosen[output.name] = OutputForm(binary, parameters.classification)
    return chosen


def most_probable(rows: Array, labels: Sequence[str], count: int) -> Array:
    """Texts ``value:index:label`` of the ``count`` largest values of each row, the largest first; empty where NaN.

    Parameters
    ----------
    rows : shape (any, labels).
    """
    order = np.argsort(-rows, axis=1, kind="stable")[:, :count]
    texts = np.full(order.shape, b"", dtype=object)
    for row, places, text in zip(rows, order, texts, strict=True):
        if not np.isnan(row).any():
            text[:] = [f"{row[place]:f}:{place}:{labels[place]}".encode() for place in places]
    return texts


TIMES: tuple[Datatype, ...] = ("FP64",)
REALS: tuple[Datatype, ...] = ("FP32", "FP64")
OFFSETS: tuple[Datatype, ...] = ("INT64", "INT32")
BAND_TYPES: tuple[Datatype, ...] = (
    "BYTES", "INT64", "INT32", "INT16", "INT8", "UINT64", "UINT32", "UINT16", "UINT8"
)  # fmt: skip
_INDEX = {name.encode(): filter_index(name) for name in (*BANDS, "y")}
WHY_FP64 = ": an MJD in FP32 is good to 5.6 minutes only"


def curve_inputs(manifest: Manifest) -> tuple[Spec, ...]:
    """Return the inputs that make light curves."""
    inputs = (
        Spec("mjd", TIMES, (ANY,), why=WHY_FP64),
        Spec("flux", REALS, (ANY,)),
        Spec("flux_err", REALS, (ANY,)),
        Spec("band", BAND_TYPES, (ANY,)),
        Spec("offsets", OFFSETS, (ANY,), optional=True),
        Spec("detected", ("BOOL",), (ANY,), optional=True),
        Spec("object_id", ("BYTES",), (ANY,), optional=True),
    )
    if not manifest.metadata_columns:
        return inputs
    return (*inputs, Spec("metadata", REALS, (ANY, len(manifest.metadata_columns)), optional=True))


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """The light curves of a request, not yet checked one by one.

    Attributes
    ----------
    bounds : light curve i is ``[bounds[i]:bounds[i + 1]]`` of the columns.
    columns : ``mjd``, ``flux``, ``flux_err``, ``band`` and maybe ``detected``, of equal length.
    object_ids : one for each light curve.
    """

    bounds: Sequence[int]
    columns: Mapping[str, Array]
    metadata: Array | None
    metadata_columns: Sequence[str]
    object_ids: Sequence[bytes]
    flux_unit: FluxUnit
    max_points: int

    def __len__(self) -> int:
        """Return the number of light curves."""
        return len(self.bounds) - 1

    def records(self) -> list[LightCurve | LightCurveError]:
        """Every light curve, or the error that it has."""
        columns = [self._columns_or_error(place) for place in range(len(self))]
        curves = iter(light_curves([each for each in columns if isinstance(each, Columns)]))
        return [next(curves) if isinstance(each, Columns) else each for each in columns]

    def _columns_or_error(self, place: int) -> Columns | LightCurveError:
        try:
            return self._columns(slice(self.bounds[place], self.bounds[place + 1]), place)
        except LightCurveError as error:
            return error

    def _columns(self, part: slice, place: int) -> Columns:
        if part.stop - part.start > self.max_points:
            message = f"at most {self.max_points} observations in a light curve are accepted"
            raise LightCurveError("/mjd", "too_many_points", message)
        columns = {name: column[part] for name, column in self.columns.items()}
        return Columns(
            columns["mjd"],
            columns["flux"],
            columns["flux_err"],
            band_indices(columns["band"]),
            columns.get("detected"),
            self._metadata(place),
            self._object_id(place),
            self.flux_unit,
        )

    def _metadata(self, place: int) -> dict[str, float]:
        if self.metadata is None:
            return {}
        row = self.metadata[place]
        finite = np.isnan(row) | (np.abs(row) <= LARGEST)
        require(finite, "metadata", "not_finite", "metadata must be finite in single precision, or NaN where missing")
        return clean_metadata(dict(zip(self.metadata_columns, row.tolist(), strict=True)))

    def _object_id(self, place: int) -> str:
        text = self.object_ids[place]
        if len(text) > MAX_ID_LENGTH:
            raise LightCurveError("/object_id", "too_long", f"must have at most {MAX_ID_LENGTH} bytes")
        return text.decode("utf-8", "replace")


def read_curves(tensors: Mapping[str, Tensor], manifest: Manifest, flux_unit: FluxUnit, settings: Settings) -> Curves:
    """Check that tensors fit each other.

    Raises
    ------
    ProblemError
        422 for lengths that differ and offsets that do not divide the observations, 413 for too many light curves.
    """
    points = len(tensors["mjd"])
    names = [name for name in ("mjd", "flux", "flux_err", "band", "detected") if name in tensors]
    for name in names:
        check_length(tensors, name, points, "observation")
    bounds = read_offsets(tensors, "offsets", points)
    batch = len(bounds) - 1
    if batch > settings.max_curves:
        limit = settings.max_curves
        raise ProblemError(TOO_LARGE, f"{batch} light curves, at most {limit} in one request", limit=limit)
    for name in ("metadata", "object_id"):
        if name in tensors:
            check_length(tensors, name, batch, "light curve")
    return Curves(
        bounds=bounds,
        columns={name: tensors[name].values for name in names},
        metadata=tensors["metadata"].values if "metadata" in tensors else None,
        metadata_columns=manifest.metadata_columns,
        object_ids=tensors["object_id"].values.tolist() if "object_id" in tensors else [b""] * batch,
        flux_unit=flux_unit,
        max_points=settings.max_points,
    )


def check_length(tensors: Mapping[str, Tensor], name: str, expected: int, counted: str) -> None:
    """Raise ProblemError (422) unless a tensor has one row for everything counted."""
    if len(tensors[name]) != expected:
        detail = f"{name} has {len(tensors[name])} rows, one for each {counted} would be {expected}"
        raise fault(f"{tensors[name].pointer}/shape/0", "length_mismatch", detail)


def read_offsets(tensors: Mapping[str, Tensor], name: str, total: int) -> list[int]:
    """Read where each light curve begins, and where the last one ends; without the tensor, one has everything.

    Raises
    ------
    ProblemError
        422 unless they go from 0 to ``total`` without a step back.
    """
    if name not in tensors:
        return [0, total]
    values, pointer = tensors[name].values, tensors[name].pointer
    if len(values) < 2:
        raise fault(f"{pointer}/shape/0", "empty", f"{name} must have one value more than there are light curves")
    if values[0] != 0 or values[-1] != total:
        detail = f"{name} go from {values[0]} to {values[-1]}; they must go from 0 to {total}"
        raise fault(pointer, "out_of_range", detail)
    back = values[1:] < values[:-1]  # a difference could overflow
    if back.any():
        raise fault(pointer, "not_monotone", f"{name} go back at position {int(np.argmax(back)) + 1}")
    offsets: list[int] = values.tolist()
    return offsets


def band_indices(column: Array) -> Array | list[str]:
    """Return a column as light curves take it: indices, or all names where one is unknown and has to be told."""
    if column.dtype.kind != "O":
        return column
    texts: list[bytes] = column.tolist()
    try:
        return np.array([_INDEX[text] for text in texts], dtype=np.int64)
    except KeyError:
        return [text.decode("utf-8", "replace") for text in texts]


OUTCOME_OUTPUTS = (
    Spec("status", ("BYTES",), (ANY,)),
    Spec("reason", ("BYTES",), (ANY,)),
    Spec("detail", ("BYTES",), (ANY,), optional=True),
    Spec("object_id", ("BYTES",), (ANY,), optional=True),
)


def write_outcomes(names: Collection[str], received: Received, outcomes: Sequence[Outcome]) -> dict[str, Array]:
    """Return those of :data:`OUTCOME_OUTPUTS` that are among ``names``, each of shape (light curves,)."""
    writers: dict[str, Callable[[], Sequence[bytes]]] = {
        "status": lambda: [outcome.status.encode() for outcome in outcomes],
        "reason": lambda: [outcome.reason.encode() for outcome in outcomes],
        "detail": lambda: [_detail(outcome).encode() for outcome in outcomes],
        "object_id": lambda: received.object_ids,
    }
    return {name: np.array(write(), dtype=object) for name, write in writers.items() if name in names}


def _detail(outcome: Outcome) -> str:
    """Return the reason in words, after a pointer to the value at fault within its light curve."""
    return f"{outcome.pointer}: {outcome.detail}" if outcome.pointer else outcome.detail
