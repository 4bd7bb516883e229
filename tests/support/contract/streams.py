"""Stream workers of the contract: alerts from files, Redis and Kafka; results in every format; dead letters."""

import base64
import io
import json
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import redis

from nightjar_alerts.service.local import HOST, start
from support import alerts
from support.contract.cases import Case
from support.contract.inputs import PACKETS
from support.contract.masks import Masks, avro, masked, response
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

_REPEATED = {f"lsst {number} framed" for number in ("7.0", "8.0", "9.0")}  # 7.4 and 10.0 stand for them
CHOSEN = [packet for name, packet in PACKETS.items() if name not in _REPEATED]
TOPICS = json.dumps({"bare-*": {"envelope": "bare", "schema_name": "elasticc/0.9.1"}})

Records = Mapping[str, Iterable[Any]]


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


def _letters(folder: Path) -> list[Any]:
    """Dead letters of a folder."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.record.json")]
    for record in found:
        record["headers"] = {name: base64.b64decode(value).decode() for name, value in record["headers"]}
        record["value"] = _shown(base64.b64decode(record["value"]))
    return found


def _shown(value: bytes) -> str:
    return f"{len(value)} bytes: {value.hex()[:80]}"


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


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


def _entries(client: Any, stream: str, decode: Callable[[bytes], Any]) -> list[Any]:
    """Entries of a Redis stream."""
    return [
        {name.decode(): decode(value) if name == b"value" else value.decode() for name, value in fields.items()}
        for _, fields in client.xrange(stream)
    ]


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
            found[name] = _entries(client, name, decode)
        found["dead letters"] = _entries(client, "dead-nightjar", _shown)
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
            send_until(Case("", "GET", "/metrics", until="lag_messages{"), worker.port)  # asked for every few seconds
            paths = ("/healthz", "/readyz", "/metrics", "/nowhere")
            pages = {path: [response(*send(Case("", "GET", path), worker.port), {})] for path in paths}
        finally:
            worker.process.terminate()
            worker.process.wait(60)
        groups = [
            {"name": group["name"].decode(), "pending": group["pending"]} for group in client.xinfo_groups("alerts")
        ]
    return pages | {"groups": groups, "exit status": [worker.process.returncode]}


def _messages(cluster: KafkaCluster, topic: str, decode: Callable[[bytes], Any]) -> list[Any]:
    """Messages of a topic."""
    return [
        {
            "key": (message.key() or b"").decode(),
            "value": decode(message.value()),
            "headers": {name: value.decode() for name, value in message.headers() or []},
        }
        for message in cluster.read(topic, cluster.length(topic))
    ]


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
            found[name] = _messages(cluster, name, decode)
        found["dead letters"] = _messages(cluster, "dead-nightjar", _shown)
        found["dead letters of alerce-avro"] = _messages(cluster, "dead-alerce-avro", _shown)
        part = folder / "part.jsonl"
        source = f"{address}/alerts?partition=0&from=2&to=5"
        _work("replay", folder, SOURCE=source, SINK=f"file:{part}", **usual)
        found["range of offsets"] = _lines(part)
        ends = {"SINK": f"file:{folder}/again.jsonl", "DEAD_LETTERS": f"{address}/dead-again"}
        _work("replay", folder, SOURCE=f"{address}/dead-nightjar", **ends, **usual)
        found["replayed dead letters"] = _messages(cluster, "dead-again", _shown)
    return found


STREAMS: dict[str, Callable[[Path], Records]] = {
    "files": files,
    "file formats": file_formats,
    "redis": through_redis,
    "worker": probes,
    "kafka": through_kafka,
}


def run_stream(name: str, folder: Path) -> dict[str, Any]:
    """Records that workers published, by kind, in the order of their content."""
    masks: Masks = {str(folder): "<folder>", str(ROOT): "<tree>"}
    found: dict[str, Any] = {}
    for kind, records in STREAMS[name](folder).items():
        ordered = sorted((masked(record, masks) for record in records), key=json.dumps)
        found |= {f"{kind} {index:02d}": record for index, record in enumerate(ordered)}
    return found
