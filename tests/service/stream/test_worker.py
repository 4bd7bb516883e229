"""Worker with files as source and sinks: everything that does not need a broker."""

import json
import os
import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from nightjar_alerts.alerts.envelopes import TopicRule
from nightjar_alerts.core.adapter import Adapter, ModelInput
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.service.observe.live import LiveFilter
from nightjar_alerts.service.stream.addresses import AddressError
from nightjar_alerts.service.stream.connectors import check_addresses
from nightjar_alerts.service.stream.dead_letters import dead_letter, describe, restore
from nightjar_alerts.service.stream.files import FileSource, FolderSink
from nightjar_alerts.service.stream.inspection import print_dead_letters
from nightjar_alerts.service.stream.messages import DeadLetterCause, Message
from support import alerts
from support.edge import HOST, Network, wait_until
from support.graphs import poison
from support.stream import alert, chosen, dead_letters, results, running, solar_system_alert


def packets(folder: Path, *data: bytes) -> Path:
    """A folder of packets."""
    place = folder / "alerts"
    place.mkdir(exist_ok=True)
    for number, one in enumerate(data):
        (place / f"{number:04d}.avro").write_bytes(one)
    return place


def test_worker_folder_classifies_each_alert_once(tmp_path: Path) -> None:
    place = packets(tmp_path, *map(alert, range(50)), solar_system_alert(), b"junk", b"")
    with running(chosen(tmp_path, source=f"file:{place}", batch_messages=8)) as worker:
        assert worker.join() == 3
    answers = results(tmp_path)
    assert [one["status"] for one in answers].count("classified") == 50
    assert {one["class_id"] for one in answers if one["status"] == "classified"} != set()
    (abstained,) = [one for one in answers if one["status"] == "abstained"]
    assert (abstained["reason"], abstained["object_id"]) == ("solar_system_object", "77")
    assert len({one["key"] for one in answers}) == 51
    reasons = sorted(one["headers"]["nightjar-dead-reason"] for one in dead_letters(tmp_path))
    assert reasons == ["empty", "unknown_envelope"]
    assert worker.totals() == {
        "in": 53, "classified": 50, "abstained:solar_system_object": 1, "dead:empty": 1, "dead:unknown_envelope": 1,
        "pending": 0,
    }  # fmt: skip


def test_file_names_that_are_not_utf8_are_escaped(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/night\xff"))
    folder.mkdir()
    row = {"midpointMjdTai": 61_000.0, "band": "r", "psfFlux": 9.0, "psfFluxErr": 1.0}
    without_ids = json.dumps({"diaSourcesList": [row]})
    Path(os.fsdecode(os.fsencode(folder) + b"/a\xe9.json")).write_text(without_ids)
    (folder / "bad.avro").write_bytes(b"junk")
    with running(chosen(tmp_path, source=f"file:{tmp_path}/night%FF/")) as worker:
        assert worker.join() == 3
    (answer,) = results(tmp_path)
    assert answer["key"].startswith("night\\udcff/a\\udce9.json#")
    (letter,) = dead_letters(tmp_path)
    assert letter["value"] == b"junk"


def test_item_with_a_long_name_in_nested_archives_can_be_replayed(tmp_path: Path) -> None:
    data = b"junk"
    for level in range(5):
        data = alerts.tar({f"{level}{'é' * 120}.avro": data})
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "night.tar").write_bytes(data)
    with running(chosen(tmp_path, source=f"file:{tmp_path}/in/")) as worker:
        assert worker.join() == 1
    assert worker.totals()["dead:unknown_envelope"] == 1
    (message,) = FileSource(tmp_path / "letters").poll(1, 0.0)
    assert restore(message).topic == "in"


def test_live_view_of_a_worker_has_what_it_classified(tmp_path: Path) -> None:
    place = packets(tmp_path, *map(alert, range(5)), solar_system_alert(), b"junk")
    with running(chosen(tmp_path, source=f"file:{place}", live_key="ab" * 32)) as worker:
        assert worker.join() == 3
        view = worker.worker.live
    assert view is not None
    shown = view.feed.since(0, LiveFilter(), 1.0)["results"]
    published = [one for one in results(tmp_path) if one["status"] == "classified"]
    assert sorted(each["object_id"] for each in shown) == sorted(one["object_id"] for one in published)
    assert view.feed.count == 5


