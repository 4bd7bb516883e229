"""Requests of the contract, by the server that gets them: every route, format, kind of error and admin call."""

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from support import alerts
from support.contract.inputs import (
    BAD_CURVES,
    GOOD_CURVES,
    METADATA,
    PACKED_BAD_CURVES,
    PACKETS,
    Curve,
    faint,
    multipart,
    supernova,
    variable,
)
from support.oip import JSON_LENGTH, binary_body, json_body
from support.wire import arrow_stream, arrow_table, lines_body, msgpack_body, packed

KEY, OLD_KEY, ADMIN_KEY = "contract key", "old key", "admin key"
METERED_KEY, FEW_CURVES_KEY = "metered key", "key of few curves"
JSON, OCTETS, LINES = "application/json", "application/octet-stream", "application/x-ndjson"
ARROW, MSGPACK = "application/vnd.apache.arrow.stream", "application/msgpack"
BUNDLED = ("astro-moe-elasticc", "astro-moe-ztf", "romae-elasticc")
SMALL = "counter"


@dataclass(frozen=True)
class Case:
    """One request.

    Parameters
    ----------
    method : HTTP method, or ``SIGTERM`` to terminate the process instead of asking it.
    port : interface that gets the request, ``http`` or ``admin``.
    until : pattern that the body matches when the request need not be repeated any more.
    """

    name: str
    method: str
    path: str
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    port: str = "http"
    until: str = ""


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): text for name, text in headers.items()}


def get(path: str, name: str = "", port: str = "http", **headers: str) -> Case:
    """A request without a body."""
    return Case(name or f"GET {path}", "GET", path, None, _named(headers), port)


def post(name: str, path: str, body: Any, kind: str = JSON, **headers: str) -> Case:
    """A request with a body; anything but bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Case(name, "POST", path, data, {"Content-Type": kind} | _named(headers))


def classify(name: str, body: Any, query: str = "", kind: str = JSON, **headers: str) -> Case:
    """A request to classify light curves."""
    return post(f"classify: {name}", f"/v1/classify{query}", body, kind, **headers)


def alert(name: str, body: bytes, query: str = "", kind: str = OCTETS, **headers: str) -> Case:
    """A request to classify alert packets."""
    return post(f"alerts: {name}", f"/v1/alerts{query}", body, kind, **headers)


def infer(name: str, model: str, arrays: Mapping[str, Any], **members: Any) -> Case:
    """An inference request in JSON."""
    return post(f"infer: {name}", f"/v2/models/{model}/infer", json_body(arrays, **members))


def infer_binary(name: str, model: str, arrays: Mapping[str, Any], **members: Any) -> Case:
    """An inference request with binary tensors."""
    body, length = binary_body(arrays, **members)
    return post(f"infer: {name}", f"/v2/models/{model}/infer", body, OCTETS, **{JSON_LENGTH: str(length)})


def admin(method: str, path: str, body: Any = None, until: str = "", **headers: str) -> Case:
    """A request to the admin API; bytes are sent as they are."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    kind = {} if body is None else {"Content-Type": JSON}
    shown = "" if body is None else str(body)
    return Case(f"{method} {path} {shown}".strip(), method, path, data, kind | _named(headers), "admin", until)


