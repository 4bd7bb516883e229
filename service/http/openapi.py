"""OpenAPI document: schemas of request bodies, which handlers decode themselves, and of responses."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from msgspec import Struct
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from nightjar_alerts.core.request import BatchClassifyRequest, ClassifyRequest
from nightjar_alerts.core.result import ClassifyReply
from nightjar_alerts.core.schemas import components
from nightjar_alerts.service.answers.models import ClassifierDescription, ModelsReply
from nightjar_alerts.service.http.edge.admission import is_guarded
from nightjar_alerts.service.http.edge.errors import FORBIDDEN, MEDIA_TYPE, UNAUTHORIZED, Problem, ProblemKind
from nightjar_alerts.service.http.formats import ARROW_TYPE, JSON_TYPE, MSGPACK_TYPES, NDJSON_TYPE, is_available
from nightjar_alerts.service.http.oip import schemas as oip
from nightjar_alerts.service.settings import Settings

Document = dict[str, Any]

REF = "#/components/schemas/{model}"
PACKET_TYPES = ("application/octet-stream", "application/avro", "avro/binary", JSON_TYPE)
MULTIPART_TYPES = ("multipart/form-data", "multipart/mixed")
_REQUESTS: tuple[type[BaseModel], ...] = (oip.InferRequest,)
_STRUCTS = (ClassifyRequest, BatchClassifyRequest)
_REPLIES: tuple[type[BaseModel], ...] = (
    ClassifierDescription, ModelsReply, Problem, oip.InferReply, oip.ServerMetadata, oip.ModelMetadata, oip.ModelReady,
)  # fmt: skip
_RESULTS = ("ClassifyReply", "AlertsReply", "EvolutionReply")

_BYTES = {"type": "string", "format": "binary", "minLength": 1}
_PARTS = {"type": "object", "minProperties": 1, "description": "each part is one packet, under any name"}
_CURVE = {
    "object_id": "SN 2099zz",
    "mjd": [60310.12, 60313.09, 60317.21],
    "flux": [812.5, 2304.1, 4120.9],
    "flux_err": [110.2, 131.7, 140.3],
    "band": ["r", "g", "r"],
}


def _body(one: type[Struct], many: type[Struct], example: Document) -> Document:
    schema = {"anyOf": [{"$ref": REF.format(model=form.__name__)} for form in (one, many)]}
    return {"required": True, "content": {JSON_TYPE: {"schema": schema, "example": example}}}


_NDJSON = {"type": "string", "minLength": 1, "description": "JSON documents, one per line"}


def _other_formats(schema: Document) -> Document:
    """Describe a JSON schema in the other formats; only msgpack has the structure of JSON."""
    schemas = {**dict.fromkeys(MSGPACK_TYPES, schema), NDJSON_TYPE: _NDJSON, ARROW_TYPE: _BYTES}
    return {name: {"schema": schema} for name, schema in schemas.items() if is_available(name)}


CLASSIFY_BODY = _body(ClassifyRequest, BatchClassifyRequest, _CURVE | {"options": {"embedding": False}})
CLASSIFY_BODY["content"] |= _other_formats(CLASSIFY_BODY["content"][JSON_TYPE]["schema"])
_ALERT = {
    "diaObject": {"diaObjectId": 25401295582003275},
    "diaSource": {
        "diaSourceId": 25409136044802131, "midpointMjdTai": 60317.21, "band": "r", "psfFlux": 4120.9,
        "psfFluxErr": 140.3,
    },
    "prvDiaSources": [
        {"diaSourceId": 25409136044802001, "midpointMjdTai": mjd, "band": band, "psfFlux": flux, "psfFluxErr": error}
        for mjd, band, flux, error in ((60310.12, "r", 812.5, 110.2), (60313.09, "g", 2304.1, 131.7))
    ],
}  # fmt: skip
ALERTS_BODY: Document = {
    "required": True,
    "description": "One unchanged packet, or several as a JSON list or the parts of a multipart body.",
    "content": {JSON_TYPE: {"schema": {"type": ["object", "array"]}, "example": _ALERT}}
    | {name: {"schema": _BYTES} for name in PACKET_TYPES if name != JSON_TYPE}
    | {name: {"schema": _PARTS} for name in MULTIPART_TYPES},
}
EVOLUTION_BODY: Document = {
    "required": True,
    "description": "One light curve, or one packet as the survey sent it.",
    "content": {
        JSON_TYPE: {"schema": {"$ref": REF.format(model="ClassifyRequest")}, "example": _CURVE},
        **{name: {"schema": {"$ref": REF.format(model="ClassifyRequest")}} for name in MSGPACK_TYPES},
        **{name: {"schema": _BYTES} for name in PACKET_TYPES if name != JSON_TYPE},
    },
}
_TABLE = "object_id,mjd,band,flux,flux_err\n" + "".join(
    f"SN 2099zz,{mjd},{band},{flux},{error}\n"
    for mjd, band, flux, error in zip(_CURVE["mjd"], _CURVE["band"], _CURVE["flux"], _CURVE["flux_err"], strict=True)
)
TABLE_BODY: Document = {
    "required": True,
    "description": "A table of light curves as CSV, text, JSON or JSON Lines; the content says which, or the `name` of "
    "the file. Other formats are a problem (415).",
    "content": {
        "text/csv": {"schema": {"type": "string", "minLength": 1}, "example": _TABLE},
        PACKET_TYPES[0]: {"schema": _BYTES},
    },
}
_LINES = (
    {"model": {"name": "astro-moe-elasticc"}, "table": {"columns": {"time": "mjd"}, "guesses": []}},
    {"status": "classified", "object_id": "SN 2099zz", "class": "Ia", "confidence": 0.71},
    {"summary": {"objects": 1, "points": 3, "unused_points": {}}},
)
TABLE_REPLY: Document = {
    "description": "NDJSON: `model` and `table` with the guesses, a result for each object, and `summary` with counts. "
    "The example is shortened.",
    "content": {NDJSON_TYPE: {"schema": _NDJSON, "example": "".join(json.dumps(line) + "\n" for line in _LINES)}},
}

_TENSORS = {
    "id": "1",
    "inputs": [
        {"name": name, "datatype": datatype, "shape": [3], "data": _CURVE[name]}
        for name, datatype in (("mjd", "FP64"), ("flux", "FP32"), ("flux_err", "FP32"), ("band", "BYTES"))
    ],
    "outputs": [{"name": "probabilities"}, {"name": "status"}],
}
INFER_BODY: Document = {
    "required": True,
    "description": "JSON, or JSON followed by tensors as bytes (binary tensor extension).",
    "content": {
        JSON_TYPE: {"schema": {"$ref": REF.format(model="InferRequest")}, "example": _TENSORS},
        PACKET_TYPES[0]: {"schema": _BYTES},
    },
}
INFER_REPLY: Document = {
    "description": "Outputs in the order of the request; those sent as bytes follow the JSON part.",
    "content": {
        JSON_TYPE: {"schema": {"$ref": REF.format(model="InferReply")}},
        PACKET_TYPES[0]: {"schema": _BYTES},
    },
}


def problems(*kinds: ProblemKind) -> dict[int | str, Document]:
    """Describe problem documents, for a route's ``responses``."""
    content = {MEDIA_TYPE: {"schema": {"$ref": REF.format(model="Problem")}}}
    return {kind.status: {"description": kind.meaning, "content": content} for kind in kinds}