def test_json_list_in_a_message_counts_each_of_its_alerts(tmp_path: Path) -> None:
    list_of_three = f"[{alerts.plain_json(alerts.lsst_alert())}, {{}}, {alerts.plain_json(alerts.ztf_alert())}]"
    record = dead_letter(Message("lists", "7", list_of_three.encode()), DeadLetterCause("decode", "test"), "model")
    FolderSink(tmp_path / "in").publish([record])
    with running(chosen(tmp_path, source=f"file:{tmp_path}/in/"), replay=True) as worker:
        assert worker.join() == 3
    assert worker.totals() == {"in": 3, "classified": 2, "dead:unknown_schema": 1, "pending": 0}
    (letter,) = dead_letters(tmp_path)
    assert letter["value"] == list_of_three.encode()


def test_worker_several_alerts_of_one_object_get_separate_results(tmp_path: Path) -> None:
    same = [alerts.confluent(1000, history(points)) for points in (2, 4, 6)]
    with running(chosen(tmp_path, source=f"file:{packets(tmp_path, *same)}")) as worker:
        assert worker.join() == 0
    points_by_alert = {one["alert_id"]: sum(one["points_per_band"].values()) for one in results(tmp_path)}
    assert points_by_alert == {"1002": 2, "1004": 4, "1006": 6}
    assert {one["object_id"] for one in results(tmp_path)} == {"170028485706776685"}


def history(points: int) -> dict[str, object]:
    record = alerts.lsst_alert("lsst/10.0", points)
    record["diaSource"]["diaSourceId"] = 1000 + points
    return record | {"diaSourceId": 1000 + points}


def test_worker_container_counts_every_alert(tmp_path: Path) -> None:
    records = [alerts.ztf_alert() | {"candid": number} for number in (1, 2, 3)]
    good, cut = alerts.container("ztf/4.02", records), alerts.container("ztf/4.02", records, sync_interval=1)[:-5]
    with running(chosen(tmp_path, source=f"file:{packets(tmp_path, good, cut)}")) as worker:
        assert worker.join() == 3
    totals = worker.totals()
    assert (totals["in"], totals["classified"], totals["dead:truncated_avro"]) == (6, 5, 1)


def test_worker_light_curve_that_fails_the_network_affects_only_itself(tmp_path: Path) -> None:
    network = Network()
    network.on_marker[7.0] = poison
    with running(chosen(tmp_path, source=f"file:{packets(tmp_path, *map(alert, range(20)))}"), network) as worker:
        assert worker.join() == 3
    assert len(results(tmp_path)) == 19
    (dead,) = dead_letters(tmp_path)
    assert dead["headers"]["nightjar-dead-stage"] == "classify"
    assert dead["headers"]["nightjar-dead-reason"] == "inference_failed"
    assert dead["headers"]["nightjar-dead-model"].startswith("echo@")
    assert dead["value"] == alert(7)


def test_worker_alert_that_fails_the_data_plane_affects_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = Adapter.prepare

    def broken(self: Adapter, item: LightCurve) -> ModelInput:
        if item.object_id == "507":
            raise RuntimeError("a bug")
        return prepare(self, item)

    monkeypatch.setattr(Adapter, "prepare", broken)
    with running(chosen(tmp_path, source=f"file:{packets(tmp_path, *map(alert, range(20)))}")) as worker:
        assert worker.join() == 3
    assert len(results(tmp_path)) == 19
    (dead,) = dead_letters(tmp_path)
    assert dead["headers"]["nightjar-dead-reason"] == "internal_error"
    assert dead["value"] == alert(7)