def _classify_bundled() -> Iterable[Case]:
    many = {"light_curves": [supernova(), variable(), faint()], "options": {"embedding": True}}
    yield classify("one", supernova())
    yield classify("the same again", supernova())
    yield classify("three with embeddings", many)
    yield classify("metadata", supernova(metadata=METADATA))
    yield classify("coverage 0.8", supernova(options={"coverage": 0.8}))
    yield classify("prior by name", supernova(options={"prior": "lsst-alerts"}))
    yield classify("prior by weights", supernova(options={"prior": {"Ia": 3, "RR Lyrae": 1.0}}))
    yield classify("unknown prior", supernova(options={"prior": "no-such-prior"}))
    yield classify("prior of an unknown class", supernova(options={"prior": {"no such class": 1}}))
    yield classify("prior without weight", supernova(options={"prior": {"Ia": 0}}))
    for survey in ("lsst", "ztf", "atlas", "gaia", "unknown-survey"):
        yield classify(f"survey {survey}", variable(survey=survey))
    yield classify("surveys mixed", {"light_curves": [supernova(), variable(survey="ztf"), faint()]})
    yield classify("other filters", variable(survey="atlas", band=["co"[index % 2] for index in range(160)]))
    for name in BUNDLED:
        yield classify(f"model {name}", supernova(), f"?model={name}&embedding=true")
    yield classify("model alias ztf", variable(), "?model=ztf")
    yield classify("unknown model", supernova(), "?model=nobody")
    yield classify("invalid model name", supernova(), "?model=No%20Body")
    yield classify("msgpack", msgpack_body([supernova(), variable()], {"embedding": True}), kind=MSGPACK)
    yield classify("arrow", arrow_stream(arrow_table([supernova(), faint()])), "?embedding=true", ARROW)
    yield classify("lines", lines_body([supernova(), "no curve", faint(), {}]), "?embedding=true", LINES)
    yield classify("deadline header", supernova(), Nightjar_Deadline_Ms="20000")
    yield classify("invalid deadline header", supernova(), Nightjar_Deadline_Ms="soon")
    late = [variable(161 + index) for index in range(200)]
    yield classify("deadline passed", {"light_curves": late}, "?deadline_ms=1")
    yield classify("1001 curves", {"light_curves": [{}] * 1001})


def _alerts_bundled() -> Iterable[Case]:
    several, kind = multipart([PACKETS["ztf 4.02 container"], b"\x00nonsense", PACKETS["lsst 10.0 framed"]])
    mixed, mixed_kind = multipart([PACKETS["elasticc 0.9.1 bare"], PACKETS["solar system object"]], "mixed")
    bare = PACKETS["elasticc 0.9.1 bare"]
    yield from (alert(name, packet) for name, packet in PACKETS.items())
    yield alert("multipart", several, "?embedding=true", kind)
    yield alert("multipart/mixed", mixed, "", mixed_kind)
    yield alert("multipart cut short", several[:-20], "", kind)
    yield alert("multipart without parts", b"--XX--\r\n", "", kind)
    yield alert("multipart without boundary", b"x", "", "multipart/form-data")
    yield alert("named schema", bare, "?schema=elasticc/0.9.1", "avro/binary")
    yield alert("wrong schema", PACKETS["lsst 10.0 framed"], "?schema=elasticc/0.9.1")
    yield alert("unknown schema", bare, "?schema=elasticc/9.9")
    yield alert("model", PACKETS["lsst 11.1 framed"], "?model=romae-elasticc")
    yield alert("unknown model", bare, "?model=nobody")
    yield alert("prior", bare, "?prior=lsst-alerts")
    yield alert("unknown prior", bare, "?prior=no-such-prior")
    yield alert("empty", b"")
    yield alert("other type", b"x", "", "text/plain")
    yield alert("wrong parameters", b"x", "?embedding=perhaps&deadline_ms=0")
    yield alert("unknown parameter", b"x", "?schemaa=x")
    yield alert("container of three", alerts.container("ztf/4.02", [alerts.ztf_alert()] * 3))
    yield alert("deadline too long", bare, "?deadline_ms=999999999")


def tensors(count: int = 2) -> dict[str, Any]:
    """Light curves as tensors of the Open Inference Protocol."""
    curves = [supernova(8 + index, str(index)) for index in range(count)]
    return {
        "mjd": np.concatenate([curve["mjd"] for curve in curves]),
        "flux": np.concatenate([curve["flux"] for curve in curves]).astype(np.float32),
        "flux_err": np.concatenate([curve["flux_err"] for curve in curves]).astype(np.float32),
        "band": np.array([band.encode() for curve in curves for band in curve["band"]], object),
        "offsets": np.cumsum([0] + [len(curve["mjd"]) for curve in curves]),
    }


_OUTPUTS = [{"name": name} for name in ("probabilities", "embedding", "status", "reason", "object_id")]


def _infer_bundled() -> Iterable[Case]:
    arrays = tensors()
    for name in BUNDLED:
        yield infer(f"JSON {name}", name, arrays, id="7", outputs=_OUTPUTS)
    yield infer_binary("binary", BUNDLED[0], arrays, parameters={"binary_data_output": True}, outputs=_OUTPUTS)
    yield infer_binary("binary in, JSON out", BUNDLED[2], arrays)
    yield infer("by alias", "ztf", arrays)