def reply(model: type[BaseModel | Struct], description: str) -> Document:
    """Describe a JSON response, for a route's ``responses``."""
    schema = {"$ref": REF.format(model=model.__name__)}
    return {"description": description, "content": {JSON_TYPE: {"schema": schema}}}


CLASSIFY_REPLY = reply(ClassifyReply, "One result per light curve, in order; each has a status of its own.")
CLASSIFY_REPLY["content"] |= _other_formats(CLASSIFY_REPLY["content"][JSON_TYPE]["schema"])


def document(app: FastAPI, settings: Settings) -> Document:
    """Build the document of an application."""
    built = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
        servers=[{"url": settings.root_path}] if settings.root_path else None,
    )
    components = built.setdefault("components", {})
    components["schemas"] = components.get("schemas", {}) | _schemas()
    _add_limits(built, settings)
    if settings.keys:
        _require_keys(built)
    else:
        for _, _, operation in operations(built):
            operation["responses"] |= {str(status): problem for status, problem in problems(FORBIDDEN).items()}
    return built


def _schemas() -> Document:
    models = [(model, "validation") for model in _REQUESTS] + [(model, "serialization") for model in _REPLIES]
    schemas: Document = models_json_schema(models, ref_template=REF)[1]["$defs"]  # type: ignore[arg-type]  # pydantic wants the literals, a list widens them
    results = {
        name: schema | {"additionalProperties": False}
        for name, schema in components(_RESULTS, REF.format(model="{name}")).items()
    }
    structs = msgspec.json.schema_components(_STRUCTS, ref_template=REF.format(model="{name}"))[1]
    return results | schemas | {name: _without_bytes(schema) for name, schema in structs.items()}