def test_replay_of_dead_letters_removes_them(tmp_path: Path) -> None:
    network = Network()
    network.on_marker = {3.0: poison, 5.0: poison}
    source = f"file:{packets(tmp_path, *map(alert, range(8)))}"
    with running(chosen(tmp_path, source=source), network) as worker:
        assert worker.join() == 3
    assert len(dead_letters(tmp_path)) == 2
    again = chosen(tmp_path, source=f"file:{tmp_path}/letters/")
    mended = Network()
    mended.on_marker = {5.0: poison}  # one is still broken: its dead letter is written anew and stays
    with running(again, mended, replay=True) as worker:
        assert worker.join() == 3
    assert [one["value"] for one in dead_letters(tmp_path)] == [alert(5)]
    with running(again, replay=True) as worker:
        assert worker.join() == 0
    assert dead_letters(tmp_path) == []
    keys = [one["key"] for one in results(tmp_path)]
    assert sorted(keys) == sorted({f"alerts/{10_000 + number}/echo-0.0.1" for number in range(8)})


def test_dead_letters_command_prints_stage_and_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = f"file:{packets(tmp_path, alert(1), b'junk', b'')}"
    with running(chosen(tmp_path, source=source)) as worker:
        assert worker.join() == 3
    before = dead_letters(tmp_path)
    (tmp_path / "letters" / "x.record.json").write_text("{")
    assert print_dead_letters(f"file:{tmp_path}/letters/") == 3
    text = capsys.readouterr().out
    assert "stage      decode" in text
    assert "reason     unknown_envelope" in text
    assert "alerts 0001.avro#1" in text
    assert "1 decode empty" in text
    assert "not read: x.record.json" in text
    (tmp_path / "letters" / "x.record.json").unlink()
    assert dead_letters(tmp_path) == before


def test_dead_letters_command_escapes_control_characters() -> None:
    letter = dead_letter(Message("a\x1b[31m", "0:1", b"x"), DeadLetterCause("decode", "empty", "line\nline"), "echo@1")
    text = describe(Message("dead", "0:2", letter.value, headers=letter.headers))
    assert "\x1b" not in text
    assert "line\\nline" in text
    assert "not a dead letter" in describe(Message("dead", "0:3", b""))


def test_dead_letters_command_of_an_empty_folder_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_dead_letters(f"file:{tmp_path}") == 0
    assert capsys.readouterr().out == f"no dead letters in file:{tmp_path}\n"


def test_worker_probes_report_its_state(tmp_path: Path) -> None:
    network = Network()
    network.hold()
    settings = chosen(tmp_path, source=f"file:{packets(tmp_path, *map(alert, range(5)))}")
    with running(settings, network) as worker:
        wait_until(lambda: worker.worker.probes is not None and worker.ask("/readyz")[0] == 200)
        assert worker.ask("/healthz") == (200, "ok\n")
        wait_until(lambda: worker.metric("nightjar_stream_in_total", topic="alerts") == 5)
        assert "nightjar_stream_inflight_messages 5.0" in worker.ask("/metrics")[1]
        assert worker.ask("/secrets")[0] == 404
        network.release()
        assert worker.join() == 0
    assert worker.metric("nightjar_stream_out_total", topic="alerts", ending="classified", reason="") == 5


def test_worker_stop_gives_unfinished_messages_back(tmp_path: Path) -> None:
    network = Network()
    network.hold()
    settings = chosen(tmp_path, source=f"file:{packets(tmp_path, *map(alert, range(5)))}", drain_timeout=0)
    with running(settings, network) as worker:
        wait_until(lambda: worker.metric("nightjar_stream_in_total", topic="alerts") == 5)
        assert worker.stop() == 0
    assert worker.totals() == {"in": 5, "returned": 5, "pending": 0}


def test_worker_memory_is_bounded_by_messages_in_flight(tmp_path: Path) -> None:
    network = Network()
    network.hold()
    place = packets(tmp_path, *map(alert, range(60)))
    settings = chosen(tmp_path, source=f"file:{place}", batch_messages=10, max_inflight_messages=20)
    with running(settings, network) as worker:
        wait_until(lambda: worker.metric("nightjar_stream_in_total", topic="alerts") == 20)
        assert worker.metric("nightjar_stream_inflight_messages") == 20
        network.release()
        assert worker.join() == 0
    assert worker.totals()["classified"] == 60


