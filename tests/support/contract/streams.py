"""Stream workers of the contract: alerts from files, Redis and Kafka; results in every format; dead letters."""

import base64
import io
import json
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import redis

from nightjar_alerts.service.local import HOST, start
from support import alerts
from support.contract.cases import Case
from support.contract.exact import exact, replaced
from support.contract.inputs import PACKETS
from support.contract.masks import Masks, avro, masked
from support.contract.processes import NIGHTJAR, ROOT, inherited, run, variables
from support.contract.servers import START_SECONDS, send, send_until
from support.graph_bundles import classifier_bundle
from support.kafka_cluster import KafkaCluster, kafka_cluster
from support.redis import redis_server

_CLASS = {"type": "record", "name": "c", "fields": [
    {"name": "classId", "type": "int"}, {"name": "probability", "type": "float"},
]}  # fmt: skip
ELASTICC_SCHEMA = {
    "type": "record",
    "name": "brokerClassfication",
    "fields": [
        *({"name": name, "type": "long"} for name in ("alertId", "diaSourceId", "elasticcPublishTimestamp")),
        {"name": "brokerIngestTimestamp", "type": ["null", "long"]},
        *({"name": name, "type": "string"} for name in ("brokerName", "brokerVersion")),
        *({"name": f"classifier{name}", "type": "string"} for name in ("Name", "Params")),
        {"name": "classifications", "type": {"type": "array", "items": _CLASS}},
    ],
}


def _container(value: bytes) -> Any:
    return list(fastavro.reader(io.BytesIO(value)))


FORMATS: dict[str, Callable[[bytes], Any]] = {
    "nightjar": json.loads,
    "elasticc": partial(avro, ELASTICC_SCHEMA),
    "alerce-avro": _container,
    "alerce-json": json.loads,
    "lasair": json.loads,
}
"""Every format of results, and how a record is decoded."""


def _without_times(value: bytes) -> bytes:
    """A record of ELAsTiCC whose times are 0."""
    record = avro(ELASTICC_SCHEMA, value)
    assert _written(record) == value
    return _written(record | {"elasticcPublishTimestamp": 0, "brokerIngestTimestamp": 0})


def _written(record: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, ELASTICC_SCHEMA, record)
    return stream.getvalue()


MASKED = {"elasticc": _without_times}
"""Formats in which times are no text, and how they are masked."""

_REPEATED = {f"lsst {number} framed" for number in ("7.0", "8.0", "9.0")}  # 7.4 and 10.0 stand for them
CHOSEN = [packet for name, packet in PACKETS.items() if name not in _REPEATED]
TOPICS = json.dumps({"bare-*": {"envelope": "bare", "schema_name": "elasticc/0.9.1"}})

Record = tuple[Any, str]
"""Decoded and exact form of what a worker published."""
Records = Mapping[str, list[Record]]


def _work(command: str, folder: Path, **settings: str) -> None:
    """Run a worker until it has read everything."""
    chosen = {"WORKER_PORT": "0", "DEAD_LETTERS": f"file:{folder}/letters/"} | settings
    ended = run([command], folder, **chosen)
    assert ended.returncode in (0, 1, 3), f"{ended.stdout}\n{ended.stderr}"  # by what could be read


def _small(folder: Path) -> str:
    return str(classifier_bundle(folder / "counter").path)


def _packets(folder: Path) -> Path:
    packets = folder / "packets"
    packets.mkdir()
    for index, packet in enumerate(CHOSEN):
        (packets / f"{index:02d}.avro").write_bytes(packet)
    return packets


_BASE64 = re.compile(rb'(?<=,")[A-Za-z0-9+/]+=*(?="\])|(?<="value":")[A-Za-z0-9+/]+=*(?=")')
"""A header's text and the message in a dead letter's file."""


def _letters(folder: Path) -> list[Record]:
    """Dead letters of a folder."""
    found = []
    for path in folder.glob("*.record.json"):
        record = json.loads(path.read_text())
        record["headers"] = {name: base64.b64decode(value).decode() for name, value in record["headers"]}
        record["value"] = _shown(base64.b64decode(record["value"]))
        raw = _BASE64.sub(lambda match: _named(base64.b64decode(match[0], validate=True)), path.read_bytes())
        found.append((record, exact([], raw)))
    return found


