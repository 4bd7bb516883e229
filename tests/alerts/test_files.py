"""Packets in files, recognised by content; what is damaged or no alert is counted and hides nothing."""

import bz2
import gzip
import io
import json
import lzma
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import pytest

from nightjar_alerts.alerts import files
from nightjar_alerts.alerts.envelopes import read_packet
from nightjar_alerts.alerts.files import FileItem, read_path
from nightjar_alerts.alerts.packet import Packet
from support import alerts

RECORD = alerts.lsst_alert("lsst/10.0")
DOCUMENT = json.dumps(RECORD)


def container(*records: dict[str, Any], sync_interval: int = 16_000) -> bytes:
    return alerts.container("lsst/10.0", records, sync_interval=sync_interval)


def kinds(path: Path) -> list[tuple[str, str]]:
    return [(item.name, item.kind) for item in read_path(path)]


def object_ids(item: FileItem) -> list[str]:
    return [packet.object_id for packet in read_packet(item.data) if isinstance(packet, Packet)]


COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: bytes(cramjam.zstd.compress(data)),
}


@pytest.mark.parametrize("codec", COMPRESSED)
def test_read_path_compressed_container_gives_its_alert(codec: str, tmp_path: Path) -> None:
    path = tmp_path / "alert"
    path.write_bytes(COMPRESSED[codec](container(RECORD)))
    (item,) = read_path(path)
    (plain,) = read_packet(container(RECORD))
    assert isinstance(plain, Packet)
    assert object_ids(item) == [plain.object_id]


@pytest.mark.parametrize("codec", COMPRESSED)
def test_read_path_compressed_archive_gives_its_members(codec: str, tmp_path: Path) -> None:
    data = alerts.tar(
        {"a.avro": container(RECORD), "b.avro.gz": gzip.compress(container(RECORD)), "notes.txt": b"hello"}
    )
    (tmp_path / "night").write_bytes(COMPRESSED[codec](data))
    assert kinds(tmp_path) == [("night/a.avro", "packet"), ("night/b.avro.gz", "packet"), ("night/notes.txt", "other")]


