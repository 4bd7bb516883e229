"""Passwords, permissions and certificates of a real Kafka: accepted workers run, rejected ones report the reason."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nightjar_alerts.service.stream.addresses import AddressError
from support.kafka_brokers import PASSWORD, USER, Brokers, brokers, make_certificate, needs_brokers
from support.kafka_trial import Trial, begins_well, ends_well, trial
from support.stream import eventually, running

pytestmark = needs_brokers


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Yield a broker with users and a certificate."""
    with brokers(tmp_path_factory.mktemp("guarded"), secure=True) as cluster:
        yield cluster


def options(listener: str, password: str = PASSWORD, mechanism: str = "SCRAM-SHA-512", **more: str) -> dict[str, str]:
    properties = {"security.protocol": listener}
    if listener.startswith("SASL"):
        properties |= {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": password}
    return properties | {name.replace("_", "."): value for name, value in more.items()}


def addressed(one: Trial, cluster: Brokers, listener: str, **choices: str) -> dict[str, Any]:
    """Return settings for a listener of the cluster; source and sink have the same properties."""
    properties = "&".join(f"{name}={value}" for name, value in options(listener, **choices).items())
    hosts = cluster.hosts(listener)
    return {
        "source": f"kafka://{hosts}/{one.source}?group={one.group}&{properties}",
        "sink": f"kafka://{hosts}/{one.sink}?{properties}",
        "dead_letters": f"file:{one.folder}/letters/",
    }


@pytest.fixture
def one(guarded: Brokers, tmp_path: Path) -> Iterator[Trial]:
    with trial(guarded.hosts(), tmp_path) as guarded_trial:
        yield guarded_trial


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafka_password_over_tls_is_accepted(guarded: Brokers, one: Trial, mechanism: str) -> None:
    ca = str(guarded.folder / "broker.pem")
    ends = addressed(one, guarded, "SASL_SSL", mechanism=mechanism, ssl_ca_location=ca)
    one.feed(20)
    with running(one.settings(**ends)) as worker:
        ends_well(one, worker)


def test_kafka_wrong_password_exits_with_a_message(guarded: Brokers, one: Trial) -> None:
    ends = addressed(one, guarded, "SASL_PLAINTEXT", password="wrong")
    with one.process(**ends) as worker:
        eventually(lambda: worker.status is not None, 120)
        assert worker.status == 1
        (last,) = (event for event in worker.events() if event["event"] == "the worker cannot start")
    assert "authentication failed" in last["reason"]
    assert "wrong" not in worker.log.read_text()  # no password is ever logged


def test_kafka_wrong_password_is_retried_if_configured(guarded: Brokers, one: Trial) -> None:
    ends = addressed(one, guarded, "SASL_PLAINTEXT", password="wrong")
    with one.process(**ends, retry_auth_errors=True) as worker:
        eventually(lambda: worker.ready, 120)
        eventually(lambda: "authentication failed" in worker.ask("/readyz")[1])
        time.sleep(5)
        assert worker.ask("/healthz")[0] == 200
        lines = [event for event in worker.events() if event["event"] == "Kafka"]
        assert len(lines) <= 8  # one for each kind and end
        one.feed(20)
        with password_of(guarded, "wrong"):  # what is wrong becomes right
            ends_well(one, worker)


@contextmanager
def password_of(cluster: Brokers, password: str) -> Iterator[None]:
    """Change the password of the user temporarily."""
    change = ("--entity-type", "users", "--entity-name", USER, "--add-config")
    cluster.configure(*change, f"SCRAM-SHA-512=[password={password}]")
    try:
        yield
    finally:
        cluster.configure(*change, f"SCRAM-SHA-512=[password={PASSWORD}]")


def test_kafka_changed_password_is_reported(guarded: Brokers, one: Trial) -> None:
    """Open connections stay, new ones are rejected, and the worker reports it."""
    ends = addressed(one, guarded, "SASL_PLAINTEXT")
    with running(one.settings(**ends)) as worker:
        begins_well(one, worker)
        with password_of(guarded, "another"):
            guarded.kill(1)
            guarded.start(1)
            eventually(lambda: "authentication failed" in worker.ask("/readyz")[1], 60)
            assert worker.ask("/healthz")[0] == 200
        one.feed(20)
        ends_well(one, worker)


def test_kafka_revoked_permission_is_reported_and_retried(tmp_path: Path) -> None:
    """A worker without permission to read its topic any more retries, and reports it."""
    rights: dict[str, Any] = {
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super_users": "User:ANONYMOUS",  # who comes without a password: the test, and the broker itself
        "allow_everyone_if_no_acl_found": "true",
    }
    with brokers(tmp_path, secure=True, **rights) as cluster, trial(cluster.hosts(), tmp_path) as one:
        rule = ("--bootstrap-server", cluster.hosts(), "--deny-principal", f"User:{USER}", "--topic", one.source)
        acls = partial(cluster.tool, "org.apache.kafka.tools.AclCommand")
        with running(one.settings(**addressed(one, cluster, "SASL_PLAINTEXT"))) as worker:
            begins_well(one, worker)
            acls(*rule, "--add", "--operation", "Read")
            one.feed(20)
            eventually(lambda: "not authorised" in worker.ask("/readyz")[1], 60)
            assert worker.ask("/healthz")[0] == 200
            acls(*rule, "--remove", "--operation", "Read", "--force")
            ends_well(one, worker)


@pytest.mark.parametrize(
    ("name", "host", "start"), [("elsewhere", "kafka.example.org", "-1d"), ("expired", "127.0.0.1", "-60d")]
)
def test_kafka_invalid_certificate_is_reported(tmp_path: Path, name: str, host: str, start: str) -> None:
    """The worker exits with a message, or retries until the broker has another certificate."""
    cluster = Brokers(tmp_path, secure=True)
    make_certificate(tmp_path, name, host, start)
    store, right = tmp_path / "broker.p12", (tmp_path / "broker.p12").read_bytes()
    store.write_bytes((tmp_path / f"{name}.p12").read_bytes())
    trusted = tmp_path / "trusted.pem"
    trusted.write_text("".join((tmp_path / f"{one}.pem").read_text() for one in (name, "broker")))
    try:
        cluster.start()
        with trial(cluster.hosts(), tmp_path) as one:
            ends = addressed(one, cluster, "SSL", ssl_ca_location=str(trusted))
            worker = running(one.settings(**ends))
            with pytest.raises(AddressError, match="no TLS connection"), worker as started:
                started.join(60)
            with one.process(**ends, retry_auth_errors=True) as patient:
                eventually(lambda: patient.ready, 120)
                eventually(lambda: "no TLS connection" in patient.ask("/readyz")[1], 60)
                cluster.kill(1)
                store.write_bytes(right)
                cluster.start(1)
                one.feed(20)
                ends_well(one, patient)
    finally:
        cluster.close()