def _named(value: bytes) -> bytes:
    """The name of a packet, for a message that is one."""
    return next((f"<packet: {name}>".encode() for name, packet in PACKETS.items() if packet == value), value)


def _shown(value: bytes) -> str:
    return f"{len(value)} bytes: {value.hex()[:80]}"


def _lines(path: Path) -> list[Record]:
    return [(json.loads(line), exact([], line)) for line in path.read_bytes().splitlines()]


def files(folder: Path) -> Records:
    """The bundled models: a folder of packets to a file of results and a folder of dead letters."""
    results = folder / "results.jsonl"
    _work("worker", folder, SOURCE=f"file:{_packets(folder)}", SINK=f"file:{results}")
    return {"results": _lines(results), "dead letters": _letters(folder / "letters")}


def file_formats(folder: Path) -> Records:
    """Formats of text in files, and the dead letters of a folder replayed."""
    packets, bundle = _packets(folder), _small(folder)
    found = {}
    for name in ("alerce-json", "lasair"):
        sink = folder / f"{name}.jsonl"
        _work("worker", folder, SOURCE=f"file:{packets}", SINK=f"file:{sink}", SINK_FORMAT=name, BUNDLE=bundle)
        found[name] = _lines(sink)
    sink, again = folder / "again.jsonl", f"file:{folder}/again/"
    source = f"file:{folder}/letters/"
    _work("replay", folder, SOURCE=source, SINK=f"file:{sink}", BUNDLE=bundle, DEAD_LETTERS=again)
    found["replayed dead letters"] = _letters(folder / "again")
    return found


def _entries(
    client: Any, stream: str, decode: Callable[[bytes], Any], plain: Callable[[bytes], bytes] = bytes
) -> list[Record]:
    """Entries of a Redis stream."""
    found = []
    for _, fields in client.xrange(stream):
        shown = {name.decode(): decode(value) if name == b"value" else value.decode() for name, value in fields.items()}
        head = (name + b": " + (b"<body>" if name == b"value" else value) for name, value in fields.items())
        found.append((shown, exact(head, plain(fields[b"value"]))))
    return found


def through_redis(folder: Path) -> Records:
    """Redis streams to Redis streams: every format, a rule for a topic, dead letters in a stream."""
    bundle, found = _small(folder), {}
    with redis_server(folder) as broker:
        client: Any = redis.Redis(HOST, broker.port, protocol=2)
        for index, packet in enumerate(CHOSEN):
            entry = {"value": packet, "timestamp": str(1_760_000_000_000 + index), "h:origin": f"packet {index}"}
            client.xadd("alerts", entry, id=f"1-{index + 1}")
        client.xadd("bare-alerts", {"value": PACKETS["elasticc 0.9.1 bare"], "key": "7"}, id="1-1")
        address = f"redis://{HOST}:{broker.port}"
        for name, decode in FORMATS.items():
            _work(
                "replay", folder, SOURCE=f"{address}/alerts,bare-alerts", SINK=f"{address}/{name}",
                SINK_FORMAT=name, BUNDLE=bundle, DEAD_LETTERS=f"{address}/dead-{name}", TOPICS=TOPICS,
            )  # fmt: skip
            found[name] = _entries(client, name, decode, MASKED.get(name, bytes))
        found["dead letters"] = _entries(client, "dead-nightjar", _shown, _named)
    return found


def probes(folder: Path) -> Records:
    """A worker that goes on until it is terminated: its probes and metrics, and what it acknowledged."""
    with redis_server(folder) as broker:
        client: Any = redis.Redis(HOST, broker.port, protocol=2)
        for packet in (PACKETS["lsst 10.0 framed"], PACKETS["cut short"]):
            client.xadd("alerts", {"value": packet})
        address = f"redis://{HOST}:{broker.port}"
        settings = {
            "SOURCE": f"{address}/alerts?group=contract", "SINK": f"{address}/results", "BUNDLE": _small(folder),
            "DEAD_LETTERS": f"{address}/dead",
        }  # fmt: skip
        worker = start(folder, None, variables(settings), (NIGHTJAR, "worker"), inherited())
        try:
            worker.wait_ready(START_SECONDS)
            deadline = time.monotonic() + 60
            while client.xlen("results") + client.xlen("dead") < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            for counted in ("lag_messages{", 'stage="dead_letters"', 'ending="dead"'):  # some time after the records
                send_until(Case("", "GET", "/metrics", until=counted), worker.port)
            paths = ("/healthz", "/readyz", "/metrics", "/nowhere")
            replies = {path: send(Case("", "GET", path), worker.port) for path in paths}
        finally:
            worker.process.terminate()
            worker.process.wait(60)
        groups = [
            {"name": group["name"].decode(), "pending": group["pending"]} for group in client.xinfo_groups("alerts")
        ]
    pages = {path: [(reply.decoded({}), reply.exact())] for path, reply in replies.items()}
    rest: dict[str, list[Any]] = {"groups": groups, "exit status": [worker.process.returncode]}
    return pages | {name: [(value, f"{value}\n") for value in values] for name, values in rest.items()}