def test_read_path_damaged_files_hide_no_others(tmp_path: Path) -> None:
    (tmp_path / "a.avro.gz").write_bytes(gzip.compress(container(RECORD))[:-9])
    (tmp_path / "b.tar").write_bytes(alerts.tar({"one.avro": container(RECORD)})[:700])
    (tmp_path / "c.tar.gz").write_bytes(b"\x1f\x8bnonsense")
    (tmp_path / "d.avro").write_bytes(container(RECORD))
    found = dict(kinds(tmp_path))
    assert found["a.avro.gz"] == found["c.tar.gz"] == "unreadable"
    assert found["b.tar"] == "unreadable"
    assert found["d.avro"] == "packet"


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("damage", [b"\xff", bytes(512)], ids=["checksum", "zeros"])
def test_read_path_damaged_header_hides_no_other_members(
    damage: bytes, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    first = alerts.tar({"a.avro": container(RECORD)})
    data = bytearray(alerts.tar({f"{name}.avro": container(RECORD) for name in "abc"}))
    start = len(first.rstrip(b"\0")) // 512 * 512 + 512
    data[start : start + len(damage)] = damage
    (tmp_path / "night.tar").write_bytes(pack(bytes(data)))
    assert kinds(tmp_path) == [
        ("night.tar/a.avro", "packet"),
        ("night.tar/c.avro", "packet"),
        ("night.tar", "unreadable"),
    ]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_read_path_archives_one_after_another_give_all_members(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    nights = [pack(alerts.tar({f"{name}.avro": container(RECORD)})) for name in "ab"]
    (tmp_path / "nights.tar").write_bytes(b"".join(nights))
    assert kinds(tmp_path) == [("nights.tar/a.avro", "packet"), ("nights.tar/b.avro", "packet")]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_read_path_archive_without_end_is_unreadable(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    data = alerts.tar({"a.avro": container(RECORD)}).rstrip(b"\0")
    (tmp_path / "night.tar").write_bytes(pack(data + bytes(-len(data) % 512)))
    assert kinds(tmp_path) == [("night.tar/a.avro", "packet"), ("night.tar", "unreadable")]


def test_read_path_cut_zstd_archive_gives_the_members_before_the_cut(tmp_path: Path) -> None:
    noise = random.Random(0).randbytes(1_000_000)
    packed = bytes(cramjam.zstd.compress(alerts.tar({"good.avro": container(RECORD), "noise": noise})))
    (tmp_path / "night.tar.zst").write_bytes(packed[:-100])
    assert kinds(tmp_path) == [
        ("night.tar.zst/good.avro", "packet"),
        ("night.tar.zst/noise", "unreadable"),
        ("night.tar.zst", "unreadable"),
    ]


def test_read_path_zstd_archive_may_be_larger_than_an_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = container(RECORD)
    monkeypatch.setattr(files, "MAX_ITEM_BYTES", len(data))
    members = {f"{number}.avro": data for number in range(5)}
    (tmp_path / "night.tar.zst").write_bytes(bytes(cramjam.zstd.compress(alerts.tar(members))))
    assert [kind for _, kind in kinds(tmp_path)] == ["packet"] * 5


def test_read_path_archive_in_an_archive_gives_its_members(tmp_path: Path) -> None:
    nights = {
        "one.tar": alerts.tar({"a.avro": container(RECORD)}),
        "two.tgz": alerts.tar({"b.avro": container(RECORD)}, "w:gz"),
    }
    damaged = {"three.tgz": alerts.tar({"c.avro": container(RECORD)}, "w:gz")[:-20]}
    (tmp_path / "week.tar").write_bytes(alerts.tar({**nights, **damaged, "d.avro": container(RECORD)}))
    assert dict(kinds(tmp_path)) == {
        "week.tar/one.tar/a.avro": "packet",
        "week.tar/two.tgz/b.avro": "packet",
        "week.tar/three.tgz/c.avro": "packet",
        "week.tar/three.tgz": "unreadable",
        "week.tar/d.avro": "packet",
    }


@pytest.mark.parametrize("codec", COMPRESSED)
def test_read_path_archives_at_any_depth_give_their_members(codec: str, tmp_path: Path) -> None:
    data = container(RECORD)
    for level in range(3):
        data = COMPRESSED[codec](
            alerts.tar({f"level{level}": data, f"{level}.avro": container(RECORD), "notes": b"hello"})
        )
    (tmp_path / "all").write_bytes(data)
    found = kinds(tmp_path)
    assert [kind for _, kind in found].count("packet") == 4
    assert [name for name, kind in found if kind == "other"] == [
        "all/level2/level1/notes",
        "all/level2/notes",
        "all/notes",
    ]


def test_read_path_archives_nested_without_end_are_unreadable(tmp_path: Path) -> None:
    data = container(RECORD)
    for _ in range(12):
        data = gzip.compress(data)
    (tmp_path / "deep").write_bytes(alerts.tar({"deep": data, "good.avro": container(RECORD)}))
    assert kinds(tmp_path) == [("deep/deep", "unreadable"), ("deep/good.avro", "packet")]


def test_read_path_compressed_twice_gives_its_alert(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bz2.compress(gzip.compress(container(RECORD))))
    assert kinds(tmp_path) == [("a", "packet")]


def test_read_path_links_in_an_archive_are_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "night.tar", "w") as archive:
        member = tarfile.TarInfo("a.avro")
        data = container(RECORD)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
        for name, kind in (("hard.avro", tarfile.LNKTYPE), ("soft.avro", tarfile.SYMTYPE), ("dir", tarfile.DIRTYPE)):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, "a.avro"
            archive.addfile(link)
    assert kinds(tmp_path) == [
        ("night.tar/a.avro", "packet"),
        ("night.tar/hard.avro", "other"),
        ("night.tar/soft.avro", "other"),
    ]


def test_read_path_links_and_attributes_of_macos_are_no_alerts(tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    (tmp_path / "night" / "a.avro").write_bytes(container(RECORD))
    (tmp_path / "night" / "._a.avro").write_bytes(b"\x00\x05\x16\x07" + bytes(100))
    (tmp_path / "link").symlink_to(tmp_path / "night")
    (tmp_path / "broken.avro").symlink_to(tmp_path / "missing.avro")
    (tmp_path / "alerts.zip").write_bytes(b"PK\x03\x04")
    assert kinds(tmp_path) == [
        ("alerts.zip", "other"),
        ("broken.avro", "unreadable"),
        ("link", "other"),
        ("night/._a.avro", "other"),
        ("night/a.avro", "packet"),
    ]


def test_read_path_file_beyond_the_limit_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_ITEM_BYTES", 1000)
    (tmp_path / "bomb.avro.gz").write_bytes(gzip.compress(bytes(100_000)))
    (tmp_path / "bomb.zst").write_bytes(bytes(cramjam.zstd.compress(bytes(100_000))))
    assert kinds(tmp_path) == [("bomb.avro.gz", "unreadable"), ("bomb.zst", "unreadable")]


def test_read_path_large_container_is_split_without_loss(tmp_path: Path) -> None:
    (tmp_path / "night.avro").write_bytes(container(*[RECORD] * 1200, sync_interval=2000))
    items = list(read_path(tmp_path))
    assert len(items) > 4
    assert [item.name for item in items[:2]] == ["night.avro[0]", "night.avro[1]"]
    assert sum(len(object_ids(item)) for item in items) == 1200


@pytest.mark.parametrize("codec", ["null", "deflate"])
@pytest.mark.parametrize("compressed", [False, True])
def test_read_path_container_of_one_block_is_split_without_loss(codec: str, compressed: bool, tmp_path: Path) -> None:
    data = alerts.container("lsst/10.0", [RECORD] * 1200, codec, sync_interval=1 << 30)
    (tmp_path / "night.avro").write_bytes(gzip.compress(data) if compressed else data)
    items = list(read_path(tmp_path))
    assert [item.name for item in items] == [f"night.avro[{number}]" for number in range(len(items))]
    assert sum(len(object_ids(item)) for item in items) == 1200


def test_read_path_container_larger_than_an_item_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = container(*[RECORD] * 1200, sync_interval=2000)
    monkeypatch.setattr(files, "MAX_ITEM_BYTES", len(data) // 8)
    monkeypatch.setattr(files, "READ_BYTES", 150_000)
    monkeypatch.setattr(files, "MAX_SPLIT_BYTES", 10_000)
    (tmp_path / "a.avro").write_bytes(data)
    (tmp_path / "b.tar").write_bytes(alerts.tar({"c.avro": data}))
    items = list(read_path(tmp_path))
    assert max(len(item.data) for item in items) < files.MAX_ITEM_BYTES
    assert sum(len(object_ids(item)) for item in items) == 2400


@pytest.mark.parametrize("sync_interval", [2000, 1 << 30])
def test_read_path_damaged_large_container_gives_its_good_records_and_an_error(
    sync_interval: int, tmp_path: Path
) -> None:
    data = bytearray(container(*[RECORD] * 1200, sync_interval=sync_interval))
    del data[len(data) // 2 :]
    (tmp_path / "night.avro").write_bytes(bytes(data))
    outcomes = [outcome for item in read_path(tmp_path) for outcome in read_packet(item.data)]
    errors = [outcome for outcome in outcomes if not isinstance(outcome, Packet)]
    assert len(errors) == 1
    assert sync_interval > len(data) or len(outcomes) > 500


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DOCUMENT, 1),
        (f"[{DOCUMENT}, {DOCUMENT}, {DOCUMENT}]", 3),
        (f"{DOCUMENT}\n{DOCUMENT}\n", 2),
        ("\ufeff" + DOCUMENT, 1),
    ],
    ids=["object", "list", "lines", "byte order mark"],
)
def test_read_path_json_gives_each_alert(text: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "alerts.json").write_text(text, encoding="utf-8")
    items = list(read_path(tmp_path))
    assert [item.kind for item in items] == ["packet"] * expected
    assert all(object_ids(item) for item in items)


def test_read_path_json_list_of_several_surveys_with_unusual_values_gives_each_alert(tmp_path: Path) -> None:
    ztf = {"objectId": "ZTF1", "candidate": {"pid": 2**80, "note": "\ud800", "magpsf": float("nan")}}
    (tmp_path / "alerts.json").write_text(json.dumps([json.loads(DOCUMENT), ztf]))
    surveys = [packet.survey for item in read_path(tmp_path) for packet in read_packet(item.data)]
    assert surveys == ["lsst", "ztf"]


@pytest.mark.parametrize("name", ["alerts.jsonl", "alerts.txt"])
@pytest.mark.parametrize("damage", ['{"objectId": ', "{]"])
def test_read_path_damaged_line_hides_no_others(name: str, damage: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(f"{damage}\n{DOCUMENT}\n\n{damage}\n{DOCUMENT}\n")
    items = list(read_path(tmp_path))
    assert [item.kind for item in items] == ["packet"] * 4
    assert [len(object_ids(item)) for item in items] == [0, 1, 0, 1]


def test_read_path_damaged_json_over_several_lines_is_one_item(tmp_path: Path) -> None:
    (tmp_path / "alert.json").write_text(json.dumps(json.loads(DOCUMENT), indent=1)[:-10])
    assert kinds(tmp_path) == [("alert.json", "packet")]


def test_read_path_other_files_of_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "bands.json").write_text('["g", {"a": 1}]')
    (tmp_path / "README.md").write_text("hello")
    (tmp_path / "package.json").write_text('{"name": "x"}')
    assert kinds(tmp_path) == [("README.md", "other"), ("bands.json", "other"), ("package.json", "other")]


def test_read_path_missing_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        list(read_path(tmp_path / "missing"))


def test_read_path_bomb_is_unreadable_and_hides_no_others(tmp_path: Path) -> None:
    members = {f"{k}.zst": bytes(cramjam.zstd.compress(bytes(30 << 20))) for k in range(5)}
    (tmp_path / "bombs.tar").write_bytes(alerts.tar({"good.avro": container(RECORD), **members}))
    (tmp_path / "other.avro").write_bytes(container(RECORD))
    found = {item.name: item for item in read_path(tmp_path)}
    assert found["bombs.tar/good.avro"].kind == found["other.avro"].kind == "packet"
    assert "67108864 bytes once decompressed" in found["bombs.tar/4.zst"].detail


def test_read_path_archive_of_zeros_ends_early(tmp_path: Path) -> None:
    data = alerts.tar({"good.avro": container(RECORD)}) + bytes(20 << 20) + alerts.tar({"late.avro": container(RECORD)})
    (tmp_path / "zeros.tar.gz").write_bytes(gzip.compress(data, 1))
    assert kinds(tmp_path) == [("zeros.tar.gz/good.avro", "packet"), ("zeros.tar.gz", "unreadable")]


def test_read_path_attributes_of_gigabytes_are_damage(tmp_path: Path) -> None:
    member = tarfile.TarInfo("name")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 4 << 30
    (tmp_path / "name.tar").write_bytes(member.tobuf() + alerts.tar({"good.avro": container(RECORD)}))
    assert kinds(tmp_path) == [("name.tar/good.avro", "packet"), ("name.tar", "unreadable")]
