"""Recorded form of an output: decoded, long columns summarised, wording and what differs between runs masked."""

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

from support.contract.cases import BUNDLED
from support.oip import TYPES

Masks = dict[str, str]
"""Texts of this run, such as the path of a temporary folder, and what replaces them."""

TOLERANCE = 1e-5
LONGEST_LIST = 24
"""Members of a list; of a longer list of numbers or texts, length and fingerprint are kept."""
MOST_NAMED = 12
"""Members of an object of numbers that are kept one by one."""

_WORDING = {
    "title", "detail", "meaning", "error", "coverage_measured_on", "nightjar-dead-detail", "h:nightjar-dead-detail",
}  # fmt: skip
"""Members whose text is for people."""
_VARYING = re.compile(
    r"(.*(seconds|_ns|_ms|Timestamp)|since|ns|last_inference|retry_after|brokerVersion|server_version|request_id|.*dead-timestamp)$"
)
_SUMMARISED = {"metrics", "metadata_columns", "data"}
"""Members of a bundle of which the names are kept."""
_NAMED_VERSION = re.compile(rf"({'|'.join(BUNDLED)})([-@ /]|/versions/)\d+\.\d+\.\d+")
_HEX = re.compile(r"\b[0-9a-f]{32,64}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*Z?")
_REMOVED_HEADERS = {
    "date", "content-length", "x-request-id", "traceresponse", "server", "connection", "keep-alive", "cache-status",
}  # fmt: skip
_MASKED_HEADERS = {
    "server-timing", "retry-after", "inference-header-content-length", "content-security-policy", "etag",
}  # fmt: skip
_REMOVED_METRICS = {"nightjar_cache_errors_total"}
_NUMPY = {name: code for code, name in TYPES.items() if code != "O"}


def response(status: int, headers: list[tuple[str, str]], body: bytes, masks: Masks) -> Any:
    """Recorded form of an HTTP response."""
    lower = {name.lower(): value for name, value in headers}
    kept = {
        name: "<value>" if name in _MASKED_HEADERS else value
        for name, value in sorted(lower.items())
        if name not in _REMOVED_HEADERS
    }
    if "content-type" in kept:
        kept["content-type"] = re.sub(r"version=[\d.]+", "version=<version>", kept["content-type"])
    return masked({"status": status, "headers": kept, "body": _decoded(lower, body)}, masks)


def _decoded(headers: dict[str, str], body: bytes) -> Any:
    """A body, decoded as its media type says."""
    kind = headers.get("content-type", "").partition(";")[0]
    if length := headers.get("inference-header-content-length"):
        return _tensors(body, int(length))
    match kind:
        case "application/json" | "application/problem+json":
            document = json.loads(body)
            return "<OpenAPI document>" if "openapi" in document else document
        case "application/msgpack" | "application/vnd.msgpack":
            return msgspec.msgpack.decode(body)
        case "application/x-ndjson":
            return [json.loads(line) for line in body.splitlines()]
        case "application/vnd.apache.arrow.stream":
            table = pa.ipc.open_stream(body).read_all()
            metadata = {key.decode(): json.loads(value) for key, value in (table.schema.metadata or {}).items()}
            types = {column.name: str(column.type)[:60] for column in table.schema}
            return {"metadata": metadata, "types": types, "rows": table.to_pylist()}
        case "text/html":
            return "<page>"
        case "text/plain" | "application/openmetrics-text":
            return _metrics(body.decode()) if b"# TYPE" in body else "<text>"
    return body.decode(errors="replace")


def _tensors(body: bytes, length: int) -> Any:
    """A response of the Open Inference Protocol whose tensors follow its JSON part."""
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


def _metrics(text: str) -> Any:
    """Names and types of Nightjar's metrics, and the names of their labels; more of them make no difference."""
    families = {match.group(1): {match.group(2)} for match in re.finditer(r"^# TYPE (\S+) (\S+)$", text, re.M)}
    for match in re.finditer(r"^([a-z_:0-9]+?)(?:_bucket|_sum|_count|_total|_created)?\{(.*)\} ", text, re.M):
        for name in (match.group(1), f"{match.group(1)}_total"):
            if name in families:
                families[name] |= set(re.findall(r'(\w+)="', match.group(2))) - {"le"}
    kept = {
        name: words
        for name, words in families.items()
        if name.startswith("nightjar") and not name.endswith("_created") and name not in _REMOVED_METRICS
    }
    return {"superset": sorted(f"{name} {word}" for name, words in kept.items() for word in words)}


def avro(schema: Any, value: bytes) -> Any:
    """A record without its schema."""
    return fastavro.schemaless_reader(io.BytesIO(value), schema, None)