def _without_bytes(schema: Any) -> Any:
    """Return a schema without bytes as an alternative to lists, which are for msgpack only."""
    if isinstance(schema, list):
        return [_without_bytes(element) for element in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _without_bytes(value) for name, value in schema.items()}
    if "anyOf" in found:
        kinds = [kind for kind in found["anyOf"] if "contentEncoding" not in kind]
        if {"type": "number"} in kinds:  # includes integers
            kinds = [kind for kind in kinds if kind != {"type": "integer"}]
        found["anyOf"] = kinds
        if len(kinds) == 1:
            del found["anyOf"]
            found = kinds[0] | found if "$ref" not in kinds[0] else found | kinds[0]
    return found


def query_parameters(form: type[Struct]) -> list[Document]:
    """Describe the fields of a struct as query parameters; values with several types are text."""
    schema = _without_bytes(msgspec.json.schema(form))["$defs"][form.__name__]
    parameters = []
    for name, field in schema["properties"].items():
        kinds = [kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null"]
        kind = {"type": "string"} if len(kinds) > 1 else dict(kinds[0])
        description = field.get("description", "")
        if name == "prior":
            description += "; weights are the text of a JSON object"
        kind.pop("description", None)
        kind.pop("default", None)
        parameters.append({"name": name, "in": "query", "required": False, "description": description, "schema": kind})
    return parameters


def _add_limits(built: Document, settings: Settings) -> None:
    schemas = built["components"]["schemas"]
    schemas["BatchClassifyRequest"]["properties"]["light_curves"]["maxItems"] = settings.max_curves
    schemas["Options"]["properties"]["deadline_ms"]["anyOf"][0]["maximum"] = settings.max_deadline_ms
    for _, _, operation in operations(built):
        for parameter in operation.get("parameters", ()):
            if parameter["name"] == "deadline_ms":
                parameter["schema"]["maximum"] = settings.max_deadline_ms


def _require_keys(built: Document) -> None:
    built["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    for _, path, operation in operations(built):
        if is_guarded(path):
            operation["security"] = [{"bearer": []}, {"key": []}]
            operation["responses"] |= {str(status): problem for status, problem in problems(UNAUTHORIZED).items()}


def operations(built: Document) -> Sequence[tuple[str, str, Document]]:
    """Return (method, path, operation) of every operation in a document."""
    return [
        (method.upper(), path, operation)
        for path, methods in built["paths"].items()
        for method, operation in methods.items()
    ]
