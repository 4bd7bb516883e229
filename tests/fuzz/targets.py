"""One function for each decoder: bytes in, nothing out. What it raises is a finding, and so is what takes too long.

A decoder may refuse in the way that it documents; everything else (an exception of another kind, an *internal error*, a
second of work for a few kilobytes) is a fault of ours.
"""

import gzip
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
from astropy.table import Table
from numpy.typing import NDArray
from pydantic import ValidationError
from pydantic_settings import SettingsError

from nightjar_alerts.alerts import avro, plans
from nightjar_alerts.alerts.envelopes import ANYTHING, Envelope, MessageReader, TopicRule
from nightjar_alerts.alerts.files import read_path
from nightjar_alerts.alerts.packet import PacketError, ReadLimits, RejectReason
from nightjar_alerts.alerts.schema_registry import SchemaRegistry, SchemaUnavailableError
from nightjar_alerts.client_settings import ClientSettings, ClientSettingsError
from nightjar_alerts.core.decoding import JSON_READER, MSGPACK_READER
from nightjar_alerts.core.validation import table_light_curve
from nightjar_alerts.models.bundle import (
    GOLDEN,
    MANIFEST,
    MODEL,
    Bundle,
    BundleError,
    load_bundle,
    read_golden,
    sha256_of,
)
from nightjar_alerts.models.limits import milliseconds, whole_number
from nightjar_alerts.service.http import arrow
from nightjar_alerts.service.http.bodies import decode, decode_rows, validate_body
from nightjar_alerts.service.http.edge.errors import ProblemError
from nightjar_alerts.service.http.edge.lines import LineSplitter
from nightjar_alerts.service.http.oip.inference import read_request
from nightjar_alerts.service.http.oip.schemas import InferRequest
from nightjar_alerts.service.http.oip.tensors import load_json, split_body
from nightjar_alerts.service.http.routes.alerts import split_parts
from nightjar_alerts.service.settings import StreamSettings
from nightjar_alerts.tables import TEXT_FORMATS, Bounds, TableError, TableOptions, read_table
from nightjar_alerts.tables.options import TableFormat
from support import alerts, oip, wire
from support.bodies import read_lines
from support.edge import curve, settings
from support.graphs import echo_manifest
from support.table_corpus import CORPUS

Target = Callable[[bytes], None]

SETTINGS = settings(max_points=2000, max_curves=50, max_json_bytes=1 << 20)
LIMITS = ReadLimits(max_decompressed_bytes=4 << 20, max_records=50)
MANIFEST_OF_CURVES = echo_manifest()
OTHERS = [name for name in avro.schema_names() if name in ("lsst/11.1", "ztf/4.02", "elasticc/0.9.1", "lsst/7.4")]


@cache
def reader() -> MessageReader:
    """A reader without a registry."""
    return MessageReader(SchemaRegistry(), LIMITS)


def json_body(data: bytes) -> None:
    """A body of light curves as JSON."""
    with suppress(ProblemError):
        validate_body(decode(data, SETTINGS, JSON_READER), SETTINGS)


def msgpack_body(data: bytes) -> None:
    """A body of light curves as msgpack."""
    with suppress(ProblemError):
        validate_body(decode(data, SETTINGS, MSGPACK_READER), SETTINGS)


def arrow_body(data: bytes) -> None:
    """A body of light curves as an Arrow stream."""
    with suppress(ProblemError):
        validate_body(decode_rows(arrow.read_arrow(data, SETTINGS.max_curves), SETTINGS), SETTINGS)


def lines_body(data: bytes) -> None:
    """A body of light curves as JSON lines, which come in pieces."""
    lines, found = LineSplitter(4096), list[bytes]()
    with suppress(ProblemError):
        for start in range(0, len(data), 61):
            found += lines.feed(data[start : start + 61])
        found += lines.rest()
    read_lines(found[:50], SETTINGS)


def multipart_body(data: bytes) -> None:
    """Parts of a body, after a line with its content type."""
    header, _, body = data.partition(b"\n")
    with suppress(ProblemError):
        split_parts(body, header.decode("latin-1"), 20)


def _tensors(text: bytes, binary: memoryview) -> None:
    """Read as a request is read."""
    try:
        request = InferRequest.model_validate(load_json(text))
    except ValidationError:
        return
    with suppress(ProblemError):
        read_request(request, binary, MANIFEST_OF_CURVES, (), SETTINGS)


def oip_json(data: bytes) -> None:
    """A request of the Open Inference Protocol."""
    with suppress(ProblemError):
        _tensors(data, memoryview(b""))


