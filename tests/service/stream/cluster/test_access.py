"""Passwords and certificates on a real Kafka: who is let in works, who is not is told why, at the start and later."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.stream.addresses import AddressError
from support.kafka_brokers import PASSWORD, USER, Brokers, brokers, make_certificate, needs_brokers
from support.kafka_trial import Trial, trial
from support.stream import eventually, running

pytestmark = needs_brokers


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A broker with users and a certificate."""
    with brokers(tmp_path_factory.mktemp("guarded"), secure=True) as cluster:
        yield cluster


def options(listener: str, password: str = PASSWORD, mechanism: str = "SCRAM-SHA-512", **more: str) -> dict[str, str]:
    found = {"security.protocol": listener}
    if listener.startswith("SASL"):
        found |= {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": password}
    return found | {name.replace("_", "."): value for name, value in more.items()}


def addressed(one: Trial, cluster: Brokers, listener: str, **choices: str) -> dict[str, Any]:
    """Settings that reach the cluster by a listener; source and sink with the same properties."""
    properties = "&".join(f"{name}={value}" for name, value in options(listener, **choices).items())
    hosts = cluster.hosts(listener)
    return {
        "source": f"kafka://{hosts}/{one.source}?group={one.group}&{properties}",
        "sink": f"kafka://{hosts}/{one.sink}?{properties}",
        "dead_letters": f"file:{one.folder}/letters/",
    }


@pytest.fixture
def one(guarded: Brokers, tmp_path: Path) -> Iterator[Trial]:
    with trial(guarded.hosts(), tmp_path) as found:
        yield found


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_over_tls(guarded: Brokers, one: Trial, mechanism: str) -> None:
    ca = str(guarded.folder / "broker.pem")
    ends = addressed(one, guarded, "SASL_SSL", mechanism=mechanism, ssl_ca_location=ca)
    one.feed(20)
    with running(one.settings(**ends)) as worker:
        one.all_answered()
        assert worker.stop() == 0


def test_a_wrong_password_ends_the_start_with_a_sentence(guarded: Brokers, one: Trial) -> None:
    ends = addressed(one, guarded, "SASL_PLAINTEXT", password="wrong")
    with one.process(**ends) as worker:
        eventually(lambda: worker.status is not None, 120)
        assert worker.status == 1
        (last,) = (event for event in worker.events() if event["event"] == "the worker cannot start")
    assert "authentication failed" in last["reason"]
    assert "wrong" not in worker.log.read_text()  # no password is ever logged


def test_a_wrong_password_may_be_tried_on(guarded: Brokers, one: Trial) -> None:
    ends = addressed(one, guarded, "SASL_PLAINTEXT", password="wrong")
    with one.process(**ends, keep_trying=True) as worker:
        eventually(lambda: worker.ready, 120)
        eventually(lambda: "authentication failed" in worker.ask("/readyz")[1])
        time.sleep(5)
        assert worker.ask("/healthz")[0] == 200
        lines = [event for event in worker.events() if event["event"] == "Kafka"]
        assert len(lines) <= 8  # one for each kind and end
        assert worker.stop() == 0


def test_a_password_that_is_changed_under_a_worker(guarded: Brokers, one: Trial) -> None:
    """Connections that stand stay; those that follow are refused, and the worker says so."""
    ends = addressed(one, guarded, "SASL_PLAINTEXT")
    one.feed(20)
    change = ("--entity-type", "users", "--entity-name", USER, "--add-config")
    with running(one.settings(**ends)) as worker:
        one.all_answered()
        guarded.configure(*change, "SCRAM-SHA-512=[password=another]")
        try:
            guarded.kill(1)
            guarded.start(1)
            eventually(lambda: "authentication failed" in worker.ask("/readyz")[1], 60)
            assert worker.ask("/healthz")[0] == 200
        finally:
            guarded.configure(*change, f"SCRAM-SHA-512=[password={PASSWORD}]")
        one.feed(20)
        one.all_answered()
        eventually(lambda: worker.ask("/readyz")[0] == 200, 60)
        assert worker.stop() == 0


@pytest.mark.parametrize(
    ("name", "host", "start"), [("elsewhere", "kafka.example.org", "-1d"), ("expired", "127.0.0.1", "-60d")]
)
def test_a_certificate_that_does_not_fit_is_told(tmp_path: Path, name: str, host: str, start: str) -> None:
    cluster = Brokers(tmp_path, secure=True)
    make_certificate(tmp_path, name, host, start)
    (tmp_path / f"{name}.p12").replace(tmp_path / "broker.p12")
    try:
        cluster.start()
        with trial(cluster.hosts(), tmp_path) as one:
            ends = addressed(one, cluster, "SSL", ssl_ca_location=str(tmp_path / f"{name}.pem"))
            worker = running(one.settings(**ends))
            with pytest.raises(AddressError, match="no TLS connection"), worker as started:
                started.join(60)
    finally:
        cluster.close()