def _pages() -> Iterable[Case]:
    for path in ("/", "/docs", "/openapi.json", "/healthz", "/readyz", "/startupz", "/nowhere", "/v1/nowhere"):
        yield get(path)
    for kind in ("malformed", "overloaded", "invalid", "deadline", "no-such-problem"):
        yield get(f"/problems/{kind}")
    for path in ("/v1/models", "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/nobody"):
        yield get(path)
    for name in (*BUNDLED, "ztf"):
        yield get(f"/v2/models/{name}")
        yield get(f"/v2/models/{name}/ready")
    for path in ("/v1/classify", "/v1/alerts", f"/v2/models/{BUNDLED[0]}/infer"):
        yield get(path, f"wrong method: GET {path}")
    yield Case("wrong method: DELETE /v1/models", "DELETE", "/v1/models")
    yield Case("wrong method: POST /healthz", "POST", "/healthz", b"")
    yield get("/metrics")


_OPTIONS: dict[str, dict[str, Any]] = {
    "unknown option": {"embeding": True},
    "coverage of 2": {"coverage": 2},
    "coverage as text": {"coverage": "high"},
    "embedding as text": {"embedding": "perhaps"},
    "unknown dtype": {"embedding_dtype": "float8"},
    "unknown encoding": {"embedding_encoding": "hex"},
    "no time": {"deadline_ms": 0},
    "deadline too long": {"deadline_ms": 999_999_999},
}
"""Options that are refused, each with one error."""

_BODIES: dict[str, Any] = {
    "empty": b"",
    "not JSON": b"{",
    "text after the document": b"{} x",
    "not UTF-8": b'{"mjd": "\xff"}',
    "half a surrogate": b'{"object_id": "\\ud800"}',
    "list": [supernova()],
    "text": "curve",
    "no curves": {"light_curves": []},
    "curves as object": {"light_curves": {}},
    "unknown member": {"light_curves": [supernova()], "option": {}},
    "options as list": {"light_curves": [supernova()], "options": []},
}
"""JSON bodies that are refused as a whole."""


def _formats() -> Iterable[Case]:
    """Good and bad bodies in every format, for a model of a few nodes."""
    good, bad = list(GOOD_CURVES.values()), list(BAD_CURVES.values())
    yield classify("JSON: good curves", {"light_curves": good, "options": {"embedding": True}})
    yield classify("JSON: bad curves", {"light_curves": [*bad, supernova()]})
    yield from (classify(f"JSON: bad curve: {name}", curve) for name, curve in BAD_CURVES.items())
    yield from (classify(f"JSON: body: {name}", body) for name, body in _BODIES.items())
    for name, options in _OPTIONS.items():
        yield classify(f"JSON: {name}", {"light_curves": [supernova()], "options": options})
        ((option, value),) = options.items()
        yield classify(f"JSON: {name} in the query", supernova(), f"?{option}={value}")
    yield classify("JSON: options of the body and the query", supernova(options={"embedding": True}), "?coverage=0.8")
    for dtype in ("float32", "float16"):
        options = {"embedding": True, "embedding_encoding": "base64", "embedding_dtype": dtype}
        yield classify(f"JSON: embedding as base64 of {dtype}", {"light_curves": [faint()], "options": options})
    for name, kind in (("JSON", JSON), ("msgpack", MSGPACK), ("Arrow", ARROW), ("lines", LINES)):
        yield classify(f"JSON in, {name} out", {"light_curves": [supernova(), "no curve"]}, Accept=kind)
    yield classify("not acceptable", supernova(), Accept="text/html")
    yield classify("second choice", supernova(), Accept="text/html, application/msgpack;q=0.5")
    yield classify("JSON with charset", supernova(), kind="application/json; charset=utf-8")
    yield classify("no type", supernova(), kind="")
    yield classify("other type", b"x", kind="text/plain")
    yield classify("unknown coding", b"x", Content_Encoding="br")
    yield from _msgpack(good, bad)
    yield from _arrow(good)
    yield from _lines(good, bad)
    yield from _tensors()


