"""Formats of published results.

- ``nightjar``: JSON with the members of an HTTP result, with the embedding (``stream-result-1.schema.json``);
- ``nightjar-avro``: the same as a schemaless Avro record (``stream-result-1.avsc``);
- ``elasticc``: the ELAsTiCC ``brokerClassification`` 0.9.1, a schemaless Avro record;
- ``alerce-avro``, ``alerce-json``: ALeRCE's ``lc_classification`` step, as an Avro file of one record or as JSON;
- ``lasair``: the payload of a Lasair annotation, with the argument names of its REST client.

The formats of ALeRCE and Lasair cannot express an abstention, so nothing is published for it. Class ids and names are
those of the model that classified the alert.
"""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import fastavro
import msgspec
import numpy as np
import orjson

from nightjar_alerts.core.items import packet_identity
from nightjar_alerts.core.serializer import default_serializer, encode_json
from nightjar_alerts.service.observe.live import LiveFeed
from nightjar_alerts.service.process import VERSION
from nightjar_alerts.service.settings import SinkFormat
from nightjar_alerts.service.stream.messages import AlertResult, Headers, PermanentError, Record

BROKER: Final = "Nightjar"
RESIDUAL, NOT_CLASSIFIED = 200, 300  # ids in the ELAsTiCC taxonomy; no bundle has classes with these ids

_MILLIS: Final = {"type": "long", "logicalType": "timestamp-millis"}
ELASTICC_REPLY: Final = fastavro.parse_schema({
    "type": "record", "namespace": "elasticc.v0_9_1", "name": "brokerClassfication",  # spelled so by the survey
    "fields": [
        {"name": "alertId", "type": "long"},
        {"name": "diaSourceId", "type": "long"},
        {"name": "elasticcPublishTimestamp", "type": _MILLIS},
        {"name": "brokerIngestTimestamp", "type": ["null", _MILLIS]},
        {"name": "brokerName", "type": "string"},
        {"name": "brokerVersion", "type": "string"},
        {"name": "classifierName", "type": "string"},
        {"name": "classifierParams", "type": "string"},
        {"name": "classifications", "type": {"type": "array", "items": {
            "type": "record", "name": "classificationDict",
            "fields": [{"name": "classId", "type": "int"}, {"name": "probability", "type": "float"}],
        }}},
    ],
})  # fmt: skip
SCHEMAS: Final = Path(__file__).resolve().parents[1] / "answers" / "schemas"
STREAM_RESULT_NAME: Final = "stream-result-1"
STREAM_RESULT: Final = fastavro.parse_schema(orjson.loads((SCHEMAS / f"{STREAM_RESULT_NAME}.avsc").read_bytes()))
"""Published Avro schema of ``nightjar-avro``. A version never changes: a new member needs ``stream-result-2``."""
_FLOATS: Final = {"type": "map", "values": "float"}
ALERCE_OUTPUT: Final = fastavro.parse_schema({
    "type": "record", "name": "probabilities_and_features",
    "fields": [
        {"name": "oid", "type": "string"},
        {"name": "features", "type": [{"type": "map", "values": ["boolean", "float", "null", "int"]}, "null"]},
        {"name": "lc_classification", "type": {"type": "record", "name": "late_record", "fields": [
            {"name": "probabilities", "type": {"type": "map", "values": ["float"]}},
            {"name": "class", "type": "string"},
            {"name": "hierarchical", "type": {"type": "map", "values": [_FLOATS, {"type": "map", "values": _FLOATS}]}},
        ]}},
    ],
})  # fmt: skip


def encode_record(result: AlertResult, form: SinkFormat, embedding: bool = True) -> Record | None:
    """Return the record to publish; None if the format cannot express the result.

    Parameters
    ----------
    embedding : whether to include the embedding in Nightjar's own formats.

    Raises
    ------
    PermanentError
        If the format needs an id that the alert does not have.
    """
    if form == "nightjar":
        value: bytes | None = encode_json(_stream_result(result, embedding))
    elif form == "nightjar-avro":
        value = _encode_avro(_stream_result(result, embedding))
    else:
        value = _BROKER_FORMATS[form](result)
    if value is None:
        return None
    headers: Headers = (("nightjar-status", result.outcome.status.encode()), ("nightjar-format", form.encode()))
    if form == "nightjar-avro":
        headers = (*headers, ("nightjar-schema", STREAM_RESULT_NAME.encode()))
    return Record(result.key.encode(), value, headers)


def encode_and_show(
    result: AlertResult, encode: Callable[[AlertResult], Record | None], feed: LiveFeed
) -> Record | None:
    """Encode a result, and add it to the live view."""
    record = encode(result)
    fields = default_serializer(result.handle, result.prior).result(result.outcome, packet_identity(result.packet))
    feed.publish([fields])
    return record


