"""The stream workers of the contract: alerts from files and Redis, results and dead letters in every format."""

import base64
import io
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import redis

from support.contract.curves import PACKETS
from support.contract.masks import Masks, avro, masked
from support.contract.servers import HOST, environment
from support.graph_bundles import classifier_bundle
from support.redis import redis_server

LIMIT_SECONDS = 180.0
_CLASS = {"type": "record", "name": "c", "fields": [
    {"name": "classId", "type": "int"}, {"name": "probability", "type": "float"},
]}  # fmt: skip
ELASTICC_REPLY = {
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
_LEFT_OUT = {f"lsst {number} framed" for number in ("7.0", "8.0", "9.0")}  # what they say is said of 7.4 and 10.0
CHOSEN = [packet for name, packet in PACKETS.items() if name not in _LEFT_OUT]
TOPICS = {"bare-*": {"envelope": "bare", "schema_name": "elasticc/0.9.1"}}


def _work(command: str, tree: Path, folder: Path, **settings: str) -> None:
    """Run a worker until it has read everything."""
    chosen = {"WORKER_PORT": "0", "DEAD_LETTERS": f"file:{folder}/letters/"} | settings
    done = subprocess.run(
        [sys.executable, "-m", "nightjar_alerts.service", command],
        env=environment(tree, folder, chosen),
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def _alerts(folder: Path) -> Path:
    packets = folder / "packets"
    packets.mkdir()
    for place, packet in enumerate(CHOSEN):
        (packets / f"{place:02d}.avro").write_bytes(packet)
    return packets


def _records(folder: Path) -> list[Any]:
    """Content of a folder of records, headers as text; without times."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.record.json")]
    for record in found:
        record["headers"] = {name: base64.b64decode(value).decode() for name, value in record["headers"]}
        record["value"] = base64.b64decode(record["value"]).hex()[:80]
    return sorted(found, key=lambda record: str(record["key"]))


def _lines(path: Path) -> list[Any]:
    return sorted(
        map(json.loads, path.read_text().splitlines()), key=lambda line: json.dumps(line, sort_keys=True)[:90]
    )


def files(tree: Path, folder: Path) -> dict[str, Any]:
    """The bundled models, from a folder of packets to a file of results and a folder of dead letters."""
    results = folder / "results.jsonl"
    _work("worker", tree, folder, SOURCE=f"file:{_alerts(folder)}", SINK=f"file:{results}")
    return {"results": _lines(results), "letters": _records(folder / "letters")}


def formats(tree: Path, folder: Path) -> dict[str, Any]:
    """A small model's results in the formats of text."""
    packets, bundle = _alerts(folder), str(classifier_bundle(folder / "counter").path)
    found = {}
    for name in ("alerce-json", "lasair"):
        sink = folder / f"{name}.jsonl"
        _work("worker", tree, folder, SOURCE=f"file:{packets}", SINK=f"file:{sink}", SINK_FORMAT=name, BUNDLE=bundle)
        found[name] = _lines(sink)
    return found


def _fields(client: Any, stream: str, decode: Callable[[bytes], Any]) -> list[Any]:
    """Entries of a stream, in the order of their keys."""
    entries = [fields for _, fields in client.xrange(stream)]
    told = [
        {name.decode(): decode(value) if name == b"value" else value.decode() for name, value in fields.items()}
        for fields in entries
    ]
    return sorted(told, key=lambda fields: str(fields.get("key")))


def _container(value: bytes) -> Any:
    return list(fastavro.reader(io.BytesIO(value)))


def through_redis(tree: Path, folder: Path) -> dict[str, Any]:
    """Run a worker from Redis streams to Redis streams: three formats, a rule for a topic, dead letters in a stream."""
    bundle = str(classifier_bundle(folder / "counter").path)
    decoders: dict[str, Callable[[bytes], Any]] = {
        "nightjar": json.loads,
        "elasticc": partial(avro, ELASTICC_REPLY),
        "alerce-avro": _container,
    }
    found: dict[str, Any] = {}
    with redis_server(folder) as broker:
        client: Any = redis.Redis(HOST, broker.port, protocol=2)
        for place, packet in enumerate(CHOSEN):
            entry = {"value": packet, "timestamp": str(1_760_000_000_000 + place), "h:origin": f"packet {place}"}
            client.xadd("alerts", entry, id=f"1-{place + 1}")
        client.xadd("bare-alerts", {"value": PACKETS["elasticc 0.9.1 bare"], "key": "7"}, id="1-1")
        where = f"redis://{HOST}:{broker.port}"
        for name, decode in decoders.items():
            _work(
                "replay", tree, folder, SOURCE=f"{where}/alerts,bare-alerts", SINK=f"{where}/{name}", SINK_FORMAT=name,
                BUNDLE=bundle, DEAD_LETTERS=f"{where}/dead-{name}", TOPICS=json.dumps(TOPICS),
            )  # fmt: skip
            found[name] = _fields(client, name, decode)
        found["dead"] = _fields(client, "dead-nightjar", lambda value: value.hex()[:80])
    return found


STREAMS: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    "files": files,
    "formats": formats,
    "redis": through_redis,
}


def runs(name: str, tree: Path, folder: Path) -> dict[str, Any]:
    """Records that a stream of the contract published, by their kind and place."""
    masks: Masks = {str(folder): "<folder>", str(tree): "<tree>"}
    found = STREAMS[name](tree, folder)
    return {
        f"{kind} {place:02d}": masked(record, masks)
        for kind, records in found.items()
        for place, record in enumerate(records)
    }
