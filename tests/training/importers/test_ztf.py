"""ZTF archives: signs, zero points, times and exposures, against arithmetic here and against what the service reads."""

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest

from nightjar_alerts.alerts import containers
from nightjar_alerts.alerts.envelopes import read_packet
from nightjar_alerts.alerts.packet import Packet
from nightjar_alerts.tables import About, TableError
from nightjar_alerts.training.importers.ztf import LeftOut, read_alerts
from support.importers import avro, cleaned, write_alerts, ztf_alert

JD = 2_459_000.5
SAMPLES = Path(__file__).resolve().parents[3] / "service" / "samples"


def only(path: Path, **options: Any) -> Any:
    (raw,) = read_alerts(path, **options)
    return cleaned(raw, min_detections=0)


@pytest.mark.parametrize(("flag", "sign"), [("t", 1.0), ("1", 1.0), ("f", -1.0), ("0", -1.0)])
def test_magnitudes_have_a_sign_and_an_error(tmp_path: Path, flag: str, sign: float) -> None:
    record, _ = only(write_alerts(tmp_path / "a", [ztf_alert("Z1", JD, isdiffpos=flag)]))
    flux = 3631e9 * 10 ** (-0.4 * 20.0)
    np.testing.assert_allclose(record.flux, [sign * flux], rtol=1e-4)
    np.testing.assert_allclose(record.flux_err, [flux * 0.1 * np.log(10) / 2.5], rtol=1e-4)
    assert record.detected.tolist() == [True]


def test_times_are_tai_at_mid_exposure(tmp_path: Path) -> None:
    record, _ = only(write_alerts(tmp_path / "a", [ztf_alert("Z1", JD)]))
    np.testing.assert_allclose(record.mjd, [59_000.0 + (37.0 + 15.0) / 86_400.0], rtol=0, atol=1e-8)
    record, _ = only(write_alerts(tmp_path / "b", [ztf_alert("Z1", JD, exptime=300.0)]))
    np.testing.assert_allclose(record.mjd, [59_000.0 + (37.0 + 150.0) / 86_400.0], rtol=0, atol=1e-8)


def test_limits_and_points_without_a_sign_are_counted(tmp_path: Path) -> None:
    history: list[dict[str, Any]] = [
        {"jd": JD - 3, "fid": 2},
        {"jd": JD - 2, "fid": 2, "magpsf": 19.0, "sigmapsf": 0.1, "isdiffpos": "?"},
    ]
    record, report = only(write_alerts(tmp_path / "a", [ztf_alert("Z1", JD, history)]))
    assert len(record.mjd) == 1
    assert report.dropped_points == {"upper limit": 1, "no sign of the difference": 1}


def test_forced_photometry_stands_for_its_exposure_which_stays_detected(tmp_path: Path) -> None:
    good = {"forcediffimflux": 50.0, "forcediffimfluxunc": 5.0, "magzpsci": 26.4, "procstatus": "0"}
    forced = [
        {"jd": JD, "fid": 1, **good},
        {"jd": JD - 5, "fid": 1, **good},
        {"jd": JD - 6, "fid": 1, **good, "procstatus": "0,61"},
        {"jd": JD - 7, "fid": 1, **good, "forcediffimflux": -99999.0},
        {"jd": JD - 8, "fid": 1, **good, "magzpsci": None},
    ]
    record, report = only(write_alerts(tmp_path / "a", [ztf_alert("Z1", JD) | {"fp_hists": forced}]))
    np.testing.assert_allclose(record.flux, [5000.0, 5000.0], rtol=1e-5)
    np.testing.assert_allclose(record.flux_err, [500.0, 500.0], rtol=1e-5)
    assert record.detected.tolist() == [False, True]
    assert report.dropped_points == {
        "forced photometry with a warning": 1,
        "forced photometry without a flux": 2,
        "another row of the exposure": 1,
    }


@pytest.mark.parametrize("name", ["alerts", "night.tar.gz"])
def test_the_last_alert_or_all_of_them(tmp_path: Path, name: str) -> None:
    def point(day: int) -> dict[str, Any]:
        return {"jd": JD + day, "fid": 1, "magpsf": 20.0, "sigmapsf": 0.1, "isdiffpos": "t"}

    alerts = [
        ztf_alert("Z1", JD + 40, [point(39)]),
        ztf_alert("Z2", JD + 5),
        ztf_alert("Z1", JD, []),
        ztf_alert("Z1", JD + 39, [point(0), point(20)]),
    ]
    path = write_alerts(tmp_path / name, alerts)
    last = {raw.object_id: cleaned(raw)[0] for raw in read_alerts(path, about={"Z2": About("SN")})}
    assert {name: len(record.mjd) for name, record in last.items()} == {"Z1": 2, "Z2": 1}
    assert (last["Z1"].class_name, last["Z2"].class_name) == ("", "SN")
    whole = {raw.object_id: cleaned(raw)[0] for raw in read_alerts(path, keep="all")}
    np.testing.assert_allclose(np.diff(whole["Z1"].mjd), [20, 19, 1], atol=1e-6)