def oip_binary(data: bytes) -> None:
    """A request of the Open Inference Protocol with tensors as bytes, after a line with the length of the JSON part."""
    length, _, body = data.partition(b"\n")
    with suppress(ProblemError):
        _tensors(*split_body(body, length.decode("latin-1")))


def oip_grpc(data: bytes) -> None:
    """A request of the Open Inference Protocol over gRPC; nothing without the extra."""
    with suppress(ImportError, ProblemError):
        from nightjar_alerts.service.grpc.decoding import decode_request, read_model

        read_model(data)
        decode_request(data, MANIFEST_OF_CURVES, SETTINGS)


def _read(data: bytes, key: bytes | None = None, rule: TopicRule = ANYTHING) -> None:
    outcomes = reader().read(data, key, rule)
    assert outcomes
    for outcome in outcomes:
        if isinstance(outcome, PacketError):
            assert outcome.reason is not RejectReason.INTERNAL_ERROR, outcome.detail


def envelope_auto(data: bytes) -> None:
    """A packet of which nothing is known."""
    _read(data)


def envelope_container(data: bytes) -> None:
    """An Avro container."""
    _read(data if data.startswith(b"Obj\x01") else b"Obj\x01" + data, rule=TopicRule(envelope=Envelope.CONTAINER))


def envelope_confluent(data: bytes) -> None:
    """A framed record."""
    with suppress(SchemaUnavailableError):
        _read(b"\0\0\0" + data, rule=TopicRule(envelope=Envelope.CONFLUENT))


def envelope_key(data: bytes) -> None:
    """A record whose schema is the key; the first line is the key."""
    key, _, value = data.partition(b"\n")
    _read(value, key, TopicRule(envelope=Envelope.KEY))


def envelope_json(data: bytes) -> None:
    """An alert as JSON."""
    _read(data, rule=TopicRule(envelope=Envelope.JSON))


def surveys(data: bytes) -> None:
    """A bare record of a survey, by its first byte."""
    name = OTHERS[data[0] % len(OTHERS)] if data else OTHERS[0]
    _read(data[1:], rule=TopicRule(envelope=Envelope.BARE, schema_name=name))


def plan(data: bytes) -> None:
    """A schema, and a record of zeros and twos written with it."""
    try:
        found = plans.for_text(data)
    except PacketError:
        return
    decoder = found.decoder
    assert decoder.fast in (True, False)
    for record in (b"\0" * 300, b"\2" * 300):
        fast = slow = None
        with suppress(PacketError):
            slow = decoder.read_slow(record)
        fast = decoder.read_fast(record)
        assert fast is None or (slow is not None and fast[1] == slow[1])


def bundle_manifest(data: bytes) -> None:
    """The manifest of a bundle."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / MANIFEST).write_bytes(data)
        with suppress(BundleError):
            load_bundle(folder)


def bundle_golden(data: bytes) -> None:
    """The golden vectors of a bundle, which match their hash."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / GOLDEN).write_bytes(data)
        (folder / MODEL).write_bytes(b"")
        files = {each: sha256_of(folder / each) for each in (GOLDEN, MODEL)}
        text = MANIFEST_OF_CURVES.model_copy(update={"files": files}).model_dump_json()
        (folder / MANIFEST).write_text(text)
        bundle: Bundle = load_bundle(folder)
        with suppress(BundleError):
            read_golden(bundle.path)


def registry_reply(data: bytes) -> None:
    """The reply of a schema registry."""

    class Registry(SchemaRegistry):
        def _fetch(self, schema_id: int) -> bytes:
            return self._schema_text(schema_id, data)

    with suppress(PacketError, SchemaUnavailableError):
        Registry("http://registry.invalid").plan(7)


def settings_of(data: bytes) -> None:
    """Settings from the environment: one ``NAME=value`` a line."""
    lines = [line.partition("=") for line in data.decode("utf-8", "replace").replace("\0", "").split("\n")]
    given = {f"NIGHTJAR_{name}": value for name, _, value in lines if name.isidentifier()}
    with patch.dict(os.environ, given, clear=True), suppress(ValidationError, SettingsError):
        StreamSettings()
    with suppress(ClientSettingsError):
        ClientSettings.from_environment(given)


def numbers(data: bytes) -> None:
    """Numbers and times as text."""
    for stated in (data, data.decode("utf-8", "replace")):
        found = milliseconds(stated)
        assert found is None or float(found) >= 0
        whole_number(stated)


FILES = Bounds(max_bytes=1 << 20)
HTTP = Bounds(TEXT_FORMATS, 1 << 20)


