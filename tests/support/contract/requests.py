"""The requests of the contract: every route, format, survey and kind of error, by the server that gets them."""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from support import alerts
from support.contract.curves import METADATA, PACKETS, faint, multipart, supernova, variable
from support.oip import JSON_LENGTH, binary_body, json_body
from support.wire import arrow_stream, arrow_table, lines_body, msgpack_body, packed

KEY = "contract key"
JSON, OCTETS, LINES = "application/json", "application/octet-stream", "application/x-ndjson"
ARROW, MSGPACK = "application/vnd.apache.arrow.stream", "application/msgpack"
BASE64 = {"embedding": True, "embedding_encoding": "base64", "embedding_dtype": "float16"}
BUNDLED = ("astro-moe-elasticc", "astro-moe-ztf", "romae-elasticc")


@dataclass(frozen=True)
class Ask:
    """One request; ``port`` names the interface that gets it."""

    name: str
    method: str
    path: str
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    port: str = "http"


def get(path: str, name: str = "", **headers: str) -> Ask:
    """A request without a body."""
    return Ask(name or f"GET {path}", "GET", path, None, {key.replace("_", "-"): text for key, text in headers.items()})


def post(name: str, path: str, body: Any, kind: str = JSON, **headers: str) -> Ask:
    """A request with a body; anything but bytes goes as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    told = {key.replace("_", "-"): text for key, text in headers.items()}
    return Ask(name, "POST", path, data, {"Content-Type": kind} | told)


def classify(name: str, body: Any, query: str = "", kind: str = JSON, **headers: str) -> Ask:
    """A request for classes of light curves."""
    return post(f"classify: {name}", f"/v1/classify{query}", body, kind, **headers)


def admin(method: str, path: str, body: Any = None) -> Ask:
    """A request to the admin interface."""
    data = None if body is None else json.dumps(body).encode()
    headers = {} if body is None else {"Content-Type": JSON}
    return Ask(f"{method} {path} {json.dumps(body) if body else ''}".strip(), method, path, data, headers, "admin")


def _columns(count: int = 2, queries: int = 0) -> dict[str, Any]:
    """Light curves as tensors of the Open Inference Protocol."""
    curves = [supernova(8 + place, str(place)) for place in range(count)]
    arrays: dict[str, Any] = {
        "mjd": np.concatenate([curve["mjd"] for curve in curves]),
        "flux": np.concatenate([curve["flux"] for curve in curves]).astype(np.float32),
        "flux_err": np.concatenate([curve["flux_err"] for curve in curves]).astype(np.float32),
        "band": np.array([band.encode() for curve in curves for band in curve["band"]], object),
        "offsets": np.cumsum([0] + [len(curve["mjd"]) for curve in curves]),
    }
    if queries:
        arrays["query_mjd"] = 60_330.0 + np.arange(float(queries * count))
        arrays["query_band"] = np.array([b"r"] * (queries * count), object)
        arrays["query_offsets"] = queries * np.arange(count + 1)
    return arrays


def _binary(name: str, model: str, arrays: dict[str, Any], **members: Any) -> Ask:
    body, length = binary_body(arrays, **members)
    return post(f"infer: {name}", f"/v2/models/{model}/infer", body, OCTETS, **{JSON_LENGTH: str(length)})


def _classifying() -> list[Ask]:
    many = {"light_curves": [supernova(), variable(), faint()], "options": {"embedding": True}}
    late = [variable(161 + place) for place in range(200)]
    faults = [
        supernova(),
        supernova(flux_err=[-1.0] * 24),
        supernova(band=["x"] * 24),
        supernova(mjd=[2_460_000.5 + place for place in range(24)]),
        {"object_id": "few", "mjd": [60_000.0], "flux": [1.0]},
        "no curve",
        supernova(metadata={"no_such_column": 1.0}),
        supernova(mjd=[60_000.0] * 24),
    ]
    return [
        classify("one", supernova()),
        classify("the same again, from the cache", supernova()),
        classify("three, embeddings", many),
        classify("embedding as base64", {"light_curves": [faint()], "options": BASE64}),
        classify("metadata", supernova(metadata=METADATA)),
        classify("flags", supernova(detected=[place % 2 == 0 for place in range(24)])),
        classify("uJy", supernova(flux_unit="uJy")),
        classify("FLUXCAL", supernova(flux_unit="FLUXCAL")),
        classify("coverage 0.8", supernova(options={"coverage": 0.8})),
        classify("integer id", supernova(object_id=1234567890123)),
        classify("faults beside good ones", {"light_curves": faults}),
        *(classify(f"by name {name}", supernova(), f"?model={name}&embedding=true") for name in BUNDLED),
        classify("by alias ztf", variable(), "?model=ztf"),
        classify("unknown model", supernova(), "?model=nobody"),
        classify("a model that forecasts", supernova(), "?model=ruler"),
        classify("unknown parameter", supernova(), "?modell=ztf"),
        classify("unknown option", supernova(options={"embeding": True})),
        classify("wrong type", supernova(flux="bright")),
        classify("no JSON", b"{"),
        classify("not UTF-8", b'{"mjd": "\xff"}'),
        classify("empty body", b""),
        classify("a list", [supernova()]),
        classify("no curves", {"light_curves": []}),
        classify("other type", b"x", kind="text/plain"),
        classify("not acceptable", supernova(), Accept="text/html"),
        classify("bad coding", supernova(), Content_Encoding="br"),
        classify("deadline too long", supernova(), "?deadline_ms=999999999"),
        classify("deadline passed", {"light_curves": late}, "?deadline_ms=1"),
        classify("deadline header", supernova(), Nightjar_Deadline_Ms="20000", Priority="u=1"),
        classify("bad priority", supernova(), Priority="u=9"),
        classify("1000 curves and one more", {"light_curves": [{}] * 1001}),
        classify("msgpack", msgpack_body([supernova(), variable()], {"embedding": True}), kind=MSGPACK),
        classify("packed msgpack", msgpack_body([packed(supernova(metadata=METADATA)), packed(faint())]), kind=MSGPACK),
        classify("msgpack, JSON back", msgpack_body([supernova()]), kind=MSGPACK, Accept=JSON),
        classify("bad msgpack", b"\xc1", kind=MSGPACK),
        classify("arrow", arrow_stream(arrow_table([supernova(), faint()])), "?embedding=true", ARROW),
        classify("JSON, arrow back", supernova(), Accept=ARROW),
        classify("compressed arrow", arrow_stream(arrow_table([supernova()]), compression="zstd"), kind=ARROW),
        classify("bad arrow", b"x" * 40, kind=ARROW),
        classify("lines", lines_body([supernova(), "no curve", faint(), {}]), "?embedding=true", LINES),
        classify("lines, wrong option", lines_body([supernova()]), "?coverage=2", LINES),
    ]  # fmt: skip


def _alerting() -> list[Ask]:
    several, kind = multipart([PACKETS["ztf 4.02 container"], b"\x00nonsense", PACKETS["lsst 10.0 framed"]])
    mixed, mixed_kind = multipart([PACKETS["elasticc 0.9.1 bare"], PACKETS["solar system object"]], "mixed")
    bare = PACKETS["elasticc 0.9.1 bare"]
    return [
        *(post(f"alert: {name}", "/v1/alerts", packet, OCTETS) for name, packet in PACKETS.items()),
        post("alerts: multipart", "/v1/alerts?embedding=true", several, kind),
        post("alerts: mixed", "/v1/alerts", mixed, mixed_kind),
        post("alert: named schema", "/v1/alerts?schema=elasticc/0.9.1", bare, "avro/binary"),
        post("alert: unknown schema", "/v1/alerts?schema=elasticc/9.9", bare, OCTETS),
        post("alert: by model", "/v1/alerts?model=romae-elasticc", PACKETS["lsst 11.1 framed"], OCTETS),
        post("alert: empty", "/v1/alerts", b"", OCTETS),
        post("alert: other type", "/v1/alerts", b"{}", JSON),
        post("alert: no boundary", "/v1/alerts", b"x", "multipart/form-data"),
        post("alert: wrong parameters", "/v1/alerts?embedding=perhaps&deadline_ms=0", b"x", OCTETS),
        post("alert: container of many", "/v1/alerts", alerts.container("ztf/4.02", [alerts.ztf_alert()] * 3), OCTETS),
    ]


def _inferring() -> list[Ask]:
    wanted = [{"name": name} for name in ("probabilities", "embedding", "status", "object_id", "detail")]
    top = [{"name": "probabilities", "parameters": {"classification": 3}}]
    arrays = _columns()
    bad = arrays | {"offsets": np.array([0, 99])}
    return [
        *(
            post(f"infer: JSON {name}", f"/v2/models/{name}/infer", json_body(arrays, id="7", outputs=wanted))
            for name in BUNDLED
        ),
        post("infer: top three", "/v2/models/ztf/infer", json_body(arrays, outputs=top)),
        _binary("binary", "astro-moe-elasticc", arrays, parameters={"binary_data_output": True}, outputs=wanted),
        _binary("binary in, JSON out", "romae-elasticc", arrays),
        _binary("forecast", "ruler", _columns(queries=3), parameters={"binary_data_output": True}),
        post("infer: bad offsets", "/v2/models/astro-moe-elasticc/infer", json_body(bad)),
        post("infer: missing input", "/v2/models/astro-moe-elasticc/infer", json_body({"mjd": arrays["mjd"]})),
        post("infer: unknown member", "/v2/models/astro-moe-elasticc/infer", json_body(arrays, shape=3)),
        post("infer: unknown model", "/v2/models/nobody/infer", json_body(arrays)),
        _binary("cut short", "astro-moe-elasticc", arrays | {"extra": np.zeros(3)}),
    ]


def _forecasting() -> list[Ask]:
    wanted = {"mjd": [60_330.0, 60_331.0, 60_290.0], "band": ["g", "r", "y"]}
    many = {"light_curves": [supernova(forecast=wanted), supernova(), faint(forecast=wanted, flux_unit="FLUXCAL")]}
    return [
        post("forecast: one", "/v1/forecast", supernova(forecast=wanted)),
        post("forecast: several", "/v1/forecast", many),
        post("forecast: bad band", "/v1/forecast", supernova(forecast={"mjd": [60_330.0], "band": ["q"]})),
        post("forecast: a classifier", "/v1/forecast?model=astro-moe-elasticc", supernova(forecast=wanted)),
    ]


def _looking() -> list[Ask]:
    models = (*BUNDLED, "ruler")
    return [
        *(get(path) for path in ("/", "/docs", "/openapi.json", "/healthz", "/readyz", "/startupz")),
        *(get(f"/problems/{slug}") for slug in ("malformed", "overloaded", "no-such-problem")),
        *(
            get(path)
            for path in ("/v1/models", "/v2", "/v2/health/live", "/v2/health/ready", "/nowhere", "/v1/nowhere")
        ),
        *(get(f"/v2/models/{name}{part}") for name in models for part in ("", "/config", "/ready")),
        *(get(f"/v2/models/{name}/stats") for name in models),
        *(get(f"/v1/models/{name}/stats") for name in ("romae-elasticc", "nobody")),
        get("/v2/models/stats"),
        get("/v2/models/nobody"),
        get("/v1/classify", "the wrong method"),
        Ask("another wrong method", "DELETE", "/v1/models"),
        get("/metrics"),
        get("/metrics", "metrics as OpenMetrics", Accept="application/openmetrics-text"),
    ]


def _administering() -> list[Ask]:
    unsafe = [("load", {"version": "9.9.9"}), ("load", {"force": True}), ("rollback", None)]
    asking = [
        classify(f"{name}, {place}", supernova(9, f"object {place}"), f"?model={name}")
        for place, name in enumerate(("mine", "mine@1.0.0", "second"))
    ]
    return [
        admin("GET", "/admin/models"),
        *(admin("POST", f"/admin/models/mine/{verb}", body) for verb, body in unsafe),
        *asking,
        admin("PUT", "/admin/models/mine/canary", {"version": "1.0.0", "percent": 50}),
        *(classify(f"canary {place}", supernova(9, f"o{place}"), "?model=mine") for place in range(6)),
        admin("GET", "/admin/models"),
        admin("DELETE", "/admin/models/mine/canary"),
        admin("PUT", "/admin/models/mine/shadow", {"model": "mine"}),
        admin("PUT", "/admin/models/mine/shadow", {"model": "mine@1.0.0", "share": 0.5}),
        admin("DELETE", "/admin/models/mine/shadow"),
        admin("POST", "/admin/models/mine/load", {"version": "1.0.0"}),
        *asking,
        admin("POST", "/admin/models/mine/rollback"),
        admin("PUT", "/admin/aliases/second", {"model": "mine@1.0.0"}),
        admin("PUT", "/admin/aliases/mine", {"model": "counter"}),
        *asking,
        admin("POST", "/admin/models/broken/load", {"version": "0.1.0"}),
        admin("POST", "/admin/reload"),
        admin("DELETE", "/admin/aliases/second"),
        admin("DELETE", "/admin/aliases/default"),
        admin("POST", "/admin/models/mine/unload", {"version": "1.0.0"}),
        admin("POST", "/admin/models/counter/unload"),
        admin("POST", "/v2/repository/index"),
        admin("POST", "/v2/repository/models/mine/unload"),
        get("/v2/models/mine", "unloaded"),
        admin("POST", "/v2/repository/models/mine/load"),
        admin("GET", "/admin/nowhere"),
        get("/v2/models/mine"),
        get("/v2/models/mine/versions/1.1.0"),
        get("/v2/models/mine/versions/9.9.9"),
        get("/readyz", "readiness with a bundle that failed"),
    ]


def _guarded() -> list[Ask]:
    key = {"Authorization": f"Bearer {KEY}"}
    short, long = supernova(6), supernova(40)
    packets, kind = multipart([PACKETS["elasticc 0.9.1 bare"]] * 3)
    return [
        classify("no key", short),
        classify("wrong key", short, Authorization="Bearer nobody"),
        classify("the key", short, **key),
        classify("the key as X-API-Key", short, X_API_Key=KEY),
        get("/healthz", "liveness without a key"),
        get("/v2/models/counter", "a model without a key"),
        get("/docs", "no docs"),
        classify("too many bytes", {"light_curves": [long] * 4}, **key),
        classify("too many curves", {"light_curves": [{}] * 4}, **key),
        classify("too many points", long, **key),
        classify("too many lines", lines_body([faint()] * 6), kind=LINES, **key),
        post("too many packets", "/v1/alerts", packets, kind, **key),
        post("too large a packet", "/v1/alerts", b"x" * 50_000, OCTETS, **key),
        post("no forecaster", "/v1/forecast", short, **key),
        post("too large tensors", "/v2/models/counter/infer", b"x" * 9_000, OCTETS, **key),
        classify("another id", short, X_Request_Id="mine-1", **key),
    ]


REQUESTS: dict[str, list[Ask]] = {
    "bundled": [*_classifying(), *_alerting(), *_inferring(), *_forecasting(), *_looking()],
    "repository": _administering(),
    "guarded": _guarded(),
}
