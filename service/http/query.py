"""Query parameters of ``/v1`` as msgspec structs."""

from contextlib import suppress
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request

from nightjar_alerts.alerts.avro import schema_names
from nightjar_alerts.alerts.surveys import SURVEY_BY_NAME
from nightjar_alerts.core.decoding import UNDECODABLE, ObjectReader, allows, decode_fields, field_types
from nightjar_alerts.core.errors import pointer, unknown_field
from nightjar_alerts.core.request import Coverage, Deadline, Embedding, Experts, Options, Prior
from nightjar_alerts.service.http.edge.errors import INVALID, ProblemError, invalid_field
from nightjar_alerts.service.registry.names import MAX_NAME_LENGTH

QueryT = TypeVar("QueryT", bound=Struct)


class ClassifyQuery(Options, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options as query parameters. An option in the body takes precedence."""

    model: Annotated[
        str,
        Meta(
            max_length=MAX_NAME_LENGTH,
            description="model to use: `name`, `name@1.2.3` or an alias; default: `default`",
        ),
    ] = ""


class AlertQuery(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Query parameters of a request with alert packets."""

    schema: Annotated[
        Annotated[str, Meta(max_length=40)] | None,
        Meta(description=f"schema of packets that are bare records: {', '.join(schema_names())}"),
    ] = None
    model: Annotated[
        str,
        Meta(
            max_length=MAX_NAME_LENGTH,
            description="model to use: `name`, `name@1.2.3` or an alias; default: for each packet the alias of its "
            f"survey ({', '.join(f'`{name}`' for name in sorted(SURVEY_BY_NAME))}), or `default`. A light curve "
            "outside the domain of that model is classified by another model whose domain includes it, or not at all",
        ),
    ] = ""
    prior: Prior = None
    coverage: Coverage = None
    embedding: Embedding = False
    experts: Experts = False
    light_curve: Annotated[
        bool, Meta(description="return the light curve of each packet, in the form that `/v1/classify` takes")
    ] = False
    deadline_ms: Deadline = None


class TableQuery(ClassifyQuery, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Query parameters of a request with a table."""

    name: Annotated[
        str, Meta(max_length=255, description="name of the file; its ending says the format where the content does not")
    ] = ""
    options: Annotated[
        str,
        Meta(
            max_length=20_000,
            description="JSON object of what the reader is not to guess, such as "
            '`{"columns": {"time": "HJD"}, "time_format": "jd"}`; docs/tables.md lists the options',
        ),
    ] = ""
    light_curve: Annotated[
        bool, Meta(description="return the light curve of each object, in the form that `/v1/classify` takes")
    ] = False


class EvolutionQuery(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Query parameters of a request for the evolution of a classification."""

    schema: Annotated[
        Annotated[str, Meta(max_length=40)] | None,
        Meta(description=f"schema of a packet that is a bare record: {', '.join(schema_names())}"),
    ] = None
    model: Annotated[
        str,
        Meta(
            max_length=MAX_NAME_LENGTH,
            description="model to use: `name`, `name@1.2.3` or an alias; default: as for `/v1/classify`",
        ),
    ] = ""
    prior: Prior = None
    coverage: Coverage = None
    deadline_ms: Deadline = None


@cache
def _default_query(struct: type[Struct]) -> Struct:
    return struct()


def default_query(struct: type[QueryT]) -> QueryT:
    """Return the query of a request without parameters."""
    query = _default_query(struct)
    assert isinstance(query, struct)
    return query


def read_query(request: Request, struct: type[QueryT]) -> QueryT:
    """Read the query parameters of a request.

    Raises
    ------
    ProblemError
        422 for a parameter that is unknown, repeated or invalid.
    """
    if not request.scope["query_string"]:
        return default_query(struct)
    values: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        where = "/query" + pointer([name])
        if name not in field_types(struct):
            raise ProblemError(INVALID, errors=[unknown_field("/query", name, field_types(struct), "parameter")])
        if name in values:
            raise invalid_field(where, "duplicate", "this parameter is given twice")
        values[name] = text
        if name == "prior" and text.lstrip().startswith("{"):
            values[name] = decode_json(text, where, "must be a name or a JSON object of weights")
    decoded, errors = decode_fields(values, struct, QUERY_READER, "/query")
    if errors:
        raise ProblemError(INVALID, errors=errors)
    return struct(**decoded)


def decode_json(text: str, where: str, expected: str) -> Any:
    """Decode a parameter that is JSON. Raises ProblemError (422), also for JSON that is nested too deeply."""
    try:
        return msgspec.json.decode(text)
    except UNDECODABLE:
        raise invalid_field(where, "malformed", expected) from None


class _QueryReader(ObjectReader):
    """Reader of query parameters, whose values are text."""

    def decode(self, value: Any, kind: Any) -> Any:
        """Convert text to the type of its parameter."""
        converted = msgspec.convert(value, kind, strict=False)
        if converted is None:  # msgspec converts the text "null" to None, which is invalid in a query
            msgspec.convert("none", kind, strict=False)  # raises unless the type allows text
            return value
        return converted

    def open(self, value: Any, kind: Any = None) -> Any:
        """Return the number or boolean that text stands for, unless its parameter may be text."""
        found = super().open(value)
        if isinstance(found, str) and not allows(kind, str):
            with suppress(msgspec.ValidationError):
                converted = msgspec.convert(found, int | float | bool, strict=False)
                return found if converted is None else converted
        return found


QUERY_READER = _QueryReader()
