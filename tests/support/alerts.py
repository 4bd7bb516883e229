"""Alert packets for tests: records filled in by schema, encoded in each envelope."""

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

import fastavro

from nightjar_alerts.alerts.avro import FOLDER

Json = Any
_BLANK = {"boolean": False, "int": 0, "long": 0, "float": 0.0, "double": 0.0, "string": "", "bytes": b""}


def schema(name: str) -> Json:
    """A shipped schema as JSON."""
    return json.loads((FOLDER / f"{name}.avsc").read_text())


def blank(kind: Json, named: dict[str, Json] | None = None) -> Any:
    """The emptiest value of a type: null where allowed, else zero, else empty."""
    named = {} if named is None else named
    if isinstance(kind, list):
        return None if "null" in kind else blank(kind[0], named)
    if isinstance(kind, str):
        return _BLANK[kind] if kind in _BLANK else blank(named[kind], named)
    if kind["type"] == "array":
        return []
    named[kind["name"]] = kind
    return {field["name"]: blank(field["type"], named) for field in kind["fields"]}


def plain_json(value: Json) -> str:
    """A record as JSON, bytes left out."""
    return json.dumps(value, default=lambda _: None)


def row(name: str, path: str, **values: Any) -> dict[str, Any]:
    """A record of the list or field ``path`` of a schema, with ``values`` over blanks."""
    named: dict[str, Json] = {}
    found: dict[str, Json] = {}

    def visit(kind: Json) -> Json:
        if isinstance(kind, list):
            return next((inner for branch in kind if (inner := visit(branch)) is not None), None)
        if isinstance(kind, str):
            return named.get(kind)
        if kind["type"] == "array":
            return visit(kind["items"])
        named[kind["name"]] = kind
        for field in kind["fields"]:
            found.setdefault(field["name"], visit(field["type"]))
        return kind

    visit(schema(name))
    record: dict[str, Any] = {**blank(found[path], named)}
    unknown = set(values) - set(record)
    assert not unknown, unknown
    return record | values


def bare(kind: Json, record: Mapping[str, Any]) -> bytes:
    """A schemaless record; ``kind`` is a schema or the name of a shipped one."""
    kind = schema(kind) if isinstance(kind, str) else kind
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(kind), {**blank(kind), **record})
    return stream.getvalue()


def confluent(schema_id: int, record: Mapping[str, Any]) -> bytes:
    """An LSST record with Rubin's framing."""
    name = f"lsst/{schema_id // 100}.{schema_id % 100}"
    return b"\0" + schema_id.to_bytes(4, "big") + bare(name, record)


def container(
    kind: Json, records: Sequence[Mapping[str, Any]], codec: str = "null", sync_interval: int = 16000
) -> bytes:
    """An object container; ``kind`` is a schema or the name of a shipped one."""
    kind = schema(kind) if isinstance(kind, str) else kind
    full = [{**blank(kind), **record} for record in records]
    stream = io.BytesIO()
    fastavro.writer(stream, fastavro.parse_schema(kind), full, codec=codec, sync_interval=sync_interval)
    return stream.getvalue()


def long(value: int) -> bytes:
    """An Avro long."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def header(kind: Json, codec: str = "null", sync: bytes = b"S" * 16) -> bytes:
    """The header of a container, whatever ``kind`` is."""
    text = kind if isinstance(kind, bytes) else json.dumps(kind).encode()
    entries = {b"avro.schema": text, b"avro.codec": codec.encode()}
    body = b"".join(long(len(key)) + key + long(len(value)) + value for key, value in entries.items())
    return b"Obj\x01" + long(len(entries)) + body + long(0) + sync


def block(count: int, data: bytes, sync: bytes = b"S" * 16) -> bytes:
    """One block of a container."""
    return long(count) + long(len(data)) + data + sync


def lsst_alert(name: str = "lsst/10.0", points: int = 6) -> dict[str, Any]:
    """A Rubin alert of one object: forced points on every second visit, detections on the others, in all bands."""
    rows = {
        i: {"visit": 1000 + i, "midpointMjdTai": 61000.0 + i, "band": "ugrizy"[i % 6], "psfFlux": 100.0 * i - 50.0,
            "psfFluxErr": 10.0}
        for i in range(points)
    }  # fmt: skip
    ids = {"diaSourceId": 170094456272322680, "diaObjectId": 170028485706776685}
    detections = [row(name, "diaSource", **ids, **rows[i]) for i in range(0, points, 2)]
    forced = [row(name, "prvDiaForcedSources", **rows[i]) for i in range(1, points, 2)]
    top = {"alertId" if name.startswith("lsst/7") else "diaSourceId": ids["diaSourceId"]}
    return {
        **top,
        "diaSource": detections[-1],
        "prvDiaSources": detections[:-1],
        "prvDiaForcedSources": forced,
        "diaObject": row(name, "diaObject", diaObjectId=ids["diaObjectId"]),
    }


def elasticc_alert(name: str = "elasticc/0.9.1") -> dict[str, Any]:
    """An ELAsTiCC alert with a detection that also has forced photometry, and host metadata."""
    point = {"midPointTai": 60500.25, "filterName": "Y", "psFlux": 900.0, "psFluxErr": 30.0}
    return {
        "alertId": 2**61 + 1,
        "diaSource": row(name, "diaSource", diaSourceId=2**61 + 1, diaObjectId=2**60 + 1, **point),
        "prvDiaForcedSources": [
            row(name, "prvDiaForcedSources", **{**point, "psFlux": 880.0}),
            row(name, "prvDiaForcedSources", **{**point, "midPointTai": 60498.2, "filterName": "g", "psFlux": -5.0}),
        ],
        "diaObject": row(
            name, "diaObject", diaObjectId=2**60 + 1, z_final=0.31, hostgal_zphot=-9.0, hostgal_mag_r=999.0, mwebv=0.02
        ),
    }


def ztf_alert(name: str = "ztf/4.02") -> dict[str, Any]:
    """A ZTF alert with history, an upper limit and (4.x) forced photometry."""
    candid = 2695378462115010012
    point = {"jd": 2460449.8, "fid": 1, "magpsf": 18.4, "sigmapsf": 0.1, "isdiffpos": "t", "candid": candid}
    alert = {
        "objectId": "ZTF24abcdefg",
        "schemavsn": name.removeprefix("ztf/"),
        "candid": candid,
        "candidate": row(name, "candidate", **point),
        "prv_candidates": [
            row(name, "prv_candidates", **{**point, "jd": 2460447.8, "fid": 2, "isdiffpos": "f"}),
            row(name, "prv_candidates", jd=2460446.8, fid=2, diffmaglim=20.1),
        ],
    }
    if name >= "ztf/4":
        forced = {"fid": 1, "forcediffimflux": 120.0, "forcediffimfluxunc": 12.0, "magzpsci": 26.2, "procstatus": "0"}
        alert["fp_hists"] = [row(name, "fp_hists", jd=2460440.8, **forced)]
    return alert


def tar(members: Mapping[str, bytes], mode: str = "w") -> bytes:
    """A tar archive."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:  # type: ignore[call-overload]  # the mode is a variable
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()