@pytest.mark.parametrize(("first", "then"), [(1_800_000_000_000, 1), (1, 4_000_000_000_000)])
def test_worker_clock_jump_does_not_change_the_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, then: int
) -> None:
    clock = iter([first, *[then] * 1000])
    monkeypatch.setattr("nightjar_alerts.service.stream.pipeline.now_ms", lambda: next(clock))
    place = packets(tmp_path, *map(alert, range(20)))
    with running(chosen(tmp_path, source=f"file:{place}", batch_messages=5)) as worker:
        assert worker.join() == 0
    assert worker.totals() == {"in": 20, "classified": 20, "pending": 0}


def test_worker_on_folder_with_a_damaged_archive_reads_all_others(tmp_path: Path) -> None:
    place = packets(tmp_path, *map(alert, range(4)))
    (place / "0002.tar.gz").write_bytes(b"\x1f\x8bno archive")
    (place / "notes.txt").write_text("hello")
    with capture_logs() as logs, running(chosen(tmp_path, source=f"file:{place}")) as worker:
        assert worker.join() == 3
    assert worker.totals() == {"in": 4, "classified": 4, "pending": 0}
    (account,) = [line for line in logs if line["event"] == "final account"]
    assert list(account["unreadable"]) == ["0002.tar.gz"]
    assert account["not_alerts"] == ["notes.txt"]


def test_worker_on_folder_without_alerts_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "notes.txt").write_text("hello")
    with running(chosen(tmp_path, source=f"file:{tmp_path / 'in'}")) as worker:
        assert worker.join() == 1


def test_worker_invalid_dead_letter_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "odd.record.json").write_text('{"headers": 1}')
    with capture_logs() as logs, running(chosen(tmp_path, source=f"file:{tmp_path}"), replay=True) as worker:
        assert worker.join() == 1
    (unread,) = [line for line in logs if line["event"] == "file cannot be read"]
    assert (unread["file"], unread["reason"][:17]) == ("odd.record.json", "not a dead letter")


def test_worker_topic_rule_has_precedence(tmp_path: Path) -> None:
    place = packets(tmp_path, alerts.bare("elasticc/0.9.1", alerts.elasticc_alert()))
    rule = TopicRule.model_validate({"envelope": "container"})
    with running(chosen(tmp_path, source=f"file:{place}", topics={"al*": rule})) as worker:
        assert worker.join() == 1
    assert worker.totals() == {"in": 1, "dead:unknown_envelope": 1, "pending": 0}


@pytest.mark.parametrize(
    "changes", [{"source": ""}, {"source": "file:/no/such/place"}, {"source": "amqp://host/topic"}]
)
def test_worker_without_a_source_does_not_start(tmp_path: Path, changes: dict[str, str]) -> None:
    worker = running(chosen(tmp_path, **changes))
    with pytest.raises(AddressError), worker as started:
        started.join()


@pytest.mark.parametrize("changes", [{"source": "file:/no/such/place"}, {"sink": ""}, {"dead_letters": "nowhere"}])
def test_worker_invalid_addresses_are_reported_before_models_are_loaded(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    settings = chosen(tmp_path, **({"source": f"file:{tmp_path}"} | changes))
    with pytest.raises(AddressError):
        check_addresses(settings)


def test_worker_port_in_use_is_reported(tmp_path: Path) -> None:
    place = packets(tmp_path, alert(1))
    with socket.create_server((HOST, 0)) as taken:
        settings = chosen(tmp_path, source=f"file:{place}", worker_port=taken.getsockname()[1])
        with pytest.raises(AddressError, match=r"NIGHTJAR_WORKER_PORT.*in use"), running(settings) as worker:
            worker.join()


def test_sinks_write_results_atomically(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"key": "before"}\n{"key": "cut sho')
    with running(chosen(tmp_path, source=f"file:{packets(tmp_path, alert(1))}")) as worker:
        assert worker.join() == 0
    assert [json.loads(line)["key"] for line in (tmp_path / "results.jsonl").read_text().splitlines()] == [
        "before",
        "alerts/10001/echo-0.0.1",
    ]