def _msgpack(good: list[Curve], bad: list[Curve]) -> Iterable[Case]:
    one = msgpack_body([supernova()])
    yield classify("msgpack: good curves", msgpack_body(good, {"embedding": True}), kind=MSGPACK)
    yield classify("msgpack: packed", msgpack_body([packed(curve) for curve in good]), kind=MSGPACK)
    yield classify("msgpack: bad curves", msgpack_body([*bad, supernova()]), kind=MSGPACK)
    yield classify("msgpack: bad columns", msgpack_body(list(PACKED_BAD_CURVES.values())), kind=MSGPACK)
    yield classify("msgpack: options", msgpack_body([supernova()], {"coverage": 2}), kind=MSGPACK)
    yield classify("msgpack: JSON out", one, kind=MSGPACK, Accept=JSON)
    yield classify("msgpack: other name of the type", one, kind="application/vnd.msgpack")
    for name, body in (("invalid", b"\xc1"), ("cut short", one[:-9]), ("empty", b""), ("number", b"\x07")):
        yield classify(f"msgpack: {name}", body, kind=MSGPACK)


def _arrow(good: list[Curve]) -> Iterable[Case]:
    def body(curves: list[Any], **types: Any) -> bytes:
        return arrow_stream(arrow_table(curves, **types))

    rows = [supernova(), supernova(flux=[1.0]), supernova(flux_err=[0.0] * 24), supernova(band=["x"] * 24)]
    rows += [supernova(mjd=None), supernova(mjd=[2_460_000.5 + index for index in range(24)])]
    yield classify("Arrow: good curves", body([_arrow_curve(curve) for curve in good]), "?embedding=true", ARROW)
    yield classify("Arrow: bad curves", body(rows), kind=ARROW)
    yield classify("Arrow: JSON out", body([supernova(), faint()]), kind=ARROW, Accept=JSON)
    yield classify("Arrow: float16 embedding", body([faint()]), "?embedding=true&embedding_dtype=float16", ARROW)
    yield classify("Arrow: wrong type", body([supernova(mjd=["x"])], mjd=pa.list_(pa.string())), kind=ARROW)
    yield classify("Arrow: no lists", body([supernova(flux=1.0)], flux=pa.float32()), kind=ARROW)
    yield classify("Arrow: unknown column", body([supernova(surprise="x")]), kind=ARROW)
    without = arrow_stream(arrow_table([supernova()]).drop_columns(["mjd"]))
    yield classify("Arrow: missing column", without, kind=ARROW)
    yield classify("Arrow: no rows", arrow_stream(arrow_table([supernova()]).slice(0, 0)), kind=ARROW)
    yield classify("Arrow: compressed", arrow_stream(arrow_table([supernova()]), compression="zstd"), kind=ARROW)
    yield classify("Arrow: wrong option", body([supernova()]), "?coverage=2", ARROW)
    for name, data in (("invalid", b"x" * 40), ("cut short", body([supernova()])[:-200]), ("empty", b"")):
        yield classify(f"Arrow: {name}", data, kind=ARROW)


def _arrow_curve(curve: Curve) -> Curve:
    return curve | {"object_id": str(curve.get("object_id", ""))}


def _lines(good: list[Curve], bad: list[Curve]) -> Iterable[Case]:
    yield classify("lines: good curves", lines_body(good), "?embedding=true", LINES)
    yield classify("lines: bad curves", lines_body([*bad, supernova()]), kind=LINES)
    spoiled = lines_body([supernova()]) + b"{\n" + lines_body([faint()])
    yield classify("lines: invalid line", spoiled, kind=LINES)
    yield classify("lines: no end of line", lines_body([supernova(), faint()])[:-1], kind=LINES)
    yield classify("lines: empty", b"", kind=LINES)
    yield classify("lines: wrong option", lines_body([supernova()]), "?coverage=2", LINES)
    yield classify("lines: prior and base64", lines_body([supernova()]), "?prior=uniform", LINES)
    yield classify("lines: unknown model", lines_body([supernova()]), "?model=nobody", LINES)
    yield classify("lines: JSON out", lines_body([supernova()]), kind=LINES, Accept=JSON)


