"""The OpenAPI document: what FastAPI cannot see for itself, because bodies are read and replies written by hand."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from nightjar_alerts.service.answers.models import ModelsReply
from nightjar_alerts.service.answers.replies import AlertsReply, ClassifyReply
from nightjar_alerts.service.http.edge.errors import MEDIA_TYPE, UNAUTHORIZED, Kind, Problem
from nightjar_alerts.service.http.edge.middleware import is_guarded
from nightjar_alerts.service.http.formats import ARROW, JSON_TYPE, LINES, MSGPACK, available
from nightjar_alerts.service.http.forms import LightCurveIn, ManyCurves, OneCurve
from nightjar_alerts.service.http.oip import forms as oip
from nightjar_alerts.service.settings import Settings

Document = dict[str, Any]

REF = "#/components/schemas/{model}"
PACKET_TYPES = ("application/octet-stream", "application/avro", "avro/binary", JSON_TYPE)
MULTIPART_TYPES = ("multipart/form-data", "multipart/mixed")
_REQUESTS: tuple[type[BaseModel], ...] = (
    LightCurveIn, OneCurve, ManyCurves, oip.InferRequest
)  # fmt: skip
_REPLIES: tuple[type[BaseModel], ...] = (
    ClassifyReply, AlertsReply, ModelsReply, Problem, oip.InferReply, oip.ServerMetadata, oip.ModelMetadata,
    oip.ModelReady,
)  # fmt: skip

_BYTES = {"type": "string", "format": "binary", "minLength": 1}
_PARTS = {"type": "object", "minProperties": 1, "description": "each part is the bytes of one packet, under any name"}
_CURVE = {
    "object_id": "SN 2099zz",
    "mjd": [60310.12, 60313.09, 60317.21],
    "flux": [812.5, 2304.1, 4120.9],
    "flux_err": [110.2, 131.7, 140.3],
    "band": ["r", "g", "r"],
}


def _body(one: type[BaseModel], many: type[BaseModel], example: Document) -> Document:
    schema = {"anyOf": [{"$ref": REF.format(model=form.__name__)} for form in (one, many)]}
    return {"required": True, "content": {JSON_TYPE: {"schema": schema, "example": example}}}


_LINES = {"type": "string", "minLength": 1, "description": "JSON texts, each in a line of its own"}


def _other_formats(schema: Document) -> Document:
    """Describe JSON of a schema in the other formats; msgpack alone has the structure of JSON."""
    schemas = {**dict.fromkeys(MSGPACK, schema), LINES: _LINES, ARROW: _BYTES}
    return {each.media_type: {"schema": schemas[each]} for each in available().values() if each in schemas}


CLASSIFY_BODY = _body(OneCurve, ManyCurves, _CURVE | {"options": {"embedding": False}})
CLASSIFY_BODY["content"] |= _other_formats(CLASSIFY_BODY["content"][JSON_TYPE]["schema"])
ALERTS_BODY: Document = {
    "required": True,
    "description": "One packet as it left the survey, or several as the parts of a multipart body.",
    "content": {name: {"schema": _BYTES} for name in PACKET_TYPES}
    | {name: {"schema": _PARTS} for name in MULTIPART_TYPES},
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
    "description": "JSON, or JSON followed by the bytes of tensors as the binary tensor extension has it.",
    "content": {
        JSON_TYPE: {"schema": {"$ref": REF.format(model="InferRequest")}, "example": _TENSORS},
        PACKET_TYPES[0]: {"schema": _BYTES},
    },
}
INFER_REPLY: Document = {
    "description": "Outputs in the order asked; those sent as bytes follow the JSON part.",
    "content": {
        JSON_TYPE: {"schema": {"$ref": REF.format(model="InferReply")}},
        PACKET_TYPES[0]: {"schema": _BYTES},
    },
}


def problems(*kinds: Kind) -> dict[int | str, Document]:
    """Descriptions of problem replies, for a route's ``responses``."""
    content = {MEDIA_TYPE: {"schema": {"$ref": REF.format(model="Problem")}}}
    return {kind.status: {"description": kind.meaning, "content": content} for kind in kinds}


def reply(model: type[BaseModel], description: str) -> Document:
    """Describe a JSON reply, for a route's ``responses``."""
    schema = {"$ref": REF.format(model=model.__name__)}
    return {"description": description, "content": {JSON_TYPE: {"schema": schema}}}


CLASSIFY_REPLY = reply(ClassifyReply, "One result per light curve, in order; each has a status of its own.")
CLASSIFY_REPLY["content"] |= _other_formats(CLASSIFY_REPLY["content"][JSON_TYPE]["schema"])


def document(app: FastAPI, settings: Settings) -> Document:
    """Build the document of an application."""
    built = get_openapi(
        title=app.title, version=app.version, summary=app.summary, description=app.description, routes=app.routes
    )
    components = built.setdefault("components", {})
    components["schemas"] = components.get("schemas", {}) | _schemas()
    _tell_limits(built, settings)
    if settings.keys:
        _require_keys(built)
    return built


def _schemas() -> Document:
    models = [(model, "validation") for model in _REQUESTS] + [(model, "serialization") for model in _REPLIES]
    schemas: Document = models_json_schema(models, ref_template=REF)[1]["$defs"]  # type: ignore[arg-type]  # pydantic wants the literals, a list widens them
    return schemas


def _tell_limits(built: Document, settings: Settings) -> None:
    schemas = built["components"]["schemas"]
    schemas["ManyCurves"]["properties"]["light_curves"]["maxItems"] = settings.max_curves
    deadlines = [schemas["Options"]["properties"]["deadline_ms"]]
    for _, _, operation in operations(built):
        parameters = operation.get("parameters", ())
        deadlines += [each["schema"] for each in parameters if each["name"] == "deadline_ms"]
    for deadline in deadlines:
        deadline["anyOf"][0]["maximum"] = settings.max_deadline_ms


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