def _messages(
    cluster: KafkaCluster, topic: str, decode: Callable[[bytes], Any], plain: Callable[[bytes], bytes] = bytes
) -> list[Record]:
    """Messages of a topic."""
    found = []
    for message in cluster.read(topic, cluster.length(topic)):
        key, value, headers = message.key() or b"", message.value(), message.headers() or []
        decoded = {name: text.decode() for name, text in headers}
        head = [b"key: " + key, *(name.encode() + b": " + text for name, text in headers)]
        found.append(({"key": key.decode(), "value": decode(value), "headers": decoded}, exact(head, plain(value))))
    return found


def through_kafka(folder: Path) -> Records:
    """Kafka topics to Kafka topics: every format, a schema as key, a rule for a topic, dead letters on a topic."""
    bundle, found = _small(folder), {}
    with kafka_cluster() as cluster:
        for topic in ("alerts", "bare-alerts", "keyed", *FORMATS, *(f"dead-{name}" for name in (*FORMATS, "again"))):
            cluster.create(topic)
        for index, packet in enumerate(CHOSEN):
            cluster.produce("alerts", [packet], [f"key {index}".encode()], headers=[("origin", b"packet %d" % index)])
        cluster.produce("bare-alerts", [PACKETS["elasticc 0.9.1 bare"]])
        schema = json.dumps(alerts.schema("ztf/4.02")).encode()
        cluster.produce("keyed", [alerts.bare("ztf/4.02", alerts.ztf_alert())], [schema])
        address = f"kafka://{cluster.hosts}"
        usual = {"BUNDLE": bundle, "TOPICS": TOPICS}
        for name, decode in FORMATS.items():
            ends = {"SINK": f"{address}/{name}", "DEAD_LETTERS": f"{address}/dead-{name}", "SINK_FORMAT": name}
            _work("replay", folder, SOURCE=f"{address}/alerts,bare-alerts,keyed", **ends, **usual)
            found[name] = _messages(cluster, name, decode, MASKED.get(name, bytes))
        found["dead letters"] = _messages(cluster, "dead-nightjar", _shown, _named)
        found["dead letters of alerce-avro"] = _messages(cluster, "dead-alerce-avro", _shown, _named)
        part = folder / "part.jsonl"
        source = f"{address}/alerts?partition=0&from=2&to=5"
        _work("replay", folder, SOURCE=source, SINK=f"file:{part}", **usual)
        found["range of offsets"] = _lines(part)
        ends = {"SINK": f"file:{folder}/again.jsonl", "DEAD_LETTERS": f"{address}/dead-again"}
        _work("replay", folder, SOURCE=f"{address}/dead-nightjar", **ends, **usual)
        found["replayed dead letters"] = _messages(cluster, "dead-again", _shown, _named)
    return found


STREAMS: dict[str, Callable[[Path], Records]] = {
    "files": files,
    "file formats": file_formats,
    "redis": through_redis,
    "worker": probes,
    "kafka": through_kafka,
}


def run_stream(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Records that workers published, by kind, in the order of their content, decoded and exact."""
    masks: Masks = {str(folder): "<folder>", str(ROOT): "<tree>"}
    found: dict[str, Any] = {}
    raw: dict[str, str] = {}
    for kind, records in STREAMS[name](folder).items():
        ordered = sorted((masked(record, masks) for record, _ in records), key=json.dumps)
        found |= {f"{kind} {index:02d}": record for index, record in enumerate(ordered)}
        texts = sorted(replaced(text, masks) for _, text in records)
        raw |= {f"{kind} {index:02d}": text for index, text in enumerate(texts)}
    return found, raw