def _table(data: bytes, form: TableFormat | Literal[""], bounds: Bounds = FILES) -> None:
    """Read a table to its end, as the route and the command do."""
    with suppress(TableError):
        for item in read_table(data, TableOptions(format=form), bounds=bounds):
            table_light_curve(item)


def table_http(data: bytes) -> None:
    """A body of ``/v1/tables``: text or JSON."""
    _table(data, "", HTTP)


def table_text(data: bytes) -> None:
    """A table as text, plain or compressed."""
    _table(data, "csv")


def table_json(data: bytes) -> None:
    """A table as a JSON document."""
    _table(data, "json")


def table_jsonl(data: bytes) -> None:
    """A table as JSON Lines."""
    _table(data, "jsonl")


def table_ecsv(data: bytes) -> None:
    """A table as ECSV."""
    _table(data if data.startswith(b"# %ECSV") else b"# %ECSV 1.0\n" + data, "ecsv")


def table_fits(data: bytes) -> None:
    """A table as FITS."""
    _table(data if data.startswith(b"SIMPLE  =") else b"SIMPLE  =" + data, "fits")


def table_votable(data: bytes) -> None:
    """A table as VOTable."""
    _table(data, "votable")


def table_ipac(data: bytes) -> None:
    """A table as IPAC."""
    _table(data, "")


def archive(data: bytes) -> None:
    """A file of alerts: an archive, compressed or not."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "night.tar"
        path.write_bytes(data)
        for item in read_path(path):
            assert item.kind == "packet" or item.detail


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        json_body, msgpack_body, arrow_body, lines_body, multipart_body, oip_json, oip_binary, oip_grpc,
        envelope_auto,
        envelope_container, envelope_confluent, envelope_key, envelope_json, surveys, plan, bundle_manifest,
        bundle_golden, registry_reply, settings_of, numbers, table_http, table_text, table_json, table_jsonl,
        table_ecsv, table_fits, table_votable, table_ipac, archive,
    )
}  # fmt: skip


def seeds(name: str) -> Iterator[bytes]:
    """Good input of a target, to begin with."""
    one, many = (
        curve(3, metadata={"mwebv": 0.5}),
        {"light_curves": [curve(2), curve(1)], "options": {"embedding": True}},
    )
    schema = json.dumps(alerts.schema("elasticc/0.9.1")).encode()
    small = json.dumps(
        {"type": "record", "name": "t", "fields": [{"name": "a", "type": ["null", {"type": "array", "items": "int"}]}]}
    ).encode()
    row = {"midpointMjdTai": 6e4, "band": "r", "psfFlux": 1.0, "psfFluxErr": 1.0, "diaSourceId": 7, "visit": 3}
    alert = json.dumps({"alertId": 5, "diaSource": row, "prvDiaSources": [row, {}], "diaObject": None}).encode()
    elasticc = alerts.bare("elasticc/0.9.1", alerts.elasticc_alert())
    found: dict[str, list[bytes]] = {
        "json_body": [json.dumps(one).encode(), json.dumps(many).encode(), b'{"flux":[NaN,1e999]}'],
        "msgpack_body": [wire.msgpack_body([curve(2)])],
        "arrow_body": [wire.arrow_stream(wire.arrow_table([curve(2)]))],
        "lines_body": [wire.lines_body([curve(2), curve(1)])],
        "multipart_body": [b"multipart/mixed; boundary=b\n--b\r\n\r\nx\r\n--b\r\nA: b\r\n\r\ny\r\n--b--\r\n"],
        "oip_json": [_tensors_as_json(asked) for asked in (False, True)],
        "oip_grpc": [b"\x0a\x04echo", *_tensors_as_protobuf()],
        "oip_binary": [b"2\n{}", *(_tensors_as_bytes(asked) for asked in (False, True))],
        "envelope_auto": [elasticc, alert],
        "envelope_container": [alerts.header(alerts.schema("ztf/4.02")) + alerts.block(1, b"\2" * 50)],
        "envelope_confluent": [alerts.confluent(1000, alerts.lsst_alert("lsst/10.0"))[3:]],
        "envelope_key": [schema.replace(b"\n", b"") + b"\n" + elasticc],
        "envelope_json": [alert],
        "surveys": [bytes([place]) + elasticc for place in range(4)],
        "plan": [schema, small],
        "bundle_manifest": [MANIFEST_OF_CURVES.model_dump_json().encode()],
        "bundle_golden": [_golden()],
        "registry_reply": [
            json.dumps({"schema": schema.decode()}).encode(),
            json.dumps({"schema": small.decode()}).encode(),
        ],
        "settings_of": [b'PORT=80\nAPI_KEYS=["x"]\nTOPICS={"a*":{"envelope":"json"}}\nKEY_LIMITS={"*":{}}\nURL=x'],
        "numbers": [b"1790000000000", b"-1", b"9" * 30],
        "archive": [pack(alerts.tar({"a.avro": elasticc, "b.json": alert})) for pack in (bytes, gzip.compress)],
    }
    if name.startswith("table_"):
        found[name] = _tables(name.removeprefix("table_"))
    yield from found[name]
    yield from (path.read_bytes() for path in sorted((Path(__file__).parent / "corpus" / name).glob("*")))


def _tables(form: str) -> list[bytes]:
    """Return good tables of a format, with rows of points and with rows of light curves."""
    rows = [["a", "b"][k % 2] + f" {6e4 + k} {'gr'[k % 2]} {18 + k / 10} 0.{k + 1}" for k in range(8)]
    head = "object_id mjd band mag mag_err"
    points = [dict(zip(head.split(), row.split(), strict=True)) for row in rows]
    numeric = [{**point, **{name: float(point[name]) for name in ("mjd", "mag", "mag_err")}} for point in points]
    curve = {"object_id": "a", "lc": numeric, "zspec": 0.1}
    text = "\n".join([head, *rows, ""])
    lists = "object_id;mjd;band;mag;mag_err\na;[60000.5, 60001];['g', 'r'];[18, 19];[0.1, 0.2]\n"
    csv = [text.encode(), text.replace(" ", ",").encode(), lists.encode(), gzip.compress(text.encode())]
    csv.append(b"SNID: 1\nVARLIST: MJD FLT FLUXCAL FLUXCALERR\nOBS: 60000 g 1.5 0.5\nOBS: 60001 r 2.5 0.5\n")
    csv.append("a;1,5;g\na;2,5;r\n".encode("utf-16"))
    csv += [entry.text().encode() for entry in CORPUS]
    document = [json.dumps(each).encode() for each in (numeric, [curve], {"objects": [curve]})]
    lines = [b"\n".join(json.dumps(row).encode() for row in each) for each in (numeric, [curve, curve])]
    by_form = {"http": [*csv[:3], *document, *lines], "text": csv, "json": document, "jsonl": lines, "ipac": [IPAC]}
    return by_form.get(form) or _astropy_tables(form)


IPAC = b"""\\fixlen = T
| object_id | mjd    | band | mag    | mag_err |
| char      | double | char | double | double  |
|           | days   |      | mag    | mag     |
  a           60000    g      18.5     0.1
  b           60001    r      19.5     0.1
