"""Replies in a form that two runs share: decoded, long runs of numbers reduced, what differs between runs masked."""

import hashlib
import io
import json
import math
import re
from typing import Any

import fastavro
import msgspec
import numpy as np
import pyarrow as pa

from support.contract.requests import BUNDLED
from support.oip import TYPES

Masks = dict[str, str]
"""Texts of this run, such as a temporary folder, and what stands for them."""

TOLERANCE = 1e-5
LONGEST = 24  # members of a list; of a longer one are kept its length and a fingerprint
MOST_NAMED = 12  # the same of names with numbers
_SUMMARISED = {"metrics", "metadata_columns", "data"}  # of a bundle: their names are enough
_NAMED = re.compile(rf"({'|'.join(BUNDLED)})([-@ /]|/versions/)\d+\.\d+\.\d+")
_HEXES = re.compile(r"\b[0-9a-f]{32,64}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_STAMPS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*Z?")
_VARYING = re.compile(
    r"(.*(seconds|_ns|_ms|Timestamp)|since|ns|last_inference|retry_after|brokerVersion|server_version)$"
)
_UNSTABLE_HEADERS = {"date", "content-length", "x-request-id", "traceresponse", "server", "connection", "keep-alive"}
_NUMPY = {name: code for code, name in TYPES.items() if code != "O"}


def reply(status: int, headers: list[tuple[str, str]], body: bytes, masks: Masks) -> dict[str, Any]:
    """A reply as it is recorded."""
    told = {name.lower(): value for name, value in headers}
    kept = {
        name: re.sub(r"(;dur=)?\d+(\.\d+)?", "", value) if name in ("server-timing", "retry-after") else value
        for name, value in sorted(told.items())
        if name not in _UNSTABLE_HEADERS
    }
    if told.get("inference-header-content-length"):
        kept["inference-header-content-length"] = "#"
    kept.pop("x-content-type-options" if kept.get("x-content-type-options") == "nosniff" else "", None)
    told_in_short: dict[str, Any] = masked({"status": status, "headers": kept, "body": content(told, body)}, masks)
    return told_in_short


def content(headers: dict[str, str], body: bytes) -> Any:
    """A body, decoded as its media type says."""
    kind = headers.get("content-type", "").partition(";")[0]
    if length := headers.get("inference-header-content-length"):
        return _tensors(body, int(length))
    match kind:
        case "application/json" | "application/problem+json":
            document = json.loads(body)
            return _openapi(document) if "openapi" in document else document
        case "application/msgpack":
            return msgspec.msgpack.decode(body)
        case "application/x-ndjson":
            return [json.loads(line) for line in body.splitlines()]
        case "application/vnd.apache.arrow.stream":
            table = pa.ipc.open_stream(body).read_all()
            told = {key.decode(): json.loads(value) for key, value in (table.schema.metadata or {}).items()}
            types = {field.name: str(field.type)[:60] for field in table.schema}
            return {"metadata": told, "types": types, "rows": table.to_pylist()}
        case "text/html":
            return re.findall(r"<(?:h1|h2|title)>(.*?)</(?:h1|h2|title)>", body.decode())
        case "text/plain" | "application/openmetrics-text":
            return _families(body.decode())
    return body.decode(errors="replace")


def _tensors(body: bytes, length: int) -> Any:
    """A reply of the Open Inference Protocol whose tensors follow its JSON part."""
    document, data = json.loads(body[:length]), body[length:]
    for tensor in document["outputs"]:
        size = tensor.get("parameters", {}).get("binary_data_size")
        if size is not None:
            tensor["data"] = _values(tensor["datatype"], data[:size])
            data = data[size:]
    assert not data
    return document


def _values(datatype: str, data: bytes) -> list[Any]:
    if datatype != "BYTES":
        values: list[Any] = np.frombuffer(data, _NUMPY[datatype]).tolist()
        return values
    texts = []
    while data:
        size = int.from_bytes(data[:4], "little")
        texts.append(data[4 : 4 + size].decode())
        data = data[4 + size :]
    return texts


def _openapi(document: dict[str, Any]) -> Any:
    """Routes and, of each, parameters, media types and statuses; the models' names."""
    return {
        "superset": sorted(
            f"{method.upper()} {path} {kind} {what}"
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
            for kind, found in (
                ("parameter", [one.get("name", "") for one in operation.get("parameters", [])]),
                ("body", list(operation.get("requestBody", {}).get("content", {}))),
                ("status", list(operation["responses"])),
            )
            for what in found
        )
    }


def _families(text: str) -> Any:
    """Names and types of metrics, with the names of their labels."""
    found = {match.group(1): {match.group(2)} for match in re.finditer(r"^# TYPE (\S+) (\S+)$", text, re.M)}
    for match in re.finditer(r"^([a-z_:0-9]+?)(?:_bucket|_sum|_count|_total|_created)?\{(.*)\} ", text, re.M):
        for name in (match.group(1), f"{match.group(1)}_total"):
            if name in found:
                found[name] |= set(re.findall(r'(\w+)="', match.group(2))) - {"le"}
    ours = {name: told for name, told in found.items() if name.startswith("nightjar")}
    return {"superset": sorted(f"{name} {word}" for name, told in ours.items() for word in told)}