_SHORT = np.zeros(3)
_ZERO = np.array([0])
_BAD_TENSORS: dict[str, dict[str, Any]] = {
    "flux too short": {"flux": _SHORT.astype("f4")},
    "band too short": {"band": np.array([b"g"], object)},
    "detected too short": {"detected": _SHORT.astype("?")},
    "names of another batch": {"object_id": np.array([b""], object)},
    "flux without dimensions": {"flux": np.zeros((), "f4")},
    "times in single precision": {"mjd": np.zeros(17, "f4")},
    "fluxes as integers": {"flux": np.zeros(17, "i4")},
    "unknown input": {"time": np.zeros(17, "f4")},
    "offsets of nothing": {"offsets": _ZERO[:0]},
    "offsets that begin late": {"offsets": np.array([1, 8, 17])},
    "offsets that end late": {"offsets": np.array([0, 8, 18])},
    "offsets that go back": {"offsets": np.array([0, 9, 8, 17])},
}
_BAD_MEMBERS: dict[str, dict[str, Any]] = {
    "unknown output": {"outputs": [{"name": "logits"}]},
    "output twice": {"outputs": [{"name": "status"}, {"name": "status"}]},
    "deadline too long": {"parameters": {"deadline_ms": 10**9}},
    "unknown unit": {"parameters": {"flux_unit": "mag"}},
    "id as number": {"id": 7},
    "no inputs": {"inputs": []},
    "inputs as object": {"inputs": {}},
}


def _tensors() -> Iterable[Case]:
    arrays = tensors()
    named = arrays | {
        "object_id": np.array([b"first", b"second"], object),
        "detected": np.arange(17) % 2 == 0,
    }
    bad = arrays | {"flux_err": -arrays["flux_err"]}
    path = f"/v2/models/{SMALL}/infer"
    yield infer("JSON", SMALL, arrays)
    yield infer("every output and input", SMALL, named, id="x", outputs=_OUTPUTS)
    yield infer("microjansky", SMALL, arrays, parameters={"flux_unit": "uJy"})
    yield infer("bad curves", SMALL, bad, outputs=_OUTPUTS)
    yield infer(
        "one curve without offsets", SMALL, {name: arrays[name][:8] for name in ("mjd", "flux", "flux_err", "band")}
    )
    yield infer_binary("binary", SMALL, named, parameters={"binary_data_output": True}, outputs=_OUTPUTS)
    yield infer_binary("binary outputs by name", SMALL, arrays, outputs=[
        {"name": "probabilities", "parameters": {"binary_data": True}}, {"name": "status"},
    ])  # fmt: skip
    for name, changes in _BAD_TENSORS.items():
        yield infer_binary(f"bad tensors: {name}", SMALL, arrays | changes)
    for missing in ("mjd", "band"):
        yield infer(f"missing input {missing}", SMALL, {name: data for name, data in arrays.items() if name != missing})
    for name, members in _BAD_MEMBERS.items():
        yield post(f"infer: {name}", path, json_body(arrays) | members)
    yield infer("unknown model", "nobody", arrays)
    yield post("infer: version", f"/v2/models/{SMALL}/versions/0.0.1/infer", json_body(arrays))
    yield post("infer: unknown version", f"/v2/models/{SMALL}/versions/9.9.9/infer", json_body(arrays))
    body, length = binary_body(arrays)
    for coding, data in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
        headers = {JSON_LENGTH: str(length), "Content_Encoding": coding}
        yield post(f"infer: {coding}", path, data, OCTETS, **headers)
        yield post(f"infer: {coding} cut short", path, data[:-9], OCTETS, **headers)
    for name, spoiled, stated in (
        ("binary cut short", body[:-8], length),
        ("bytes after the tensors", body + b"\0", length),
        ("length too small", body, length - 1),
        ("length beyond the body", body, len(body) + 1),
    ):
        yield post(f"infer: {name}", path, spoiled, OCTETS, **{JSON_LENGTH: str(stated)})
    yield post("infer: no length", path, body, OCTETS)
    yield post("infer: not JSON", path, b"{")
    yield post("infer: other type", path, b"x", "text/plain")