"""


@cache
def _astropy_tables(form: str) -> list[bytes]:
    table = Table({"object_id": ["a", "b"], "mjd": [6e4, 60001.0], "band": ["g", "r"], "mag": [18.0, 19.0]})
    table["mag_err"] = [0.1, 0.2]
    table["mjd"].unit = "d"
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "table"
        table.write(path, format={"ecsv": "ascii.ecsv"}.get(form, form))
        return [path.read_bytes()]


def _arrays(asked: bool) -> dict[str, NDArray[Any]]:
    """Two light curves, and with ``asked`` times at which their flux is wanted."""
    query = {"query_mjd": np.array([6e4, 6.1e4]), "query_band": np.array([b"g", b"r"], dtype=object)}
    names = {"object_id": np.array([b"a", b"b"], dtype=object)}
    return oip.history(1.0, 2.0, points=2) | names | (query | {"query_offsets": np.array([0, 1, 2])} if asked else {})


def _tensors_as_json(asked: bool) -> bytes:
    outputs = [{"name": "status"}]
    return json.dumps(oip.json_body(_arrays(asked), outputs=outputs, parameters={"timeout": 5000})).encode()


def _tensors_as_protobuf() -> list[bytes]:
    """Requests over gRPC with raw and typed tensors; none without the extra."""
    with suppress(ImportError):
        from support.rpc import infer_request

        arrays = _arrays(False)
        return [infer_request(arrays, raw=raw, outputs=["status"]).SerializeToString() for raw in (True, False)]
    return []


def _tensors_as_bytes(asked: bool) -> bytes:
    body, length = oip.binary_body(_arrays(asked))
    return b"%d\n" % length + body


def _golden() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        arrays: dict[str, Any] = {"in/flux": np.ones((1, 2), np.float32), "out/p": np.ones(1)}
        np.savez_compressed(Path(name) / GOLDEN, allow_pickle=False, **arrays)
        return (Path(name) / GOLDEN).read_bytes()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log lines of faults, which are raised as well."""
    import logging

    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