def _stream_result(result: AlertResult, embedding: bool) -> dict[str, Any]:
    serializer = default_serializer(result.handle, result.prior)
    document = serializer.stream_result(result.outcome, result.packet, result.key, result.message.topic, embedding)
    return document if result.evolution is None else document | {"evolution": serializer.summary(*result.evolution)}


def _encode_avro(document: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, STREAM_RESULT, msgspec.to_builtins(document, enc_hook=np.ndarray.tolist))
    return stream.getvalue()


def _elasticc(result: AlertResult) -> bytes:
    manifest, packet = result.bundle.manifest, result.packet
    reply = {
        "alertId": _number(packet.alert_id, "alert id"),
        "diaSourceId": _number(packet.source_id or packet.alert_id, "source id"),
        "elasticcPublishTimestamp": result.message.timestamp_ms or result.received_ms,
        "brokerIngestTimestamp": result.received_ms,
        "brokerName": BROKER,
        "brokerVersion": VERSION,
        "classifierName": f"{manifest.name} {manifest.version}",
        "classifierParams": f"taxonomy={manifest.classes.name}/{manifest.classes.version}",
        "classifications": _classifications(result),
    }
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, ELASTICC_REPLY, reply)
    return stream.getvalue()


def _classifications(result: AlertResult) -> list[dict[str, float]]:
    """Return class ids and probabilities that sum to 1 in single precision, in which they are sent."""
    probabilities = _probabilities(result)
    if probabilities is None:
        return [{"classId": NOT_CLASSIFIED, "probability": 1.0}]
    shares = np.array(list(probabilities.values()), dtype=np.float32)
    residual = max(0.0, 1.0 - float(shares.sum(dtype=np.float64)))
    ids = result.bundle.manifest.classes.ids
    classes = [{"classId": number, "probability": p} for number, p in zip(ids, shares.tolist(), strict=True)]
    return [*classes, {"classId": RESIDUAL, "probability": residual}]


def _alerce(result: AlertResult) -> dict[str, Any] | None:
    probabilities = _probabilities(result)
    if probabilities is None:
        return None
    top, children = _families(result, probabilities)
    return {
        "oid": result.packet.object_id,
        "features": None,
        "lc_classification": {
            "probabilities": probabilities,
            "class": max(probabilities, key=probabilities.__getitem__),
            "hierarchical": {"top": top, "children": children},
        },
    }


def _families(
    result: AlertResult, probabilities: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return the probabilities of the parent groups of the classes, and of the classes within their group."""
    top: dict[str, float] = {}
    children: dict[str, dict[str, float]] = {}
    for leaf in result.bundle.manifest.classes.classes:
        family = leaf.path[-1] if leaf.path else leaf.name
        top[family] = top.get(family, 0.0) + probabilities[leaf.name]
        children.setdefault(family, {})[leaf.name] = probabilities[leaf.name]
    within = {
        family: {name: p / top[family] if top[family] else 1 / len(leaves) for name, p in leaves.items()}
        for family, leaves in children.items()
    }
    return top, within


def _alerce_json(result: AlertResult) -> bytes | None:
    document = _alerce(result)
    return None if document is None else orjson.dumps(document)


def _alerce_avro(result: AlertResult) -> bytes | None:
    document = _alerce(result)
    if document is None:
        return None
    stream = io.BytesIO()
    fastavro.writer(stream, ALERCE_OUTPUT, [document], sync_marker=b"nightjar-results")
    return stream.getvalue()


def _lasair(result: AlertResult) -> bytes | None:
    probabilities = _probabilities(result)
    if probabilities is None:
        return None
    manifest = result.bundle.manifest
    best = max(probabilities, key=probabilities.__getitem__)
    payload = {
        "topic": manifest.name,
        "objectId": result.packet.object_id,
        "classification": best,
        "version": manifest.version,
        "explanation": f"{best} with probability {probabilities[best]:.3f}, by {manifest.name} {manifest.version}",
        "classdict": {"probabilities": probabilities, "alert_id": result.packet.alert_id},
        "url": "",
    }
    return orjson.dumps(payload)


def _probabilities(result: AlertResult) -> dict[str, float] | None:
    """Return probabilities by class name, which sum to 1 in double precision; None without a prediction."""
    values = default_serializer(result.handle, result.prior).probabilities(result.outcome)
    return None if values is None else dict(zip(result.bundle.manifest.classes.names, values.tolist(), strict=True))


def _number(text: str, what: str) -> int:
    if not text.isdecimal():
        raise PermanentError(f"the format needs a numeric {what}, and the alert has {text!r}")
    return int(text)


_BROKER_FORMATS: Final[Mapping[SinkFormat, Callable[[AlertResult], bytes | None]]] = {
    "elasticc": _elasticc,
    "alerce-avro": _alerce_avro,
    "alerce-json": _alerce_json,
    "lasair": _lasair,
}