def avro(schema: Any, value: bytes) -> Any:
    """A record without its schema."""
    return fastavro.schemaless_reader(io.BytesIO(value), schema, None)


def masked(value: Any, masks: Masks) -> Any:
    """A value with stand-ins for what differs between runs, and short lists of numbers."""
    if isinstance(value, dict):
        return _dict(value, masks)
    if isinstance(value, bytes):
        return masked(list(np.frombuffer(value, np.uint8 if len(value) % 4 else "<f4").tolist()), masks)
    if isinstance(value, list | tuple):
        return _list(list(value), masks)
    if isinstance(value, str):
        return _text(value, masks)
    if isinstance(value, float):
        return repr(value) if not math.isfinite(value) else float(f"{value:.7g}")
    return value


def _dict(value: dict[Any, Any], masks: Masks) -> Any:
    if "superset" in value:
        return value
    if {"count", "p10", "p99"} <= value.keys():
        return {"distribution of": value["count"]}
    if len(value) > MOST_NAMED and all(isinstance(one, float) for one in value.values()):
        largest = sorted(value, key=lambda name: -float(value[name]))[:3]
        kept = {name: float(f"{value[name]:.7g}") for name in largest}
        return {
            "names": hashlib.sha256("/".join(value).encode()).hexdigest()[:8],
            **_print(list(value.values())),
            **kept,
        }
    return {str(name): _member(value, str(name), one, masks) for name, one in value.items()}


def _member(owner: dict[Any, Any], name: str, value: Any, masks: Masks) -> Any:
    if name in ("version", "model_version") and {owner.get("name"), owner.get("model_name")} & set(BUNDLED):
        return "<version>"
    if name == "versions" and owner.get("name") in BUNDLED:
        return ["<version>"]
    if name in _SUMMARISED and isinstance(value, dict | list) and not _numbers(value):
        return {"names": sorted(map(str, value))[:8], "count": len(value)}
    if _VARYING.match(name) and not isinstance(value, bool | dict | list | None):
        return "<varies>"
    return "<id>" if name == "request_id" else masked(value, masks)


def _numbers(value: dict[Any, Any] | list[Any]) -> bool:
    """Return whether a value lists numbers, whose last digits differ between machines."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, float) for one in value)


def _print(values: list[Any]) -> dict[str, float]:
    """Length and a fingerprint of many numbers: their norm, and their alternating sum in units of it."""
    finite = [float(value) for value in values if math.isfinite(value)]
    norm = math.sqrt(sum(value**2 for value in finite)) or 1.0
    turned = sum((-1) ** place * value for place, value in enumerate(finite)) / norm
    return {"count": len(values), "finite": len(finite), "norm": float(f"{norm:.7g}"), "turned": round(turned, 7)}


def _list(values: list[Any], masks: Masks) -> Any:
    if len(values) > LONGEST and all(isinstance(value, int | float) for value in values):
        return _print(values)
    if len(values) > LONGEST and all(isinstance(value, str) for value in values):
        return {"texts": len(values), "first": masked(values[:3], masks)}
    if len(values) > LONGEST and all(value == values[0] for value in values):
        return {"times": len(values), "each": masked(values[0], masks)}
    return [masked(value, masks) for value in values]


def _text(text: str, masks: Masks) -> str:
    for found, stand_in in masks.items():
        text = text.replace(found, stand_in)
    text = _NAMED.sub(r"\1\2<version>", text)
    text = _STAMPS.sub("<time>", _HEXES.sub("<hex>", text))
    return text if len(text) <= 240 else f"{text[:200]}... {len(text)} characters"


def differences(recorded: Any, found: Any, place: str = "") -> list[str]:
    """Paths at which two recorded replies differ; numbers may by :data:`TOLERANCE`."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        if "superset" in recorded:
            missing = sorted(set(recorded["superset"]) - set(found.get("superset", [])))
            return [f"{place}: missing {name}" for name in missing]
        wrong = [f"{place}/{name}: missing" for name in recorded if name not in found]
        wrong += [f"{place}/{name}: new" for name in found if name not in recorded]
        shared = [name for name in recorded if name in found]
        return wrong + [line for name in shared for line in differences(recorded[name], found[name], f"{place}/{name}")]
    if isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
        pairs = enumerate(zip(recorded, found, strict=True))
        return [line for index, (one, other) in pairs for line in differences(one, other, f"{place}/{index}")]
    return [] if _equal(recorded, found) else [f"{place}: {recorded!r} became {found!r}"]


def _equal(recorded: Any, found: Any) -> bool:
    if isinstance(recorded, bool | str | None) or isinstance(found, bool | str | None):
        return bool(recorded == found)
    if isinstance(recorded, int | float) and isinstance(found, int | float):
        return math.isclose(recorded, found, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(recorded == found)