def test_training_and_serving_see_the_same_light_curve() -> None:
    """The packets the service ships, read by both."""
    paths = sorted(SAMPLES.glob("ztf_*.avro"))
    assert paths
    for path in paths:
        (packet,) = read_packet(path.read_bytes())
        assert isinstance(packet, Packet)
        curve = packet.curve
        assert curve is not None
        record, _ = only(path)
        order = np.lexsort((curve.band, curve.mjd))
        np.testing.assert_allclose(record.mjd, curve.mjd[order], rtol=0, atol=1e-8)
        np.testing.assert_allclose(record.flux, curve.flux[order], rtol=1e-6)
        np.testing.assert_allclose(record.flux_err, curve.flux_err[order], rtol=1e-6)
        np.testing.assert_array_equal(record.band, curve.band[order])
        np.testing.assert_array_equal(record.detected, curve.detected[order])


def test_read_alerts_files_that_cannot_be_read_are_counted_and_hide_no_others(tmp_path: Path) -> None:
    folder = tmp_path / "nights"
    folder.mkdir()
    lsst = {"diaSource": {"psfFlux": 1.0}, "prvDiaSources": []}
    lists = [ztf_alert("Z2", JD), {**ztf_alert("", JD)}]
    contents = {
        "a.avro": avro(ztf_alert("Z1", JD)),
        "b.json": json.dumps(lists).encode(),
        "bare": b"\0\1\2\3 some bytes",
        "broken.avro": avro(ztf_alert("Z9", JD))[:-30],
        "cut.tar.gz": gzip.compress(b"x" * 1000)[:-9],
        "lsst.json": json.dumps(lsst).encode(),
        "notes.txt": b"hello",
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    left_out = LeftOut({}, {})
    objects = [raw.object_id for raw in read_alerts(folder, left_out=left_out)]
    assert objects == ["Z1", "Z2"]
    assert left_out.unreadable.keys() == {"b.json[1]", "bare", "broken.avro", "cut.tar.gz", "lsst.json"}
    assert left_out.unreadable["b.json[1]"] == "an alert without objectId"
    assert left_out.unreadable["bare"] == "unknown_envelope: neither an Avro container nor JSON"
    assert left_out.unreadable["lsst.json"] == "an alert of lsst, not of ZTF"
    assert left_out.other.keys() == {"notes.txt"}


def test_read_alerts_damaged_block_leaves_the_alerts_of_other_blocks(tmp_path: Path) -> None:
    blocks = [avro(ztf_alert(f"Z{n}", JD)) for n in range(2)]
    header = containers.read_header(blocks[0])
    damaged = containers.write(header, 1, b"\xff" * 20)[len(containers.write(header, 0, b"")) - 18 :]
    path = tmp_path / "night.avro"
    path.write_bytes(blocks[0] + damaged + blocks[0][header.end :].replace(b"Z0", b"Z2"))
    left_out = LeftOut({}, {})
    assert [raw.object_id for raw in read_alerts(path, left_out=left_out)] == ["Z0", "Z2"]
    assert left_out.unreadable.keys() == {"night.avro"}


def test_a_tar_cut_between_two_members_is_named(tmp_path: Path) -> None:
    """Read forwards, such a file looks like a shorter archive."""
    packed = write_alerts(tmp_path / "night.tar.gz", [ztf_alert(f"Z{n}", JD + n) for n in range(4)])
    whole = tmp_path / "night.tar"
    whole.write_bytes(gzip.decompress(packed.read_bytes()))
    assert len(list(read_alerts(whole))) == 4
    with tarfile.open(whole) as archive:
        third = archive.getmembers()[2].offset
    whole.write_bytes(whole.read_bytes()[:third])
    left_out = LeftOut({}, {})
    assert len(list(read_alerts(whole, left_out=left_out))) == 2
    assert left_out.unreadable == {"night.tar": "the archive has no end: it is cut short"}


def test_damaged_foreign_and_missing_archives_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.avro"
    broken.write_bytes(avro(ztf_alert("Z1", JD))[:-30])
    with pytest.raises(TableError, match=r"broken.avro: truncated_avro"):
        list(read_alerts(broken))
    broken.write_bytes(b"")
    with pytest.raises(TableError, match=r"broken.avro: empty"):
        list(read_alerts(broken))
    tar = tmp_path / "night.tar.gz"
    tar.write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(TableError, match=r"night.tar.gz: "):
        list(read_alerts(tar))
    foreign = {"type": "record", "name": "other", "fields": [{"name": "objectId", "type": "string"}]}
    with broken.open("wb") as file:
        fastavro.writer(file, foreign, [{"objectId": "Z1"}])
    with pytest.raises(TableError, match="unknown_schema"):
        list(read_alerts(broken))
    (tmp_path / "empty").mkdir()
    with pytest.raises(TableError, match="holds no alerts"):
        list(read_alerts(tmp_path / "empty"))
    with pytest.raises(TableError, match="does not exist"):
        list(read_alerts(tmp_path / "nowhere"))
