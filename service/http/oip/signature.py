"""What the model of a task takes and gives as tensors, and whether a request keeps to it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from models.lightcurve import LightCurveError
from models.units import FluxUnit
from service.answers.fields import FieldError
from service.dataplane import Outcome
from service.http.edge.errors import INVALID, ProblemError
from service.http.oip.forms import Datatype, InputTensor, OutputRequest
from service.http.oip.tensors import Array, Tensor, fault
from service.settings import Settings

ANY = -1

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Spec:
    """An input or output.

    Attributes
    ----------
    datatypes : those that are read, the first of which is the one told; an output has one.
    shape : ``ANY`` where the size varies.
    optional : an input that may be left out, or an output that is given only when it is asked for by name.
    why : for an input, what to say about a datatype that is not read.
    labels : for an output of shape (any, labels), what its columns are.
    """

    name: str
    datatypes: tuple[Datatype, ...]
    shape: tuple[int, ...]
    optional: bool = False
    why: str = ""
    labels: tuple[str, ...] = ()


class Wanted(NamedTuple):
    """How an output goes back: as bytes or JSON, and as texts for the ``top`` most probable labels unless that is 0."""

    binary: bool
    top: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Received(Generic[ItemT]):
    """The items of a request, in order, a good one or why it is not; and what its reply has to know of the request."""

    items: Sequence[ItemT | LightCurveError]
    object_ids: Sequence[bytes]
    query_offsets: Sequence[int] = ()


class TaskTensors(Protocol[ItemT]):
    """A task's light curves and answers as tensors."""

    @property
    def inputs(self) -> Sequence[Spec]:
        """What is taken."""

    @property
    def outputs(self) -> Sequence[Spec]:
        """What is given."""

    def read(self, tensors: Mapping[str, Tensor], flux_unit: FluxUnit, settings: Settings) -> Received[ItemT]:
        """Items of checked tensors. Raises ProblemError (422, 413) when the tensors do not fit each other."""

    def write(self, names: Collection[str], received: Received[ItemT], outcomes: Sequence[Outcome]) -> dict[str, Array]:
        """Outputs of these names."""


def check_inputs(specs: Sequence[Spec], inputs: Sequence[InputTensor]) -> None:
    """Refuse inputs that the model does not take, by their descriptions. Raises ProblemError (422) with every fault."""
    known = {spec.name: spec for spec in specs}
    faults = [
        found
        for place, described in enumerate(inputs)
        if (found := _input_fault(known.get(described.name), described, f"/inputs/{place}"))
    ]
    given = {described.name for described in inputs}
    faults += [
        FieldError(pointer="/inputs", reason="missing", detail=f"the input {spec.name} is required")
        for spec in specs
        if not spec.optional and spec.name not in given
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
    fits = len(described.shape) == len(spec.shape) and all(
        wanted in (ANY, size) for wanted, size in zip(spec.shape, described.shape, strict=True)
    )
    if not fits:
        detail = f"the shape of {spec.name} must be {list(spec.shape)}, where -1 stands for any size"
        return FieldError(pointer=f"{pointer}/shape", reason="wrong_shape", detail=detail)
    return None


def choose_outputs(specs: Sequence[Spec], asked: Sequence[OutputRequest], binary_default: bool) -> dict[str, Wanted]:
    """Outputs to give, in the order asked; without any, those that are not optional.

    Raises
    ------
    ProblemError
        422 for an output that the model has not, that is asked for twice, or whose columns have no labels to be told.
    """
    if not asked:
        return {spec.name: Wanted(binary_default) for spec in specs if not spec.optional}
    known = {spec.name: spec for spec in specs}
    chosen: dict[str, Wanted] = {}
    for place, output in enumerate(asked):
        pointer, parameters = f"/outputs/{place}", output.parameters
        if output.name not in known:
            raise fault(f"{pointer}/name", "unknown_output", f"must be one of: {', '.join(known)}")
        if output.name in chosen:
            raise fault(f"{pointer}/name", "duplicate", "this output is asked for twice")
        if parameters.classification and not known[output.name].labels:
            raise fault(f"{pointer}/parameters/classification", "unexpected", "its columns are not classes")
        binary = binary_default if parameters.binary_data is None else parameters.binary_data
        chosen[output.name] = Wanted(binary, parameters.classification)
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