def masked(value: Any, masks: Masks) -> Any:
    """A value without what differs between runs, long lists summarised."""
    if isinstance(value, dict):
        return _dict(value, masks)
    if isinstance(value, bytes):
        return masked(np.frombuffer(value, np.uint8 if len(value) % 4 else "<f4").tolist(), masks)
    if isinstance(value, list | tuple):
        return _list(list(value), masks)
    if isinstance(value, str):
        return _text(value, masks)
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _dict(value: dict[Any, Any], masks: Masks) -> Any:
    if "superset" in value:
        return value
    if {"count", "p10", "p99"} <= value.keys():
        return {"distribution of": value["count"]}
    if len(value) > MOST_NAMED and all(isinstance(number, float) for number in value.values()):
        largest = sorted(value, key=lambda name: -float(value[name]))[:3]
        names = hashlib.sha256("/".join(value).encode()).hexdigest()[:8]
        return {"names": names, **_fingerprint(list(value.values())), **{name: value[name] for name in largest}}
    return {str(name): _member(value, str(name), member, masks) for name, member in value.items()}


def _member(owner: dict[Any, Any], name: str, value: Any, masks: Masks) -> Any:
    if name in ("version", "model_version") and {owner.get("name"), owner.get("model_name")} & {*BUNDLED, "nightjar"}:
        return "<version>"
    if name == "versions" and owner.get("name") in BUNDLED:
        return ["<version>"]
    if name == "extensions" and owner.get("name") == "nightjar":
        return "<extensions>"
    if isinstance(value, str) and (name in _WORDING or (name == "reason" and " " in value)):
        return "<text>"
    if name == "data" and "datatype" in owner:
        return "<text>" if owner["name"] == "detail" else masked(value, masks)
    if name in _SUMMARISED and isinstance(value, dict | list) and not _are_numbers(value):
        return {"names": sorted(map(str, value))[:8], "count": len(value)}
    if _VARYING.match(name) and not isinstance(value, bool | dict | list | None):
        return "<varies>"
    return masked(value, masks)


def _are_numbers(value: dict[Any, Any] | list[Any]) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(member, float) for member in value)


def _fingerprint(values: list[Any]) -> dict[str, float]:
    """Length of a list of numbers, their norm, and their alternating sum in units of it."""
    finite = [float(value) for value in values if math.isfinite(value)]
    norm = math.sqrt(sum(value**2 for value in finite))
    alternating = sum((-1) ** index * value for index, value in enumerate(finite)) / (norm or 1.0)
    return {"count": len(values), "finite": len(finite), "norm": norm, "alternating": alternating}


def _list(values: list[Any], masks: Masks) -> Any:
    values = [value for value in values if not (isinstance(value, dict) and value.get("state") == "leaving")]
    if len(values) > LONGEST_LIST:
        if all(isinstance(value, int | float) for value in values):
            return _fingerprint(values)
        if all(isinstance(value, str) for value in values):
            return {"texts": len(values), "first": masked(values[:3], masks)}
        if all(value == values[0] for value in values):
            return {"times": len(values), "each": masked(values[0], masks)}
    return [masked(value, masks) for value in values]


def _text(text: str, masks: Masks) -> str:
    for found, replacement in masks.items():
        text = text.replace(found, replacement)
    text = _NAMED_VERSION.sub(r"\1\2<version>", text)
    text = _TIME.sub("<time>", _HEX.sub("<hex>", text))
    return text if len(text) <= 240 else f"{text[:200]}... {len(text)} characters"


def differences(recorded: Any, found: Any, tolerance: float = TOLERANCE, path: str = "") -> list[str]:
    """Paths at which two recorded outputs differ; numbers may differ by a tolerance, absolute and relative."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        if "superset" in recorded:
            missing = sorted(set(recorded["superset"]) - set(found.get("superset", [])))
            return [f"{path}: missing {name}" for name in missing]
        wrong = [f"{path}/{name}: missing" for name in recorded if name not in found]
        wrong += [f"{path}/{name}: new" for name in found if name not in recorded]
        for name in recorded:
            if name in found:
                wrong += differences(recorded[name], found[name], tolerance, f"{path}/{name}")
        return wrong
    if isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
        pairs = enumerate(zip(recorded, found, strict=True))
        return [line for index, pair in pairs for line in differences(*pair, tolerance, f"{path}/{index}")]
    return [] if _equal(recorded, found, tolerance) else [f"{path}: {recorded!r} became {found!r}"]


def _equal(recorded: Any, found: Any, tolerance: float) -> bool:
    numbers = (int, float)
    if isinstance(recorded, bool) or isinstance(found, bool):
        return recorded is found
    if isinstance(recorded, numbers) and isinstance(found, numbers):
        return math.isclose(recorded, found, rel_tol=tolerance, abs_tol=tolerance)
    return bool(recorded == found)
