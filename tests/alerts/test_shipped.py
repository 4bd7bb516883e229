import io
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro
import pytest

from nightjar_alerts.alerts import avro
from nightjar_alerts.alerts.packet import PacketError, RejectReason
from support import alerts
from support.shared import needs_shared, shared

LSST = [name for name in avro.schema_names() if name.startswith("lsst/")]


def published_lsst(name: str) -> Any:
    packet = pytest.importorskip("lsst.alert.packet", reason="lsst-alert-packet is a development dependency")
    major, minor = name.removeprefix("lsst/").split(".")
    root = Path(packet.__file__).parent / "schema" / major / minor
    return fastavro.schema.load_schema(str(root / f"lsst.v{major}_{minor}.alert.avsc"))


def published_other(name: str) -> Any:
    if name == "ztf/4.02":
        parts = ("candidate", "prv_candidate", "fp_hist", "cutout", "alert")
        return fastavro.schema.load_schema_ordered(
            [str(shared("data", "schemas", "ztf", f"{part}.avsc")) for part in parts]
        )
    folder, version = {"elasticc/0.9": ("v0_9", "v0_9"), "elasticc/0.9.1": ("", "v0_9_1")}[name]
    return fastavro.schema.load_schema(
        str(shared("data", "schemas", "elasticc", folder, f"elasticc.{version}.alert.avsc"))
    )


def expanded(kind: Any, named: dict[str, Any]) -> Any:
    """A schema without names of types: what decoding depends on."""
    if isinstance(kind, list):
        return [expanded(branch, named) for branch in kind]
    if isinstance(kind, str):
        return named.get(kind, kind)
    if kind["type"] == "array":
        return ["array of", expanded(kind["items"], named)]
    if kind["type"] != "record":
        return expanded(kind["type"], named)
    named[kind["name"]] = [(field["name"], expanded(field["type"], named)) for field in kind["fields"]]
    return named[kind["name"]]


def filled(kind: Any, named: Mapping[str, Any], rng: random.Random) -> Any:
    """A random value of a type."""
    if isinstance(kind, list):
        return filled(rng.choice(kind), named, rng)
    if isinstance(kind, dict) and kind["type"] == "array":
        return [filled(kind["items"], named, rng) for _ in range(2)]
    if isinstance(kind, dict):
        return {field["name"]: filled(field["type"], named, rng) for field in kind["fields"]}
    values = {"null": None, "boolean": rng.random() < 0.5, "int": rng.randrange(-9, 9), "long": rng.randrange(2**60),
              "float": rng.randrange(99) / 4, "double": rng.random(), "string": "s", "bytes": b"b"}  # fmt: skip
    return values[kind] if kind in values else filled(named[kind], named, rng)


def check_same(name: str, published: Any) -> None:
    assert expanded(alerts.schema(name), {}) == expanded(published, {})
    ours = avro.load(name)
    record = filled(ours.root, ours.named, random.Random(name))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, published, record)
    assert avro.read_record(io.BytesIO(stream.getvalue()), ours, ours.parsed) == record


def test_every_lsst_version_from_7_on_is_shipped() -> None:
    assert (
        sorted(f"lsst/{v}" for v in ("7.0", "7.1", "7.2", "7.3", "7.4", "8.0", "9.0", "10.0", "11.0", "11.1")) == LSST
    )


@pytest.mark.parametrize("name", LSST)
def test_lsst_schemas_decode_as_the_published_ones(name: str) -> None:
    check_same(name, published_lsst(name))


@needs_shared
@pytest.mark.parametrize("name", ["elasticc/0.9", "elasticc/0.9.1", "ztf/4.02"])
def test_other_schemas_decode_as_the_published_ones(name: str) -> None:
    check_same(name, published_other(name))


@needs_shared
def test_the_older_ztf_schema_is_that_of_a_real_packet() -> None:
    path = sorted(shared("data", "alerts", "ztf", "kowalski", "20200202").glob("*.avro"))[0]
    with path.open("rb") as file:
        check_same("ztf/3.3", fastavro.reader(file).writer_schema)


def test_confluent_ids_name_versions() -> None:
    assert [avro.confluent_name(i) for i in (704, 1000, 1101)] == ["lsst/7.4", "lsst/10.0", "lsst/11.1"]


HOSTILE_NAMES = [
    "",
    "lsst",
    "lsst/",
    "lsst/10",
    "lsst/99.9",
    "lsst/../lsst/10.0",
    "../../etc/passwd",
    "lsst/10.0\n",
    "LSST/10.0",
]


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, "lsst/10.0\0", "lsst/" + "1" * 5000, "lsst/42949672.95"])
def test_unknown_names_are_refused(name: str) -> None:
    assert not avro.exists(name)
    with pytest.raises(PacketError) as caught:
        avro.load(name)
    assert caught.value.reason is RejectReason.UNKNOWN_SCHEMA
    assert "lsst/10.0, lsst/11.0" in str(caught.value)


def test_an_extra_folder_adds_schemas_but_replaces_none(tmp_path: Path) -> None:
    extra = {"type": "record", "name": "lsst.v12_0.alert", "fields": [{"name": "diaSourceId", "type": "long"}]}
    (tmp_path / "lsst").mkdir()
    for name in ("12.0", "10.0"):
        (tmp_path / "lsst" / f"{name}.avsc").write_text(json.dumps(extra))
    assert not avro.exists("lsst/12.0")
    assert avro.load("lsst/12.0", tmp_path).root == extra
    assert avro.load("lsst/10.0", tmp_path).name == "lsst.v10_0.alert"


def test_an_unsafe_extra_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lsst").mkdir()
    (tmp_path / "lsst" / "12.0.avsc").write_text('{"type": "record"')
    with pytest.raises(PacketError) as caught:
        avro.load("lsst/12.0", tmp_path)
    assert caught.value.reason is RejectReason.UNSAFE_SCHEMA