def _classify_models() -> list[Case]:
    """Light curves for each name, whose answer tells the version."""
    names = ("mine", "mine@1.0.0", "mine@1.1.0", "second")
    return [classify(f"{name}", supernova(9, f"object {name}"), f"?model={name}") for name in names]


def _administering() -> Iterable[Case]:
    asking, listing = _classify_models(), admin("GET", "/admin/models")
    yield listing
    yield get("/readyz", "readiness with a bundle that failed")
    yield get("/v1/models")
    yield from asking
    bodies: list[Any] = [{"version": "9.9.9"}, {"version": "latest"}, {"force": True}, [], b"{"]
    for body in bodies:
        yield admin("POST", "/admin/models/mine/load", body)
    yield admin("PUT", "/admin/models/mine/canary", {"version": "1.0.0", "percent": 100})
    yield admin("PUT", "/admin/models/mine/canary", {"percent": 50})
    yield admin("PUT", "/admin/models/mine/canary", {"version": "9.9.9", "percent": 50})
    yield admin("PUT", "/admin/models/mine/canary", {"version": "1.0.0", "percent": 50})
    yield from (classify(f"canary {index}", supernova(9, f"o{index}"), "?model=mine") for index in range(6))
    yield from asking
    yield listing
    yield get("/metrics", "metrics with a canary")
    yield admin("DELETE", "/admin/models/mine/canary")
    yield admin("PUT", "/admin/models/mine/shadow", {"model": "mine"})
    yield admin("PUT", "/admin/models/mine/shadow", {"model": "mine@1.0.0", "share": 2})
    yield admin("PUT", "/admin/models/mine/shadow", {"model": "mine@1.0.0", "share": 1.0})
    yield from (classify(f"shadow {index}", supernova(12 + index), "?model=mine") for index in range(3))
    yield admin("GET", "/admin/models", until='"compared":3')
    yield admin("DELETE", "/admin/models/mine/shadow")
    yield admin("DELETE", "/admin/models/mine/shadow")
    yield admin("POST", "/admin/models/mine/load", {"version": "1.0.0"})
    yield from asking
    yield admin("POST", "/admin/models/mine/load")
    yield from asking
    for alias, body in (
        ("second", {"model": "mine@1.0.0"}), ("third", {"model": "mine"}), ("third", {"model": "nobody"}),
        ("mine", {"model": SMALL}), ("No", {"model": SMALL}), ("third", {"model": "No Body"}), ("third", {}),
    ):  # fmt: skip
        yield admin("PUT", f"/admin/aliases/{alias}", body)
    yield from asking
    yield admin("POST", "/admin/models/broken/load", {"version": "0.1.0"})
    yield admin("POST", "/admin/models/nobody/load")
    yield admin("POST", "/admin/reload")
    for alias in ("second", "third", "default", "nobody"):
        yield admin("DELETE", f"/admin/aliases/{alias}")
    yield admin("POST", "/admin/models/mine/unload", {"version": "1.0.0"})
    yield admin("POST", f"/admin/models/{SMALL}/unload")
    yield from asking
    yield from _repository_protocol()
    yield admin("GET", "/admin/nowhere")
    yield admin("DELETE", "/admin/models")
    yield admin("GET", "/admin/models", Origin="http://example.org")
    yield admin("GET", "/problems/conflict")
    yield get("/admin/models", "the admin API on the port of the service")


def _repository_protocol() -> Iterable[Case]:
    """Open Inference Protocol: the model repository, and metadata by version."""
    paths = ("/v2/models/mine", "/v2/models/mine/versions/1.1.0", "/v2/models/mine/versions/9.9.9")
    yield admin("POST", "/v2/repository/index")
    yield admin("POST", "/v2/repository/index", {"ready": True})
    yield admin("POST", "/v2/repository/models/mine/unload")
    yield from (get(path, f"unloaded: {path}") for path in paths)
    yield admin("POST", "/v2/repository/index")
    yield admin("POST", "/v2/repository/models/mine/load")
    yield admin("POST", "/v2/repository/models/nobody/load")
    yield admin("POST", "/v2/repository/models/broken/load")
    yield from (get(path) for path in paths)
    yield get("/v2/models/mine/versions/1.1.0/ready")


