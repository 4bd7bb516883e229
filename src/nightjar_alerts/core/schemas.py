"""Schemas of results, made from the declarations in :mod:`core.result`: JSON Schema, OpenAPI, Avro, Arrow and tables.

A result over HTTP or in a stream has the fields of :class:`core.result.Classified` or of the other statuses, without
those that its route never sets. :data:`FORMS` names these selections as the OpenAPI document does.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.inspect import (
    BoolType,
    DictType,
    Field,
    FloatType,
    IntType,
    ListType,
    LiteralType,
    Metadata,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
)

from nightjar_alerts.core.record import Record
from nightjar_alerts.core.result import (
    Abstained,
    AlertsReply,
    Classified,
    ClassifyReply,
    EvolutionReply,
    Failed,
    Rejected,
    StreamHead,
)

Schema = dict[str, Any]

_ALERT: Final = ("survey", "schema_version", "alert_id")
_CURVE: Final = ("filters", "warnings")
_CURVE_FAILURE = (
    "A light curve that was not classified.\n\n`abstained`: valid, but outside what the model classifies; `rejected`: "
    "invalid; `failed`: no result in time."
)
_PACKET_FAILURE = (
    "An alert that was not classified.\n\n`abstained`: valid, but outside what the model classifies; `rejected`: "
    "unreadable; `failed`: no result in time."
)


class Form(NamedTuple):
    """Selection of fields of results.

    Attributes
    ----------
    kinds : statuses; their fields are the same.
    absent : fields that are never set.
    present : optional fields that are always set.
    head : fields in front of those of the result.
    """

    description: str
    kinds: Sequence[type[Classified] | type[Abstained] | type[Rejected] | type[Failed]]
    absent: Sequence[str]
    present: Sequence[str]
    head: type[StreamHead] | None = None


_UNCLASSIFIED: Final = (Abstained, Rejected, Failed)
FORMS: Final[Mapping[str, Form]] = {
    "CurveResult": Form("A light curve that was classified.", (Classified,), (*_ALERT, "light_curve"), ()),
    "CurveFailure": Form(_CURVE_FAILURE, _UNCLASSIFIED, (*_ALERT, "light_curve"), ("errors",)),
    "PacketResult": Form("An alert that was classified.", (Classified,), _CURVE, _ALERT),
    "PacketFailure": Form(_PACKET_FAILURE, _UNCLASSIFIED, (*_CURVE, "errors"), _ALERT),
    "StreamResult": Form(
        "Record of an alert from a stream that was classified.",
        (Classified,),
        (*_CURVE, "experts", "light_curve"),
        _ALERT,
        StreamHead,
    ),
    "StreamFailure": Form(
        "Record of an alert from a stream that the model does not classify.",
        (Abstained,),
        (*_CURVE, "errors", "light_curve"),
        _ALERT,
        StreamHead,
    ),
}
"""Results of ``/v1/classify`` and ``/v1/alerts``, and records of a stream, by the name of their schema."""
_REPLIES: Final[Mapping[str, Sequence[str]]] = {
    "ClassifyReply": ("CurveResult", "CurveFailure"),
    "AlertsReply": ("PacketResult", "PacketFailure"),
}


def components(names: Iterable[str], ref: str) -> dict[str, Schema]:
    """Return the JSON Schemas of forms and replies, and of what they refer to, by name.

    Parameters
    ----------
    ref : template of references, with ``{name}``.
    """
    declared = (Classified, *_UNCLASSIFIED, StreamHead, ClassifyReply, AlertsReply, EvolutionReply)
    schemas = msgspec.json.schema_components(declared, ref_template=ref)[1]
    schemas |= {name: _form_schema(name, form, schemas) for name, form in FORMS.items()}
    for reply, forms in _REPLIES.items():
        references = [{"$ref": ref.format(name=name)} for name in forms]
        schemas[reply]["properties"]["results"]["items"] = {"anyOf": references}
    found: dict[str, Schema] = {}
    pending: list[Any] = [{"$ref": ref.format(name=name)} for name in names]
    while pending:
        part = pending.pop()
        name = str(part.get("$ref", "")).rpartition("/")[2] if isinstance(part, dict) else ""
        if name and name not in found:
            found[name] = schemas[name]
            pending.append(schemas[name])
        pending += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return dict(sorted(found.items()))


def _form_schema(name: str, form: Form, schemas: Mapping[str, Schema]) -> Schema:
    heads = [schemas[kind.__name__] for kind in (form.head,) if kind is not None]
    first = schemas[form.kinds[0].__name__]
    properties: Schema = {}
    for schema in (*heads, first):
        properties = {**schema["properties"], **properties}  # the model of a record of a stream is its own
    properties = {field: schema for field, schema in properties.items() if field not in form.absent}
    statuses = [kind.status for kind in form.kinds]
    properties["status"] = {"type": "string"} | ({"enum": statuses} if statuses[1:] else {"const": statuses[0]})
    for field in form.present:
        properties[field] = _without_null(properties[field])
    required = {*form.present, *(field for schema in (*heads, first) for field in schema["required"])}
    return {
        "title": name,
        "description": form.description,
        "type": "object",
        "properties": properties,
        "required": [field for field in properties if field in required],
    }


def _without_null(schema: Schema) -> Schema:
    kind: Schema = next(kind for kind in schema["anyOf"] if kind != {"type": "null"})
    return kind | {name: value for name, value in schema.items() if name not in ("anyOf", "default")}


def json_schema(title: str, names: Sequence[str]) -> Schema:
    """Return the JSON Schema of a document that has one of several forms."""
    ref = "#/$defs/{name}"
    return {
        "title": title,
        "anyOf": [{"$ref": ref.format(name=name)} for name in names],
        "$defs": components(names, ref),
    }


def fields_of(*names: str) -> dict[str, Field]:
    """Return the fields of forms by their names in JSON, in the order of their declaration, without the status."""
    found: dict[str, Field] = {}
    for form in (FORMS[name] for name in names):
        for kind in (*((form.head,) if form.head else ()), form.kinds[0]):
            declared = {field.encode_name: field for field in _fields(kind)}
            found |= {name: field for name, field in declared.items() if name not in {*form.absent, *found}}
    return found


def _fields(kind: type[Record]) -> tuple[Field, ...]:
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, StructType)
    return info.fields


def descriptions(*kinds: type[Record]) -> dict[str, str]:
    """Return the description of each field of records by its name in Python."""
    fields = [field for kind in kinds for field in _fields(kind)]
    return {field.name: _description(field.type) for field in fields}


def plain_type(kind: Type) -> Type:
    """Return a type without its description and without null; of numbers or base64 the numbers."""
    while isinstance(kind, Metadata | UnionType):
        kind = kind.type if isinstance(kind, Metadata) else kind.types[0]
    return kind


def _description(kind: Type) -> str:
    return str((kind.extra_json_schema or {}).get("description", "")) if isinstance(kind, Metadata) else ""


def _can_be_null(kind: Type) -> bool:
    kind = kind.type if isinstance(kind, Metadata) else kind
    return isinstance(kind, UnionType) and any(isinstance(each, NoneType) for each in kind.types)


def arrow_type(kind: Type, arrow: Any) -> Any:
    """Return the Arrow type of a field.

    Parameters
    ----------
    arrow : the module pyarrow, which is optional.
    """
    match plain_type(kind):
        case StrType() | LiteralType():
            return arrow.string()
        case BoolType():
            return arrow.bool_()
        case IntType():
            return arrow.int64()
        case FloatType():
            return arrow.float64()
        case ListType(item_type=item):
            return arrow.list_(arrow_type(item, arrow))
        case DictType(value_type=value):
            return arrow.map_(arrow.string(), arrow_type(value, arrow))
        case StructType(fields=fields):
            return arrow.struct([(field.encode_name, arrow_type(field.type, arrow)) for field in fields])
        case other:
            raise TypeError(f"no Arrow type for {other}")


TABLE_COLUMNS: Final = (
    "object_id", "class", "confidence", "prediction_set", "unusual", "status", "reason", "detail", "pointer", "input",
    "warnings",
)  # fmt: skip
"""Columns of a table of results (CSV, Parquet, VOTable, data frame), named as the fields of the JSON."""
NOT_FIELDS: Final = ("status", "pointer", "input")
"""Columns without a field: the tag of a result, the pointer of its first error, and the file that it was read from."""
NOT_IN_TABLES: Final = (
    *_ALERT, "filters", "class_id", "probabilities", "hierarchy", "novelty", "coverage", "evidence", "points_per_band",
    "truncated", "metadata_missing", "duplicates", "other_filters", "dropped_points", "subtype", "embedding",
    "experts", "model", "light_curve", "errors",
)  # fmt: skip
"""Fields that only JSON Lines has; a table has probabilities in columns of their own if they are requested."""


def columns() -> dict[str, Type]:
    """Return the type of each column of a table of results; of warnings it has the reasons."""
    fields = fields_of("CurveResult", "CurveFailure")
    types = {name: field.type for name, field in fields.items()}
    types |= {**dict.fromkeys(NOT_FIELDS, StrType()), "warnings": ListType(StrType())}
    return {name: plain_type(types[name]) for name in TABLE_COLUMNS}


AVRO_NAMESPACE: Final = "nightjar.v1"
AVRO_FIELDS: Final = (
    "key", "topic", "mjd", "model", "status", *_ALERT, "object_id", "class", "class_id", "confidence", "probabilities",
    "hierarchy", "novelty", "unusual", "prediction_set", "coverage", "subtype", "evidence", "points_per_band",
    "truncated", "metadata_missing", "duplicates", "other_filters", "dropped_points", "evolution", "embedding",
    "reason", "detail",
)  # fmt: skip
"""Fields of ``stream-result-1.avsc`` in their order, which a published version keeps."""
_AVRO_NAMES: Final[Mapping[str, str]] = {"ClassifierProvenance": "Model", "EvolutionSummary": "Evolution"}


def avro_schema() -> Schema:
    """Return the Avro schema of a record of a stream: all fields, null where they are absent."""
    result, failure = fields_of("StreamResult"), fields_of("StreamFailure")
    both = (result | failure) | {"status": Field("status", "status", StrType())}
    always = {"status", *_ALERT, *(name for name in result if name in failure and both[name].required)}
    named: set[str] = set()
    return {
        "type": "record",
        "name": "StreamResult",
        "namespace": AVRO_NAMESPACE,
        "doc": "Result of one alert from a stream, classified or abstained. Fields that do not apply are null.",
        "fields": [_avro_field(both[name], name not in always, named) for name in AVRO_FIELDS],
    }


def _avro_field(field: Field, optional: bool, named: set[str]) -> Schema:
    number = "float" if field.name == "embedding" else "double"
    kind = _avro_type(field.type, number, named)
    nullable = optional or (field.required and _can_be_null(field.type))
    types = {"type": ["null", kind], "default": None} if nullable else {"type": kind}
    text = _description(field.type)
    return {"name": field.encode_name, **types} | ({"doc": text} if text else {})


def _avro_type(kind: Type, number: str, named: set[str]) -> Any:
    match plain_type(kind):
        case StrType() | LiteralType():
            return "string"
        case BoolType():
            return "boolean"
        case IntType():
            return "int"
        case FloatType():
            return number
        case ListType(item_type=item):
            return {"type": "array", "items": _avro_type(item, number, named)}
        case DictType(value_type=value):
            return {"type": "map", "values": _avro_type(value, number, named)}
        case StructType(cls=cls, fields=fields):
            name = _AVRO_NAMES.get(cls.__name__, cls.__name__)
            if name in named:  # a record is defined once
                return name
            named.add(name)
            return {
                "type": "record",
                "name": name,
                "fields": [_avro_field(field, not field.required, named) for field in fields],
            }
        case other:
            raise TypeError(f"no Avro type for {other}")