def _guarded() -> Iterable[Case]:
    bearer, short, long = {"Authorization": f"Bearer {KEY}"}, supernova(6), supernova(40)
    packets, kind = multipart([PACKETS["elasticc 0.9.1 bare"]] * 3)
    yield classify("no key", short)
    yield classify("wrong key", short, Authorization="Bearer nobody")
    yield classify("the key in basic authentication", short, Authorization=f"Basic {KEY}")
    yield classify("the key", short, **bearer)
    yield classify("the key as X-API-Key", short, X_API_Key=KEY)
    yield classify("the key that is replaced", short, X_API_Key=OLD_KEY)
    yield classify("the key that replaces it", short, X_API_Key="new key")
    for path in ("/healthz", "/readyz", "/metrics", "/v1/models", "/v2", "/v2/health/ready", f"/v2/models/{SMALL}"):
        yield get(path, f"without a key: {path}")
    yield get("/v1/models", "with the key: /v1/models", **bearer)
    for path in ("/docs", "/openapi.json", "/"):
        yield get(path, f"without documentation: {path}")
    yield classify("too many bytes", {"light_curves": [long] * 4}, **bearer)
    yield classify("too many curves", {"light_curves": [{}] * 4}, **bearer)
    yield classify("too many curves in msgpack", msgpack_body([{}] * 4), kind=MSGPACK, **bearer)
    yield classify("too many curves in Arrow", arrow_stream(arrow_table([supernova(1)] * 4)), kind=ARROW, **bearer)
    yield classify("too many points", long, **bearer)
    yield classify("too many points beside others", {"light_curves": [long, short]}, **bearer)
    yield classify("too many lines", lines_body([faint()] * 6), kind=LINES, **bearer)
    yield classify("too long a line", lines_body([faint(), supernova(200)]), kind=LINES, **bearer)
    yield alert("too many packets", packets, "", kind, **bearer)
    yield alert("too many alerts", alerts.container("ztf/4.02", [alerts.ztf_alert()] * 3), **bearer)
    yield alert("too large a packet", b"x" * 50_000, **bearer)
    yield alert(
        "too large when decompressed", alerts.container("ztf/4.02", [alerts.ztf_alert()] * 2, "deflate"), **bearer
    )
    yield post("infer: too many bytes", f"/v2/models/{SMALL}/infer", b"x" * 9_000, OCTETS, **bearer)
    yield post("infer: too many curves", f"/v2/models/{SMALL}/infer", json_body(tensors(4)), **bearer)
    yield classify("a request identifier", short, X_Request_Id="mine-1", **bearer)
    for index in range(3):
        yield classify(f"requests per day, {index}", short, X_API_Key=METERED_KEY)
    for index in range(3):
        yield classify(f"curves per day, {index}", {"light_curves": [short] * 3}, X_API_Key=FEW_CURVES_KEY)
    yield get("/metrics", "metrics with keys")


def _protected() -> Iterable[Case]:
    bearer = {"Authorization": f"Bearer {KEY}"}
    for path in ("/metrics", "/docs", "/openapi.json", "/v2", "/v2/health/live", "/healthz", "/readyz", "/nowhere"):
        yield get(path, f"without a key: {path}")
        yield get(path, f"with a key: {path}", **bearer)
    yield admin("GET", "/admin/models")
    yield get("/admin/models", "admin API with a key of the service", "admin", **bearer)
    yield get("/admin/models", "admin API with its key", "admin", Authorization=f"Bearer {ADMIN_KEY}")
    yield classify("the service with a key of the admin API", faint(), X_API_Key=ADMIN_KEY)
    yield Case("terminate", "SIGTERM", "")
    for path in ("/readyz", "/healthz", "/startupz"):
        yield get(path, f"draining: {path}")
    yield get("/v2/health/ready", "draining: /v2/health/ready", **bearer)
    yield classify("draining", faint(), **bearer)


CASES: dict[str, list[Case]] = {
    "bundled": [*_classify_bundled(), *_alerts_bundled(), *_infer_bundled(), *_pages()],
    "formats": list(_formats()),
    "repository": list(_administering()),
    "guarded": list(_guarded()),
    "protected": list(_protected()),
}
